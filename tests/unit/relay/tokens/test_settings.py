# ruff: noqa: E501  (a table reads best with a row on a line)
"""The token-writer's settings from the environment, and the errors for invalid ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from local.kube import CertificateAuthority
from relay.tokens.__main__ import read_settings
from shared.base.environment import SettingsError
from tests.support.loopback import encode_ca

PEM = CertificateAuthority.create(datetime(2026, 1, 1, tzinfo=UTC)).certificate_pem
SERVER = "https://10.128.0.2:6443"
MINIMAL = {
    "PUBSUB_PROJECT": "my-project",
    "CLUSTER_SERVER": SERVER,
    "CLUSTER_CA": encode_ca(PEM),
    "KUBECONFIG": "/etc/kubeconfig",
    "STEPS": "sweep, provision-slice",
}


def test_the_secrets_have_the_prefix_of_the_topics() -> None:
    for prefix, port in (("tpu-functions-", 8080), ("research-", 0)):
        variables = {"TOPIC_PREFIX": prefix, "PORT": str(port)} if port == 0 else {}
        writer, read_port = read_settings(MINIMAL | variables)
        assert (writer.server, writer.ca_pem, writer.kubeconfig) == (SERVER, PEM, "/etc/kubeconfig")
        assert writer.secrets == {
            name: f"projects/my-project/secrets/{prefix}token-{name}"
            for name in ("sweep", "provision-slice")
        }
        assert read_port == port


NO_CA = "it must be the base64 of the CA's certificate in PEM form, as a kubeconfig has it in certificate-authority-data"
INVALID: dict[str, tuple[dict[str, str], str]] = {
    "nothing": (
        {},
        "PUBSUB_PROJECT is not set: it must be the id of a Google Cloud project; KUBECONFIG is not set: it must be the path of a kubeconfig file; "
        "STEPS is not set: it must be ServiceAccounts of steps, separated by commas; "
        "CLUSTER_SERVER='' is wrong: it must be an https URL such as https://10.128.0.2:6443; "
        f"CLUSTER_CA is not set: {NO_CA}",
    ),
    "another Secret Manager": (MINIMAL | {"SECRET_MANAGER_ENDPOINT": "http://10.0.0.1"}, "SECRET_MANAGER_ENDPOINT='http://10.0.0.1' is wrong: it must be an https URL (http on this machine)"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_all_invalid_variables_are_named(case: str) -> None:
    environment, message = INVALID[case]
    with pytest.raises(SettingsError) as raised:
        read_settings(environment)
    assert str(raised.value) == message


def test_the_page_describes_each_variable() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/token-writer.md").read_text()
    variables = (*MINIMAL, "TOPIC_PREFIX", "SECRET_MANAGER_ENDPOINT", "PORT")
    assert [name for name in variables if f"`{name}`" not in page] == []
