"""Recorded answers, which are compared with those of the stand-ins.

The published recordings and the flights of `tests.flights` are compared by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "shared" / "conformance" / "recordings"

GENERATED = r"[\w-]{11}=|\d{15,20}|operation-\d+-[\w-]+"
"""Fingerprints, ids, names of operations."""
TIME = r"\d{4}-\d\d-\d\dT[\d:.]+(?:-0[78]:00|Z)"
"""Times of Compute Engine, and of Cloud Logging."""
OF_VMS = {
    "cpuPlatform": "which CPU a zone gives is not simulated",
    "disks.0.licenses*": "images have no licences here",
    "disks.0.guestOsFeatures.*": "images have no features of their own here",
    "shieldedVm*": "twins of shieldedInstance*, in beta answers only",
}
"""Fields of the documents of VMs that the simulated ones lack, each with the reason."""


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all leaves of a document, including empty objects and lists."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from flatten(inner, f"{path}.{index}")
    else:
        yield path, value


def compare(
    recorded: Any,
    simulated: Any,
    is_known: Callable[[str], bool],
    is_same: Callable[[str, Any, Any], bool],
) -> list[str]:
    """Return the differences in keys and values of two documents, except the known ones."""
    expected, found = dict(flatten(recorded)), dict(flatten(simulated))
    differences = []
    for key in [*expected, *(key for key in found if key not in expected)]:
        if is_known(key):
            continue
        if key not in found:
            differences.append(f"{key}: {expected[key]!r} recorded, nothing simulated")
        elif key not in expected:
            differences.append(f"{key}: nothing recorded, {found[key]!r} simulated")
        elif not is_same(key, expected[key], found[key]):
            differences.append(f"{key}: {expected[key]!r} recorded, {found[key]!r} simulated")
    return differences
