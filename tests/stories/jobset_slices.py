"""JobSets whose slices are TPUNodeGroups."""

from __future__ import annotations

from typing import Any

from local.cloud.simulation import Options
from shared.settings import TPU_NODE_GROUP
from tests.stories.jobsets import (
    NAME,
    apply,
    apply_options,
    are_running,
    until,
)
from tests.support import jobset_objects as objects
from tests.support.harness import Harness
from tests.support.jobset_objects import NAMESPACE


def new_harness(settings: dict[str, Any] | None = None, options: Options | None = None) -> Harness:
    """A simulation in which JobSets get slices."""
    slices = {"slice_provider": TPU_NODE_GROUP, **(settings or {})}
    harness = Harness(options, slices=slices)
    apply_options(harness)
    return harness


def post(harness: Harness, **change: Any) -> None:
    apply(harness, objects.jobset(**change))


def until_running(harness: Harness) -> None:
    until(harness, lambda: are_running(harness))


def selecting(**labels: str) -> dict[str, Any]:
    """A change that adds node selectors to the JobSet's Pods."""
    one = objects.jobset()["spec"]["replicatedJobs"][0]
    one["template"]["spec"]["template"]["spec"]["nodeSelector"] |= labels
    return {"spec": {"replicatedJobs": [one]}}


def marks(harness: Harness) -> dict[str, str]:
    group = harness.group(NAME, NAMESPACE)
    assert group is not None
    found: dict[str, str] = group["metadata"]["annotations"]
    return found
