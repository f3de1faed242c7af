# ruff: noqa: E501  (a table reads best with a row on a line)
"""Authentication, RBAC, and the permissions of kubelets."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import (
    BINDINGS,
    CREATE_WIDGET,
    MAPS,
    NODE,
    NODES,
    READY,
    REVIEWS,
    ROLES,
    SECRETS,
    WIDGETS,
    config_map,
    invalid,
)
from local.tests.contract.kubernetes.dialogue import (
    Step,
    case,
    containing,
    delete,
    get,
    patch,
    post,
)


def rule(verbs: str, resources: str, **more: Any) -> dict[str, Any]:
    group = more.pop("group", "")
    return {
        "verbs": verbs.split(","),
        "apiGroups": [group],
        "resources": resources.split(","),
        **more,
    }


def review(**attributes: str) -> Step:
    """Create a SelfSubjectAccessReview as the reader, about the case's namespace."""
    resource_attributes = {"namespace": "{ns}", **attributes}
    return post(REVIEWS, {"spec": {"resourceAttributes": resource_attributes}}).by("reader")


def allow(*rules: dict[str, Any]) -> tuple[Step, ...]:
    """Grant the reader permissions in the case's namespace, and wait until they are in force."""
    first = rules[0]
    resource, _, subresource = first["resources"][0].partition("/")
    attributes = {
        "verb": first["verbs"][0],
        "group": first["apiGroups"][0],
        "resource": resource,
        "subresource": subresource,
        "name": first.get("resourceNames", [""])[0],
    }
    return (
        post(ROLES, {"metadata": {"name": "r"}, "rules": list(rules)}),
        post(
            BINDINGS,
            {
                "metadata": {"name": "r"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": "r",
                },
                "subjects": [
                    {
                        "kind": "Group",
                        "apiGroup": "rbac.authorization.k8s.io",
                        "name": "case-readers",
                    }
                ],
            },
        ),
        review(**attributes).has({"status.allowed": True}).eventually(),
    )


PERMISSIONS = (
    case("a request with an unknown token is Unauthorized", get(MAPS).by("token:nonsense").gives(401, reason="Unauthorized", message="Unauthorized")),
    case(
        "a request without a matching rule is Forbidden",
        get(f"{WIDGETS}/a")
        .by("nobody")
        .gives(
            403,
            reason="Forbidden",
            message='widgets.cases.example.com "a" is forbidden: User "nobody" cannot get resource '
            '"widgets" in API group "cases.example.com" in the namespace "{ns}"',
            details={"name": "a", "group": "cases.example.com", "kind": "widgets"},
        ),
    ),
    case(
        "the message about a cluster-scoped resource names the cluster scope",
        get(NODES).by("nobody").gives(403, message='nodes is forbidden: User "nobody" cannot list resource "nodes" in API group "" at the cluster scope'),
    ),
    case(
        "a request without credentials is from system:anonymous",
        get(NODES)
        .by("anonymous")
        .gives(
            403,
            message='nodes is forbidden: User "system:anonymous" cannot list resource "nodes" in '
            'API group "" at the cluster scope',
        ),
    ),
    case(
        "a role permits its verbs and resources only",
        *allow(rule("get,list", "configmaps")),
        post(MAPS, config_map()),
        get(f"{MAPS}/a").by("reader"),
        get(f"{MAPS}?watch=true&timeoutSeconds=1").by("reader").gives(403),
        delete(f"{MAPS}/a").by("reader").gives(403),
        get("/api/v1/configmaps").by("reader").gives(403),
    ),
    case(
        "a role can be limited to named objects",
        *allow(rule("get", "configmaps", resourceNames=["a"])),
        post(MAPS, config_map()),
        get(f"{MAPS}/a").by("reader"),
        get(f"{MAPS}/b").by("reader").gives(403),
        get(MAPS).by("reader").gives(403),
    ),
    case(
        "a list by name is permitted by a role limited to that name",
        *allow(rule("list", "configmaps", resourceNames=["a"])),
        get(f"{MAPS}?fieldSelector=metadata.name%3Da").by("reader"),
        get(f"{MAPS}?fieldSelector=metadata.name%3Db").by("reader").gives(403),
    ),
    case(
        "a permission for a subresource does not include the resource",
        CREATE_WIDGET,
        *allow(rule("patch", "widgets/status", group="cases.example.com")),
        patch(f"{WIDGETS}/a/status", READY).by("reader"),
        patch(f"{WIDGETS}/a", {"spec": {"size": 4}})
        .by("reader")
        .gives(
            403,
            message='widgets.cases.example.com "a" is forbidden: User "reader" cannot patch '
            'resource "widgets" in API group "cases.example.com" in the namespace "{ns}"',
        ),
    ),
    case(
        "secrets can be created and deleted without the permission to read them",
        *allow(rule("create,delete", "secrets")),
        post(SECRETS, {"metadata": {"name": "s"}}).by("reader"),
        get(f"{SECRETS}/s").by("reader").gives(403),
        get(SECRETS).by("reader").gives(403),
        delete(f"{SECRETS}/s").by("reader"),
    ),
    case(
        "permissions end when their binding is deleted",
        *allow(rule("get", "configmaps")),
        post(MAPS, config_map()),
        get(f"{MAPS}/a").by("reader"),
        delete(f"{BINDINGS}/r"),
        get(f"{MAPS}/a").by("reader").gives(403).eventually(),
    ),
    case(
        "every user can create a SelfSubjectAccessReview",
        *allow(rule("get", "configmaps")),
        review(verb="get", resource="configmaps").has({"status.allowed": True}),
        review(verb="delete", resource="configmaps").has({"status.allowed": False}),
    ),
    case(
        "every user can create a SelfSubjectReview",
        post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        .by("reader")
        .has(
            {
                "status.userInfo.username": "reader",
                "status.userInfo.groups": ["case-readers", "system:authenticated"],
            }
        ),
    ),
    case("the message about a non-resource URL names the path", get("/metrics") .by("nobody") .gives(403, message='forbidden: User "nobody" cannot get path "/metrics"')),
    case("the cluster-info ConfigMap is readable without credentials", get("/api/v1/namespaces/kube-public/configmaps/cluster-info").by("anonymous")),
)  # fmt: skip

AS_NODE = "system:node:node-{ns}"
REGISTER = post(NODES, {"metadata": {"name": "node-{ns}"}}).by(AS_NODE)
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

NODE_PERMISSIONS = (
    case("a kubelet registers its own node with the taint not-ready", REGISTER.has({"spec.taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}), get(NODE).by(AS_NODE)),
    case(
        "a kubelet cannot register another node",
        post(NODES, {"metadata": {"name": "other-{ns}"}})
        .by(AS_NODE)
        .gives(
            403,
            reason="Forbidden",
            message='nodes "other-{ns}" is forbidden: node "node-{ns}" is not allowed to modify '
            'node "other-{ns}"',
        ),
    ),
    case(
        "a kubelet can set the labels that NodeRestriction allows",
        post(
            NODES,
            {
                "metadata": {
                    "name": "node-{ns}",
                    "labels": {
                        "cloud.google.com/gke-tpu-topology": "2x2",
                        "kubernetes.io/hostname": "node-{ns}",
                        "node.kubernetes.io/anything": "x",
                    },
                }
            },
        ).by(AS_NODE),
    ),
    case(
        "a kubelet cannot set restricted labels",
        post(
            NODES,
            {
                "metadata": {
                    "name": "node-{ns}",
                    "labels": {"node-restriction.kubernetes.io/x": "y"},
                }
            },
        )
        .by(AS_NODE)
        .gives(403, message=containing("is not allowed to set the following labels")),
        REGISTER,
        patch(NODE, {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}})
        .by(AS_NODE)
        .gives(
            403,
            message=containing("is not allowed to modify labels: node-restriction.kubernetes.io/x"),
        ),
        patch(NODE, {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}),
    ),
    case(
        "a kubelet cannot change the taints of its registered node",
        REGISTER,
        patch(NODE, {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}})
        .by(AS_NODE)
        .gives(403, message=containing("is not allowed to modify taints")),
    ),
    case("a kubelet cannot delete its node", REGISTER, delete(NODE).by(AS_NODE).gives(403, reason="Forbidden")),
    case(
        "a kubelet can create and read only its own lease",
        post(NODE_LEASES, {"metadata": {"name": "node-{ns}"}}).by(AS_NODE),
        get(f"{NODE_LEASES}/node-{{ns}}").by(AS_NODE),
        get(f"{NODE_LEASES}/other").by(AS_NODE).gives(403, message=containing("can only access node lease with the same name as the requesting node")),
    ),
    case(
        "a kubelet cannot use leases in other namespaces or create another node's lease",
        get("/apis/coordination.k8s.io/v1/namespaces/default/leases/node-{ns}")
        .by(AS_NODE)
        .gives(403, message=containing('"kube-node-lease" system namespace')),
        post(NODE_LEASES, {"metadata": {"name": "other-{ns}"}}).by(AS_NODE).gives(403, message=containing("with the same name as the requesting node")),
    ),
    case(
        "a kubelet can read only its own node",
        REGISTER,
        get(f"{NODES}?fieldSelector=metadata.name%3Dnode-{{ns}}").by(AS_NODE),
        get(f"{NODES}/other-{{ns}}").by(AS_NODE).gives(403, message=containing("only its own Node object")),
        get(NODES).by(AS_NODE).gives(403, message=containing("cannot read all nodes")),
    ),
    case(
        "a kubelet cannot read secrets that its pods do not use",
        post(SECRETS, {"metadata": {"name": "s"}}),
        get(f"{SECRETS}/s").by(AS_NODE).gives(403, message=containing('secrets "s" is forbidden', 'cannot get resource "secrets"')),
    ),
    case("a kubelet can patch the status of its node", REGISTER, patch(f"{NODE}/status", {"status": {"capacity": {"google.com/tpu": "4"}}}).by(AS_NODE).has({"status.capacity.google~com/tpu": "4"})),
    case(
        "a providerID cannot be changed once it is set",
        post(NODES, {"metadata": {"name": "node-{ns}"}, "spec": {"providerID": "gce://p/z/one"}}),
        patch(NODE, {"spec": {"providerID": "gce://p/z/two"}})
        .gives(422)
        .has(
            {
                **invalid(("FieldValueForbidden", "spec.providerID")),
                "message": containing("node updates may not change providerID except from"),
            }
        ),
    ),
    case("a node can be created with a status", post(NODES, {"metadata": {"name": "node-{ns}"}, "status": {"capacity": {"google.com/tpu": "4"}}}).has({"status.capacity.google~com/tpu": "4"})),
)  # fmt: skip
