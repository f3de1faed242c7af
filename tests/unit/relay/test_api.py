"""The connection to the cluster from inside a pod: its address, its CA, its token."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes.aio.config import incluster_config

from local.base.web import serve
from relay.watching.api import CannotConnect, KubernetesApi, Refused
from tests.unit.relay.scripted_api import NODES, ScriptedApi

TIMEOUT = aiohttp.ClientTimeout(total=10)
QUERY = {"limit": "500"}


def write_certificate(folder: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kube-apiserver")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "ca.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


async def test_a_pod_verifies_the_clusters_certificate_and_sends_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=datetime.datetime.now)
    times = SimpleNamespace(datetime=clock, timedelta=datetime.timedelta)
    monkeypatch.setattr(incluster_config, "datetime", times)
    ca = write_certificate(tmp_path)
    (tmp_path / "token").write_text("pod-token")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(ca, tmp_path / "key.pem")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))

    server = ScriptedApi()
    runner, port = await serve(server, tls=tls)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    api = await KubernetesApi.connect("")
    async with api.get(NODES, QUERY, TIMEOUT) as response:
        assert (await response.json())["items"] == []
    request = server.requests.get_nowait()
    assert request.headers["authorization"].lower() == "bearer pod-token"
    assert request.headers["user-agent"] == "tpu-functions-relay"
    # The token is read again after a minute, perhaps while the kubelet writes it.
    clock.now = lambda: datetime.datetime.now() + datetime.timedelta(minutes=2)
    (tmp_path / "token").write_text("")
    with pytest.raises(CannotConnect, match=r"Token file exists but empty\."):
        async with api.get(NODES, QUERY, TIMEOUT):
            pass
    (tmp_path / "token").write_text("new-token")
    async with api.get(NODES, QUERY, TIMEOUT):
        request = server.requests.get_nowait()
    assert request.headers["authorization"].lower() == "bearer new-token"
    await api.close()
    await runner.cleanup()


def test_a_relay_outside_a_pod_without_a_kubeconfig_cannot_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CannotConnect, match=r"Service host/port is not set\."):
        asyncio.run(KubernetesApi.connect(""))


KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: CA}}]
users: [{name: u, user: {token: abc}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
BROKEN: dict[str, bytes] = {
    "empty": b"",
    "no YAML": b"{",
    "no text": b"\xff\xfe",
    "no clusters": b"apiVersion: v1\nkind: Config\n",
    "half-written": KUBECONFIG[:60].encode(),
    "half-written, a text": KUBECONFIG[:5].encode(),
    "a list": b"[]",
    "users are a text": b"users: u\nclusters: c\ncontexts: x\ncurrent-context: x\n",
    "a CA that is none": KUBECONFIG.replace("CA}", "TUlJ}").encode(),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_kubeconfig_cannot_be_used(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    with pytest.raises(CannotConnect):
        asyncio.run(KubernetesApi.connect(str(path)))


def test_the_text_of_a_refused_error_has_status_and_message() -> None:
    assert str(Refused(403, "nodes is forbidden")) == "403 nodes is forbidden"
