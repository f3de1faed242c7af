# ruff: noqa: E501  (a table reads best with a row on a line)
"""The Nodes on which a Pod fits."""

from __future__ import annotations

from typing import Any

import pytest

from local.kube.placement import selects, tolerates_taints

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"


def required(*expressions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), **fields}
    terms = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


EXISTS = {"key": ACCELERATOR, "operator": "Exists"}
TOLERATES_ALL = [{"operator": "Exists"}]
PODS: dict[str, tuple[dict[str, Any], int]] = {
    "every node without a taint": ({}, 2),
    "all nodes, whatever their taints": ({"tolerations": TOLERATES_ALL}, 3),
    "nodes with a label": (required(EXISTS), 1),
    "nodes with a label and a taint": ({**required(EXISTS), "tolerations": TOLERATES_ALL}, 2),
    "a toleration of the taint by its value": ({**required(EXISTS), "tolerations": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]}, 2),
    "a toleration of another value": ({**required(EXISTS), "tolerations": [{"key": "google.com/tpu", "value": "gone"}]}, 1),
    "values in a list": (required({"key": ACCELERATOR, "operator": "In", "values": ["v6e"]}), 1),
    "values not in a list": (required({"key": ACCELERATOR, "operator": "NotIn", "values": ["v6e"]}), 1),
    "a value above a number": (required({"key": "slot", "operator": "Gt", "values": ["6"]}), 1),
    "a value above itself": (required({"key": "slot", "operator": "Gt", "values": ["7"]}), 0),
    "a value below a number": (required({"key": "slot", "operator": "Lt", "values": ["8"]}), 1),
    "a value below itself": (required({"key": "slot", "operator": "Lt", "values": ["7"]}), 0),
    "a selector": ({"nodeSelector": {ACCELERATOR: "v6e"}}, 1),
    "a node by name": (required(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["plain"]}]), 1),
}  # fmt: skip


TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
NODES = [
    {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
    for name, labels, taints in (
        ("plain", {"slot": "7"}, []),
        ("tpu", {ACCELERATOR: "v6e"}, []),
        ("tainted", {ACCELERATOR: "v7x"}, [TAINT]),
    )
]


@pytest.mark.parametrize("spec, count", PODS.values(), ids=PODS.keys())
def test_a_pod_fits_nodes_that_it_selects_and_tolerates(spec: dict[str, Any], count: int) -> None:
    assert sum(selects(spec, one) and tolerates_taints(spec, one) for one in NODES) == count
