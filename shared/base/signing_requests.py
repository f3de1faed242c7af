"""CertificateSigningRequests by which VMs of this system's groups join."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from shared.base.documents import Document, read_list, read_mapping, read_mappings, read_text
from shared.base.names import APPROVED_BY_US, BOOTSTRAP_GROUP, KUBELET_SIGNER, is_path_segment
from shared.base.timestamps import LONG_AGO, guess_time

TOO_OLD_AFTER = timedelta(minutes=20)
"""A kubelet waits 15 minutes for one request, then it makes another; clocks may differ by five."""
MAX_REQUESTS_OF_TOKEN = 5
"""How many pending requests of one token, the newest, are published to ``approve_join`` in a minute."""
_REQUESTER = re.compile(r"system:bootstrap:([a-z0-9]{6})")
_OWNER = re.compile(r"system:bootstrappers:(tng-[a-z0-9-]+):([0-9]+)")
_DECISIONS = ("Approved", "Denied", "Failed")


def token_groups(vm: str, vm_id: str) -> str:
    """The groups of a VM's token, as its Secret has them. The API server adds them to each request that
    the token makes: the second names the token's owner."""
    return f"{BOOTSTRAP_GROUP},system:bootstrappers:{vm}:{vm_id}"


@dataclass(frozen=True)
class SigningRequest:
    """A request for a kubelet's client certificate by the holder of a bootstrap token of this system.

    ``token_id`` is the public half of that token. The API server has verified the secret half.
    """

    name: str
    uid: str
    token_id: str
    created: datetime
    is_decided: bool
    approver: str
    """The reason of its approval; empty while it is not approved."""
    token_vm: str = ""
    """The VM that the token belongs to, by the token's groups; empty if they name none."""
    token_vm_id: str = ""

    @property
    def is_approved_elsewhere(self) -> bool:
        return self.approver not in ("", APPROVED_BY_US)


def find_signing_request(raw: Mapping[str, Any]) -> SigningRequest | None:
    """The request; ``None`` for one to another signer, of another requester, or without name and uid."""
    metadata, spec = read_mapping(raw, "metadata"), read_mapping(raw, "spec")
    requester = _REQUESTER.fullmatch(read_text(spec, "username"))
    is_ours = requester is not None and BOOTSTRAP_GROUP in read_list(spec, "groups")
    if requester is None or not is_ours or read_text(spec, "signerName") != KUBELET_SIGNER:
        return None
    name, uid = read_text(metadata, "name"), read_text(metadata, "uid")
    if not is_path_segment(name) or not uid:
        return None
    status = read_mapping(raw, "status")
    decisions = _read_decisions(status)
    owners = (_OWNER.fullmatch(str(group)) for group in read_list(spec, "groups"))
    vm, vm_id = next((owner.groups() for owner in owners if owner), ("", ""))
    return SigningRequest(
        name=name,
        uid=uid,
        token_id=requester[1],
        created=guess_time(metadata.get("creationTimestamp")) or LONG_AGO,
        is_decided=bool(decisions) or bool(status.get("certificate")),
        approver=decisions.get("Approved", ""),
        token_vm=vm,
        token_vm_id=vm_id,
    )


def _read_decisions(status: Document) -> dict[str, str]:
    """The conditions that decide a request, each with its reason (``Unknown`` if it has none)."""
    return {
        read_text(one, "type"): read_text(one, "reason") or "Unknown"
        for one in read_mappings(status, "conditions")
        if read_text(one, "type") in _DECISIONS
    }
