"""The scale of an object: its subresource ``scale``, which ``kubectl scale`` reads and patches."""

from __future__ import annotations

from local.kube import errors
from local.kube.kinds import Document, Kind
from local.kube.store import Record

REPLICAS_PATH = ".spec.replicas"
"""A CustomResourceDefinition with another path gets no scale here."""


def render_scale(kind: Kind, record: Record) -> Document:
    """The Scale. A number that is 0 is left out of its spec, as in Kubernetes."""
    document, metadata = record.document, record.metadata
    names = ("name", "namespace", "uid", "creationTimestamp")
    spec: Document = document.get("spec", {})
    replicas = spec.get("replicas", 0)
    status: Document = {"replicas": document.get("status", {}).get("replicas", 0)}
    labels = spec.get("selector", {}).get("matchLabels", {})
    if labels and not kind.custom:
        status["selector"] = ",".join(f"{key}={labels[key]}" for key in sorted(labels))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            **{name: metadata[name] for name in names},
            "resourceVersion": str(record.revision),
        },
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def scale(record: Record, wanted: Document) -> Document:
    """The object with the replicas and the version of a Scale that was sent. Raises 400 and 422."""
    replicas = (wanted.get("spec") or {}).get("replicas", 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise errors.bad_request(f"spec.replicas of the Scale must be an integer, not {replicas!r}")
    if replicas < 0:
        wrong = errors.invalid_value(
            "spec.replicas", replicas, ": must be greater than or equal to 0"
        )
        raise errors.invalid("Scale.autoscaling", record.key[1], [wrong])
    document = record.copy()
    document.setdefault("spec", {})["replicas"] = replicas
    version = (wanted.get("metadata") or {}).get("resourceVersion")
    if version:
        document["metadata"]["resourceVersion"] = version
    return document
