# ruff: noqa: E501  (a table reads best with a row on a line)
"""TPUSliceClasses: how they are read, and which one a Pod gets."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shared.base.names import ACCELERATOR_LABEL
from shared.slices.classes import (
    CLASS_ANNOTATION,
    COMPUTE_CLASS,
    TEMPLATE_ANNOTATION,
    Place,
    Refusal,
    Shape,
    SliceClass,
    find_class,
    parse,
)
from shared.slices.units import Demand, InputError, read_demand
from tests.support.builders import NOW
from tests.support.class_specs import NODE_POOL, TEMPLATE, slice_class

MINUTE = timedelta(minutes=1)
REFUSED = Refusal(
    Place("us-east5-b", "SPOT").key,
    Shape("ct6e-standard-4t", "4x4"),
    *("InsufficientCapacity", "no capacity"),
    *(NOW, NOW + 5 * MINUTE),
)
ZONED = {"candidates": None, "template": {"spec": {"nodeLocation": "z-a"}}}


def test_a_refusal_is_read_as_it_was_written() -> None:
    claimed = replace(REFUSED, asked_by="default/a")
    written = [one.render() for one in (REFUSED, claimed)]
    status = {"refusals": [*written, {}, "odd", {**written[0], "until": "soon"}]}
    assert parse({**slice_class(), "status": status}).refusals == (REFUSED, claimed)


READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the defaults": ({}, {"give_up_after": 2 * MINUTE, "namespaces": None, "slices": None, "chips": None, "is_default": False, "accelerator": "", "error": ""}),
    "seconds": ({"giveUpAfter": "30s"}, {"give_up_after": MINUTE / 2}),
    "minutes": ({"giveUpAfter": "60m"}, {"give_up_after": 60 * MINUTE}),
    "an odd time": ({"giveUpAfter": "soon"}, {"give_up_after": 2 * MINUTE}),
    "limits": ({"limits": {"slices": 0, "chips": 8}}, {"slices": 0, "chips": 8}),
    "namespaces": ({"allowedNamespaces": ["a", "b"]}, {"namespaces": frozenset("ab")}),
    "no namespace": ({"allowedNamespaces": []}, {"namespaces": frozenset()}),
    "a default": ({"isDefault": True}, {"is_default": True}),
    "the candidates": ({}, {"candidates": (
        Place("us-east5-b", project="my-project"),
        Place("us-east5-a", "RESERVATION_BOUND", "res-1", "my-project"),
        Place("us-east5-b", "SPOT", project="my-project"),
        Place("us-east5-b", "FLEX_START", project="my-project"),
    )}),
    "of another project": ({"candidates": [{"zone": "z-a", "project": "p"}]}, {"candidates": (Place("z-a", project="p"),)}),
    "the project of the template, named": ({"candidates": [{"zone": "z-a", "project": "my-project"}, {"zone": "z-a"}]}, {"candidates": (Place("z-a", project="my-project"),)}),
    "the template's": (ZONED, {"candidates": (Place("z-a", project="my-project"),)}),
    "its reservation": ({"candidates": None, "template": {"spec": {"nodeLocation": "z-a", "instanceConfig": {"reservation": "r"}}}}, {"candidates": (Place("z-a", "RESERVATION_BOUND", "r", "my-project"),)}),
    "the node pool's": ({"template": None, "candidates": None, "nodePool": {**NODE_POOL, "zone": "z-a"}}, {"candidates": (Place("z-a"),), "template": None}),
    "nothing": ({"template": None}, {"error": "spec must have one of template and nodePool"}),
    "both": ({"nodePool": NODE_POOL}, {"error": "spec must have one of template and nodePool"}),
    "no zone": ({"candidates": [{"zone": "z-a"}, {}]}, {"error": "each of spec.candidates must have a zone"}),
    "no zone of the template": ({"candidates": None}, {"error": "each of spec.candidates must have a zone"}),
}  # fmt: skip


@pytest.mark.parametrize("change, read", READ.values(), ids=READ)
def test_a_class_is_read(change: dict[str, Any], read: dict[str, Any]) -> None:
    found = parse(slice_class(**change))
    assert {name: getattr(found, name) for name in read} == read


def test_a_class_is_as_old_as_its_object() -> None:
    metadata = {"name": "a", "creationTimestamp": "2026-11-20T09:00:00Z"}
    assert parse({**slice_class(), "metadata": metadata}).created == NOW - 60 * MINUTE
    assert parse(slice_class()).created < NOW - timedelta(days=365)


def test_two_places_are_equal_if_one_refusal_concerns_both() -> None:
    (*_, flex) = parse(slice_class()).candidates
    assert flex.max_run == "7d"
    assert flex == replace(flex, max_run="1d", subnetwork="tpu") != replace(flex, project="p")
    assert flex.key == "my-project:us-east5-b/FLEX_START"
    assert Place("z-a", "RESERVATION_BOUND", "r").key == "z-a/RESERVATION_BOUND/r"


@pytest.mark.parametrize(
    "raw", [{}, {"spec": 1, "status": []}, {"spec": {"candidates": {}, "allowedNamespaces": [{}]}}]
)
def test_no_object_prevents_that_others_are_read(raw: dict[str, Any]) -> None:
    assert parse(raw).error


def named(name: str, age: int = 0, **fields: Any) -> SliceClass:
    return replace(parse(slice_class(name)), created=NOW - age * MINUTE, **fields)


POOLS: dict[str, Any] = {"template": None, "node_pool": NODE_POOL}
CLASSES = {
    "plain": named("plain"),
    "older": named("older", 2, is_default=True),
    "newer": named("newer", 1, is_default=True),
    "v5e": named("v5e", is_default=True, accelerator="tpu-v5-lite-podslice"),
    "theirs": named("theirs", is_default=True, namespaces=frozenset({"theirs"})),
    "pools": named("pools", 5, is_default=True, **POOLS),
    "broken": named("broken", is_default=True, error="each of spec.candidates must have a zone"),
}
LEGACY = {
    name: SliceClass(f"the key template{name}", is_legacy=True, template=TEMPLATE)
    for name in ("", ".a")
}
Row = tuple[dict[str, str], dict[str, str], str]
NONE = f"the Pod names no TPUSliceClass by the annotation {CLASS_ANNOTATION}, and no default one serves its namespace and accelerator"
NO_COMPUTE_CLASS = f"the Pod's nodeSelector {COMPUTE_CLASS} wakes the autoscaler of GKE: it must be taken out, and the TPUSliceClass be named by the annotation {CLASS_ANNOTATION}"
FOUND: dict[str, Row] = {
    "by the annotation": ({CLASS_ANNOTATION: "plain"}, {}, "plain"),
    "by the node selector": ({}, {COMPUTE_CLASS: "plain"}, "plain"),
    "the annotation is first": ({CLASS_ANNOTATION: "plain"}, {COMPUTE_CLASS: "older"}, "plain"),
    "before a template": ({CLASS_ANNOTATION: "plain", TEMPLATE_ANNOTATION: "a"}, {}, "plain"),
    "a template of that name": ({TEMPLATE_ANNOTATION: "a"}, {}, "the key template.a"),
    "a class of that name": ({TEMPLATE_ANNOTATION: "plain"}, {}, "plain"),
    "neither": ({TEMPLATE_ANNOTATION: "b"}, {}, "the Pod names the TPUSliceClass b, which does not exist"),
    "the newest default": ({}, {}, "newer"),
    "the default for the accelerator": ({}, {ACCELERATOR_LABEL: "tpu-v5-lite-podslice"}, "v5e"),
    "an absent one": ({CLASS_ANNOTATION: "b"}, {}, "the Pod names the TPUSliceClass b, which does not exist"),
    "of other namespaces": ({CLASS_ANNOTATION: "theirs"}, {}, "TPUSliceClass theirs does not have namespace default among its allowedNamespaces"),
    "of another accelerator": ({CLASS_ANNOTATION: "v5e"}, {}, f"TPUSliceClass v5e is for tpu-v5-lite-podslice, and the Pod's nodeSelector {ACCELERATOR_LABEL} is ''"),
    "of node pools": ({CLASS_ANNOTATION: "pools"}, {}, "TPUSliceClass pools has spec.nodePool, and slices here need spec.template"),
    "a broken one": ({CLASS_ANNOTATION: "broken"}, {}, "TPUSliceClass broken is invalid: each of spec.candidates must have a zone"),
}  # fmt: skip


def demand(
    annotations: dict[str, str], selector: dict[str, str], namespace: str = "default"
) -> Demand:
    metadata = {"name": "a", "namespace": namespace, "annotations": annotations}
    return read_demand({"metadata": metadata, "spec": {"nodeSelector": selector}})


def find(asks: Demand, *names: str, legacy: bool = False, is_gke: bool = False) -> str:
    """The name of the class, or the error."""
    old = LEGACY if legacy else {".a": LEGACY[".a"]}
    try:
        return find_class(
            asks,
            [CLASSES[one] for one in names],
            lambda name: old.get(f".{name}" if name else ""),
            is_gke=is_gke,
        ).name
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("annotations, selector, found", FOUND.values(), ids=FOUND)
def test_a_pod_gets_the_class_that_it_names_or_the_default(
    annotations: dict[str, str], selector: dict[str, str], found: str
) -> None:
    assert find(demand(annotations, selector), *CLASSES) == found
    assert find(demand(annotations, selector), *reversed(CLASSES)) == found


def test_without_a_default_it_gets_what_former_versions_had() -> None:
    asks = demand({}, {})
    assert find(asks, "plain", legacy=True) == "the key template"
    assert find(asks, "newer", legacy=True) == "newer"
    assert find(asks, "plain", "pools", "broken", "theirs") == NONE
    assert find(demand({}, {}, "theirs"), "newer", "theirs") == "theirs"


def test_on_gke_the_settings_serve_nobody_when_there_is_a_default_class() -> None:
    """Only the classes have limits and allowed namespaces."""
    asks = demand({}, {}, "theirs")
    default = replace(CLASSES["pools"], namespaces=frozenset({"default"}))
    mine = replace(default, is_default=False)
    legacy = replace(LEGACY[""], **POOLS)

    def name(one: SliceClass) -> str:
        return find_class(asks, [one], lambda _: legacy, is_gke=True).name

    assert name(mine) == legacy.name
    with pytest.raises(InputError) as raised:
        name(default)
    assert str(raised.value) == NONE


def test_on_gke_the_node_selector_of_compute_classes_is_refused() -> None:
    assert find(demand({}, {}), *CLASSES, is_gke=True) == "pools"
    for given in ({}, {CLASS_ANNOTATION: "pools"}):
        assert (
            find(demand(given, {COMPUTE_CLASS: "pools"}), *CLASSES, is_gke=True) == NO_COMPUTE_CLASS
        )
    wrong = "TPUSliceClass plain has spec.template, and slices here need spec.nodePool"
    assert find(demand({CLASS_ANNOTATION: "plain"}, {}), *CLASSES, is_gke=True) == wrong
