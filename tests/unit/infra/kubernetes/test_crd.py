"""The CustomResourceDefinition in an API server: the objects that it accepts, rejects and stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from local.base.clock import VirtualClock
from local.base.http import Request, Response
from local.kube import ADMIN, KubeApi
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
    Resource,
    ResourceError,
    Retry,
    State,
    Status,
    Type,
)
from shared.triggers.routes import STEPS
from tests.support.builders import readable
from tests.support.specs import (
    ACCEPTED,
    INVALID_NAMES,
    MISFITS,
    OUT_OF_BOUNDS,
    OWN_TEMPLATE,
    REJECTED,
    SHAPES,
    VALID_NAMES,
    shaped,
    shapes,
)

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[4]
DATA = ROOT / "tests" / "data"
CRD: Manifest = yaml.safe_load((ROOT / "infra/kubernetes/base/crd.yaml").read_text())
ROWS: Manifest = yaml.safe_load((DATA / "spec.yaml").read_text())
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
NAMESPACE: Manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"


class Server:
    """An API server that serves TPUNodeGroups, and the three calls that the tests make."""

    def __init__(self) -> None:
        self._api = KubeApi(VirtualClock(), random=Random(0), tokens={"admin": ADMIN})
        self._api.apply_manifests([CRD, NAMESPACE])

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        text = None if body is None else json.dumps(body)
        named = {
            "authorization": "Bearer admin",
            "content-type": "application/json",
            "accept": "application/json",
            **headers,
        }
        return self._api.handle(Request.of(method, path, headers=named, body=text))

    def create(self, group: Manifest) -> Manifest:
        """Create the group and return it as it was stored."""
        response = self.call("POST", GROUPS, group)
        assert response.status == 201, response.body.decode()
        stored: Manifest = response.json()
        return stored

    def replace(self, group: Manifest, subresource: str = "") -> Response:
        """Replace the stored object of this name."""
        path = f"{GROUPS}/{group['metadata']['name']}"
        metadata = {**self.call("GET", path).json()["metadata"], **group["metadata"]}
        return self.call("PUT", path + subresource, {**group, "metadata": metadata})


@pytest.fixture
def server() -> Server:
    return Server()


def list_violations(response: Response) -> list[tuple[str, str]]:
    """Return path and message of each violation; the answer must have no other error."""
    status = response.json()
    assert (response.status, status["reason"]) == (422, "Invalid"), status
    return [(cause["field"], cause["message"]) for cause in status["details"]["causes"]]


def has_violation(response: Response, path: str, message: str) -> bool:
    """Return whether a violation at ``path`` ends in ``message``.

    The text before it, the invalid value, differs between versions of Kubernetes.
    """
    return any(
        field == path and text.endswith(message) for field, text in list_violations(response)
    )


def merge(target: Any, change: Any) -> Any:
    """Return a copy of ``target`` with a JSON merge patch applied (RFC 7396)."""
    if not isinstance(change, dict):
        return deepcopy(change)
    merged = deepcopy(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def group(**change: Any) -> Manifest:
    """Return the example of tpu-operator's README with a merge patch applied to its spec."""
    manifest: Manifest = merge(ROWS["original_example"], {"spec": change})
    return manifest


def ids(rows: list[Manifest]) -> list[str]:
    return [row["id"] for row in rows]


# tpu-operator's rows


@pytest.mark.parametrize("row", ROWS["valid"], ids=ids(ROWS["valid"]))
def test_a_spec_that_tpu_operator_accepts_is_accepted(server: Server, row: Manifest) -> None:
    server.create(group(**row["change"]))


@pytest.mark.parametrize("row", ROWS["invalid"], ids=ids(ROWS["invalid"]))
def test_an_invalid_spec_is_rejected_with_the_path_of_the_violation(
    server: Server, row: Manifest
) -> None:
    response = server.call("POST", GROUPS, group(**row["change"]))
    assert has_violation(response, row["path"], row.get("message", "")), list_violations(response)


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

OPTIONAL: dict[str, tuple[Manifest, Manifest]] = {
    "minNodeCount": ({"minNodeCount": 1}, {"minNodeCount": 2}),
    "nodeLabels": ({"nodeLabels": {"a": "b"}}, {"nodeLabels": {"a": "c"}}),
    "nodeTaints": (
        {"nodeTaints": [{"key": "a", "effect": "NoSchedule"}]},
        {"nodeTaints": [{"key": "b", "effect": "NoSchedule"}]},
    ),
    "instanceConfig": ({}, {"instanceConfig": {"networkTags": ["tag"]}}),
    "bootstrapKubernetes": ({}, {"bootstrapKubernetes": {"version": "1.32"}}),
    "instanceTemplateURI": (
        OWN_TEMPLATE,
        {**OWN_TEMPLATE, "instanceTemplateURI": OWN_TEMPLATE["instanceTemplateURI"] + "b"},
    ),
}
REQUIRED: dict[str, Any] = {
    "project": "another-project",
    "nodeLocation": "us-central1-a",
    "nodeCount": 4,
    "topology": "2x2x4",
    "targetSizePolicyMode": "INDIVIDUAL",
}
FIELDS = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def immutable(field: str) -> tuple[str, str]:
    return f"spec.{field}", f"{field[0].upper()}{field[1:]} is immutable"


def test_the_tables_name_each_field_that_has_more_than_one_value() -> None:
    one_value = {name for name, field in FIELDS.items() if len(field.get("enum", "..")) == 1}
    assert one_value == {"acceleratorConnectionMode", "repair"}
    assert OPTIONAL.keys() | REQUIRED.keys() | one_value == FIELDS.keys()


@pytest.mark.parametrize("field", REQUIRED)
def test_a_required_field_cannot_be_changed(server: Server, field: str) -> None:
    server.create(group())
    assert has_violation(server.replace(group(**{field: REQUIRED[field]})), *immutable(field))


@pytest.mark.parametrize("field", OPTIONAL)
def test_an_optional_field_cannot_be_changed(server: Server, field: str) -> None:
    before, after = OPTIONAL[field]
    server.create(group(**before))
    assert has_violation(server.replace(group(**after)), *immutable(field))


@pytest.mark.parametrize("field", OPTIONAL)
def test_an_optional_field_cannot_be_removed(server: Server, field: str) -> None:
    before, _ = OPTIONAL[field]
    server.create(group(**before))
    assert has_violation(server.replace(group(**{**before, field: None})), *immutable(field))


@pytest.mark.parametrize("field", OPTIONAL)
def test_an_optional_field_cannot_be_added(server: Server, field: str) -> None:
    before, after = OPTIONAL[field]
    source = OWN_TEMPLATE if field in ("instanceConfig", "bootstrapKubernetes") else {}
    server.create(group(**source) if field != "instanceTemplateURI" else group())
    both = before if field == "instanceTemplateURI" else {**source, **after}
    assert has_violation(server.replace(group(**both)), *immutable(field))


def test_annotations_and_the_field_repair_can_be_changed(server: Server) -> None:
    stored = server.create(group())
    stored["metadata"]["annotations"] = {"tpu-functions.dev/paused": "true"}
    del stored["spec"]["repair"]
    response = server.replace(stored)
    assert response.status == 200, response.body
    assert response.json()["spec"]["repair"] == "Never"


# Shapes


@pytest.mark.parametrize("machine_type, topology, hosts", list(shapes()))
def test_each_documented_shape_is_accepted(
    server: Server, machine_type: str, topology: str, hosts: int
) -> None:
    server.create(group(**shaped(machine_type, topology, hosts)))


def test_each_shape_of_xpk_is_accepted(server: Server) -> None:
    for topology in SHAPES["tpu7x"]["also_in_xpk"]:
        a, b, c = map(int, topology.split("x"))
        manifest = group(**shaped("tpu7x-standard-4t", topology, a * b * c // 4))
        manifest["metadata"]["name"] = f"s-{topology}"
        server.create(manifest)


@pytest.mark.parametrize("machine_type, topology, hosts, path, message", MISFITS)
def test_an_invalid_shape_is_rejected_with_the_valid_ones(
    server: Server, machine_type: str, topology: str, hosts: int, path: str, message: str
) -> None:
    response = server.call("POST", GROUPS, group(**shaped(machine_type, topology, hosts)))
    assert has_violation(response, path, message), list_violations(response)


# Single fields


@pytest.mark.parametrize("change", ACCEPTED)
def test_a_valid_value_of_a_field_is_accepted(server: Server, change: Manifest) -> None:
    server.create(group(**change))


@pytest.mark.parametrize("change, path, message", [*REJECTED, *OUT_OF_BOUNDS])
def test_an_invalid_value_of_a_field_is_rejected_with_the_valid_ones(
    server: Server, change: Manifest, path: str, message: str
) -> None:
    response = server.call("POST", GROUPS, group(**change))
    assert has_violation(response, path, message), list_violations(response)


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_a_name_that_compute_engine_does_not_accept_in_names_is_rejected(
    server: Server, name: str
) -> None:
    manifest = group()
    manifest["metadata"]["name"] = name
    response = server.call("POST", GROUPS, manifest)
    message = "metadata.name must be at most 63 of a-z, 0-9 and -, without dots"
    assert has_violation(response, "metadata.name", message), list_violations(response)


@pytest.mark.parametrize("name", VALID_NAMES)
def test_a_name_may_begin_with_a_digit_and_have_63_characters(server: Server, name: str) -> None:
    manifest = group()
    manifest["metadata"]["name"] = name
    server.create(manifest)


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
)


def leaves(value: Any, path: str = "status") -> set[str]:
    """Return the paths of all values that are neither an object nor a list."""
    if isinstance(value, dict):
        return {leaf for name in value for leaf in leaves(value[name], f"{path}.{name}")}
    if isinstance(value, list):
        return {leaf for entry in value for leaf in leaves(entry, f"{path}[]")}
    return {path}


def test_every_field_of_the_status_is_written_by_the_functions() -> None:
    defined = {
        path
        for path, node in NODES
        if path.startswith("status") and not node.keys() & {"properties", "items"}
    }
    assert leaves(status.render(FULL)) == defined


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
    ]


# The definition itself


def nodes_of(schema: Manifest, path: str = "") -> Iterator[tuple[str, Manifest]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes_of(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes_of(schema[key], f"{path}[]")


OBJECT = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
NODES = [
    (path, node)
    for part in ("spec", "status")
    for path, node in nodes_of(OBJECT["properties"][part], part)
]
BOUNDS: dict[str, Callable[[Manifest], bool]] = {
    "string": lambda node: bool(node.keys() & {"maxLength", "enum", "format"}),
    "array": lambda node: "maxItems" in node,
    "object": lambda node: bool(node.keys() & {"properties", "maxProperties"}),
    "integer": lambda node: "minimum" in node,
}


@pytest.mark.parametrize("path, node", NODES, ids=[path for path, _ in NODES])
def test_every_field_is_described_and_bounded(path: str, node: Manifest) -> None:
    assert path.endswith("[]") or node["description"].endswith(".")
    assert BOUNDS[node["type"]](node)


def test_each_rule_has_a_message() -> None:
    rules = [rule for _, node in NODES for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) > 30
    assert all(rule["message"] for rule in rules)


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
        for document in yaml.safe_load_all((ROOT / "examples/job.yaml").read_text())
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
