"""Two groups whose VMs request certificates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from local.base.http import Request, Response
from local.cloud.simulation import LAZY_LEASE_S, Options
from local.vm import agents
from tests.stories import helpers
from tests.stories.helpers import MINUTE, STANDARD
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.support.signing_requests import USAGES
from tests.support.signing_requests import manifest as request_manifest

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
NO_JOIN = agents.Timings(lease_s=LAZY_LEASE_S, joins=False)
BOTH = Options(agents=NO_JOIN)
OTHER: dict[str, Any] = {"instanceConfig": STANDARD}


class TwoGroups:
    """Two groups whose VMs have tokens and have not requested certificates yet."""

    def __init__(self, options: Options = BOTH) -> None:
        self.harness = harness = Harness(options)
        harness.apply(manifest(**OTHER))
        harness.apply(manifest("other", **OTHER))
        helpers.until(harness, lambda: len(helpers.secrets(harness)) == 4)
        harness.run_for(2 * MINUTE)
        mine = helpers.resource_name(harness)
        vms = sorted(helpers.vms(harness), key=lambda path: mine not in path)
        self.paths = vms
        self.a, self.b, self.foreign, _ = map(helpers.vm_name, vms)
        self.token = self.token_of(vms[0])

    def token_of(self, path: str) -> str:
        return helpers.metadata_of(helpers.get(self.harness, path))["kubeadm-join-token"]

    def request(
        self, text: bytes, *, token: str = "", name: str = "csr-1", usages: Sequence[str] = USAGES
    ) -> Response:
        """Request a certificate with the token of VM A, or another one."""
        return request(self.harness, text, token=token or self.token, name=name, usages=usages)

    def decisions(self, name: str = "csr-1") -> list[str]:
        """The decisions about a request, and ``Issued`` if it is signed."""
        status = self.harness.simulation.admin("GET", f"{CSRS}/{name}")["status"]
        types = [one["type"] for one in status.get("conditions", [])]
        return [*types, *(["Issued"] if status.get("certificate") else [])]

    def events(self, reason: str) -> list[tuple[str, str]]:
        """The objects of the Events of approve_join with this reason, and their messages."""
        found = self.harness.simulation.admin("GET", "/api/v1/events")["items"]
        return [
            (one["involvedObject"]["name"], one["message"])
            for one in found
            if (one["source"].get("component"), one["reason"])
            == ("tpu-functions-approve-join", reason)
        ]

    def lines(self) -> list[str]:
        """The log lines about single requests, which the alert counts, with their notes."""
        log = self.harness.log.lines
        return [
            f"{line['decision']}: {line['note']}"
            for line in log
            if line["step"] == "approve_join" and line["decision"].startswith("Join")
        ]


def request(
    harness: Harness, text: bytes, *, token: str, name: str, usages: Sequence[str] = USAGES
) -> Response:
    body = json.dumps(request_manifest(text, name=name, usages=usages)).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return harness.simulation.kube.handle(Request.of("POST", CSRS, headers=headers, body=body))
