"""The CustomResourceDefinition in an API server: the objects that it accepts, rejects and stores."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.base.reasons import Reason
from shared.base.topology import find_machine
from shared.node_groups import node_group, status
from shared.node_groups.spec import MAX_NODES
from shared.node_groups.status import (
    MAX_MESSAGE,
    MAX_PENDING,
    MAX_RETRY_MESSAGE,
    MIG,
    POLICY,
    TEMPLATE,
    Condition,
    Counts,
    Pending,
    Repairs,
    Resource,
    ResourceError,
    Retry,
    State,
    Status,
    Type,
    Unusable,
    UnusableCause,
)
from shared.triggers.routes import STEPS
from tests.support.builders import readable
from tests.support.group_server import (
    CRD,
    GROUPS,
    ROOT,
    ROWS,
    Manifest,
    Server,
    group,
    leaves_of,
    list_violations,
)
from tests.support.specs import INVALID_NAMES, OWN_TEMPLATE

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_a_group_that_was_stored_with_an_invalid_name_can_be_updated(name: str) -> None:
    older = copy.deepcopy(CRD)
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema.pop("x-kubernetes-validations", None)
    del schema["properties"]["metadata"]
    server, stored = Server(older), {**group(), "metadata": {"name": name}}
    server.create(stored)
    definition = (
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD['metadata']['name']}"
    )
    metadata = server.call("GET", definition).json()["metadata"]
    assert server.call("PUT", definition, {**CRD, "metadata": metadata}).status == 200
    assert server.list_violations({**stored, "metadata": {"name": f"new-{name}"}}) != []
    stored["metadata"]["labels"] = {"team": "a"}
    assert server.replace(stored).status == 200
    assert server.replace({**stored, "status": {"observedGeneration": 1}}, "/status").status == 200


def side(row: Manifest, which: str) -> Manifest:
    """Return a row's group before (``old``) or after (``new``), without the fields of the other side.

    A user's template replaces the example's instanceConfig, and the group has no bootstrap.
    """
    absent: Manifest = dict.fromkeys((row["old"].keys() | row["new"].keys()) - row[which].keys())
    user_template: Manifest = {}
    if "instanceTemplateURI" in row["old"] | row["new"]:
        user_template["bootstrapKubernetes"] = None
    if "instanceTemplateURI" in row[which]:
        user_template["instanceConfig"] = None
    return group(**{**user_template, **absent, **row[which]})


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row["id"], marks=pytest.mark.conformance(*row.get("shows", [])))
        for row in ROWS["updates"]
    ],
)
def test_a_field_that_tpu_operator_makes_immutable_is_immutable(
    server: Server, row: Manifest
) -> None:
    server.create(side(row, "old"))
    found = list_violations(server.replace(side(row, "new")))
    messages = [text for path, text in found if path.startswith(row["path"])]
    assert any(text.endswith(row.get("message", " is immutable")) for text in messages), found


@pytest.mark.conformance("val-bootstrap-version-default")
def test_the_version_of_kubernetes_and_the_subnetwork_have_defaults(server: Server) -> None:
    stored = server.create(
        group(instanceConfig={"subnetwork": None}, bootstrapKubernetes={"version": None})
    )
    assert stored["spec"]["bootstrapKubernetes"]["version"] == "1.31"
    assert stored["spec"]["instanceConfig"]["subnetwork"] == "default"
    assert stored["spec"]["repair"] == "Never"


# Immutability

A: Manifest = {"nodeLabels": {"a": "a"}}
B: Manifest = {"nodeLabels": {"a": "b"}}


@pytest.mark.parametrize(
    "before, after, field",
    [
        pytest.param({}, {"nodeLocation": "us-central1-a"}, "NodeLocation", id="required"),
        pytest.param({}, {"targetSizePolicyMode": "INDIVIDUAL"}, "TargetSizePolicyMode", id="enum"),
        pytest.param(A, B, "NodeLabels", id="optional"),
        pytest.param({}, A, "NodeLabels", id="optional, added"),
        pytest.param(A, {"nodeLabels": None}, "NodeLabels", id="optional, removed"),
        pytest.param(OWN_TEMPLATE, {}, "InstanceConfig", id="object, added"),
    ],
)
def test_a_field_cannot_be_changed(
    server: Server, before: Manifest, after: Manifest, field: str
) -> None:
    server.create(group(**before))
    found = list_violations(server.replace(group(**after)))
    path = f"spec.{field[0].lower()}{field[1:]}"
    assert any(at == path and text.endswith(f"{field} is immutable") for at, text in found), found


def test_annotations_and_the_field_repair_can_be_changed(server: Server) -> None:
    stored = server.create(group())
    stored["metadata"]["annotations"] = {"tpu-functions.dev/paused": "true"}
    del stored["spec"]["repair"]
    response = server.replace(stored)
    assert response.status == 200, response.body
    assert response.json()["spec"]["repair"] == "Never"


# Status

MOMENTS = st.datetimes(
    min_value=datetime(2026, 1, 1), max_value=datetime(2036, 1, 1), timezones=st.just(UTC)
).map(lambda moment: moment.replace(microsecond=0))
REASON_WORDS = st.sampled_from(["Ready", *Reason])
ERRORS = st.builds(
    ResourceError,
    reason=REASON_WORDS,
    code=st.text(max_size=256),
    message=st.text(max_size=MAX_MESSAGE),
    since=MOMENTS,
)
RESOURCES = st.builds(
    Resource,
    name=st.text(min_size=1, max_size=63),
    state=st.sampled_from(State),
    since=st.none() | MOMENTS,
    uri=st.text(max_size=512),
    operation=st.text(max_size=128),
    error=st.none() | ERRORS,
)
CONDITIONS = st.builds(
    Condition,
    status=st.sampled_from(["True", "False", "Unknown"]),
    reason=REASON_WORDS,
    message=st.text(max_size=MAX_MESSAGE),
    since=MOMENTS,
    generation=st.integers(1, 9),
)
NUMBERS = st.integers(0, MAX_NODES)
STATUSES = st.builds(
    Status,
    observed_generation=st.integers(0, 9),
    completed_at=st.none() | MOMENTS,
    machine_type=st.text(max_size=63),
    provisioning_model=st.text(max_size=63),
    conditions=st.dictionaries(st.sampled_from(Type), CONDITIONS),
    resources=st.dictionaries(st.sampled_from([POLICY, TEMPLATE, MIG]), RESOURCES),
    counts=st.just(Counts())
    | st.builds(Counts, st.integers(1, MAX_NODES), NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    pending=st.lists(
        st.builds(Pending, st.text(min_size=1, max_size=63), REASON_WORDS, MOMENTS),
        max_size=MAX_PENDING,
        unique_by=lambda entry: entry.name,
    ).map(tuple),
    retries=st.lists(
        st.builds(Retry, st.sampled_from(STEPS[:4]), st.text(max_size=MAX_RETRY_MESSAGE), MOMENTS),
        max_size=4,
        unique_by=lambda entry: entry.step,
    ).map(tuple),
)


@settings(max_examples=50)
@given(known=STATUSES)
def test_each_status_that_the_functions_write_is_stored_and_read_back_unchanged(
    known: Status,
) -> None:
    server = Server()
    rendered = status.render(known)
    response = server.replace({**server.create(group()), "status": rendered}, "/status")
    assert response.status == 200, response.body
    assert response.json().get("status", {}) == rendered
    assert status.parse(rendered) == known


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
FULL = Status(
    observed_generation=1,
    completed_at=MOMENT,
    machine_type="tpu7x-standard-4t",
    provisioning_model="SPOT",
    topology="2x2x2",
    max_run_s=3600,
    repairs=Repairs(2, MOMENT),
    conditions={Type.READY: Condition("False", "InsufficientCapacity", "none left", MOMENT, 1)},
    resources={
        kind: Resource(
            name="tng-a-1a2b3c4d",
            state=State.FAILED,
            since=MOMENT,
            uri="https://www.googleapis.com/compute/v1/projects/p/zones/z/x/tng-a-1a2b3c4d",
            operation="operation-1-2-3-4",
            error=ResourceError("Refused", "ZONE_RESOURCE_POOL_EXHAUSTED", "none left", MOMENT),
        )
        for kind in (POLICY, TEMPLATE, MIG)
    },
    counts=Counts(2, 2, 1, 1, 1),
    pending=(Pending("tng-a-1a2b3c4d-x1y2", "NodeNotReady", MOMENT),),
    retries=(Retry("label_node", "503 backendError", MOMENT),),
    run_ends=MOMENT,
    idle_since=MOMENT,
    unusable=Unusable(dict.fromkeys(UnusableCause, 60), UnusableCause.USER, 8, MOMENT),
)


def leaves(value: Any, path: str = "status") -> set[str]:
    """Return the paths of all values that are neither an object nor a list."""
    if isinstance(value, dict):
        return {leaf for name in value for leaf in leaves(value[name], f"{path}.{name}")}
    if isinstance(value, list):
        return {leaf for entry in value for leaf in leaves(entry, f"{path}[]")}
    return {path}


def test_every_field_of_the_status_is_written_by_the_functions() -> None:
    assert leaves(status.render(FULL)) == LEAVES.keys()


def test_the_columns_show_the_state_of_a_group(server: Server) -> None:
    stored = server.create(group())
    status = {
        "machineType": "tpu7x-standard-4t",
        "provisioningModel": "RESERVATION_BOUND",
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "Provisioning",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        "nodeSummary": {"text": "0/2"},
        "resources": {"managedInstanceGroup": {"name": "tng-a-1a2b3c4d"}},
        "idleSince": "2026-01-01T00:00:00Z",
        "unusable": {"chipHours": "1.5"},
    }
    server.replace({**stored, "status": status}, "/status")
    table = server.call("GET", GROUPS, accept="application/json;as=Table;v=v1;g=meta.k8s.io").json()
    cells = dict(
        zip(
            (column["name"] for column in table["columnDefinitions"]),
            table["rows"][0]["cells"],
            strict=True,
        )
    )
    assert cells.pop("AGE")
    assert list(cells.items()) == [
        ("Name", "my-tpu-node-group"),
        ("READY", "False"),
        ("REASON", "Provisioning"),
        ("NODES", "0/2"),
        ("TOPOLOGY", "2x2x2"),
        ("MACHINE", "tpu7x-standard-4t"),
        ("ZONE", "us-central1-c"),
        ("MODEL", "RESERVATION_BOUND"),
        ("MIG", "tng-a-1a2b3c4d"),
        ("IDLE", "0s"),
        ("UNUSABLE", "1.5"),
    ]


# The definition itself


OBJECT = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
LEAVES = dict(leaves_of(OBJECT["status"], "status"))


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_of_the_status_is_described_and_bounded(path: str) -> None:
    """Without a bound an API server could reject a rule on it, because of its cost."""
    assert LEAVES[path]["description"].endswith(".")
    assert LEAVES[path].keys() & {"maxLength", "enum", "format", "minimum"}


def test_groups_have_a_short_name_and_a_category() -> None:
    names = CRD["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["tng"], ["tpu"])


# Examples


def groups_in(path: Path) -> list[Manifest]:
    return [
        document
        for document in yaml.safe_load_all(path.read_text())
        if document["kind"] == "TPUNodeGroup"
    ]


GROUP_EXAMPLES = [path for path in EXAMPLES if groups_in(path)]


@pytest.mark.parametrize("path", GROUP_EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_with_all_its_fields(server: Server, path: Path) -> None:
    for manifest in groups_in(path):
        stored = server.create(manifest)
        assert {**stored["spec"], **manifest["spec"]}.keys() == stored["spec"].keys()


def test_the_example_of_tpu_operators_readme_has_its_values() -> None:
    (manifest,) = groups_in(ROOT / "examples/tpu-operator-readme.yaml")
    assert manifest == ROWS["original_example"]


def test_the_example_job_selects_the_nodes_of_its_example_group() -> None:
    (manifest,) = groups_in(ROOT / "examples/tpu7x-2x2x2.yaml")
    manifest["metadata"] |= {
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
    }
    (job,) = (
        document
        for document in yaml.safe_load_all((ROOT / "examples/workload/job.yaml").read_text())
        if document["kind"] == "Job"
    )
    machine = find_machine(manifest["spec"]["instanceConfig"]["machineType"])
    labels = readable(node_group.parse(manifest, "cluster")).node_labels(machine)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"].items() <= labels.items()
    assert job["spec"]["completions"] == manifest["spec"]["nodeCount"]
    assert machine is not None
    chips = {container["resources"]["limits"]["google.com/tpu"] for container in pod["containers"]}
    assert chips == {str(machine.chips)}
