"""The chart's check before an uninstallation: which slices prevent it."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.base.web import serve
from relay.uninstall import find_slices
from tests.unit.relay.objects import foreign_node, group
from tests.unit.relay.scripted_api import GROUPS, NODES, ScriptedApi, write_kubeconfig


@pytest.mark.parametrize(
    "kinds, found",
    [
        (["TPUNodeGroup"], ["TPUNodeGroup default/train"]),
        (["TPUNodeGroup", "Node"], ["TPUNodeGroup default/train", "Node a"]),
        ([], ["TPUNodeGroup default/train", "Node a"]),  # an earlier chart names none
    ],
    ids=["node-groups", "node-pools", "none-named"],
)
async def test_only_slices_of_the_named_kinds_prevent_an_uninstallation(
    tmp_path: Path, kinds: list[str], found: list[str]
) -> None:
    api = ScriptedApi()
    api.put(GROUPS, group())
    api.put(NODES, foreign_node("a"))
    runner, port = await serve(api)
    try:
        path = write_kubeconfig(tmp_path / "kubeconfig", port)
        assert await find_slices(str(path), kinds) == found
    finally:
        await runner.cleanup()
