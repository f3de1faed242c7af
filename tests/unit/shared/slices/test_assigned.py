"""Which slice of its owner a Pod of a Deployment gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.slices.assigned import assign_unit
from shared.slices.assignment import PodView
from shared.slices.kinds.kind import Found
from shared.slices.units import Need, Unit, UnitState

OWNER = Unit("Deployment", "ns", "serve", "")


@pytest.mark.parametrize("uids, need", [(["a"], Need.NEEDED), (["b"], Need.NOT_NEEDED)])
def test_a_pod_that_waits_no_longer_needs_no_slice(uids: list[str], need: Need) -> None:
    cluster: Any = SimpleNamespace()
    provider: Any = SimpleNamespace(list_by_owner=lambda *_: [])
    leader: Any = SimpleNamespace(kind=None, demand=SimpleNamespace(uid="a"))
    pods = tuple(PodView("2026-11-20T10:00:00Z", uid) for uid in uids)
    found = assign_unit(
        cluster, provider, leader, Found(OWNER, UnitState(Need.NEEDED), 1, "", pods)
    )
    assert (found.state.need, found.unit.member) == (need, "0")
