"""Which specs are valid: the functions and an API server with the definition agree.

An invalid spec has a violation at one path, with one message. (A row without a message violates the
schema: the API server has words of its own for that.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shared.node_groups import node_group
from tests.support.builders import CLUSTER, raw_group
from tests.support.group_server import ROWS, Manifest, Server, group
from tests.support.specs import (
    ACCEPTED,
    INVALID_NAMES,
    REJECTED,
    SHAPES,
    VALID_NAMES,
    Change,
    shaped,
    shapes,
)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def tpu_operators(kind: str, *fields: str) -> Iterator[Any]:
    """The specs of tpu-operator, each with the behaviours that it is an example of."""
    for row in ROWS[kind]:
        marks = pytest.mark.conformance(*row.get("shows", []))
        yield pytest.param(*(row.get(name, "") for name in fields), id=row["id"], marks=marks)


def list_violations(manifest: Manifest) -> list[tuple[str, str]]:
    """List path and message of the violations that the functions find."""
    raw = {**raw_group(name=manifest["metadata"]["name"]), "spec": manifest["spec"]}
    return [(one.path, one.text) for one in node_group.parse(raw, CLUSTER).violations]


def has(violations: list[tuple[str, str]], path: str, message: str) -> bool:
    """Whether there is a violation: the API server has the value before the message, we after it."""
    return any(found == path and message in text for found, text in violations)


def check_accepted(server: Server, manifest: Manifest) -> None:
    assert list_violations(manifest) == []
    assert server.list_violations(manifest) == []


def check_rejected(server: Server, manifest: Manifest, path: str, message: str) -> None:
    found = list_violations(manifest), server.list_violations(manifest)
    assert all(has(violations, path, message) for violations in found), found


@pytest.mark.conformance(
    cases={"project-of-six": "val-project-too-short", "url": "val-byo-full-url-refused"}
)
@pytest.mark.parametrize("change", [*tpu_operators("valid", "change"), *ACCEPTED])
def test_a_valid_spec_is_accepted(server: Server, change: Change) -> None:
    check_accepted(server, group(**change))


@pytest.mark.conformance(
    cases={
        "negative-node-count": "val-nodecount-negative",
        "startup-script-with-bootstrap": "tmpl-startup-script-wins",
        "template-of-another-project": "val-byo-other-project",
        "7x-in-two-dimensions": "rules.dims",
        "smaller-than-a-vm": "integer-division",
        "too-few-vms": "rules.hosts",
    }
)
@pytest.mark.parametrize(
    "change, path, message", [*tpu_operators("invalid", "change", "path", "message"), *REJECTED]
)
def test_an_invalid_spec_is_rejected_with_the_valid_values(
    server: Server, change: Change, path: str, message: str
) -> None:
    check_rejected(server, group(**change), path, message)


@pytest.mark.parametrize("machine_type, topology, hosts", list(shapes()))
def test_each_documented_shape_is_accepted(
    server: Server, machine_type: str, topology: str, hosts: int
) -> None:
    check_accepted(server, group(**shaped(machine_type, topology, hosts)))


def test_each_shape_of_xpk_is_accepted(server: Server) -> None:
    for topology in SHAPES["tpu7x"]["also_in_xpk"]:
        a, b, c = map(int, topology.split("x"))
        check_accepted(server, group(**shaped("tpu7x-standard-4t", topology, a * b * c // 4)))


def named(name: str) -> Manifest:
    return {**group(), "metadata": {"name": name, "namespace": "default"}}


@pytest.mark.conformance(cases={"1group": "val-name-not-gce-name"})
@pytest.mark.parametrize("name", VALID_NAMES)
def test_a_name_may_begin_with_a_digit_and_have_63_characters(server: Server, name: str) -> None:
    check_accepted(server, named(name))


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_a_name_that_compute_engine_does_not_accept_in_names_is_rejected(
    server: Server, name: str
) -> None:
    message = "metadata.name must be at most 63 of a-z, 0-9 and -, without dots"
    check_rejected(server, named(name), "metadata.name", message)
