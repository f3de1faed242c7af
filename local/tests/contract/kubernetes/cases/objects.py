"""The paths and objects of cases."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.dialogue import (
    Step,
    post,
)

WIDGETS = "/apis/cases.example.com/v1/namespaces/{ns}/widgets"
GADGETS = "/apis/cases.example.com/v1/namespaces/{ns}/gadgets"
MAPS = "/api/v1/namespaces/{ns}/configmaps"
SECRETS = "/api/v1/namespaces/{ns}/secrets"
PODS = "/api/v1/namespaces/{ns}/pods"
EVENTS = "/api/v1/namespaces/{ns}/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings"
NODES = "/api/v1/nodes"
NODE = f"{NODES}/node-{{ns}}"
TOKENS = "/api/v1/namespaces/kube-system/secrets"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
ACCOUNTS = "/api/v1/namespaces/{ns}/serviceaccounts"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def widget(name: str = "a", size: int = 3, **more: Any) -> dict[str, Any]:
    spec = {"size": size, **more.pop("spec", {})}
    return {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name, **more.pop("metadata", {})},
        "spec": spec,
        **more,
    }


def gadget(**more: Any) -> dict[str, Any]:
    meta = {"name": "g"}
    return {"apiVersion": "cases.example.com/v1", "kind": "Gadget", "metadata": meta, **more}


def config_map(name: str = "a", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "data": {"k": "v"}}


def invalid(*causes: tuple[str, str]) -> dict[str, Any]:
    """Expect the causes of a 422: reasons and fields, in any order and any number.

    A real server adds a cause without a field if it has not evaluated all rules.
    """

    def agree(found: Any) -> bool:
        actual = {(one["reason"], one["field"]) for one in found}
        return actual - {("FieldValueInvalid", "<nil>")} == set(causes)

    return {"reason": "Invalid", "details.causes": agree}


CREATE_WIDGET = post(WIDGETS, widget())
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
WATCH = f"{WIDGETS}?watch=true&timeoutSeconds=1"


def labelled(name: str, **labels: str) -> Step:
    return post(MAPS, config_map(name, labels={"case": "{ns}", **labels}))


THREE = (labelled("a", env="x"), labelled("b", env="y"), labelled("c"))
