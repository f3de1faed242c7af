"""The requests that approve_join decides, each with the decision."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from functions.approve_join.certificate_subject import Subject
from functions.approve_join.observe import Candidate
from shared.base.signing_requests import SigningRequest, find_signing_request
from shared.node_groups.bootstrap import TOKEN_LIFE, Token
from shared.node_groups.status import Pending, Status
from shared.ports.errors import CallError
from shared.ports.gce.values import Instance
from tests.support.builders import NOW, RESOURCE, group, unreadable_group
from tests.support.compute import instance
from tests.support.signing_requests import kubelets, pem, raw_request

VM = f"{RESOURCE}-ab12"
OWNER = f"{VM}:42"
OWN = Token("abcdef", "x" * 16, NOW + timedelta(minutes=30))
RENEWED = Token("newnew", "x" * 16, NOW + TOKEN_LIFE)
SOON, LATE = NOW - timedelta(seconds=119), NOW - timedelta(minutes=2)
OLD = NOW - timedelta(minutes=20)
TEXT = pem(kubelets(VM))


def candidate(
    *, token: Token | None = OWN, found: bool = True, late: bool = False, **change: Any
) -> Candidate:
    raw = raw_request(TEXT, owner=OWNER)
    request = find_signing_request(raw)
    assert request is not None
    request = replace(request, created=LATE if late else SOON)
    vm: Instance | None = instance(VM, token=token) if found else None
    return replace(Candidate(request, Subject(VM), raw, group(), instance=vm), **change)


def decided(approver: str = "") -> SigningRequest:
    return replace(candidate().request, is_decided=True, approver=approver)


UNAVAILABLE = CallError("instances.get", 503, "backendError", "away")
_REQUEST = candidate().request
EARLIER, NOBODYS = replace(_REQUEST, token_vm_id="41"), replace(_REQUEST, token_vm="")
OTHER_VM = f"{RESOURCE}-zz99"
REPORTED = Status(pending=(Pending(VM, "JoinNotApproved", NOW),))
NOT_APPROVED = f"label_node JoinNotApproved {VM}"
DENY = ["revoke abcdef", "Denied csr-x", "report JoinDenied"]
AT_OWNER = f"label_node JoinDenied {VM}"
RENEWAL = f"VM {VM} has got another token since: it makes a request with that one"
CASES: dict[str, tuple[Candidate, str, list[str], str]] = {
    "the VM that holds the token": (candidate(), "Approving", ["Approved csr-x"], ""),
    "the VM that holds the token, after two minutes": (
        candidate(late=True),
        "Approving",
        ["Approved csr-x"],
        "",
    ),
    "the VM holds another token": (candidate(token=RENEWED), "RenewedToken", [], RENEWAL),
    "the VM holds another token for two minutes": (
        candidate(token=RENEWED, late=True),
        "RenewedToken",
        [],
        RENEWAL,
    ),
    "the token is another VM's": (
        candidate(subject=Subject(OTHER_VM), late=True),
        "Denied",
        [*DENY, AT_OWNER],
        f"it is for the Node of VM {OTHER_VM}, and its token belongs to VM {VM}",
    ),
    "the token is another VM's, whose group is being deleted": (
        candidate(subject=Subject(OTHER_VM), group=group(deleting=True)),
        "Denied",
        [*DENY, AT_OWNER],
        f"it is for the Node of VM {OTHER_VM}, and its token belongs to VM {VM}",
    ),
    "the token names no VM": (
        candidate(request=NOBODYS, group=None),
        "Denied",
        DENY,
        f"it is for the Node of VM {VM}, and its token belongs to no VM",
    ),
    "the token is that of an earlier VM of this name": (
        candidate(request=EARLIER),
        "Pending",
        [],
        f"its token belongs to an earlier VM {VM}",
    ),
    "the status reports the obstacle already": (
        candidate(token=None, late=True, status=REPORTED),
        "NotApproved",
        ["report JoinNotApproved"],
        f"the metadata of VM {VM} holds no token",
    ),
    "the request is too old for its kubelet": (
        replace(candidate(), request=replace(candidate().request, created=OLD)),
        "NotApproved",
        ["report JoinNotApproved", NOT_APPROVED],
        "it is too old: its kubelet no longer waits for it",
    ),
    "an invalid request that was made with another token": (
        candidate(token=RENEWED, subject=Subject(VM, "it asks for alternative names")),
        "Denied",
        [*DENY, AT_OWNER],
        "it asks for alternative names",
    ),
    "the name of the VM with a domain": (
        candidate(subject=Subject(f"{VM}.c.p.internal")),
        "NotApproved",
        [NOT_APPROVED],
        f"its Node must have the VM's name alone: register the kubelet as {VM}",
    ),
    "the name of the VM with a domain, while its group is being deleted": (
        candidate(subject=Subject(f"{VM}.c.p.internal"), group=group(deleting=True), late=True),
        "Deleting",
        [],
        "",
    ),
    "the VM holds no token": (
        candidate(token=None),
        "Pending",
        [],
        f"the metadata of VM {VM} holds no token",
    ),
    "the VM holds no token for two minutes": (
        candidate(token=None, late=True),
        "NotApproved",
        ["report JoinNotApproved", NOT_APPROVED],
        f"the metadata of VM {VM} holds no token",
    ),
    "the VM is gone": (
        candidate(found=False),
        "Pending",
        [],
        f"Compute Engine has no VM {VM}",
    ),
    "the VM has joined": (
        candidate(has_node=True),
        "SpentToken",
        ["revoke abcdef"],
        f"VM {VM} has joined: its token is spent",
    ),
    "the VM has joined, and has another token": (
        candidate(has_node=True, token=RENEWED),
        "SpentToken",
        [],
        f"VM {VM} has joined: its token is spent",
    ),
    "its group is gone": (
        candidate(group=None, late=True),
        "NotApproved",
        ["report JoinNotApproved"],
        f"no TPUNodeGroup has a VM {VM}",
    ),
    "its group is being deleted": (
        candidate(group=group(deleting=True), late=True),
        "Deleting",
        [],
        "",
    ),
    "its group's project is not served": (
        candidate(is_served=False),
        "Pending",
        [],
        "this installation does not serve the project of group default/my-slice",
    ),
    "its group cannot be read": (
        candidate(group=unreadable_group()),
        "Pending",
        [],
        "the spec of group default/my-slice is invalid",
    ),
    "Compute Engine is unavailable": (
        candidate(found=False, error=UNAVAILABLE),
        "Pending",
        [f"fail {UNAVAILABLE}"],
        str(UNAVAILABLE),
    ),
    "the name of a control plane": (
        candidate(found=False, subject=Subject("control-plane-1")),
        "Denied",
        [*DENY, AT_OWNER],
        "control-plane-1 is not the name of a TPUNodeGroup's VM",
    ),
    "an alternative name": (
        candidate(subject=Subject(VM, "it asks for alternative names")),
        "Denied",
        [*DENY, AT_OWNER],
        "it asks for alternative names",
    ),
    "an invalid request whose group cannot be read": (
        candidate(group=None, subject=Subject(VM, "it has two names"), error=UNAVAILABLE),
        "Denied",
        [*DENY, f"fail {UNAVAILABLE}"],
        "it has two names",
    ),
    "approved by this system": (
        candidate(request=decided("ApprovedByTpuFunctions")),
        "Decided",
        [],
        "",
    ),
    "denied or signed": (candidate(request=decided()), "Decided", [], ""),
    "approved by another approver": (
        candidate(request=decided("AutoApproved")),
        "ApprovedElsewhere",
        ["report JoinApprovedElsewhere"],
        "another approver has approved it (AutoApproved), so a token of the group "
        "system:bootstrappers:tpu-functions is enough for any Node's certificate. Remove the binding "
        "or the approver that allows it",
    ),
}
