"""The token-writer on a real control plane with kubeadm's flags: tokens, and its policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from local.base.clock import VirtualClock
from local.base.ports import LOOPBACK
from local.cloud.secret_manager import SecretManager as Secrets
from local.control_plane.plane import OwnControlPlane
from local.tests.real_parts import open_own_control_plane
from relay.tokens.writer import SecretManager, TokenWriter
from shared.ports.google_credentials import GoogleCredentials
from shared.ports.kubernetes.access_settings import AccountToken
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from tests.real.relay.waiting import until
from tests.support.chart import MANIFESTS, TOKEN_WRITER, apply
from tests.support.loopback import open_loopback
from tests.unit.relay.tokens.cluster import DENIED, POLICY

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("account tokens")]

ACCOUNTS = "/api/v1/namespaces/tpu-functions/serviceaccounts"
STEPS = ("sweep", "label-node")
WRITER = "system:serviceaccount:tpu-functions:token-writer"
POD = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass
class Setup:
    """A cluster with the token-writer's objects, and the secrets of two steps."""

    plane: OwnControlPlane
    secrets: Secrets
    writer: TokenWriter

    def mint(self, account: str, as_writer: bool, **spec: Any) -> tuple[int, str]:
        """Request a token; the code, and the token or the message of the error."""
        code, answer = self.plane.request(
            "POST",
            f"{ACCOUNTS}/{account}/token",
            {"spec": spec},
            headers={"Impersonate-User": WRITER} if as_writer else {},
        )
        return code, answer["status"]["token"] if code < 300 else answer["message"]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("tokens")
    with open_own_control_plane() as plane, open_loopback() as loopback:
        apply(plane, TOKEN_WRITER)
        secrets = Secrets(VirtualClock(), "p")
        for step in STEPS:
            secrets.add(step, b"the token-writer has not run yet")
            secrets.grant("", step, "versions.list", "versions.add", "versions.destroy")
        endpoint = f"http://{LOOPBACK}:{loopback.serve(secrets)}"
        names = {step: f"projects/p/secrets/{step}" for step in STEPS}
        # The token-writer's own kubeconfig, with this machine's paths.
        text = (MANIFESTS / "token-writer" / "kubeconfig").read_text()
        text = text.replace("https://kubernetes.default.svc", plane.server)
        (folder / "kubeconfig").write_text(text.replace(POD, str(folder)))
        (folder / "ca.crt").write_text(plane.ca_pem)
        manager = SecretManager(endpoint, GoogleCredentials(AnonymousCredentials))
        writer = TokenWriter(
            plane.server,
            plane.ca_pem,
            names,
            str(folder / "kubeconfig"),
            manager,
            lambda: datetime.now(UTC),
        )
        found = Setup(plane, secrets, writer)
        code, own = found.mint("token-writer", as_writer=False)
        assert code == 201
        (folder / "token").write_text(own)
        yield found


def use(setup: Setup, step: str, folder: Path) -> str:
    """Use the newest version of a step's secret, as the step's function does."""
    (folder / "token").write_bytes(setup.secrets.secrets[step][-1].payload)
    access = AccountToken(setup.plane.server, setup.plane.ca_pem, str(folder / "token"))
    return Cluster(Connection(access), step, lambda: 10.0).get_cluster_id()


def test_the_token_writer_writes_tokens_with_which_functions_work_also_for_a_new_account(
    setup: Setup, tmp_path: Path
) -> None:
    first = setup.writer.run_round()
    assert [(one.error, one.written is not None) for one in first] == [("", True)] * 2
    uid = setup.plane.request("GET", "/api/v1/namespaces/kube-system")[1]["metadata"]["uid"]
    assert [use(setup, step, tmp_path) for step in STEPS] == [uid] * 2
    written = first[0].written
    assert written is not None
    assert (written.expires - written.at).total_seconds() == pytest.approx(12 * 3600, abs=60)
    assert [one.written for one in setup.writer.run_round()] == [None] * 2
    setup.plane.request("DELETE", f"{ACCOUNTS}/sweep")
    setup.plane.request("POST", ACCOUNTS, {"metadata": {"name": "sweep"}})
    until(lambda: setup.writer.run_round()[0].written is not None, "the new account has a token")
    until(lambda: use(setup, "sweep", tmp_path) == uid, "the function works")


@pytest.mark.parametrize("case", POLICY)
def test_the_policy_limits_the_tokens_of_the_token_writer(setup: Setup, case: str) -> None:
    account, spec, why = POLICY[case]
    expected = f'serviceaccounts "{account}" is forbidden: {DENIED}{why}'
    answers: list[tuple[int, str]] = []

    def is_decided() -> bool:
        answers.append(setup.mint(account, as_writer=True, **spec))
        return answers[-1] == (403, expected) if why else answers[-1][0] == 201

    secret = {"metadata": {"name": "s", "namespace": "tpu-functions"}}
    setup.plane.request("POST", "/api/v1/namespaces/tpu-functions/secrets", secret)
    until(is_decided, f"the policy decides: {case}")


@pytest.mark.parametrize("account", ["relay", "token-writer"])
def test_the_token_writer_cannot_mint_tokens_of_others(setup: Setup, account: str) -> None:
    code, message = setup.mint(account, as_writer=True)
    assert code == 403
    assert 'cannot create resource "serviceaccounts/token"' in message
