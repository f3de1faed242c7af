"""What the CustomResourceDefinition accepts, refuses and keeps, as the API server applies it."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from local.clock import VirtualClock
from local.http import Request, Response
from local.kube import ADMIN, KubeApi
from shared import node_group
from shared.topology import find_machine

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
CRD: Manifest = yaml.safe_load((ROOT / "infra/kubernetes/crd.yaml").read_text())
ROWS: Manifest = yaml.safe_load((DATA / "spec.yaml").read_text())
SHAPES: Manifest = yaml.safe_load((DATA / "topology.yaml").read_text())["generations"]
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
        """The object as it was stored."""
        response = self.call("POST", GROUPS, group)
        assert response.status == 201, response.body.decode()
        stored: Manifest = response.json()
        return stored

    def replace(self, group: Manifest, subresource: str = "") -> Response:
        """Put the object in the place of the one that was stored last under its name."""
        path = f"{GROUPS}/{group['metadata']['name']}"
        metadata = {**self.call("GET", path).json()["metadata"], **group["metadata"]}
        return self.call("PUT", path + subresource, {**group, "metadata": metadata})


@pytest.fixture
def server() -> Server:
    return Server()


def refusals(response: Response) -> list[tuple[str, str]]:
    """Path and words of all that is wrong with an object; nothing else may be wrong with it."""
    status = response.json()
    assert (response.status, status["reason"]) == (422, "Invalid"), status
    return [(cause["field"], cause["message"]) for cause in status["details"]["causes"]]


def says(response: Response, path: str, message: str) -> bool:
    """Whether a refusal at ``path`` ends in ``message``.

    What stands before it, the value that is wrong, differs between versions of Kubernetes.
    """
    return any(field == path and words.endswith(message) for field, words in refusals(response))


def merge(target: Any, change: Any) -> Any:
    """``target`` with a JSON merge patch on it (RFC 7396), in a copy."""
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
    """The example of tpu-operator's README with a merge patch on its spec."""
    manifest: Manifest = merge(ROWS["original_example"], {"spec": change})
    return manifest


def ids(rows: list[Manifest]) -> list[str]:
    return [row["id"] for row in rows]


# tpu-operator's rows


@pytest.mark.parametrize("row", ROWS["valid"], ids=ids(ROWS["valid"]))
def test_what_works_there_works_here(server: Server, row: Manifest) -> None:
    server.create(group(**row["change"]))


@pytest.mark.parametrize("row", ROWS["invalid"], ids=ids(ROWS["invalid"]))
def test_what_cannot_work_is_refused_where_it_is_wrong(server: Server, row: Manifest) -> None:
    response = server.call("POST", GROUPS, group(**row["change"]))
    assert says(response, row["path"], row.get("message", "")), refusals(response)


def side(row: Manifest, which: str) -> Manifest:
    """A row's group before (``old``) or after (``new``): what only the other side names is absent.

    A template of one's own stands in for the example's instanceConfig and goes without bootstrap.
    """
    absent: Manifest = dict.fromkeys((row["old"].keys() | row["new"].keys()) - row[which].keys())
    own_template: Manifest = {}
    if "instanceTemplateURI" in row["old"] | row["new"]:
        own_template["bootstrapKubernetes"] = None
    if "instanceTemplateURI" in row[which]:
        own_template["instanceConfig"] = None
    return group(**{**own_template, **absent, **row[which]})


@pytest.mark.parametrize("row", ROWS["updates"], ids=ids(ROWS["updates"]))
def test_what_was_immutable_there_is_immutable_here(server: Server, row: Manifest) -> None:
    server.create(side(row, "old"))
    found = refusals(server.replace(side(row, "new")))
    messages = [words for path, words in found if path.startswith(row["path"])]
    assert any(words.endswith(row.get("message", " is immutable")) for words in messages), found


def test_a_version_of_kubernetes_and_a_subnetwork_are_defaulted(server: Server) -> None:
    stored = server.create(
        group(instanceConfig={"subnetwork": None}, bootstrapKubernetes={"version": None})
    )
    assert stored["spec"]["bootstrapKubernetes"]["version"] == "1.31"
    assert stored["spec"]["instanceConfig"]["subnetwork"] == "default"
    assert stored["spec"]["repair"] == "Never"


# Immutability

OWN_TEMPLATE: Manifest = {
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": "projects/my-gcp-project/global/instanceTemplates/a",
}
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


def test_the_tables_here_name_every_field_but_those_with_one_value() -> None:
    one_value = {name for name, field in FIELDS.items() if len(field.get("enum", "..")) == 1}
    assert one_value == {"acceleratorConnectionMode", "repair"}
    assert OPTIONAL.keys() | REQUIRED.keys() | one_value == FIELDS.keys()


@pytest.mark.parametrize("field", REQUIRED)
def test_a_required_field_cannot_be_changed(server: Server, field: str) -> None:
    server.create(group())
    assert says(server.replace(group(**{field: REQUIRED[field]})), *immutable(field))


@pytest.mark.parametrize("field", OPTIONAL)
def test_an_optional_field_cannot_be_changed(server: Server, field: str) -> None:
    before, after = OPTIONAL[field]
    server.create(group(**before))
    assert says(server.replace(group(**after)), *immutable(field))


@pytest.mark.parametrize("field", OPTIONAL)
def test_an_optional_field_cannot_be_taken_away(server: Server, field: str) -> None:
    before, _ = OPTIONAL[field]
    server.create(group(**before))
    assert says(server.replace(group(**{**before, field: None})), *immutable(field))


@pytest.mark.parametrize("field", OPTIONAL)
def test_an_optional_field_cannot_be_added(server: Server, field: str) -> None:
    before, after = OPTIONAL[field]
    source = OWN_TEMPLATE if field in ("instanceConfig", "bootstrapKubernetes") else {}
    server.create(group(**source) if field != "instanceTemplateURI" else group())
    both = before if field == "instanceTemplateURI" else {**source, **after}
    assert says(server.replace(group(**both)), *immutable(field))


def test_what_is_not_spec_and_repair_can_be_changed(server: Server) -> None:
    stored = server.create(group())
    stored["metadata"]["annotations"] = {"tpu-functions.dev/paused": "true"}
    del stored["spec"]["repair"]
    response = server.replace(stored)
    assert response.status == 200, response.body
    assert response.json()["spec"]["repair"] == "Never"


# Shapes

V6E: Manifest = {
    "provisioningModel": "STANDARD",
    "reservation": None,
    "image": "projects/my-gcp-project/global/images/my-v6e-image",
}


def shaped(machine_type: str, topology: str, hosts: int) -> Manifest:
    """A group of one slice (or, of one host, one INDIVIDUAL slice) of this shape."""
    return group(
        topology=topology,
        nodeCount=hosts,
        targetSizePolicyMode="INDIVIDUAL" if hosts == 1 else "BULK",
        instanceConfig={**V6E, "machineType": machine_type},
    )


def shapes() -> Iterator[tuple[str, str, int]]:
    for generation in ("v6e", "tpu7x"):
        for row in SHAPES[generation]["topologies"]:
            for machine_type, vms in row["vms"].items():
                yield machine_type, row["topology"], vms["hosts"]


@pytest.mark.parametrize("machine_type, topology, hosts", list(shapes()))
def test_every_shape_that_is_documented_is_accepted(
    server: Server, machine_type: str, topology: str, hosts: int
) -> None:
    server.create(shaped(machine_type, topology, hosts))


def test_every_shape_that_is_used_elsewhere_is_accepted(server: Server) -> None:
    for topology in SHAPES["tpu7x"]["also_in_xpk"]:
        a, b, c = map(int, topology.split("x"))
        manifest = shaped("tpu7x-standard-4t", topology, a * b * c // 4)
        manifest["metadata"]["name"] = f"s-{topology}"
        server.create(manifest)


NO_SHAPE = (
    "topology must be a shape that exists. v6e: 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16 or 16x16. "
    "TPU7x: 1x1x1, 2x2x1, 2x2x2, 2x2x4, 2x4x4, or AxBxC with A <= B <= C, each a multiple of 4, "
    "and at most 9216 chips"
)
TOPOLOGY, COUNT = "spec.topology", "spec.nodeCount"


@pytest.mark.parametrize(
    "machine_type, topology, hosts, path, message",
    [
        pytest.param("ct6e-standard-4t", "4x2", 2, TOPOLOGY, NO_SHAPE, id="v6e-turned-round"),
        pytest.param("ct6e-standard-4t", "2x8", 4, TOPOLOGY, NO_SHAPE, id="v6e-that-is-none"),
        pytest.param("ct6e-standard-4t", "16x32", 128, TOPOLOGY, NO_SHAPE, id="v6e-too-big"),
        pytest.param("tpu7x-standard-4t", "8x4x4", 32, TOPOLOGY, NO_SHAPE, id="7x-unsorted"),
        pytest.param("tpu7x-standard-4t", "4x4x6", 24, TOPOLOGY, NO_SHAPE, id="7x-no-multiple"),
        pytest.param("tpu7x-standard-4t", "16x24x28", 2304, TOPOLOGY, NO_SHAPE, id="7x-too-big"),
        pytest.param("tpu7x-standard-4t", "04x4x4", 16, TOPOLOGY, NO_SHAPE, id="leading-zero"),
        pytest.param("tpu7x-standard-4t", "2x2x", 2, TOPOLOGY, NO_SHAPE, id="trailing-x"),
        pytest.param("tpu7x-standard-4t", "0x4x4", 2, TOPOLOGY, NO_SHAPE, id="zero"),
        pytest.param("tpu7x-standard-4t", "2x2x2x2", 4, TOPOLOGY, NO_SHAPE, id="four-dimensions"),
        pytest.param(
            "ct6e-standard-4t",
            "2x2x4",
            4,
            TOPOLOGY,
            "topology must have two dimensions with ct6e-standard-4t, as in 4x4",
            id="v6e-in-three-dimensions",
        ),
        pytest.param(
            "tpu7x-standard-4t",
            "4x4",
            4,
            TOPOLOGY,
            "topology must have three dimensions with tpu7x-standard-4t, as in 2x2x2",
            id="7x-in-two-dimensions",
        ),
        pytest.param(
            "ct6e-standard-8t",
            "2x2",
            2,
            TOPOLOGY,
            "topology 2x2 cannot be made of ct6e-standard-8t VMs, which are 2x4 chips each",
            id="smaller-than-a-vm",
        ),
        pytest.param(
            "ct6e-standard-8t",
            "4x4",
            1,
            TOPOLOGY,
            "topology must be 2x4: "
            "in an INDIVIDUAL group each ct6e-standard-8t is a slice of its own",
            id="individual-bigger-than-a-vm",
        ),
        pytest.param(
            "tpu7x-standard-1t",
            "2x2x1",
            1,
            TOPOLOGY,
            "topology must be 1x1x1: "
            "in an INDIVIDUAL group each tpu7x-standard-1t is a slice of its own",
            id="individual-of-one-chip",
        ),
        pytest.param(
            "ct6e-standard-4t",
            "8x8",
            15,
            COUNT,
            "nodeCount must be 16: topology 8x8 has 64 chips, a ct6e-standard-4t has 4",
            id="too-few-vms",
        ),
        pytest.param(
            "tpu7x-standard-4t-tpu",
            "4x4x4",
            64,
            COUNT,
            "nodeCount must be 16: topology 4x4x4 has 64 chips, a tpu7x-standard-4t-tpu has 4",
            id="chips-for-vms",
        ),
        pytest.param(
            "tpu7x-standard-4t",
            "2x2x1",
            3,
            COUNT,
            "topology 2x2x1 is one tpu7x-standard-4t: for 3 slices of one VM each set "
            "targetSizePolicyMode to INDIVIDUAL",
            id="bulk-of-single-hosts",
        ),
        pytest.param(
            "tpu7x-standard-4t",
            "2x2x2",
            2305,
            COUNT,
            "should be less than or equal to 2304",
            id="more-vms-than-the-largest-slice",
        ),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_what_would(
    server: Server, machine_type: str, topology: str, hosts: int, path: str, message: str
) -> None:
    response = server.call("POST", GROUPS, shaped(machine_type, topology, hosts))
    assert says(response, path, message), refusals(response)


# Single fields


def config(**change: Any) -> Manifest:
    return {"instanceConfig": change}


FLEX: Manifest = {"provisioningModel": "FLEX_START", "reservation": None}


def flex(duration: str | None) -> Manifest:
    return config(**FLEX, maxRunDuration=duration)


def endpoint(text: str) -> Manifest:
    return {"bootstrapKubernetes": {"controlPlaneIP": text}}


def template(uri: str) -> Manifest:
    return {**OWN_TEMPLATE, "instanceTemplateURI": uri}


def taints(*taints: Manifest) -> Manifest:
    return {"nodeTaints": list(taints)}


MY_TEMPLATES = "projects/my-gcp-project/global/instanceTemplates"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            {"nodeLocation": "us-south1-ai1b", **config(subnetwork=None)}, id="an-ai-zone"
        ),
        pytest.param(
            {"nodeLocation": "northamerica-northeast1-a", **config(subnetwork=None)},
            id="a-long-zone",
        ),
        pytest.param(template(f"https://www.googleapis.com/compute/v1/{MY_TEMPLATES}/t"), id="url"),
        pytest.param(
            template(f"https://compute.googleapis.com/compute/beta/{MY_TEMPLATES}/t"), id="new-url"
        ),
        pytest.param(
            template("projects/my-gcp-project/locations/global/instanceTemplates/t"),
            id="locations-global",
        ),
        pytest.param(
            template("projects/my-gcp-project/locations/us-central1/instanceTemplates/t"),
            id="locations-region",
        ),
        pytest.param(
            {**template(f"{MY_TEMPLATES}/t"), "nodeCount": 7}, id="own-template-of-unknown-chips"
        ),
        pytest.param(config(machineType="tpu7-standard-4t"), id="the-other-seventh"),
        pytest.param(config(machineType="tpu7x-standard-4t-tpu"), id="machine-type-with-suffix"),
        pytest.param(config(reservation="projects/other-project/reservations/r"), id="shared"),
        pytest.param(config(provisioningModel="SPOT", reservation=None), id="spot"),
        pytest.param(flex("168h"), id="flex-start"),
        pytest.param(flex("7d"), id="flex-start-of-seven-days"),
        pytest.param(flex("30s"), id="flex-start-of-half-a-minute"),
        pytest.param(
            {
                "nodeCount": 3,
                "targetSizePolicyMode": "INDIVIDUAL",
                "topology": "2x2x1",
                **flex("90m"),
            },
            id="flex-start-of-single-hosts",
        ),
        pytest.param(config(metadata={"kube-labels": "a=b", "user-data": "#!"}), id="metadata"),
        pytest.param(
            {**config(metadata={"startup-script": "#!"}), "bootstrapKubernetes": None},
            id="startup-script-without-bootstrap",
        ),
        pytest.param(config(metadata={"k" * 127: "v" * 262144}), id="the-longest-metadata"),
        pytest.param(endpoint("k8s.example.internal"), id="host"),
        pytest.param(endpoint("k8s.example.internal:443"), id="host-and-port"),
        pytest.param(endpoint("::1"), id="ipv6"),
        pytest.param(endpoint("fd20:0:0:1::2"), id="longer-ipv6"),
        pytest.param(endpoint("[fd20::2]:6443"), id="ipv6-and-port"),
        pytest.param({"nodeLabels": {"team": "a", "example.com/team": ""}}, id="labels"),
        pytest.param(
            {
                "nodeLabels": {
                    "node.kubernetes.io/instance-type": "a",
                    "x.node.kubernetes.io/y": "b",
                }
            },
            id="labels-that-a-kubelet-may-set",
        ),
        pytest.param({"nodeLabels": {"topology.kubernetes.io/zone": "z"}}, id="zone-label"),
        pytest.param({"nodeLabels": {"cloud.google.com/other": "z"}}, id="label-of-google"),
        pytest.param(
            taints(
                {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"},
                {"key": "google.com/tpu", "effect": "NoExecute"},
            ),
            id="taints",
        ),
    ],
)
def test_a_field_takes_what_works(server: Server, change: Manifest) -> None:
    server.create(group(**change))


MODEL = "spec.instanceConfig.provisioningModel"
DURATION = "spec.instanceConfig.maxRunDuration"
METADATA = "spec.instanceConfig.metadata"
ENDPOINT = "spec.bootstrapKubernetes.controlPlaneIP"
LABELS = "spec.nodeLabels"
NO_ZONE = "nodeLocation must be a zone, as in us-central1-c"
NO_DURATION = "maxRunDuration must be a number of s, m, h or d, as in 90m or 168h, from 30s to 7d"
NO_ENDPOINT = "controlPlaneIP must be HOST, HOST:PORT, an IPv6 address, or [IPv6]:PORT"
NO_PORT = "controlPlaneIP's port must be from 1 to 65535"
OTHER_PROJECT = "InstanceTemplateURI must belong to the same project as specified in spec.project"
OTHER_REGION = "a regional template must be in the region of nodeLocation"
NOT_BOUND = "ProvisioningModel must be RESERVATION_BOUND when reservation is specified"
NOT_FLEX = "maxRunDuration is for provisioningModel FLEX_START only"
NO_LABEL = "nodeLabels keys must be label keys, as in team or example.com/team"
NO_RESERVATION = "reservation must be a name, or projects/PROJECT/reservations/NAME"
NOT_A_KUBELETS = (
    "nodeLabels of kubernetes.io and k8s.io must be topology.kubernetes.io/region, "
    "topology.kubernetes.io/zone, or under node.kubernetes.io/ or kubelet.kubernetes.io/"
)
NOT_YOURS = (
    "nodeLabels must not be tpu-functions.dev/*, cloud.google.com/gke-tpu-*, "
    "cloud.google.com/gke-accelerator-count or cloud.google.com/tpu-node-group*, "
    "which say what slice a Node belongs to and are set for you"
)
RESERVED = (
    "kubeadm-join-token",
    "kubeadm-join-token-expires",
    "kubeadm-control-plane-ip",
    "kubeadm-ca-hash",
    "created-by",
    "instance-template",
)


def refused(id_: str, change: Manifest, path: str, message: str) -> Any:
    return pytest.param(change, path, message, id=id_)


@pytest.mark.parametrize(
    "change, path, message",
    [
        refused("a-region", {"nodeLocation": "us-central1"}, "spec.nodeLocation", NO_ZONE),
        refused("upper-case-zone", {"nodeLocation": "US-A1-B"}, "spec.nodeLocation", NO_ZONE),
        refused(
            "subnetwork-elsewhere",
            config(subnetwork="projects/p/regions/us-east1/subnetworks/s"),
            "spec.instanceConfig.subnetwork",
            "subnetwork must be in the region of nodeLocation",
        ),
        refused(
            "template-of-another-project",
            template("projects/other-project/global/instanceTemplates/t"),
            "spec",
            OTHER_PROJECT,
        ),
        refused(
            "template-of-a-project-that-begins-alike",
            template("projects/my-gcp-project2/global/instanceTemplates/t"),
            "spec",
            OTHER_PROJECT,
        ),
        refused(
            "template-at-another-host",
            template(f"https://example.com/compute/v1/{MY_TEMPLATES}/t"),
            "spec",
            OTHER_PROJECT,
        ),
        refused(
            "template-of-another-region",
            template("projects/my-gcp-project/regions/us-east1/instanceTemplates/t"),
            "spec.instanceTemplateURI",
            OTHER_REGION,
        ),
        refused(
            "template-of-a-region-that-begins-alike",
            template("projects/my-gcp-project/regions/us-central11/instanceTemplates/t"),
            "spec.instanceTemplateURI",
            OTHER_REGION,
        ),
        refused(
            "bootstrap-with-own-template",
            {**OWN_TEMPLATE, "bootstrapKubernetes": {"controlPlaneIP": "10.0.0.2"}},
            "spec",
            "Bootstrapping is not supported when bringing your own instance template",
        ),
        refused(
            "no-chips-in-machine-type",
            config(machineType="tpu7x-standard"),
            "spec.instanceConfig.machineType",
            "machineType must end in the chips of a VM (-1t, -2t, -4t or -8t), "
            "as in tpu7x-standard-4t",
        ),
        refused(
            "reservation-by-url",
            config(reservation="zones/us-central1-c/reservations/r"),
            "spec.instanceConfig.reservation",
            NO_RESERVATION,
        ),
        refused(
            "reservation-with-standard", config(provisioningModel="STANDARD"), MODEL, NOT_BOUND
        ),
        refused(
            "reservation-with-flex-start",
            config(provisioningModel="FLEX_START", maxRunDuration="1h"),
            MODEL,
            NOT_BOUND,
        ),
        refused(
            "flex-start-without-end",
            flex(None),
            DURATION,
            "maxRunDuration is required when provisioningModel is FLEX_START, as in 168h",
        ),
        refused("an-end-for-a-reservation", config(maxRunDuration="1h"), DURATION, NOT_FLEX),
        refused(
            "an-end-for-no-model",
            config(provisioningModel=None, reservation=None, maxRunDuration="1h"),
            DURATION,
            NOT_FLEX,
        ),
        refused("duration-without-unit", flex("3600"), DURATION, NO_DURATION),
        refused("duration-of-two-units", flex("1h30m"), DURATION, NO_DURATION),
        refused("duration-in-parts", flex("1.5h"), DURATION, NO_DURATION),
        refused("empty-duration", flex(""), DURATION, NO_DURATION),
        refused("duration-too-short", flex("29s"), DURATION, NO_DURATION),
        refused("duration-too-long", flex("604801s"), DURATION, NO_DURATION),
        refused(
            "empty-image",
            config(image=""),
            "spec.instanceConfig.image",
            "should be at least 1 chars long",
        ),
        refused(
            "disk-type-by-url",
            config(diskType="zones/us-central1-c/diskTypes/pd-ssd"),
            "spec.instanceConfig.diskType",
            "should match '^[a-z]([-a-z0-9]*[a-z0-9])?$'",
        ),
        refused(
            "metadata-key-with-a-dot",
            config(metadata={"a.b": ""}),
            METADATA,
            "metadata keys must be letters, digits, dashes and underscores, at most 127 of them",
        ),
        *(
            refused(
                f"metadata-{key}",
                config(metadata={key: "x"}),
                METADATA,
                f"metadata must not hold {key}, which is written for each VM when it is made or joins",
            )
            for key in RESERVED
        ),
        refused(
            "startup-script-with-bootstrap",
            config(metadata={"startup-script": "#!"}),
            METADATA,
            "metadata must not hold startup-script while bootstrapKubernetes is set, "
            "which brings its own",
        ),
        refused("endpoint-of-words", endpoint("not an address"), ENDPOINT, NO_ENDPOINT),
        refused("endpoint-by-url", endpoint("https://10.0.0.2"), ENDPOINT, NO_ENDPOINT),
        refused("endpoint-with-a-path", endpoint("10.0.0.2/x"), ENDPOINT, NO_ENDPOINT),
        refused("endpoint-without-host", endpoint(":6443"), ENDPOINT, NO_ENDPOINT),
        refused("ipv6-in-half-a-bracket", endpoint("[fd20::2:6443"), ENDPOINT, NO_ENDPOINT),
        refused("port-zero", endpoint("10.0.0.2:0"), ENDPOINT, NO_PORT),
        refused("port-too-high", endpoint("[fd20::2]:65536"), ENDPOINT, NO_PORT),
        refused("label-key-with-space", {"nodeLabels": {"a b": "c"}}, LABELS, NO_LABEL),
        refused("label-key-with-two-slashes", {"nodeLabels": {"a/b/c": "c"}}, LABELS, NO_LABEL),
        refused("label-key-too-long", {"nodeLabels": {"a" * 64: "c"}}, LABELS, NO_LABEL),
        refused(
            "role-label",
            {"nodeLabels": {"node-role.kubernetes.io/tpu": ""}},
            LABELS,
            NOT_A_KUBELETS,
        ),
        refused(
            "restricted-label",
            {"nodeLabels": {"node-restriction.kubernetes.io/x": ""}},
            LABELS,
            NOT_A_KUBELETS,
        ),
        refused(
            "host-name-label",
            {"nodeLabels": {"kubernetes.io/hostname": "x"}},
            LABELS,
            NOT_A_KUBELETS,
        ),
        refused("label-of-k8s-io", {"nodeLabels": {"a.k8s.io/x": "x"}}, LABELS, NOT_A_KUBELETS),
        refused("our-label", {"nodeLabels": {"tpu-functions.dev/x": "x"}}, LABELS, NOT_YOURS),
        refused(
            "topology-label",
            {"nodeLabels": {"cloud.google.com/gke-tpu-topology": "x"}},
            LABELS,
            NOT_YOURS,
        ),
        refused(
            "count-label",
            {"nodeLabels": {"cloud.google.com/gke-accelerator-count": "4"}},
            LABELS,
            NOT_YOURS,
        ),
        refused(
            "group-label",
            {"nodeLabels": {"cloud.google.com/tpu-node-group-name": "x"}},
            LABELS,
            NOT_YOURS,
        ),
        refused(
            "taint-effect",
            taints({"key": "a", "effect": "NoRun"}),
            "spec.nodeTaints[0].effect",
            'supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"',
        ),
        refused(
            "taint-twice",
            taints({"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}),
            "spec.nodeTaints[1]",
            "",
        ),
        refused("repair", {"repair": "Always"}, "spec.repair", 'supported values: "Never"'),
    ],
)
def test_a_field_refuses_what_does_not_and_says_what_would(
    server: Server, change: Manifest, path: str, message: str
) -> None:
    response = server.call("POST", GROUPS, group(**change))
    assert says(response, path, message), refusals(response)


@pytest.mark.parametrize("name", ["a.b", "a" * 64])
def test_a_name_must_be_part_of_names_on_compute_engine(server: Server, name: str) -> None:
    manifest = group()
    manifest["metadata"]["name"] = name
    response = server.call("POST", GROUPS, manifest)
    message = "metadata.name must be at most 63 of a-z, 0-9 and -, without dots"
    assert says(response, "metadata.name", message), refusals(response)


@pytest.mark.parametrize("name", ["1group", "a" * 63])
def test_a_name_may_begin_with_a_digit_and_be_as_long_as_a_label(server: Server, name: str) -> None:
    manifest = group()
    manifest["metadata"]["name"] = name
    server.create(manifest)


# The functions' own validation

BOTH = [*ROWS["valid"], *ROWS["invalid"]]


@pytest.mark.parametrize("row", BOTH, ids=ids(BOTH))
def test_the_functions_refuse_what_the_definition_refuses(row: Manifest) -> None:
    manifest = group(**row["change"])
    manifest["metadata"] |= {
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    problems = node_group.parse(manifest, "cluster").problems
    assert bool(problems) == (row in ROWS["invalid"]), problems


# Status


def test_a_status_in_full_is_kept_in_full(server: Server) -> None:
    moment = "2026-01-01T00:00:00Z"
    resource = {
        "name": "tng-a-1a2b3c4d",
        "uri": "https://www.googleapis.com/compute/v1/projects/p/zones/z/x/tng-a-1a2b3c4d",
        "state": "Failed",
        "since": moment,
        "operation": "operation-1-2-3-4",
        "requestId": "00000000-0000-4000-8000-000000000000",
        "error": {
            "reason": "Refused",
            "since": moment,
            "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
            "message": "none left",
        },
    }
    kinds = ("workloadPolicy", "instanceTemplate", "managedInstanceGroup")
    status = {
        "observedGeneration": 1,
        "completedAt": moment,
        "machineType": "tpu7x-standard-4t",
        "provisioningModel": "SPOT",
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "InsufficientCapacity",
                "message": "none left",
                "lastTransitionTime": moment,
                "observedGeneration": 1,
            }
        ],
        "resources": dict.fromkeys(kinds, resource),
        "nodeSummary": {
            "desired": 2,
            "running": 2,
            "joined": 1,
            "ready": 1,
            "reconciling": 1,
            "failed": 0,
            "text": "1/2",
        },
        "pending": [{"name": "tng-a-1a2b3c4d-x1y2", "why": "NodeNotReady", "since": moment}],
        "slice": {"appliedTopology": "ACTIVATING", "askedAt": moment},
    }
    stored = server.create(group())
    response = server.replace({**stored, "status": status}, "/status")
    assert response.status == 200, response.body
    assert response.json()["status"] == status


def test_columns_say_how_a_group_stands(server: Server) -> None:
    stored = server.create(group())
    status = {
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


def test_every_rule_has_words_of_its_own() -> None:
    rules = [rule for _, node in NODES for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) > 30
    assert all(rule["message"] for rule in rules)


def test_people_find_groups_by_short_name_and_category() -> None:
    names = CRD["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["tng"], ["tpu"])


def test_the_reference_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "infra/kubernetes/render_reference.py"))
    assert script["main"](["--check"]) == 0


# Examples


def groups_in(path: Path) -> list[Manifest]:
    return [
        document
        for document in yaml.safe_load_all(path.read_text())
        if document["kind"] == "TPUNodeGroup"
    ]


GROUP_EXAMPLES = [path for path in EXAMPLES if groups_in(path)]


@pytest.mark.parametrize("path", GROUP_EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_as_it_stands(server: Server, path: Path) -> None:
    for manifest in groups_in(path):
        stored = server.create(manifest)
        assert {**stored["spec"], **manifest["spec"]}.keys() == stored["spec"].keys()


def test_the_example_of_tpu_operators_readme_is_unchanged() -> None:
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
    labels = node_group.parse(manifest, "cluster").node_labels(machine)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"].items() <= labels.items()
    assert job["spec"]["completions"] == manifest["spec"]["nodeCount"]
    assert machine is not None
    chips = {container["resources"]["limits"]["google.com/tpu"] for container in pod["containers"]}
    assert chips == {str(machine.chips)}
