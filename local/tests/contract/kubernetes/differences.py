"""Where the embedded API and a real one are known to give different answers, and why.

Each stands in ``docs/reference/embedded-kubernetes.md``, too. One that is not found any more fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from local.tests.contract.kubernetes.dialogue import Exchange
from local.tests.contract.kubernetes.masks import differences, read


@dataclass(frozen=True)
class Difference:
    """Of the case of this name, what stands at ``path`` of an answer and below may differ.

    ``always``: it does, and not only when a controller has been quick or slow.
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
"""What a real cluster adds to a Pod."""


def _pods(case: str, *at: str) -> tuple[Difference, ...]:
    return _within(case, *(f"{one}.{path}" for one in at for path in _POD_DEFAULTS))


KNOWN: Mapping[str, tuple[Difference, ...]] = {
    "controllers act only when the clock runs their callbacks": (
        *_sometimes(
            "body.spec.taints",
            "a node's status write may change its labels",
            "a strategic merge merges conditions by type",
            "a strategic merge replaces taints, which have no merge key",
            "a kubelet registers its own node, which takes nothing before it is ready",
            "a kubelet sets no label that others trust",
            "a kubelet reports its status",
            "a kubelet reads no node but its own",
            "a node is labelled if it is as it was read",
            "a node is cordoned",
        ),
        *_sometimes(
            "body.items.0.spec.taints",
            "a node is labelled if it is as it was read",
            "a kubelet reads no node but its own",
        ),
        *_sometimes(
            "body.metadata",
            "a deleted namespace takes nothing new, and what is there can change",
            "how joining nodes find the cluster is for all to read",
            "a bootstrap token that is not for authentication is nobody's",
            "a bootstrap token signs how to find the cluster, as long as it lives",
            "a bootstrap token can be for signing, or not",
        ),
        *_sometimes(
            "body.data",
            "how joining nodes find the cluster is for all to read",
            "a bootstrap token that is not for authentication is nobody's",
            "a bootstrap token signs how to find the cluster, as long as it lives",
            "a bootstrap token can be for signing, or not",
        ),
    ),
    "Pods and workloads get only some defaults": (
        *_within(
            "a strategic merge deletes from a keyed list",
            "body.spec",
            "body.status",
        ),
        *_pods("pods of jobsets that have not started are listed", "body", "body.items.0"),
        *_pods(
            "pods of jobsets that wait are watched until they run",
            *("body", "body.0.object", "body.1.object"),
        ),
        *_pods("pods of jobs are listed by their node", "body", "body.items.0"),
    ),
}
"""By words of the page that tell of them."""


@dataclass(frozen=True)
class Finding:
    """What differs, and where; ``...`` stands for nothing."""

    where: str
    path: str
    real: Any
    embedded: Any

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.path}\n  real      {self.real!r}\n  embedded  {self.embedded!r}"
        )


def compare(real: Iterable[Exchange], embedded: Iterable[Exchange]) -> Iterator[Finding]:
    """All that differs between two runs of a case, masked."""
    for one, other in zip(real, embedded, strict=True):
        for path, theirs, ours in differences(read(one.answer), read(other.answer)):
            yield Finding(one.where, path, theirs, ours)


def check(case: str, found: Iterable[Finding]) -> None:
    """Raises `AssertionError` for what is not known, and for what is known and not found."""
    known = [one for group in KNOWN.values() for one in group if one.case == case]
    findings = list(found)
    new = [one for one in findings if not any(known_.covers(case, one.path) for known_ in known)]
    gone = [
        one.path
        for one in known
        if one.always and not any(one.covers(case, finding.path) for finding in findings)
    ]
    assert not new, "the answers differ:\n" + "\n".join(map(str, new))
    assert not gone, f"known differences that are there no more: {gone}"
