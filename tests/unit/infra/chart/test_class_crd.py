"""The definition of TPUSliceClasses in an API server: what it accepts, rejects, stores and shows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from shared.node_groups.spec import SPEC
from shared.slices import classes
from tests.support.class_specs import (
    CLASS_CRD,
    CLASSES,
    INVALID,
    INVALID_NAMES,
    NAME,
    VALID,
    Manifest,
    slice_class,
)
from tests.support.group_server import Server, leaves_of
from tools.pages.sliceclass import FROM_THE_POD

OBJECT = CLASS_CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


@pytest.fixture(scope="module")
def server() -> Server:
    return Server(CLASS_CRD, CLASSES)


@pytest.mark.parametrize("change", VALID.values(), ids=VALID)
def test_a_valid_class_is_accepted_with_all_its_fields(server: Server, change: Manifest) -> None:
    assert server.list_violations(slice_class(**change)) == []


@pytest.mark.parametrize("change, path, message", INVALID.values(), ids=INVALID)
def test_an_invalid_class_is_rejected_with_the_field(
    server: Server, change: Manifest, path: str, message: str
) -> None:
    found = server.list_violations(slice_class(**change))
    assert any(at == path and message in text for at, text in found), found


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_a_name_that_is_no_value_of_a_label_is_rejected(server: Server, name: str) -> None:
    found = server.list_violations(slice_class(name))
    assert any(at == "metadata.name" and NAME in text for at, text in found), found


def test_the_defaults_are_those_with_which_a_class_is_read(server: Server) -> None:
    manifest = slice_class("defaults", candidates=[{"zone": "us-east5-b"}])
    stored = server.create(manifest)
    (candidate,) = stored["spec"]["candidates"]
    assert candidate == {
        "zone": "us-east5-b",
        "provisioningModel": "STANDARD",
        "reservation": "",
        "project": "",
    }
    as_stored, as_written = classes.parse(stored), classes.parse(manifest)
    assert as_stored.candidates == as_written.candidates
    assert as_stored.give_up_after == as_written.give_up_after
    assert as_stored.is_default is as_written.is_default is False


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
STATUS: dict[str, Any] = {
    "refusals": [
        classes.Refusal(
            candidate=candidate,
            shape=classes.Shape("ct6e-standard-4t", "4x4"),
            reason="InsufficientCapacity",
            message="none left",
            since=MOMENT,
            until=MOMENT,
            asked_by="default/a",
        ).render()
        for candidate in ("my-project:us-east5-b/SPOT", "my-project:us-east5-b/STANDARD")
    ],
    "usage": {"slices": 2, "chips": 32, "waiting": ["default/a"]},
    "waits": {"median": "4m", "p90": "12m", "seconds": [240]},
}


def test_the_columns_show_the_state_of_a_class(server: Server) -> None:
    stored = server.create(slice_class("shown", accelerator="tpu-v6e-slice", isDefault=True))
    response = server.replace({**stored, "status": STATUS}, "/status")
    assert response.json()["status"] == STATUS
    table = server.call(
        "GET", CLASSES, accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    ).json()
    (cells,) = (row["cells"] for row in table["rows"] if row["cells"][0] == "shown")
    names = (column["name"] for column in table["columnDefinitions"])
    shown = dict(zip(names, cells, strict=True))
    assert shown.pop("AGE")
    assert shown == {
        "Name": "shown",
        "ACCELERATOR": "tpu-v6e-slice",
        "DEFAULT": True,
        "SLICES": 2,
        "CHIPS": 32,
        "WAIT": "4m",
        "REFUSED": "my-project:us-east5-b/SPOT",
    }


def test_the_template_has_the_fields_of_a_group_that_do_not_follow_from_the_pod() -> None:
    fields = {f for f in SPEC.fields if f not in FROM_THE_POD}
    assert OBJECT["spec"]["properties"]["template"]["properties"]["spec"]["properties"].keys() == (
        fields
    )


def test_a_candidate_is_checked_as_the_group_that_is_built_from_it() -> None:
    config = SPEC.fields["instanceConfig"].fields  # type: ignore[attr-defined]
    candidate = OBJECT["spec"]["properties"]["candidates"]["items"]["properties"]
    (run,) = candidate["maxRunDuration"]["x-kubernetes-validations"]
    (must,) = config["maxRunDuration"].musts
    assert (run["rule"], run["message"]) == (" ".join(must.cel.split()), must.message)
    (must,) = config["reservation"].musts
    in_cel = must.cel.removeprefix("self.matches('^").removesuffix("$')")
    assert candidate["reservation"]["pattern"] == f"^({in_cel})?$"
    assert candidate["provisioningModel"]["enum"] == [*config["provisioningModel"].words]


LEAVES = {
    path: schema
    for part in ("spec", "status")
    for path, schema in leaves_of(OBJECT[part], part)
    if not path.endswith("[]")
}


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_is_described_and_bounded(path: str) -> None:
    """Without a bound an API server could reject a rule on it, because of its cost."""
    schema = LEAVES[path]
    assert schema["description"].endswith(".")
    bounds = {"maxLength", "enum", "format", "minimum", "maxProperties", "maxItems"}
    assert schema["type"] == "boolean" or schema.keys() & bounds
