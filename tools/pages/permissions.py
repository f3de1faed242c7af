"""The page `docs/reference/permissions.md`, from permissions.yaml and the chart's Roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from shared.triggers.routes import ROUTES, SLICE_STEPS
from tools.pages.markdown import ROOT, render_table

PERMISSIONS = ROOT / "infra" / "terraform" / "permissions.yaml"
MANIFESTS = ROOT / "infra" / "chart" / "manifests"
ROLES = (
    MANIFESTS / "base" / "rbac.yaml",
    MANIFESTS / "base" / "joining.yaml",
    MANIFESTS / "jobsets" / "relay.yaml",
    MANIFESTS / "jobsets" / "roles.yaml",
    MANIFESTS / "jobsets-node-groups" / "roles.yaml",
    MANIFESTS / "workloads" / "roles.yaml",
    MANIFESTS / "token-writer" / "permissions.yaml",
)

_HEAD = """\
# Permissions

<!-- rendered by make pages from infra/terraform/permissions.yaml and the Roles: change those -->

All permissions of each part, with their purpose. On Google Cloud they are those that Google documents
for the methods that a step calls; tests compare them with the calls of the steps to the simulated
Compute Engine. Whether they suffice on the real service is not proven: if one is missing, the group
has the reason `PermissionDenied` with its name, and `extra_permissions` of the Terraform module adds it.

Permissions for JobSets (those of `provision_slice` and `release_slice`, and those of the relay and
the sweep that name them) are granted only with [`jobset_provider`](../../infra/terraform/README.md):
on GKE's node pools with `gke`, on TPUNodeGroups with `tpu-node-group`. GKE has no permissions for
node pools alone: `container.clusters.update` applies to all clusters of the project. A
ValidatingAdmissionPolicy limits the two steps to TPUNodeGroups that were created for JobSets, and to
the annotations of existing ones. Those to read LeaderWorkerSets, Deployments, ReplicaSets and
StatefulSets, to get Jobs, and for `release_slice` to get a Pod, are granted only with `slice_workloads`.
"""
_NARROW = """\
Narrower limits are not possible: a list needs a permission on the project and shows as much as a `get`
of each VM, its metadata included, so a condition on `instances.get` would hide nothing. IAM has no
conditions on names of MIGs, workload policies and operations. It is not documented on which resource
the insert of a MIG needs `compute.instances.create`. An instance template of your own may have any
name, so `create_resources` reads and uses all. Names of another installation in the same project
begin with `tng-`, too. If Google requires more than it documents, `extra_permissions` grants it
without a condition.

**Give TPU VMs their own project**: `projects` names projects that contain only TPU slices, and
`project_id` another one for the functions. Then an attacker with a permission in "each served
project" reaches only the slices: no control plane, no other VM's metadata, no other service account.
A Shared VPC (`shared_vpc_subnets`) connects the project to the cluster's network; the steps may use
only the named subnets. Do not let others read VMs there: a join token is in a VM's metadata until the
VM has joined.

Below each table is what an attacker with that identity can do on Google Cloud. The
[threat model](../threat-model.md) covers the cluster, and both together.
"""
_LIMITS = (
    (
        "a condition on the name, in a second custom role of the step",
        "writing a VM's metadata; reading and deleting an instance template: only where the "
        "name begins with `tng-`",
    ),
    (
        "the resource itself",
        "publishing to a topic; acting as a service account; using a subnet of a Shared VPC; "
        "reading a secret, the source's bucket, the image repository",
    ),
    (
        "the project alone",
        "everything else",
    ),
)
_NONE = """\
## inject_env, admit_job, tie_pod: none

No permission on Google Cloud and no role in the cluster: they read only admission reviews and call no
API. The webhook's Pods have no token of their ServiceAccount. They can change the workloads that the
webhook configurations select.
"""
_JOINING = """\
## VMs that join

The permissions of a bootstrap token until its VM has joined: those that `kubeadm join` needs. The token
is in the group `system:bootstrappers:tpu-functions`, whose requests for certificates only `approve_join`
approves. With `join_approval = "external"` tokens are in kubeadm's group instead, and the cluster
approves them for any Node.
"""
_WHERE = {
    "project": "each served project",
    "named": "VMs and instance templates of each served project whose name begins with `tng-`",
    "vm_service_account": "the service accounts of the VMs",
    "subnetwork": "subnets of a Shared VPC",
    "node_service_account": "the service accounts of the Nodes",
    "secrets": "the secret of each step's token",
}
_WHERE_OF_JOBSETS = {
    **_WHERE,
    "project": "the project of the cluster with the node pools",
    "served": "each served project, with TPUNodeGroups as slices",
}


def render() -> str:
    """The page."""
    permissions = yaml.safe_load(PERMISSIONS.read_text())
    narrow = render_table(("Limited by", "What"), list(_LIMITS))
    parts = [_HEAD, f"## How narrow they are on Google Cloud\n\n{narrow}", _NARROW]
    parts += ["## On Google Cloud\n", *_cloud(permissions), "\n## In the cluster\n"]
    for name in (*(step.replace("_", "-") for step in ROUTES), "relay", "token-writer"):
        parts.append(_roles(name))
    parts += [_JOINING, _roles("joining-vm")]
    return "\n".join([*parts, _NONE])


def _cloud(permissions: dict[str, Any]) -> Iterator[str]:
    for part in (*ROUTES, "relay", "token_writer"):
        places = _WHERE_OF_JOBSETS if part in SLICE_STEPS else _WHERE
        rows = [
            (f"`{permission}`", where, reason)
            for scope, where in places.items()
            for permission, reason in (permissions[part].get(scope) or {}).items()
        ]
        rows += [
            ("`pubsub.topics.publish`", f"topic of `{step}`", reason)
            for step, reason in (permissions[part].get("topics") or {}).items()
        ]
        stolen = f"An attacker with this identity: {permissions[part]['stolen'].strip()}\n"
        yield f"### {part}\n\n{render_table(('Permission', 'On', 'Why'), rows)}\n{stolen}"
    rows = [
        (f"`{permission}`", "the cluster's project", reason)
        for permission, reason in permissions["cluster_project"].items()
    ]
    yield f"### All steps, with a cluster on GKE\n\n{render_table(('Permission', 'On', 'Why'), rows)}"


def _roles(name: str) -> str:
    documents = [one for path in ROLES for one in yaml.safe_load_all(path.read_text()) if one]
    named = {f"tpu-functions-{name}{end}" for end in ("", "-jobsets", "-node-groups", "-workloads")}
    rows = [
        (
            ", ".join(f"`{verb}`" for verb in rule["verbs"]),
            _resources(rule),
            _scope(document),
        )
        for document in documents
        if document["kind"] in ("ClusterRole", "Role") and document["metadata"]["name"] in named
        for rule in document["rules"]
    ]
    return f"### {name}\n\n{render_table(('Verbs', 'Resources', 'Where'), rows)}"


def _resources(rule: dict[str, Any]) -> str:
    named = rule.get("resourceNames")
    only = f" ({', '.join(named)})" if named else ""
    return ", ".join(f"`{resource}`" for resource in rule["resources"]) + only


def _scope(document: dict[str, Any]) -> str:
    namespace = document["metadata"].get("namespace")
    return f"namespace {namespace}" if namespace else "the cluster"
