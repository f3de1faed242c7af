"""The manifests of an installation, and the URL paths of their objects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from local.base.access import encode

Manifest = dict[str, Any]

LABEL = "app.kubernetes.io/managed-by"
LABEL_VALUE = "tpu-functions-local"
"""The label of all objects that a run applies to a named cluster."""
SELECTOR = f"{LABEL}={LABEL_VALUE}"
NAMESPACE = "/api/v1/namespaces/tpu-functions"
NODES = "/api/v1/nodes"
TOKENS = "/api/v1/namespaces/kube-system/secrets"
GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP_CRD = f"{_CRDS}/tpunodegroups.tpu.google.com"
JOBSET_CRD = f"{_CRDS}/jobsets.jobset.x-k8s.io"
LWS_CRD = f"{_CRDS}/leaderworkersets.leaderworkerset.x-k8s.io"
ALL_SLICES = "tpu-node-group"
"""With these slices, a run applies all manifests that runs can apply."""
FOLDER = Path(__file__).resolve().parents[2] / "infra" / "chart" / "manifests"
BASE = ("", "base")
"""The folders that runs apply: the relay is a process, and the simulated kubelets report the chips."""
WITH_PODS = (*BASE, "device-plugin", "priority", "relay")
"""The folders of an installation with the chart's default values."""
_FOR_JOBSETS = {
    "gke": ("jobsets", "workloads"),
    "tpu-node-group": ("jobsets", "workloads", "jobsets-node-groups"),
}
"""Folders by kind of slice."""
_FIRST = {"Namespace": 0, "CustomResourceDefinition": 1}
"""The kinds that others need, in the order of applying."""
_TEMPLATES = {"template", "leaderTemplate", "workerTemplate"}
"""The fields of workloads with templates of objects."""
INJECT_ENV, ADMIT_JOBS, TIE_PODS = "inject-env", "admit-jobs", "tie-pods"
"""The folders with webhook configurations."""
_JOBSET_CRD = Path(__file__).parents[1] / "jobsets" / "crd.yaml"
_LWS_CRD = Path(__file__).parents[1] / "jobsets" / "leader_worker_set.yaml"
_KUEUE_CRDS = Path(__file__).parents[1] / "jobsets" / "kueue.yaml"


def read_manifests_for_jobsets(slices: str) -> list[Manifest]:
    """JobSet's CRD, in the form of its stand-in, and the manifests for JobSets with these slices."""
    return [yaml.safe_load(_JOBSET_CRD.read_text()), *read_manifests(_FOR_JOBSETS[slices])]


def read_leader_worker_set_crd() -> Manifest:
    """LeaderWorkerSet's CRD, in the form of its stand-in."""
    found: Manifest = yaml.safe_load(_LWS_CRD.read_text())
    return found


def read_labelled_manifests(slices: str) -> list[Manifest]:
    """The manifests that a run applies to a named cluster, with the label of a run.

    ``slices`` is the kind of slices of JobSets; empty if they get none.
    """
    more = read_manifests_for_jobsets(slices) if slices else []
    return [_with_label(one) for one in (*read_manifests(), *more)]


def _with_label(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    labels = {**metadata.get("labels", {}), LABEL: LABEL_VALUE}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def label_workload(manifest: Manifest) -> Manifest:
    """A copy of a workload with the label of a run, also on what is created from its templates."""
    return _with_label({**manifest, "spec": _label_templates(manifest["spec"])})


def _label_templates(part: Any) -> Any:
    if isinstance(part, list):
        return [_label_templates(one) for one in part]
    if not isinstance(part, dict):
        return part
    labelled = {key: _label_templates(one) for key, one in part.items()}
    for key in labelled.keys() & _TEMPLATES:
        labelled[key] = _with_label({"metadata": {}, **labelled[key]})
    return labelled


def read_definitions_for_examples() -> list[Manifest]:
    """CRDs of kinds in ``examples/`` that the product does not need."""
    return list(yaml.safe_load_all(_KUEUE_CRDS.read_text()))


def read_webhook_configuration(folder: str = INJECT_ENV) -> Manifest:
    """The configuration of a folder's webhook."""
    path = FOLDER / folder / "webhook.yaml"
    configuration: Manifest = yaml.safe_load(path.read_text())
    return configuration


def read_labelled_webhook_configurations(url: str, ca_pem: str) -> list[Manifest]:
    """The configurations of all webhooks at ``url``, with the label of a run."""
    found = [read_webhook_configuration(one) for one in (INJECT_ENV, ADMIT_JOBS, TIE_PODS)]
    for webhook in (one for configuration in found for one in configuration["webhooks"]):
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": url + path, "caBundle": encode(ca_pem)}
    return [_with_label(one) for one in found]


def read_manifests(folders: Sequence[str] = BASE) -> list[Manifest]:
    """The documents of folders in ``infra/chart/manifests``, in the order of applying."""
    found = [
        document
        for folder in folders
        for path in sorted((FOLDER / folder).glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]
    return sorted(found, key=lambda one: _FIRST.get(one["kind"], len(_FIRST)))


def collection_path(manifest: Manifest) -> str:
    """The URL path of the collection of this kind (and namespace)."""
    version = manifest["apiVersion"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = manifest["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    kind = manifest["kind"].lower()
    plural = f"{kind}es" if kind.endswith("s") else f"{re.sub('y$', 'ie', kind)}s"
    return f"{prefix}{scope}/{plural}"


def object_path(manifest: Manifest) -> str:
    """The URL path of the object."""
    return f"{collection_path(manifest)}/{manifest['metadata']['name']}"


def item_path(collection: str, item: Manifest) -> str:
    """The URL path of an item in the list at ``collection``, of one namespace or of all."""
    head, _, plural = collection.partition("?")[0].rpartition("/")
    namespace = item["metadata"].get("namespace")
    if namespace and not head.endswith(f"/namespaces/{namespace}"):
        head = f"{head}/namespaces/{namespace}"
    return f"{head}/{plural}/{item['metadata']['name']}"


def describe(manifest: Manifest) -> str:
    """Kind and name of an object."""
    metadata = manifest["metadata"]
    namespace = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{manifest['kind']} {namespace}{metadata['name']}"


def is_local(found: Manifest) -> bool:
    """Whether a run has applied an object."""
    return bool(found["metadata"].get("labels", {}).get(LABEL) == LABEL_VALUE)
