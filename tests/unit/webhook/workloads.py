"""Workloads as a user or a controller creates them, and reviews of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import jsonpatch

from webhook.inject_env import InjectionSettings, inject
from webhook.tpu_env.admission import Mutation, review

Manifest = dict[str, Any]

ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
SPLIT = (
    "2 containers ask for google.com/tpu at the same time, which only hosts of tpu7x allow "
    "(cloud.google.com/gke-tpu-accelerator); ask for all chips in one container"
)


def container(name: str = "c", tpu: int | str | None = 4, **more: Any) -> Manifest:
    """A container that requests this number of chips."""
    made: Manifest = {"name": name, "image": "train", **more}
    if tpu is not None:
        made["resources"] = {"limits": {"google.com/tpu": str(tpu)}}
    return made


def selector(accelerator: str = "", topology: str = "") -> Manifest:
    """A nodeSelector of TPU Nodes."""
    both = {ACCELERATOR: accelerator, TOPOLOGY: topology}
    return {key: value for key, value in both.items() if value}


def pod_spec(*containers: Manifest, **more: Any) -> Manifest:
    """A Pod's spec; one container with four chips by default."""
    return {"containers": list(containers) or [container()], **more}


def stateful_set(
    *containers: Manifest,
    name: str = "web",
    service: str = "nginx",
    replicas: int | None = 3,
    start: int | None = None,
    pod: Mapping[str, Any] | None = None,
    template_labels: Mapping[str, str] | None = None,
    **metadata: Any,
) -> Manifest:
    """A StatefulSet."""
    spec: Manifest = {
        "serviceName": service,
        "template": {
            "metadata": {"labels": {"app": name, **(template_labels or {})}},
            "spec": {**pod_spec(*containers), **(pod or {})},
        },
    }
    if replicas is not None:
        spec["replicas"] = replicas
    if start is not None:
        spec["ordinals"] = {"start": start}
    meta = {"name": name, "namespace": "ml", **metadata}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec}


def deployment(
    *containers: Manifest, replicas: int = 1, pod: Mapping[str, Any] | None = None
) -> Manifest:
    """A Deployment."""
    template = {
        "metadata": {"labels": {"app": "serve"}},
        "spec": {**pod_spec(*containers), **(pod or {})},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve", "namespace": "ml"},
        "spec": {"replicas": replicas, "template": template},
    }


def job(
    *containers: Manifest,
    name: str = "tpu-job",
    count: int = 4,
    parallelism: int | None = None,
    mode: str = "Indexed",
    subdomain: str = "headless-svc",
    labels: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] | None = None,
) -> Manifest:
    """A Job."""
    spec = {**pod_spec(*containers), **(pod or {})}
    if subdomain:
        spec["subdomain"] = subdomain
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml", "labels": dict(labels or {})},
        "spec": {
            "completions": count,
            "parallelism": count if parallelism is None else parallelism,
            "completionMode": mode,
            "template": {"metadata": {}, "spec": spec},
        },
    }


def jobset_labels(replicas: int, index: int, name: str = "ms", job_name: str = "slice") -> Manifest:
    """The labels that JobSet gives its Jobs and their Pods."""
    return {
        "jobset.sigs.k8s.io/jobset-name": name,
        "jobset.sigs.k8s.io/replicatedjob-name": job_name,
        "jobset.sigs.k8s.io/replicatedjob-replicas": str(replicas),
        "jobset.sigs.k8s.io/job-index": str(index),
    }


def pod(
    *containers: Manifest,
    name: str = "",
    owner: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owners: Sequence[Mapping[str, Any]] | None = None,
    **spec: Any,
) -> Manifest:
    """A Pod, perhaps controlled by an object of the kind ``owner``."""
    metadata: Manifest = {"name": name, "namespace": "ml"}
    if owner:
        version = {"Job": "batch/v1"}.get(owner, "apps/v1")
        reference = {"apiVersion": version, "kind": owner, "name": "o", "controller": True}
        metadata["ownerReferences"] = [reference]
    if owners:
        metadata["ownerReferences"] = list(owners)
    if labels is not None:
        metadata["labels"] = dict(labels)
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**pod_spec(*containers), **spec},
    }


def group_pod(
    *containers: Manifest,
    name: str,
    index: int,
    size: int = 2,
    subdomain: str = "default",
    has_leader_tpu: bool = True,
    subgroup: int | None = None,
    **spec: Any,
) -> Manifest:
    """A Pod of a LeaderWorkerSet."""
    annotations = {"leaderworkerset.sigs.k8s.io/size": str(size)}
    if has_leader_tpu and index:
        annotations["leaderworkerset.sigs.k8s.io/leader-requests-tpus"] = "true"
    if subgroup is not None:
        annotations["leaderworkerset.sigs.k8s.io/subgroup-size"] = str(subgroup)
    labels = {
        "leaderworkerset.sigs.k8s.io/name": "sample",
        "leaderworkerset.sigs.k8s.io/worker-index": str(index),
    }
    return pod(
        *containers,
        name=name,
        owner="StatefulSet",
        labels=labels,
        annotations=annotations,
        subdomain=subdomain,
        **spec,
    )


def pod_of(workload: Manifest, number: int) -> Manifest:
    """The Pod with this index, as the controller of a StatefulSet or an Indexed Job creates it."""
    kind, name, template = (
        workload["kind"],
        workload["metadata"]["name"],
        workload["spec"]["template"],
    )
    labels = dict(template["metadata"].get("labels") or {})
    annotations = dict(template["metadata"].get("annotations") or {})
    spec = deepcopy(template["spec"])
    made_name = f"{name}-{number}"
    if kind == "StatefulSet":
        labels["statefulset.kubernetes.io/pod-name"] = made_name
        labels["apps.kubernetes.io/pod-index"] = str(number)
        if workload["spec"]["serviceName"]:
            spec["subdomain"] = workload["spec"]["serviceName"]
    else:
        made_name += "-x7abc"
        labels |= workload["metadata"]["labels"]
        labels["batch.kubernetes.io/job-name"] = name
        labels["batch.kubernetes.io/job-completion-index"] = str(number)
        annotations["batch.kubernetes.io/job-completion-index"] = str(number)
    made = pod(name=made_name, owner=kind, labels=labels, annotations=annotations)
    return {**made, "spec": spec}


def as_review(target: Any, operation: str = "CREATE", **request: Any) -> Manifest:
    """The AdmissionReview that an API server sends."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u-1", "operation": operation, "object": target, **request},
    }


def injecting(*, is_strict: bool = False, is_namespace_marked: bool = False) -> Mutation:
    """Return the mutation with its settings."""
    settings = InjectionSettings(is_strict=is_strict)
    return partial(inject, settings=settings, is_namespace_marked=is_namespace_marked)


class Answered:
    """The answer to a review, and the object as it is stored afterwards."""

    def __init__(
        self,
        target: Any,
        *,
        is_strict: bool = False,
        is_namespace_marked: bool = False,
        **request: Any,
    ) -> None:
        body = json.dumps(as_review(target, **request)).encode()
        mutate = injecting(is_strict=is_strict, is_namespace_marked=is_namespace_marked)
        self.response = review(body, mutate).document["response"]
        raw = self.response.get("patch")
        self.patch: list[Manifest] = json.loads(base64.b64decode(raw)) if raw else []
        self.target: Manifest = jsonpatch.apply_patch(deepcopy(target), self.patch)

    @property
    def warnings(self) -> list[str]:
        return [text.removeprefix("tpu-functions: ") for text in self.response.get("warnings", [])]

    def pod(self) -> Manifest:
        """The Pod's spec, in a template or by itself."""
        template = self.target["spec"].get("template")
        spec: Manifest = template["spec"] if template else self.target["spec"]
        return spec

    def entries(self, name: str = "c") -> list[Manifest]:
        """Return the entries of a container's env."""
        spec = self.pod()
        both = [*spec["containers"], *spec.get("initContainers", [])]
        found = next(one for one in both if one["name"] == name)
        return list(found.get("env") or [])

    def env(self, name: str = "c") -> dict[str, str]:
        """Return the effective variables of a container; in a template, a field is `<path>`."""
        variables = {}
        for entry in self.entries(name):
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            variables[entry["name"]] = self._resolve(field) if field else entry.get("value", "")
        return variables

    def _resolve(self, field: str) -> str:
        named = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", field)
        if self.target["kind"] != "Pod" or named is None:
            return f"<{field}>"
        return str(self.target["metadata"][named[1]][named[2]])
