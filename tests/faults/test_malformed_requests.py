"""Mutated CertificateSigningRequests: the step answers each, and approves only the VM's own."""

from __future__ import annotations

import base64
import copy
import json
import warnings
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from functions import approve_join
from local.base.http import Response
from local.cloud.simulation import LAZY_LEASE_S, Options
from local.vm import agents
from shared.base.timestamps import render_time
from shared.frame.step import CRASHED, handle
from shared.triggers.message import Cause, message_about_requests
from tests.faults.malformed import ANSWERS, JUNK, list_places, redelivered, slow
from tests.stories import helpers
from tests.stories.helpers import ONE_HOST
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.support.pushes import push
from tests.support.signing_requests import STRANGE_NAMES, USAGES, kubelets, pem, raw_request

CSR = "/apis/certificates.k8s.io/v1/certificatesigningrequests/csr-x"
NO_JOIN = Options(agents=agents.Timings(lease_s=LAZY_LEASE_S, joins=False))
VALUES = [value for value in JUNK if "\\ud" not in json.dumps(value)]
"""API servers write only valid Unicode."""
Document = dict[str, Any]


class Requests:
    """Mutated requests of the holder of a VM's token, from a seed."""

    def __init__(self, owner: str, token_id: str, now: str, seed: int) -> None:
        vm = owner.partition(":")[0]
        self._random = Random(seed)
        texts = (
            *[pem(kubelets(vm))] * 4,
            pem(kubelets(f"{vm[:-4]}zzzz")),
            pem(kubelets("control-plane-1")),
            pem(kubelets(vm), names=["kubernetes.default"]),
            pem(kubelets(vm), names_der=STRANGE_NAMES),
        )
        self._genuine = [
            raw_request(text, token_id=token_id, created=now, owner=owner) for text in texts
        ]

    def generate(self) -> Document:
        """A request that is mutated, or a genuine one."""
        document = copy.deepcopy(self._random.choice(self._genuine))
        if self._random.random() < 0.5:
            corrupted = self._corrupt(base64.b64decode(document["spec"]["request"]))
            document["spec"]["request"] = base64.b64encode(corrupted).decode()
        for _ in range(self._random.choice((0, 0, 1, 2))):
            holder, key = self._random.choice(list(list_places(document)))
            holder[key] = copy.deepcopy(self._random.choice(VALUES))
        return document

    def _corrupt(self, text: bytes) -> bytes:
        """Change bytes of the DER in the block, or of the text around it."""
        head, body, tail = text.partition(b"-----\n")[0], text.splitlines()[1:-1], b"-----END"
        der = bytearray(base64.b64decode(b"".join(body)))
        for _ in range(self._random.choice((0, 1, 3))):
            der[self._random.randrange(len(der))] = self._random.randrange(256)
        encoded = base64.encodebytes(bytes(der))
        parts = [head, b"-----\n", encoded, tail, b" CERTIFICATE REQUEST-----\n"]
        if self._random.random() < 0.3:
            parts.insert(self._random.randrange(6), self._random.choice((b"\xff", b"x\n", text)))
        return b"".join(parts)


def is_own(document: Document, vm: str, token_id: str) -> bool:
    """Whether a request may be approved, by an independent parser: it reads the last PEM block and the
    names from their text."""
    spec = document["spec"]
    text = base64.b64decode(spec["request"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        request = x509.load_pem_x509_csr(text[text.rindex(b"-----BEGIN") :])
        subject = {attribute.oid: attribute.value for attribute in request.subject}
        extensions = list(request.extensions)
    return (
        subject
        == {
            NameOID.ORGANIZATION_NAME: "system:nodes",
            NameOID.COMMON_NAME: f"system:node:{vm}",
        }
        and text.count(b"-----BEGIN") == 1
        and not extensions
        and set(spec["usages"]) == set(USAGES)
        and spec["username"] == f"system:bootstrap:{token_id}"
        and sum(str(group).startswith(f"system:bootstrappers:{vm}:") for group in spec["groups"])
        == 1
    )


@pytest.mark.parametrize(
    "count, seed",
    [
        pytest.param(1_000, 1, id="daily"),
        pytest.param(20_000, 2, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_every_mutated_request_for_a_certificate_is_answered_and_only_a_vms_own_is_approved(
    print_figure: Callable[[str], None], count: int, seed: int
) -> None:
    harness = Harness(NO_JOIN)
    harness.apply(manifest(**ONE_HOST))
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 1)
    harness.run_for(helpers.MINUTE)
    found = helpers.get(harness, helpers.vms(harness)[0])
    vm, token = found["name"], helpers.metadata_of(found)["kubeadm-join-token"]
    served: Document = {}

    def answer(_step: str, call: str) -> Response | None:
        """The API server returns the mutated request, and accepts all writes about it."""
        if call == f"GET {CSR}":
            return Response.of_json(served)
        is_write = call.startswith(f"PUT {CSR}") or "/secrets/" in call or "/events" in call
        return Response.of_json({"kind": "Status"}) if is_write else None

    harness.hooks.instead = answer
    now = harness.clock.now()
    requests = Requests(f"{vm}:{found['id']}", token[:6], render_time(now), seed)
    body = push(json.loads(message_about_requests(Cause.JOIN_REQUESTED, now, ["csr-x"]).encode()))
    runtime, log = harness.runtime("approve_join"), harness.log.lines
    outcomes: Counter[str] = Counter()
    for number in range(count):
        served = requests.generate()
        log.clear()
        runtime.monotonic = slow() if number % 16 == 0 else lambda: 0.0
        reply = handle("approve_join", approve_join.STEP.run, body, runtime)
        outcomes[reply.outcome] += 1
        assert reply.http in ANSWERS
        if reply.http == 503:
            reply = handle("approve_join", approve_join.STEP.run, redelivered(body), runtime)
            assert reply.http == 204, served
        assert CRASHED not in {line["decision"] for line in log}, (served, log)
        assert token[7:] not in json.dumps(log)
        if reply.outcome == "Approving":
            assert is_own(served, vm, token[:6]), served
    print_figure(f"{count} mutated requests for certificates: {dict(outcomes)}")
    assert {"Approving", "Denied", "NothingToDo", "TryAgain"} <= set(outcomes)
