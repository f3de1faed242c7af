"""The functions with ordinary imports of the client libraries, for comparison in `make bench`."""

from __future__ import annotations

import sys
from pathlib import Path

from google.cloud import compute_v1, pubsub_v1  # noqa: F401
from kubernetes import client, config  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1]))

from main import *  # noqa: F403
