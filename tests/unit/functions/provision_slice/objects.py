"""Pods and slices as provision_slice observes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shared.slices.kinds import Leader, find_leader
from shared.slices.provider import DesiredSlice, Slice, SliceState
from shared.slices.units import Unit
from tests.support import jobset_objects as objects
from tests.support.jobset_objects import JOB

OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
OWNER = Unit("JobSet", "default", "train", JOB)
DESIRED = DesiredSlice(
    "train-bfcf5ebea76efcf5", OWNER, "hash", "4 hosts of ct6e-standard-4t (4x4)", {}, chips=16
)
READY = Slice(DESIRED.name, OWNER, "hash", SliceState.READY)
PROVISIONING = replace(READY, state=SliceState.PROVISIONING)
SELF_HEALING = replace(
    READY, state=SliceState.FAILED, message="InsufficientCapacity: no v6e", is_self_healing=True
)
ANOTHER = replace(READY, hash="other")


def leader(**change: Any) -> Leader:
    found = find_leader(objects.waiting_pod(**change))
    assert found is not None
    return found
