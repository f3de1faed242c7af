# ruff: noqa: E501  (a table reads best with a row on a line)
"""Each step reads a TPUNodeGroup with status and metadata of any shape, and decides."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functions import create_resources, inject_token, label_node, sweep, tear_down
from functions.create_resources.observe import ObservedResources, ObservedUnreadable
from functions.inject_token.observe import NothingToInject, ObservedVms
from functions.sweep.observe import ObservedGroups
from functions.tear_down.observe import ObservedRemains, UnreadableRemains
from shared.base.reasons import Reason
from shared.base.timestamps import LONG_AGO
from shared.frame.plan import Plan
from shared.node_groups import node_group, readiness, status
from shared.node_groups.events import changes
from shared.node_groups.node_group import AnyGroup, NodeGroup
from shared.node_groups.resources import Found
from shared.node_groups.status import (
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Counts,
    Pending,
    Resource,
    ResourceError,
    Retry,
    State,
    Status,
    Type,
)
from shared.node_groups.work import WriteStatus
from tests.support.builders import CLUSTER, NOW, RESOURCE, SETTINGS, raw_group
from tests.support.compute import instance_group, policy, template
from tests.unit.functions.create_resources.objects import ADDED, RESYNC
from tests.unit.functions.label_node.objects import A, B, node, on_resync, vm

EARLIER = NOW - timedelta(minutes=10)
FULL = status.render(
    Status(
        observed_generation=1,
        completed_at=EARLIER,
        machine_type="tpu7x-standard-4t",
        provisioning_model="SPOT",
        conditions={kind: Condition("False", "Refused", "no", EARLIER, 1) for kind in Type},
        resources={
            kind: Resource(
                RESOURCE,
                State.FAILED,
                EARLIER,
                "projects/p/x",
                "operation-1",
                ResourceError(Reason.REFUSED, "quota", "none left", EARLIER),
            )
            for kind in (POLICY, TEMPLATE, MIG)
        },
        counts=Counts(2, 2, 1, 1, 1),
        pending=(Pending(B, Reason.NODE_LOST, EARLIER),),
        retries=(Retry("label_node", "503", EARLIER),),
    )
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(
        [*State, *Type, "True", "Later", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", A, B]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "type", "state", "since", "error", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a document."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*path, index))


def put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set the value at a path, unless an earlier change has removed the path."""
    holder = document
    try:
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = value
    except (KeyError, IndexError, TypeError):
        return


def mutated(document: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for the document with some of its values replaced."""

    def mutate(many: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
        copied = copy.deepcopy(document)
        for path, value in many:
            put(copied, path, value)
        return copied

    change = st.tuples(st.sampled_from(list(paths(document))), JSON)
    return st.lists(change, min_size=1, max_size=5).map(mutate)


LATER_VERSION = copy.deepcopy(FULL)
LATER_VERSION["resources"][MIG]["state"] = "Resizing"
LATER_VERSION["resources"][MIG]["error"]["reason"] = "UnknownReason"
LATER_VERSION["resources"]["network"] = {"name": "x", "state": "Ready"}
LATER_VERSION["conditions"].append({**FULL["conditions"][0], "type": "NetworkReady"})
LATER_VERSION["pending"][0]["why"] = "Overheated"
FAR = copy.deepcopy(FULL)
FAR["maxRunSeconds"] = 10**18
FAR["conditions"] = [{**one, "status": "True"} for one in FULL["conditions"]]
FAR["pending"] = [{"name": B, "why": "NodeNotReady", "since": "9999-12-31T23:59:59Z"}]
STATUSES = mutated(FULL) | JSON
METADATA = raw_group(labels={"a": "b"}, annotations={"tpu-functions.dev/paused": "true"})[
    "metadata"
]
MUTABLE_FIELDS = ("labels", "annotations", "finalizers", "generation", "deletionTimestamp")


def plans(group: AnyGroup, known: Status) -> Iterator[Plan]:
    """Yield the plan of each step for a group, for several observations."""
    absent: dict[str, Found | None] = {POLICY: None, TEMPLATE: None, MIG: None}
    present: dict[str, Found | None] = {
        POLICY: policy(),
        TEMPLATE: template(),
        MIG: instance_group(creating=1),
    }
    if not isinstance(group, NodeGroup):
        yield create_resources.decide.decide(ObservedUnreadable(group, known), NOW)
        yield tear_down.decide.decide(UnreadableRemains(group, known), NOW)
        yield inject_token.decide.decide(
            NothingToInject(group, known, RESYNC, can_be_served=False), NOW
        )
        yield label_node.decide.decide(
            label_node.observe.NothingToCount(group, known, can_be_served=False), NOW
        )
        return
    nothing: dict[str, Found | None] = {}
    for found in (nothing, absent, present):
        for trigger in (ADDED, RESYNC):
            observed = ObservedResources(group, known, trigger, SETTINGS.projects, found=found)
            yield create_resources.decide.decide(observed, NOW)
        yield tear_down.decide.decide(ObservedRemains(group, known, found=found), NOW)
    if group.spec.bootstrap is None:
        yield inject_token.decide.decide(NothingToInject(group, known, RESYNC), NOW)
    else:
        yield inject_token.decide.decide(
            ObservedVms(group, group.spec.bootstrap, known, RESYNC), NOW
        )
    for nodes, instances in (((), {}), ((node(), node(B)), {A: vm(), B: None})):
        yield label_node.decide.decide(
            on_resync(*nodes, known=known, about=group, instances=instances), NOW
        )


def check(raw: dict[str, Any]) -> None:
    """Let each step decide, and check that a status that it writes is parsed without a change."""
    group = node_group.parse(raw, CLUSTER)
    known = status.parse(raw.get("status"))
    for plan in plans(group, known):
        for action in plan.list_actions():
            action.describe()
            if isinstance(action, WriteStatus):
                written = status.render(action.status)
                assert status.render(status.parse(written)) == written
                list(changes(group, known, action.status))
    list(changes(group, Status(), readiness.conclude(group, known, NOW)))
    swept = sweep.decide.decide(ObservedGroups((group,), NOW), NOW)
    assert "skipped" not in swept.facts


@settings(max_examples=150)
@given(raw=STATUSES)
@example(raw=LATER_VERSION)
@example(raw=FAR)
@pytest.mark.parametrize("deleting", [False, True], ids=["active", "deleting"])
def test_a_status_of_any_shape_stops_no_step(deleting: bool, raw: Any) -> None:
    check({**raw_group(deleting=deleting), "status": raw})


@settings(max_examples=150)
@given(raw=mutated({"spec": raw_group()["spec"]}))
@pytest.mark.parametrize("deleting", [False, True], ids=["active", "deleting"])
def test_a_spec_of_any_shape_stops_no_step(deleting: bool, raw: Any) -> None:
    check({**raw_group(deleting=deleting), **raw, "status": FULL})


@settings(max_examples=100)
@given(raw=mutated({key: METADATA.get(key, {}) for key in MUTABLE_FIELDS}))
def test_labels_annotations_and_finalizers_of_any_shape_stop_no_step(raw: Any) -> None:
    check({**raw_group(), "metadata": {**METADATA, **raw}, "status": FULL})


def test_unknown_values_of_a_later_version_are_ignored_or_read_as_creating() -> None:
    known = status.parse(LATER_VERSION)
    assert known.resources[MIG].state is State.CREATING
    assert set(known.resources) == {POLICY, TEMPLATE, MIG}
    assert set(known.conditions) == set(Type)


@pytest.mark.parametrize(
    "raw, read",
    [
        pytest.param({"completedAt": 5}, Status(completed_at=LONG_AGO), id="completedAt is a number"),
        pytest.param({"nodeSummary": {"ready": "2"}}, Status(), id="a number as text"),
        pytest.param({"pending": [{"name": "a"}, 7]}, Status(), id="entries without a reason"),
        pytest.param({"conditions": [{"type": "Ready", "status": "Perhaps", "reason": "x"}]}, Status(), id="a condition with an invalid status"),
        pytest.param(
            {"resources": {MIG: {"name": "n", "state": 3}}},
            replace(Status(), resources={MIG: Resource("n", State.CREATING)}),
            id="a state that is not text",
        ),
        pytest.param({"resources": {MIG: {"name": "n"}}}, replace(Status(), resources={MIG: Resource("n", State.CREATING)}), id="no state"),
    ],
)  # fmt: skip
def test_a_status_field_of_a_wrong_type_is_read_as_its_default(
    raw: dict[str, Any], read: Status
) -> None:
    assert status.parse(raw) == read
