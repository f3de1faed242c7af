"""TPUSliceClasses on a real control plane: the definition, its rules and columns, and who may write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from local.control_plane.plane import OwnControlPlane
from local.run.supervisor import read_slice_class
from local.tests.real_parts import open_own_control_plane
from tests.real.relay.waiting import until
from tests.support.chart import apply
from tests.support.class_specs import (
    CLASSES,
    INVALID,
    INVALID_NAMES,
    NAME,
    VALID,
    Manifest,
    slice_class,
)

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slice classes")]

EXAMPLES = Path(__file__).parents[2] / "examples"
STATUS: dict[str, Any] = {
    "refusals": [{"candidate": "p:us-east5-b/SPOT"}, {"candidate": "p:us-east5-a/STANDARD"}],
    "usage": {"slices": 2, "chips": 32},
    "waits": {"median": "4m"},
}


@pytest.fixture(scope="module")
def plane() -> Iterator[OwnControlPlane]:
    """A new control plane with slices for JobSets, whose CRD has no warnings."""
    with open_own_control_plane() as started:
        apply(started, {"slices": {"workloads": "jobsets"}})
        until(partial(is_served, started), "classes are served")
        yield started


def is_served(plane: OwnControlPlane) -> bool:
    return plane.request("GET", CLASSES)[0] == 200


def list_violations(plane: OwnControlPlane, manifest: Manifest) -> list[tuple[str, str]]:
    code, answer = plane.request("POST", f"{CLASSES}?dryRun=All", manifest)
    if code == 201:
        return []
    assert code == 422, answer
    return [(cause["field"], cause["message"]) for cause in answer["details"]["causes"]]


def test_each_valid_class_is_accepted(plane: OwnControlPlane) -> None:
    found = {name: list_violations(plane, slice_class(**VALID[name])) for name in VALID}
    assert {name: violations for name, violations in found.items() if violations} == {}


def test_each_invalid_class_is_rejected_with_its_field(plane: OwnControlPlane) -> None:
    def is_reported(change: Manifest, path: str, message: str) -> bool:
        found = list_violations(plane, slice_class(**change))
        return any(at == path and message in text for at, text in found)

    assert [name for name, row in INVALID.items() if not is_reported(*row)] == []
    for name in INVALID_NAMES:
        found = list_violations(plane, slice_class(name))
        assert any(at == "metadata.name" and NAME in text for at, text in found), found


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("slice-class-*.yaml")), ids=lambda p: p.stem)
def test_an_example_is_accepted_with_all_its_fields(plane: OwnControlPlane, path: Path) -> None:
    options = ("apply", "--dry-run=server", "--validate=strict", "--filename", str(path))
    result = plane.run_kubectl(*options)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr


def test_the_example_replaces_the_class_of_make_local_without_a_warning(
    plane: OwnControlPlane,
) -> None:
    code, stored = plane.request("POST", CLASSES, read_slice_class())
    assert code == 201, stored
    example = EXAMPLES / "slice-class-v6e.yaml"
    applied = plane.run_kubectl("apply", "--filename", str(example))
    assert (applied.returncode, applied.stderr) == (0, ""), applied.stderr
    _, stored = plane.request("GET", f"{CLASSES}/v6e")
    assert len(stored["spec"]["candidates"]) == 4
    plane.request("DELETE", f"{CLASSES}/v6e")


def test_kubectl_shows_what_a_class_has_and_what_was_refused(plane: OwnControlPlane) -> None:
    manifest = slice_class("shown", accelerator="tpu-v6e-slice", isDefault=True)
    code, stored = plane.request("POST", CLASSES, manifest)
    assert code == 201, stored
    assert {one["provisioningModel"] for one in stored["spec"]["candidates"]} == {
        *("STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START")
    }
    assert stored["spec"]["candidates"][0]["reservation"] == ""
    code, answer = plane.request("PUT", f"{CLASSES}/shown/status", {**stored, "status": STATUS})
    assert code == 200, answer
    head, row = plane.run_kubectl("get", "tsc", "-o", "wide").stdout.splitlines()
    assert head.split() == [
        *("NAME", "ACCELERATOR", "DEFAULT", "SLICES", "CHIPS", "WAIT", "REFUSED", "AGE")
    ]
    assert row.split()[:-1] == [
        *("shown", "tpu-v6e-slice", "true", "2", "32", "4m", "p:us-east5-b/SPOT")
    ]


@pytest.mark.parametrize(
    "step, change, message",
    [
        ("provision-slice", {"refusals": []}, ""),
        ("provision-slice", {"usage": {"slices": 0}}, "may change only the refusals"),
        ("release-slice", {"usage": {"slices": 0}}, ""),
        ("release-slice", {"refusals": []}, "may change only the usage and the waits"),
    ],
)
def test_a_step_may_write_its_part_of_the_status(
    plane: OwnControlPlane, step: str, change: Manifest, message: str
) -> None:
    name = f"{step}-{'-'.join(change)}"
    code, stored = plane.request("POST", CLASSES, slice_class(name))
    assert code == 201, stored
    path = f"{CLASSES}/{name}"
    code, stored = plane.request("PUT", f"{path}/status", {**stored, "status": STATUS})
    assert code == 200, stored

    def write(part: str, manifest: Manifest) -> str:
        """Write as the step, in a dry run; the error, or ``""``."""
        user = f"system:serviceaccount:tpu-functions:{step}"
        url = f"{path}{part}?dryRun=All"
        result = plane.run_kubectl(
            "replace", f"--raw={url}", f"--as={user}", "--filename=-", stdin=json.dumps(manifest)
        )
        return result.stderr

    changed = {**stored, "status": {**STATUS, **change}}
    until(lambda: message in write("/status", changed), "the policy has effect")
    assert message or write("/status", changed) == ""
    assert "cannot update resource" in write("", {**stored, "spec": {}})
