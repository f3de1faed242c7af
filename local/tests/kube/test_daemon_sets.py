"""How many Nodes a DaemonSet is meant for."""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.contract.kubernetes.embedded import Embedded

SETS = "/apis/apps/v1/namespaces/default/daemonsets"
ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"


def required(*expressions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), **fields}
    terms = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


EXISTS = {"key": ACCELERATOR, "operator": "Exists"}
TOLERATES_ALL = [{"operator": "Exists"}]
MEANT_FOR: dict[str, tuple[dict[str, Any], int]] = {
    "every node without a taint": ({}, 2),
    "all nodes, whatever their taints": ({"tolerations": TOLERATES_ALL}, 3),
    "nodes with a label": (required(EXISTS), 1),
    "nodes with a label and a taint": ({**required(EXISTS), "tolerations": TOLERATES_ALL}, 2),
    "a toleration of the taint by its value": (
        {
            **required(EXISTS),
            "tolerations": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}],
        },
        2,
    ),
    "a toleration of another value": (
        {**required(EXISTS), "tolerations": [{"key": "google.com/tpu", "value": "gone"}]},
        1,
    ),
    "values in a list": (required({"key": ACCELERATOR, "operator": "In", "values": ["v6e"]}), 1),
    "values not in a list": (
        required({"key": ACCELERATOR, "operator": "NotIn", "values": ["v6e"]}),
        1,
    ),
    "a selector": ({"nodeSelector": {ACCELERATOR: "v6e"}}, 1),
    "a node by name": (
        required(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["plain"]}]),
        1,
    ),
}


@pytest.mark.parametrize("spec, count", MEANT_FOR.values(), ids=MEANT_FOR.keys())
def test_a_daemon_set_counts_the_nodes_that_it_is_meant_for(
    spec: dict[str, Any], count: int
) -> None:
    server = Embedded()
    taint = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
    for name, labels, taints in (
        ("plain", {}, []),
        ("tpu", {ACCELERATOR: "v6e"}, []),
        ("tainted", {ACCELERATOR: "v7x"}, [taint]),
    ):
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
        server.ask("POST", "/api/v1/nodes", body)
    pod = {"containers": [{"name": "c", "image": "i"}], **spec}
    made = server.ask(
        "POST",
        SETS,
        {
            "metadata": {"name": "d"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod},
            },
        },
    )
    assert made["status"]["desiredNumberScheduled"] == 0
    server.settle()
    assert server.ask("GET", f"{SETS}/d")["status"] == {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": count,
        "numberReady": 0,
        "observedGeneration": 1,
    }
