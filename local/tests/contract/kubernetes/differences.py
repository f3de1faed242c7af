"""Known differences between the answers of the embedded API and a real one.

``local/docs/embedded-kubernetes.md`` documents each. A known difference that does not occur any more
is a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from local.tests.contract.kubernetes.cases.deleting import PODS_OF_NODES
from local.tests.contract.kubernetes.cases.scaling import SCALES
from local.tests.contract.kubernetes.dialogue import Exchange
from local.tests.contract.kubernetes.masks import differences, read


@dataclass(frozen=True)
class Difference:
    """In answers of the named case, the value at ``path`` and below may differ.

    ``always``: it must differ. Otherwise it depends on how fast a controller is.
    """

    case: str
    path: str
    always: bool = True

    def covers(self, case: str, path: str) -> bool:
        return case == self.case and f"{path}.".startswith(f"{self.path}.")


def _sometimes(path: str, *cases: str) -> tuple[Difference, ...]:
    return tuple(Difference(case, path, always=False) for case in cases)


def _within(case: str, *paths: str) -> tuple[Difference, ...]:
    return tuple(Difference(case, path) for path in paths)


_POD_DEFAULTS = (
    *(f"spec.containers.0.{name}" for name in ("imagePullPolicy", "resources", "volumeMounts")),
    *(f"spec.{name}" for name in ("enableServiceLinks", "preemptionPolicy", "priority")),
    *(f"spec.{name}" for name in ("securityContext", "serviceAccount", "serviceAccountName")),
    *(f"spec.{name}" for name in ("tolerations", "volumes")),
    "status.qosClass",
)
"""Fields that a real cluster adds to a Pod."""


def _pods(case: str, *at: str) -> tuple[Difference, ...]:
    return _within(case, *(f"{one}.{path}" for one in at for path in _POD_DEFAULTS))


_OF_DEPLOYMENT = (
    *(f"body.spec.{name}" for name in ("progressDeadlineSeconds", "revisionHistoryLimit")),
    *("body.spec.strategy", "body.spec.template.spec"),
    *("body.metadata.annotations", "body.status"),
)
"""Fields that a real cluster and its controller add to a Deployment."""


KNOWN: Mapping[str, tuple[Difference, ...]] = {
    "controllers act only when the clock runs their callbacks": (
        *_sometimes(
            "body.spec.taints",
            "a write to a node's status can change its labels",
            "a strategic merge merges conditions by type",
            "a strategic merge replaces taints, which have no merge key",
            "a kubelet registers its own node with the taint not-ready",
            "a kubelet cannot set restricted labels",
            "a kubelet can patch the status of its node",
            "a kubelet can read only its own node",
            "a patch of a node's label with an old version conflicts",
            "a node can be cordoned and uncordoned",
        ),
        *_sometimes(
            "body.items.0.spec.taints",
            "a patch of a node's label with an old version conflicts",
            "a kubelet can read only its own node",
        ),
        *_sometimes(
            "body.metadata",
            "objects in a terminating namespace can be changed but not created",
            "the cluster-info ConfigMap is readable without credentials",
            "a bootstrap token without the usage authentication is Unauthorized",
            "cluster-info has a bootstrap token's signature until the token is deleted",
            "a bootstrap token without the usage signing does not sign cluster-info",
        ),
        *_sometimes(
            "body.data",
            "the cluster-info ConfigMap is readable without credentials",
            "a bootstrap token without the usage authentication is Unauthorized",
            "cluster-info has a bootstrap token's signature until the token is deleted",
            "a bootstrap token without the usage signing does not sign cluster-info",
        ),
    ),
    "Pods and workloads get only some defaults": (
        *_within(
            "a strategic merge deletes from a keyed list",
            "body.spec",
            "body.status",
        ),
        *_pods("pending pods of jobsets can be listed", "body", "body.items.0"),
        *_pods(
            "a watch of pending pods shows DELETED when a pod runs",
            *("body", "body.0.object", "body.1.object"),
        ),
        *_pods("pods of jobs can be listed by node", "body", "body.items.0"),
        *(one for case in PODS_OF_NODES for one in _pods(case.name, "body")),
        *_pods("pods that are deleted together have the same grace period", "body.items.0"),
        *(one for case in SCALES for path in _OF_DEPLOYMENT for one in _sometimes(path, case.name)),
        *_pods(
            "a pod on a node exists until its kubelet ends the deletion",
            *(f"body.{number}.object" for number in range(4)),
        ),
    ),
}
"""By the words of the page that describe them."""


@dataclass(frozen=True)
class Finding:
    """One difference and its path. ``...`` is an absent value."""

    where: str
    path: str
    real: Any
    embedded: Any

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.path}\n  real      {self.real!r}\n  embedded  {self.embedded!r}"
        )


def compare(real: Iterable[Exchange], embedded: Iterable[Exchange]) -> Iterator[Finding]:
    """Compare two runs of a case: yield all differences of the masked answers."""
    for one, other in zip(real, embedded, strict=True):
        for path, theirs, ours in differences(read(one.answer), read(other.answer)):
            yield Finding(one.where, path, theirs, ours)


def check(case: str, found: Iterable[Finding]) -> None:
    """Raise `AssertionError` for an unknown difference, and for a known one that was not found."""
    known = [one for group in KNOWN.values() for one in group if one.case == case]
    findings = list(found)
    new = [one for one in findings if not any(known_.covers(case, one.path) for known_ in known)]
    missing = [
        one.path
        for one in known
        if one.always and not any(one.covers(case, finding.path) for finding in findings)
    ]
    assert not new, "the answers differ:\n" + "\n".join(map(str, new))
    assert not missing, f"known differences that do not occur any more: {missing}"
