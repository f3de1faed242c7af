"""A VM gets the certificate of its own Node with its bootstrap token, and no certificate of another
Node."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from functions import label_node
from local.base.http import Request, Response
from local.cloud.simulation import PROJECT, Options
from shared.base.names import RESOURCE_NAME_LABEL
from shared.frame.step import handle
from shared.triggers.message import Cause, Message
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, STANDARD, PrintFigure
from tests.stories.joins import BOTH, CSRS, NO_JOIN, TwoGroups, request
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.support.signing_requests import STRANGE_NAMES, kubelets, pem
from tests.support.signing_requests import manifest as request_manifest

NODES = "/api/v1/nodes"
GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
EVENTS_ONLY = Options(sweeps=False, agents=NO_JOIN)
SWEEP_ONLY = Options(relays=False, sinks=False, agents=NO_JOIN)


by_either = pytest.mark.parametrize(
    "options", [EVENTS_ONLY, SWEEP_ONLY], ids=["events only", "sweep only"]
)


@by_either
def test_a_vms_own_requests_are_approved_whatever_their_names(options: Options) -> None:
    groups = TwoGroups(options)
    names = ["csr-7x2k9", "node-csr-Ab_9-xYz", "0"]
    for name in names:
        assert groups.request(pem(kubelets(groups.a)), name=name).status == 201
    groups.harness.run_for(2 * MINUTE)
    assert [groups.decisions(name) for name in names] == [["Approved", "Issued"]] * 3
    assert groups.lines() == []


@by_either
def test_a_request_that_no_parser_reads_completely_is_denied_and_stops_no_other(
    options: Options,
) -> None:
    groups = TwoGroups(options)
    groups.request(pem(kubelets(groups.a), names_der=STRANGE_NAMES), name="csr-0")
    groups.request(pem(kubelets(groups.b)), name="csr-1", token=groups.token_of(groups.paths[1]))
    groups.harness.run_for(2 * MINUTE)
    assert groups.decisions("csr-0") == ["Denied"]
    assert groups.decisions("csr-1") == ["Approved", "Issued"]


@pytest.mark.parametrize("options", [EVENTS_ONLY, BOTH], ids=["events only", "both"])
def test_a_flood_by_one_token_does_not_delay_other_vms_at_the_relay(
    options: Options,
) -> None:
    groups = TwoGroups(options)
    for number in range(100):
        groups.request(pem(kubelets(groups.a)), name=f"flood-{number:03}")
    groups.request(pem(kubelets(groups.b)), name="csr-1", token=groups.token_of(groups.paths[1]))
    groups.harness.run_for(MINUTE)
    assert groups.decisions("csr-1") == ["Approved", "Issued"]
    lines = [line for line in groups.harness.log.lines if line["step"] == "approve_join"]
    assert sum(line["calls"]["gce"] for line in lines if "calls" in line) <= 10


BURSTS: dict[str, dict[str, Any]] = {
    "64 hosts": {"nodeCount": 64, "topology": "4x8x8"},
    "512 hosts": {"nodeCount": 512, "topology": "8x16x16"},
}


@by_either
@pytest.mark.parametrize(
    "size",
    ["64 hosts", pytest.param("512 hosts", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_a_burst_of_requests_is_approved_before_any_kubelet_times_out(
    size: str, options: Options, print_figure: PrintFigure
) -> None:
    """kubeadm waits five minutes. An approval takes two calls and one read, and writes no status."""
    harness, change = Harness(options), BURSTS[size]
    harness.apply(manifest(**change, instanceConfig=STANDARD))
    count = change["nodeCount"]
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == count)
    harness.run_for(2 * MINUTE)
    for path in helpers.vms(harness):
        token = helpers.metadata_of(helpers.get(harness, path))["kubeadm-join-token"]
        vm = helpers.vm_name(path)
        request(harness, pem(kubelets(vm)), token=token, name=f"csr-{vm}")
    harness.log.lines.clear()
    begun = harness.clock.now()
    helpers.until(harness, lambda: _count_issued(harness) == count, 2 * MINUTE)
    took = harness.clock.now() - begun
    work = [line for line in harness.log.lines if line["step"] == "approve_join"]
    reads = sum(line["calls"]["gce"] for line in work)
    calls = sum(line["calls"]["kubernetes"] for line in work)
    print_figure(
        f"join requests of {size}: {len(work)} invocations, {reads} GCE reads, "
        f"{calls} Kubernetes calls, {took}"
    )
    assert reads <= count + 2, (
        "one read for each VM, and in each minute a list of the MIG's members"
    )
    assert calls <= 2 * count + 3 * len(work)
    assert len(work) <= count / 20 + 10
    assert {line["decision"] for line in work} == {"Approving"}


@pytest.mark.parametrize("hosts, topology", [(2, "2x2x2"), (16, "4x4x4"), (64, "4x8x8")])
def test_each_request_is_approved_within_a_second_of_its_arrival(
    hosts: int, topology: str, print_figure: PrintFigure
) -> None:
    harness = Harness()
    arrived: dict[str, datetime] = {}
    waited: dict[str, float] = {}
    handle_call = harness.simulation.kube.handle

    def note(request: Request) -> Response:
        answer = handle_call(request)
        name = request.path.removeprefix(f"{CSRS}/").removesuffix("/approval")
        if request.method == "POST" and request.path == CSRS:
            arrived[json.loads(answer.body)["metadata"]["name"]] = harness.clock.now()
        elif request.path.endswith("/approval"):
            waited[name] = (harness.clock.now() - arrived[name]).total_seconds()
        return answer

    harness.simulation.kube.handle = note  # type: ignore[method-assign]
    harness.apply(manifest(nodeCount=hosts, topology=topology, instanceConfig=STANDARD))
    helpers.until_ready(harness)
    mean, most = sum(waited.values()) / hosts, max(waited.values())
    print_figure(f"join requests of {hosts} hosts: {mean:.2f} s to approval, at most {most:.2f}")
    assert len(waited) == hosts
    assert most <= 1.0


@by_either
def test_a_spent_token_gets_no_second_certificate_and_is_revoked_again(options: Options) -> None:
    """The revocation after the join has failed, or another call has created the Secret again."""
    groups = TwoGroups(options)
    harness, vm = groups.harness, groups.a
    labels = {RESOURCE_NAME_LABEL: helpers.resource_name(harness)}
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": vm, "labels": labels},
        "spec": {"providerID": f"gce://{PROJECT}/us-central1-c/{vm}"},
    }
    harness.simulation.admin("POST", NODES, body, **helpers.as_kubelet(vm))
    secret = f"bootstrap-token-{groups.token.partition('.')[0]}"
    kept = harness.simulation.admin("GET", f"{SECRETS}/{secret}")
    helpers.until(harness, lambda: secret not in helpers.secrets(harness), 10 * MINUTE)
    metadata = {key: kept["metadata"][key] for key in ("name", "namespace", "labels")}
    harness.simulation.admin("POST", SECRETS, {**kept, "metadata": metadata})
    harness.run_for(timedelta(seconds=11))
    assert groups.request(pem(kubelets(vm))).status == 201
    harness.run_for(2 * MINUTE)
    assert groups.decisions() == []
    assert secret not in helpers.secrets(harness)
    assert groups.lines() == []


def _count_issued(harness: Harness) -> int:
    found = harness.simulation.admin("GET", CSRS)["items"]
    return sum("certificate" in request.get("status", {}) for request in found)


DENIED = {
    "a control plane": (
        lambda _: {"text": pem(kubelets("control-plane-1"))},
        "control-plane-1 is not the name of a TPUNodeGroup's VM",
    ),
    "one organization more": (
        lambda groups: {
            "text": pem([(NameOID.ORGANIZATION_NAME, "system:masters"), *kubelets(groups.a)])
        },
        "its organization is not system:nodes alone",
    ),
    "an alternative name": (
        lambda groups: {"text": pem(kubelets(groups.a), names=["kubernetes.default"])},
        "it asks for alternative names",
    ),
    "two requests in one": (
        lambda groups: {"text": pem(kubelets(groups.a)) + pem(kubelets("control-plane-1"))},
        "it is not a certificate request: it must be one PEM block, CERTIFICATE REQUEST, and nothing "
        "else",
    ),
}


@by_either
@pytest.mark.parametrize("case", DENIED.values(), ids=DENIED)
def test_a_request_that_no_vm_of_ours_sends_is_denied_and_the_token_revoked(
    case: tuple[Any, str], options: Options
) -> None:
    wrong, why = case
    groups = TwoGroups(options)
    groups.request(**wrong(groups))
    groups.harness.run_for(timedelta(seconds=70))
    assert groups.decisions() == ["Denied"]
    assert groups.lines() == [f"JoinDenied: {why}"]
    assert f"bootstrap-token-{groups.token[:6]}" not in helpers.secrets(groups.harness)
    assert len(helpers.secrets(groups.harness)) == 3
    events = groups.events("JoinDenied")
    assert events == [
        (
            NAME,
            f"Signing request csr-1 by token {groups.token[:6]} of VM {groups.a} is denied: {why}.",
        )
    ]
    assert groups.token[7:] not in json.dumps([groups.harness.log.lines, events])


def test_a_request_by_a_foreign_token_is_denied_and_the_token_reported() -> None:
    groups = TwoGroups()
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-foreig", "namespace": "kube-system"},
        "stringData": {
            "token-id": "foreig",
            "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:tpu-functions",
        },
    }
    groups.harness.simulation.admin("POST", "/api/v1/namespaces/kube-system/secrets", foreign)
    groups.harness.run_for(timedelta(seconds=10))
    groups.request(pem(kubelets("control-plane-1")), token="foreig.0123456789abcdef")
    groups.harness.run_for(2 * MINUTE)
    assert groups.decisions() == ["Denied"]
    assert "bootstrap-token-foreig" in helpers.secrets(groups.harness)
    refusal, denial = groups.lines()
    assert denial == "JoinDenied: control-plane-1 is not the name of a TPUNodeGroup's VM"
    assert refusal.startswith("JoinNotApproved: its token foreig could not be revoked: ")
    assert "tpu-functions may only create and delete bootstrap tokens of its own" in refusal
    assert refusal.endswith(
        ". Delete the Secret bootstrap-token-foreig in kube-system: until then its holder makes "
        "new requests"
    )
    assert groups.events("JoinDenied") == [
        (
            "bootstrap-token-foreig",
            "Signing request csr-1 by token foreig is denied: control-plane-1 is not the name of a "
            "TPUNodeGroup's VM.",
        )
    ]


def test_a_denial_is_reported_at_the_vm_with_what_to_do() -> None:
    groups = TwoGroups()
    groups.request(pem(kubelets(groups.a), names=["kubernetes.default"]))
    groups.harness.run_for(5 * timedelta(seconds=1))
    assert helpers.pending(groups.harness)[groups.a] == "JoinDenied"
    # Ready shows it when a resync has found the MIG ready, too: three minutes after the denial at most.
    helpers.until_reason(groups.harness, "JoinDenied", timeout=4 * MINUTE)
    _, _, message = helpers.condition_of(groups.harness)
    assert message.endswith("Find out who had the token, then delete the VM.")


@pytest.mark.parametrize("victim", ["b", "foreign"], ids=["of its group", "of another group"])
def test_requests_for_another_vms_node_are_reported_once_an_hour_at_the_vm_that_makes_them(
    victim: str,
) -> None:
    groups = TwoGroups()
    harness, name, before = groups.harness, getattr(groups, victim), len(groups.harness.log.lines)

    def request_for_an_hour(prefix: str) -> None:
        for minute in range(60):
            token = groups.token_of(groups.paths[0])
            groups.request(pem(kubelets(name)), token=token, name=f"{prefix}-{minute}")
            harness.run_for(MINUTE)

    request_for_an_hour("first")
    assert groups.decisions("first-0") == ["Denied"]
    why = f"it is for the Node of VM {name}, and its token belongs to VM {groups.a}"
    assert groups.lines() == [f"JoinDenied: {why}"]
    text = f"Signing request first-0 by token {groups.token[:6]} of VM {groups.a} is denied: {why}."
    assert groups.events("JoinDenied") == [(NAME, text)]
    steps = [line for line in harness.log.lines[before:] if line["step"] == "approve_join"]
    assert sum(line["calls"]["gce"] for line in steps if "calls" in line) == 0
    assert helpers.pending(harness)[groups.a] == "JoinDenied"
    others = {**helpers.pending(harness), **helpers.pending(harness, "other")}
    assert {why for vm, why in others.items() if vm != groups.a} == {"NodeJoinTimeout"}
    events = "/api/v1/namespaces/default/events"
    for event in harness.simulation.admin("GET", events)["items"]:  # they live for an hour
        harness.simulation.admin("DELETE", f"{events}/{event['metadata']['name']}")
    request_for_an_hour("second")
    assert groups.lines() == [f"JoinDenied: {why}"] * 2


def test_a_vm_that_is_gone_is_never_approved_and_the_attempt_is_reported() -> None:
    groups = TwoGroups(SWEEP_ONLY)
    groups.harness.simulation.gce.faults.act_as_user("DELETE", groups.paths[0])
    groups.harness.run_for(MINUTE)
    groups.request(pem(kubelets(groups.a)))
    groups.harness.run_for(20 * MINUTE)
    assert groups.decisions() == []
    assert groups.lines() == [f"JoinNotApproved: Compute Engine has no VM {groups.a}"]
    own = [line for line in groups.harness.log.lines if line["step"] == "approve_join"]
    assert len(own) > 10
    reported = [line["decision"] for line in own if line["severity"] != "INFO"]
    assert reported == ["JoinNotApproved"], "one alert, and not also that the step fails"


def test_a_node_created_manually_before_approval_is_not_counted_and_revokes_nothing() -> None:
    groups = TwoGroups()
    labels = {RESOURCE_NAME_LABEL: helpers.resource_name(groups.harness)}
    made = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": groups.a, "labels": labels},
        "spec": {"providerID": f"gce://{PROJECT}/us-central1-c/{groups.a}"},
    }
    answer = groups.harness.simulation.admin("POST", NODES, made)
    assert answer["message"] == (
        f'nodes "{groups.a}" is forbidden: ValidatingAdmissionPolicy '
        "'tpu-functions-node-registrations' with binding 'tpu-functions-node-registrations' denied "
        "request: a Node whose name begins with tng- is registered by the kubelet of that VM alone, as "
        "system:node and its name"
    )
    groups.harness.run_for(5 * MINUTE)
    assert helpers.summary(groups.harness)["joined"] == 0
    assert f"bootstrap-token-{groups.token[:6]}" in helpers.secrets(groups.harness)
    groups.request(pem(kubelets(groups.a)))
    groups.harness.run_for(MINUTE)
    assert groups.decisions() == ["Approved", "Issued"]
    registered = groups.harness.simulation.admin(
        "POST", NODES, made, **helpers.as_kubelet(groups.a)
    )
    assert registered["kind"] == "Node"
    helpers.until(
        groups.harness, lambda: helpers.summary(groups.harness)["joined"] == 1, 2 * MINUTE
    )
    assert f"bootstrap-token-{groups.token[:6]}" not in helpers.secrets(groups.harness)


def test_a_token_that_is_created_again_while_its_vm_joins_is_revoked() -> None:
    """inject_token observes a VM with an unused token, the VM joins and label_node revokes the token;
    then inject_token creates the token's Secret again."""
    groups = TwoGroups()
    harness = groups.harness
    token = f"bootstrap-token-{groups.token[:6]}"
    uid = harness.simulation.admin("GET", f"{GROUPS}/{NAME}")["metadata"]["uid"]
    message = Message("default", NAME, uid, Cause.RESYNC, harness.clock.now())
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": groups.a,
            "labels": {RESOURCE_NAME_LABEL: helpers.resource_name(harness)},
        },
        "spec": {"providerID": f"gce://{PROJECT}/us-central1-c/{groups.a}"},
    }
    revoked: list[bool] = []

    def join() -> None:
        harness.simulation.admin("POST", NODES, node, **helpers.as_kubelet(groups.a))
        body = helpers.envelope(replace(message, at=harness.clock.now()).encode())
        handle("label_node", label_node.STEP.run, body, harness.runtime("label_node"))
        revoked.append(token not in helpers.secrets(harness))

    helpers.just_before(harness, "inject_token", "POST", SECRETS, join)
    helpers.until(harness, lambda: bool(revoked), 10 * MINUTE)
    assert revoked == [True]
    harness.run_for(10 * MINUTE)
    assert helpers.summary(harness)["joined"] == 1
    assert token not in helpers.secrets(harness)


def test_a_vm_whose_token_was_renewed_joins_and_nothing_reports_its_earlier_request() -> None:
    groups = TwoGroups()
    old, new = groups.token, "abcdef.0123456789abcdef"
    _renew(groups, new)
    groups.request(pem(kubelets(groups.a)), token=old)
    groups.harness.run_for(22 * MINUTE)
    reported = groups.events("JoinNotApproved") + groups.events("JoinDenied")
    assert groups.decisions() == []
    assert (groups.lines(), reported) == ([], [])
    assert helpers.pending(groups.harness)[groups.a] == "NodeJoinTimeout"
    groups.request(pem(kubelets(groups.a)), token=new, name="csr-2")
    groups.harness.run_for(timedelta(seconds=30))
    assert groups.decisions() == []
    assert groups.decisions("csr-2") == ["Approved", "Issued"]


def _renew(groups: TwoGroups, token: str) -> None:
    """The VM has another valid token, as after a renewal."""
    faults, path = groups.harness.simulation.gce.faults, groups.paths[0]
    found = helpers.get(groups.harness, path)
    items = [
        {**item, "value": token} if item["key"] == "kubeadm-join-token" else item
        for item in found["metadata"]["items"]
    ]
    body = {"fingerprint": found["metadata"]["fingerprint"], "items": items}
    faults.act_as_user("POST", f"{path}/setMetadata", body)
    old = f"{SECRETS}/bootstrap-token-{groups.token[:6]}"
    secret = groups.harness.simulation.admin("GET", old)
    token_id, _, rest = token.partition(".")
    secret["metadata"] = {
        "name": f"bootstrap-token-{token_id}",
        "namespace": "kube-system",
        "labels": secret["metadata"]["labels"],
    }
    del secret["data"]["token-id"], secret["data"]["token-secret"]
    secret["stringData"] = {"token-id": token_id, "token-secret": rest}
    groups.harness.simulation.admin("POST", SECRETS, secret)
    groups.harness.run_for(timedelta(seconds=10))


def _unavailable() -> Response:
    reasons = [{"reason": "backendError"}]
    return Response.of_json(
        {"error": {"code": 503, "message": "unavailable", "errors": reasons}}, 503
    )


def test_while_compute_engine_does_not_answer_requests_wait_and_are_approved_afterwards() -> None:
    groups = TwoGroups()

    def unavailable(step: str, call: str) -> Response | None:
        return _unavailable() if step == "approve_join" and "/compute/" in call else None

    groups.harness.hooks.instead = unavailable
    groups.request(pem(kubelets(groups.a)))
    groups.harness.run_for(4 * MINUTE)
    assert groups.decisions() == []
    assert [line.partition(": ")[0] for line in groups.lines()] == ["JoinNotApproved"]
    groups.harness.hooks.instead = lambda _step, _call: None
    groups.harness.run_for(2 * MINUTE)
    assert groups.decisions() == ["Approved", "Issued"]


def test_a_flood_of_requests_by_one_token_does_not_delay_other_vms() -> None:
    groups = TwoGroups(SWEEP_ONLY)
    for number in range(300):
        groups.request(pem(kubelets(groups.b)), name=f"flood-{number}")
    own = groups.token_of(next(path for path in groups.paths if path.endswith(groups.b)))
    groups.request(pem(kubelets(groups.b)), token=own)
    before = len(groups.harness.answers)
    groups.harness.run_for(65 * timedelta(seconds=1))
    assert groups.decisions() == ["Approved", "Issued"]
    answers = [step for step, _ in groups.harness.answers[before:] if step == "approve_join"]
    assert len(answers) == 1


@by_either
def test_a_request_that_another_client_approves_is_reported(options: Options) -> None:
    groups = TwoGroups(options)
    groups.harness.hooks.instead = lambda step, _: (
        _unavailable() if step == "approve_join" else None
    )
    groups.request(pem(kubelets(groups.b)))
    request = groups.harness.simulation.admin("GET", f"{CSRS}/csr-1")
    approved = {
        "type": "Approved",
        "status": "True",
        "reason": "ByHand",
        "message": "It looked well.",
    }
    request["status"] = {"conditions": [approved]}
    groups.harness.simulation.admin("PUT", f"{CSRS}/csr-1/approval", request)
    groups.harness.hooks.instead = lambda _step, _call: None
    groups.harness.run_for(10 * MINUTE)
    assert groups.lines() == [
        "JoinApprovedElsewhere: another approver has approved it (ByHand), so a token of the group "
        "system:bootstrappers:tpu-functions is enough for any Node's certificate. Remove the binding "
        "or the approver that allows it"
    ]
    assert [name for name, _ in groups.events("JoinApprovedElsewhere")] == [NAME]


def test_a_renewal_by_a_joined_kubelet_is_left_to_the_cluster() -> None:
    """The kubelet renews with its certificate, not with a token, so approve_join does not handle it."""
    harness = helpers.ready()
    lines = [line for line in harness.log.lines if line["step"] == "approve_join"]
    assert {line["decision"] for line in lines} == {"Approving"}
    vm = sorted(helpers.nodes(harness))[0]
    renewal = request_manifest(pem(kubelets(vm)), name="csr-renewal")
    harness.simulation.admin("POST", CSRS, renewal, **helpers.as_kubelet(vm))
    helpers.until(
        harness,
        lambda: "certificate" in harness.simulation.admin("GET", f"{CSRS}/csr-renewal")["status"],
        MINUTE,
    )
    harness.run_for(10 * MINUTE)
    again = [line for line in harness.log.lines if line["step"] == "approve_join"]
    assert again == lines


_FORBIDDEN = {"code": 403, "message": "may not"}
MAY_NOT = Response.of_json(
    {"kind": "Status", "reason": "Forbidden", "error": _FORBIDDEN, **_FORBIDDEN}, 403
)


@pytest.mark.parametrize(
    "verb, part",
    [("GET", "/instances"), ("PUT", "/approval")],
    ids=["VM not read", "not approved"],
)
def test_an_error_of_approve_join_is_reported_at_its_vm_and_not_as_a_join_timeout(
    verb: str, part: str
) -> None:
    harness = Harness()
    is_denied = True

    def instead(step: str, call: str) -> Response | None:
        matches = step == "approve_join" and call.startswith(verb) and part in call
        return MAY_NOT if is_denied and matches else None

    harness.hooks.instead = instead
    harness.apply(manifest())
    helpers.until_reason(harness, "JoinNotApproved", timeout=6 * MINUTE)
    assert set(helpers.pending(harness)) <= set(map(helpers.vm_name, helpers.vms(harness)))
    lines = [line for line in harness.log.lines if line.get("decision") == "JoinNotApproved"]
    assert lines
    assert all(line["note"].endswith(": may not") for line in lines)
    is_denied = False
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)


def test_a_group_whose_vms_may_not_be_read_delays_no_joins_of_others() -> None:
    harness = Harness()
    harness.hooks.instead = lambda step, call: (
        MAY_NOT if step == "approve_join" and "/zones/us-central1-b/instances" in call else None
    )
    harness.apply(manifest("denied", nodeLocation="us-central1-b", instanceConfig=STANDARD))
    helpers.until_reason(harness, "JoinNotApproved", name="denied", timeout=6 * MINUTE)
    harness.apply(manifest())
    helpers.until_ready(harness, timeout=3 * MINUTE)
    assert helpers.condition_of(harness, name="denied")[1] == "JoinNotApproved"


def test_vms_of_a_version_that_the_cluster_rejects_never_join_and_their_serial_port_says_why() -> (
    None
):
    harness = Harness()
    harness.apply(manifest(bootstrapKubernetes={"version": "1.28"}))
    helpers.until_reason(harness, "NodeJoinTimeout")
    (vm, *_) = helpers.vms(harness)
    port = harness.simulation.gce.faults.act_as_user("GET", f"{vm}/serialPort")["contents"]
    assert (
        'no kind "ClusterConfiguration" is registered for version "kubeadm.k8s.io/v1beta4"' in port
    )
    assert "serial port" in harness.condition(NAME, "Ready")["message"]
    helpers.assert_deleted_completely(harness)


@pytest.mark.parametrize("is_complete", [False, True], ids=["while VMs join", "in a Ready slice"])
def test_a_vm_that_copies_created_by_is_nobody_and_is_reported(is_complete: bool) -> None:
    harness = Harness()
    harness.apply(manifest(instanceConfig=STANDARD))
    if is_complete:
        helpers.until_ready(harness)
    helpers.until(harness, lambda: len(helpers.vms(harness)) == 2)
    path = helpers.make_vm_manually(harness)
    name = helpers.vm_name(path)
    helpers.until_ready(harness)
    harness.run_for(2 * HOUR)
    metadata = helpers.metadata_of(helpers.get(harness, path))
    assert "kubeadm-join-token" not in metadata
    assert "created-by" in metadata
    assert name not in helpers.nodes(harness)
    assert helpers.summary(harness)["text"] == "2/2"
    assert helpers.summary(harness)["running"] == 2
    reported = [text for _, reason, text in helpers.events(harness) if reason == "ForeignVM"]
    assert reported == [
        f"VM {name} is not a member of the managed instance group {name[:-5]}: it gets no join token, "
        "and is neither counted nor deleted with this group. If nothing else needs it, delete it: "
        f"gcloud compute instances delete {name} --zone=us-central1-c --project={PROJECT}"
    ]


def test_a_token_whose_secret_is_created_late_is_revoked_within_the_hour() -> None:
    """A create of the Secret may take effect after its client has given up, and after the join."""
    harness = Harness()
    harness.apply(manifest(instanceConfig=STANDARD))
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 2)
    late = harness.simulation.admin("GET", SECRETS)["items"][0]
    helpers.until_ready(harness)
    assert helpers.secrets(harness) == []
    metadata = {key: late["metadata"][key] for key in ("name", "namespace", "labels")}
    harness.simulation.admin("POST", SECRETS, {**late, "metadata": metadata})
    assert helpers.secrets(harness) == [late["metadata"]["name"]]
    helpers.until(harness, lambda: helpers.secrets(harness) == [], HOUR - 15 * MINUTE)
