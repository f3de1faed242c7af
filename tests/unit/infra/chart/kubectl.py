"""kubectl, which renders the manifests."""

from __future__ import annotations

import os
import shutil

from local.control_plane.binaries import find
from shared.triggers.routes import STEPS

USERS = [step.replace("_", "-") for step in STEPS]


def find_kubectl() -> str | None:
    """Return the control plane's own kubectl, or the one on PATH."""
    binaries = find(os.environ)
    return binaries.path("kubectl") if binaries is not None else shutil.which("kubectl")


KUBECTL = find_kubectl()
