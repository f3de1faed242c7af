"""The rows of data/topology.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "data" / "topology.yaml"
TOPOLOGY: dict[str, Any] = yaml.safe_load(DATA.read_text())
