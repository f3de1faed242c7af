"""The functions with ordinary imports of the client libraries, for comparison in `make bench`."""

from __future__ import annotations

import sys
from pathlib import Path

from google.cloud import compute_v1, pubsub_v1
from kubernetes import client, config

sys.path.insert(0, str(Path(__file__).parents[1]))

from main import (
    approve_join,
    create_resources,
    inject_token,
    label_node,
    report_leaks,
    sweep,
    tear_down,
)

__all__ = [
    "approve_join",
    "client",
    "compute_v1",
    "config",
    "create_resources",
    "inject_token",
    "label_node",
    "pubsub_v1",
    "report_leaks",
    "sweep",
    "tear_down",
]
