"""Slices and JobSets as release_slice observes them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.settings import Settings
from shared.slices.provider import Owner, Slice, SliceState
from tests.support import jobset_objects as objects
from tests.support.builders import NOW
from tests.support.jobset_objects import JOB, with_condition

NAME = "train-bfcf5ebea76efcf5"
SLICE = Slice(NAME, Owner("default", "train", JOB), "hash", SliceState.READY)
WITH_DEADLINE = replace(SLICE, release_after=NOW + timedelta(seconds=1))
DUE = replace(SLICE, release_after=NOW)
LOST = replace(
    SLICE, state=SliceState.FAILED, message="Preempted: gone", since=NOW - timedelta(minutes=30)
)
DEGRADED = replace(LOST, has_ready_nodes=True)
SETTINGS = Settings("p", "", frozenset(), Kubeconfig(""), "", timedelta(minutes=15))
REBUILDS = replace(SETTINGS, lost_rebuild=timedelta(minutes=30))
RUNNING = objects.jobset()
COMPLETED = objects.jobset(**with_condition("Completed"))
