"""TPUSliceClasses that an API server accepts or rejects: tables for several tests."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.builders import merge
from tests.support.chart import MANIFESTS
from tests.support.jobset_objects import TEMPLATE as OBJECTS

Manifest = dict[str, Any]

CLASS_CRD: Manifest = yaml.safe_load((MANIFESTS / "jobsets/class-crd.yaml").read_text())
CLASSES = "/apis/tpu-functions.dev/v1alpha1/tpusliceclasses"
IMAGE = "projects/p/global/images/family/ubuntu-accel"
TEMPLATE: Manifest = {"spec": {"project": "my-project", "instanceConfig": {"image": IMAGE}}}
NODE_POOL: Manifest = {"serviceAccount": "tpu-nodes@my-project.iam.gserviceaccount.com"}
_GKE: Manifest = {"template": None, "nodePool": NODE_POOL}
SPOT: Manifest = {"zone": "us-east5-b", "provisioningModel": "SPOT"}
RESERVED: Manifest = {
    "zone": "us-east5-a",
    "provisioningModel": "RESERVATION_BOUND",
    "reservation": "res-1",
}
FLEX: Manifest = {
    "zone": "us-east5-b",
    "provisioningModel": "FLEX_START",
    "maxRunDuration": "7d",
}
CANDIDATES: list[Manifest] = [{"zone": "us-east5-b"}, RESERVED, SPOT, FLEX]


def slice_class(name: str = "v6e", **change: Any) -> Manifest:
    """A class with four candidates for TPUNodeGroups, its spec changed by a merge patch."""
    spec = {"template": TEMPLATE, "candidates": CANDIDATES}
    return {
        "apiVersion": "tpu-functions.dev/v1alpha1",
        "kind": "TPUSliceClass",
        "metadata": {"name": name},
        "spec": merge(spec, change),
    }


def class_of_stories(name: str, *, is_gke: bool, **change: Any) -> Manifest:
    """A class whose only candidate is the zone with capacity in stories."""
    made = {"nodePool": NODE_POOL} if is_gke else {"template": {"spec": OBJECTS["spec"]}}
    zoned = {"nodePool": {"zone": OBJECTS["spec"]["nodeLocation"]}} if is_gke else {}
    return {**slice_class(name), "spec": merge(merge(made, zoned), change)}


def _of(**fields: Any) -> Manifest:
    """The change to a class with one candidate."""
    return {"candidates": [{"zone": "us-east5-b", **fields}]}


def _template(**fields: Any) -> Manifest:
    return {"template": merge(TEMPLATE, {"spec": fields})}


_ALONE = (
    "with candidates, zone, provisioningModel, reservation and maxRunDuration must be in them alone"
)
_ONE_OF = "one of template (TPUNodeGroups) and nodePool (GKE) must be set"
_NEEDED = (
    "candidates must be set, or the zone in template or nodePool, which is then the only candidate"
)
_OF_CLUSTER = (
    "candidates of node pools must have no project and no subnetwork, which are the cluster's"
)
_RESERVATION = "reservation goes with provisioningModel RESERVATION_BOUND, and only with it"
_FLEX = "maxRunDuration goes with provisioningModel FLEX_START, and only with it"
_DURATION = "maxRunDuration must be a number of s, m, h or d, as in 90m or 168h, from 30s to 7d"
_BLOCK = "projects/other-project/reservations/r/reservationBlocks/b/reservationSubBlocks/s"

VALID: dict[str, Manifest] = {
    "candidates": {},
    "the zone of the template": {"candidates": None, **_template(nodeLocation="us-east5-b")},
    "all of the template": {
        "candidates": None,
        **_template(
            nodeLocation="us-east5-b",
            acceleratorConnectionMode="STATIC",
            instanceConfig={"reservation": "res-1", "provisioningModel": "RESERVATION_BOUND"},
            bootstrapKubernetes={"controlPlaneIP": "10.128.0.2"},
            nodeLabels={"team": "a"},
            nodeTaints=[{"key": "team", "value": "a", "effect": "NoSchedule"}],
        ),
    },
    "node pool": {**_GKE, "candidates": [{"zone": "us-east5-a"}, SPOT]},
    "the zone of the node pool": {
        "template": None,
        "candidates": None,
        "nodePool": {
            **NODE_POOL,
            "zone": "us-east5-a",
            "tags": ["tpu"],
            "podToNodeLabels": ["team", "example.com/team"],
            "additionalNetworks": [{"network": "dcn", "subnetwork": "dcn-1"}],
            "maxPodsPerNode": 8,
        },
    },
    "labels of the groups": {"template": {"metadata": {"labels": {"team": "a"}}}},
    "all else": {
        "accelerator": "tpu-v6e-slice",
        "isDefault": True,
        "giveUpAfter": "30s",
        "allowedNamespaces": ["research"],
        "limits": {"slices": 0, "chips": 256},
    },
    "only chips are limited": {"limits": {"chips": 256}},
    "an hour": {"giveUpAfter": "60m"},
    "another project": _of(project="other-project", subnetwork="tpu"),
    "a sub-block": _of(provisioningModel="RESERVATION_BOUND", reservation=_BLOCK),
    "the shortest run": _of(provisioningModel="FLEX_START", maxRunDuration="30s"),
    "one zone twice": {"candidates": [SPOT, {**SPOT, "project": "other-project"}]},
    "most candidates": {"candidates": [{"zone": f"us-east5-a{i}"} for i in range(16)]},
    "most of all": {
        "allowedNamespaces": [f"{i:0>63}" for i in range(256)],
        "candidates": [
            {
                **RESERVED,
                "zone": f"us-east5-a{i:0>52}",
                "reservation": f"projects/p{'a' * 29}/reservations/r{'a' * 62}",
            }
            for i in range(16)
        ],
    },
}
"""Changes to `slice_class` that are accepted."""

INVALID: dict[str, tuple[Manifest, str, str]] = {
    "neither": ({"template": None}, "spec", _ONE_OF),
    "both": ({"nodePool": NODE_POOL}, "spec", _ONE_OF),
    "no zone": ({"candidates": None}, "spec.candidates", _NEEDED),
    "no zone of a node pool": ({**_GKE, "candidates": None}, "spec.candidates", _NEEDED),
    "two zones": (_template(nodeLocation="us-east5-b"), "spec.candidates", _ALONE),
    **{
        f"{name} twice": (_template(instanceConfig={name: value}), "spec.candidates", _ALONE)
        for name, value in (
            ("provisioningModel", "SPOT"),
            ("reservation", "res-1"),
            ("maxRunDuration", "7d"),
        )
    },
    "two zones of a node pool": (
        {"template": None, "nodePool": {**NODE_POOL, "zone": "us-east5-a"}},
        "spec.candidates",
        _ALONE,
    ),
    "a node pool in another project": (
        {**_GKE, **_of(project="other-project")},
        "spec.candidates",
        _OF_CLUSTER,
    ),
    "a node pool in a subnetwork": (
        {**_GKE, **_of(subnetwork="a")},
        "spec.candidates",
        _OF_CLUSTER,
    ),
    "a reservation on demand": (
        _of(reservation="res-1"),
        "spec.candidates[0].reservation",
        _RESERVATION,
    ),
    "no reservation": (
        _of(provisioningModel="RESERVATION_BOUND"),
        "spec.candidates[0].reservation",
        _RESERVATION,
    ),
    "a run on demand": (_of(maxRunDuration="7d"), "spec.candidates[0]", _FLEX),
    "no run": (_of(provisioningModel="FLEX_START"), "spec.candidates[0]", _FLEX),
    **{
        f"a run of {text}": (
            _of(provisioningModel="FLEX_START", maxRunDuration=text),
            "spec.candidates[0].maxRunDuration",
            _DURATION,
        )
        for text in ("8d", "29s", "7", "a week")
    },
    "a reserved label": (
        {"template": None, "nodePool": {**NODE_POOL, "podToNodeLabels": ["a.google.com/b"]}},
        "spec.nodePool.podToNodeLabels",
        "podToNodeLabels must not be under google.com or tpu-functions.dev, which are reserved",
    ),
    "a zone of the template": (
        {"candidates": None, **_template(nodeLocation="us-east5")},
        "spec.template.spec.nodeLocation",
        "nodeLocation must be a zone, as in us-central1-c",
    ),
    "a label of ours": (
        _template(nodeLabels={"tpu-functions.dev/a": "b"}),
        "spec.template.spec.nodeLabels",
        "nodeLabels must not be tpu-functions.dev/*",
    ),
    # What the schema rejects, in the API server's words.
    "two equal candidates": ({"candidates": [SPOT, SPOT]}, "spec.candidates[1]", ""),
    "two that are equal by default": (
        {"candidates": [{"zone": "us-east5-b"}, {**SPOT, "provisioningModel": "STANDARD"}]},
        "spec.candidates[1]",
        "",
    ),
    "no candidates": ({"candidates": []}, "spec.candidates", ""),
    "no zone of a candidate": ({"candidates": [{}]}, "spec.candidates[0].zone", ""),
    "too many candidates": (
        {"candidates": [{"zone": f"us-east5-a{i}"} for i in range(17)]},
        "spec.candidates",
        "",
    ),
    "a region": (_of(zone="us-east5"), "spec.candidates[0].zone", ""),
    "a word": (_of(provisioningModel="CHEAP"), "spec.candidates[0].provisioningModel", ""),
    "a block alone": (
        _of(provisioningModel="RESERVATION_BOUND", reservation="r/reservationBlocks/"),
        "spec.candidates[0].reservation",
        "",
    ),
    **{
        f"given up after {text}": ({"giveUpAfter": text}, "spec.giveUpAfter", "")
        for text in ("29s", "61m", "2h", "120")
    },
    "a pattern of namespaces": ({"allowedNamespaces": ["team-*"]}, "spec.allowedNamespaces[0]", ""),
    "a namespace twice": ({"allowedNamespaces": ["a", "a"]}, "spec.allowedNamespaces[1]", ""),
    "fewer than none": ({"limits": {"slices": -1}}, "spec.limits.slices", ""),
    "no image": (
        {"template": {"spec": {"instanceConfig": {"image": None}}}},
        "spec.template.spec.instanceConfig.image",
        "",
    ),
    "no account": (
        {"template": None, "nodePool": {"tags": ["a"]}},
        "spec.nodePool.serviceAccount",
        "",
    ),
    "seven Pods": (
        {"template": None, "nodePool": {**NODE_POOL, "maxPodsPerNode": 7}},
        "spec.nodePool.maxPodsPerNode",
        "",
    ),
}
"""Changes to `slice_class` that are rejected: path and message of a violation."""

INVALID_NAMES = ("v6e.a", "a" * 64)
NAME = "metadata.name must be at most 63 of a-z, 0-9 and -, without dots"
