"""TPUNodeGroups as the provider reads them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from shared.slices.by_node_group.provider import (
    read_slice,
)
from shared.slices.provider import Slice
from tests.support.builders import NOW, merge
from tests.support.jobset_objects import options, waiting_pod
from tests.support.slices import asked, build_group

SINCE = "2026-11-20T09:30:00Z"


def group(**change: Any) -> dict[str, Any]:
    """Return the group of the JobSet's Job as the API server returns it."""
    read = {"metadata": {"uid": "u", "resourceVersion": "5", "creationTimestamp": SINCE}}
    manifest: dict[str, Any] = merge(
        merge(build_group(*asked(waiting_pod()), options()).body, read), change
    )
    return manifest


def read(change: dict[str, Any], now: datetime = NOW) -> Slice:
    found = read_slice(group(**change), now)
    assert found is not None
    return found
