"""The work on a group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shared.node_groups.work import find_group
from shared.triggers.message import Cause, Message
from shared.triggers.trigger import ObjectTrigger
from tests.support.builders import NOW, group, raw_group


def test_a_group_is_named_by_the_cluster_from_which_it_was_read() -> None:
    """The read is rejected with a 401, repeated, and answered by a new cluster at the same address."""
    ids = ["former"]

    def read(_namespace: str, _name: str) -> Any:
        ids.append(group().cluster)
        return raw_group()

    cluster = SimpleNamespace(get_cluster_id=lambda: ids[-1], find_group=read)
    trigger = ObjectTrigger(Message("default", "my-slice", "", Cause.RESYNC, NOW))
    invocation: Any = SimpleNamespace(cluster=cluster, trigger=trigger, facts={})
    assert find_group(invocation).resource_name == group().resource_name
