"""The subresource ``scale`` of Deployments and the like."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.dialogue import JSON_PATCH, case, get, patch, post, put

DEPLOYMENTS = "/apis/apps/v1/namespaces/{ns}/deployments"
SCALE = f"{DEPLOYMENTS}/serve/scale"
LABELS = {"app": "serve", "a": "b"}


def deployment(replicas: int) -> dict[str, Any]:
    container = {"name": "main", "image": "main"}
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template}
    return {"metadata": {"name": "serve"}, "spec": spec}


def scale_to(replicas: Any, **metadata: str) -> dict[str, Any]:
    kind = {"apiVersion": "autoscaling/v1", "kind": "Scale"}
    names = {"name": "serve", "namespace": "{ns}", **metadata}
    return {**kind, "metadata": names, "spec": {"replicas": replicas}}


CREATE = post(DEPLOYMENTS, deployment(0))
SCALES = (
    case(
        "a scale has the replicas and the selector; a number that is 0 is left out of its spec",
        CREATE,
        get(SCALE).has(
            {
                "kind": "Scale",
                "apiVersion": "autoscaling/v1",
                "metadata.name": "serve",
                "spec": {},
                "status.selector": "a=b,app=serve",
            }
        ),
    ),
    case(
        "a patch of a scale changes the replicas and the generation of the object",
        CREATE.has({"metadata.generation": 1}),
        patch(SCALE, {"spec": {"replicas": 2}}).has({"kind": "Scale", "spec.replicas": 2}),
        get(f"{DEPLOYMENTS}/serve").has({"spec.replicas": 2, "metadata.generation": 2}),
        patch(SCALE, [{"op": "replace", "path": "/spec/replicas", "value": 0}], JSON_PATCH),
        get(f"{DEPLOYMENTS}/serve").has({"spec.replicas": 0, "metadata.generation": 3}),
    ),
    case(
        "an update of a scale with an old version conflicts",
        CREATE.saves(rv="metadata.resourceVersion"),
        put(SCALE, scale_to(1)).has({"spec.replicas": 1}),
        put(SCALE, scale_to(2, resourceVersion="{rv}")).gives(409, reason="Conflict"),
        get(SCALE).has({"spec.replicas": 1}),
    ),
    case(
        "a number of replicas below 0 is invalid",
        CREATE,
        put(SCALE, scale_to(-1)).gives(422, reason="Invalid"),
        get(SCALE).has({"spec": {}}),
    ),
    case("an object that does not exist has no scale", get(SCALE).gives(404, reason="NotFound")),
)
