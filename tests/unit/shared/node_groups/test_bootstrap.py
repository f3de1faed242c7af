"""Bootstrap tokens, the pin of the CA, the metadata of a VM and the startup script."""

from __future__ import annotations

import base64
import hashlib
import operator
import os
import re
import shlex
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from shared.node_groups.bootstrap import (
    Token,
    ca_hash,
    join_metadata,
    new_token,
    parse_token,
    render_startup_script,
    token_secret,
)
from tests.unit.shared.node_groups.authorities import EC_CA, NOW, V1_CA, make_ca

TOKEN = Token("abc123", "0123456789abcdef", datetime(2026, 3, 1, 13, tzinfo=UTC))
PIN = "sha256:" + "0" * 64


# --- tokens ---


@pytest.mark.conformance("tok-format")
def test_a_new_token_has_the_format_of_a_bootstrap_token() -> None:
    assert re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", new_token(os.urandom, NOW).text)


def test_a_new_token_expires_after_an_hour_truncated_to_seconds() -> None:
    assert new_token(os.urandom, NOW).expires == datetime(2026, 3, 1, 13, tzinfo=UTC)


def test_a_new_token_expires_after_the_given_time() -> None:
    token = new_token(os.urandom, NOW, timedelta(minutes=5))
    assert token.expiry_text == "2026-03-01T12:05:00Z"


def test_every_character_of_a_token_is_equally_likely() -> None:
    usable = (bytes([value]) for value in range(252))
    characters = [new_token(partial(operator.mul, byte), NOW).id[0] for byte in usable]
    assert Counter(characters) == dict.fromkeys(string.ascii_lowercase + string.digits, 7)


def test_random_bytes_that_would_bias_the_characters_are_skipped() -> None:
    values = iter([b"\xfc\xff" * 11, b"\x00" * 22])
    assert new_token(lambda _: next(values), NOW).text == "aaaaaa.aaaaaaaaaaaaaaaa"


@pytest.mark.parametrize("show", [repr, str, "{}".format, lambda token: f"{token!r}"])
def test_a_token_does_not_show_its_secret(show: Callable[[Token], str]) -> None:
    assert show(TOKEN) == "Token(id='abc123', expires=2026-03-01T13:00:00Z)"


def test_a_token_is_read_back_from_the_metadata_unchanged() -> None:
    token = new_token(os.urandom, NOW)
    written = join_metadata(token, endpoint="10.128.0.2", ca_hash=PIN)
    read = parse_token(written["kubeadm-join-token"], written["kubeadm-join-token-expires"])
    assert read == token


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc123",
        "abc123.0123456789abcde",
        "ABC123.0123456789abcdef",
        "abc123.0123456789abcdef\n",
    ],
    ids=["empty", "no-secret", "short", "upper-case", "newline"],
)
def test_the_error_of_a_malformed_token_does_not_contain_it(text: str) -> None:
    with pytest.raises(ValueError, match="kubeadm-join-token is not of the form") as raised:
        parse_token(text, "2026-03-01T13:00:00Z")
    assert "0123456789" not in str(raised.value)


@pytest.mark.parametrize("expires", ["", "soon", "2026-03-01", "2026-03-01T13:00:00"])
def test_an_expiry_that_is_not_a_time_is_rejected(expires: str) -> None:
    with pytest.raises(ValueError, match="kubeadm-join-token-expires is not an RFC 3339 time"):
        parse_token(TOKEN.text, expires)


@pytest.mark.conformance("boot-cp-ip")
def test_the_metadata_contains_the_endpoint_of_the_spec_unchanged() -> None:
    assert join_metadata(TOKEN, endpoint="[fd00::2]:443", ca_hash=PIN) == {
        "kubeadm-join-token": "abc123.0123456789abcdef",
        "kubeadm-join-token-expires": "2026-03-01T13:00:00Z",
        "kubeadm-control-plane-ip": "[fd00::2]:443",
        "kubeadm-ca-hash": PIN,
        "kubeadm-join-token-vm-started": "",
    }


# --- the token's Secret ---


@pytest.mark.conformance("name-secret", "tok-labels")
def test_the_secret_of_a_token_has_the_fields_of_bootstrap_authentication() -> None:
    secret = token_secret(TOKEN, resource_name="tng-train-0a1b2c3d", vm="tng-train-0a1b2c3d-x1y2")
    assert {key: base64.b64decode(value).decode() for key, value in secret.pop("data").items()} == {
        "token-id": "abc123",
        "token-secret": "0123456789abcdef",
        "expiration": "2026-03-01T13:00:00Z",
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": "system:bootstrappers:tpu-functions",
        "description": "tpu-functions: lets VM tng-train-0a1b2c3d-x1y2 of tng-train-0a1b2c3d join",
    }
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {
            "name": "bootstrap-token-abc123",
            "namespace": "kube-system",
            "labels": {
                "tpu-functions.dev/resource-name": "tng-train-0a1b2c3d",
                "tpu-functions.dev/vm": "tng-train-0a1b2c3d-x1y2",
            },
        },
    }


# --- the CA's pin ---


def pin_by_cryptography(pem: str) -> str:
    key = x509.load_pem_x509_certificate(pem.encode()).public_key()
    info = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(info).hexdigest()}"


@pytest.mark.conformance("boot-ca-hash")
@pytest.mark.parametrize(
    "pem",
    [
        EC_CA,
        make_ca(rsa.generate_private_key(65537, 2048)),
        make_ca(ed25519.Ed25519PrivateKey.generate()),
    ],
    ids=["ec", "rsa", "ed25519"],
)
def test_the_pin_is_the_hash_of_the_public_key(pem: str) -> None:
    assert ca_hash(pem) == pin_by_cryptography(pem)


def test_the_pin_of_several_certificates_is_that_of_the_first() -> None:
    other = make_ca(ec.generate_private_key(ec.SECP256R1()))
    assert ca_hash(f"# cluster CA\n{EC_CA}{other}") == pin_by_cryptography(EC_CA)


def test_a_version_1_certificate_has_a_pin() -> None:
    assert ca_hash(V1_CA) == pin_by_cryptography(V1_CA)


IN_CONFIGMAP = "in configmap kube-system/kube-root-ca.crt"


def pem_of(der: bytes) -> str:
    body = base64.b64encode(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"


@pytest.mark.conformance("boot-ca-missing")
@pytest.mark.parametrize(
    "pem, message",
    [
        ("", "ca.crt not found in configmap kube-system/kube-root-ca.crt"),
        (" \n", "ca.crt not found in configmap kube-system/kube-root-ca.crt"),
        ("hello", f"failed to decode PEM CA certificate {IN_CONFIGMAP}: no certificate in it"),
        (
            "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----",
            f"failed to decode PEM CA certificate {IN_CONFIGMAP}: the certificate is not base64",
        ),
        (
            pem_of(b"\x02\x01\x05"),
            f"failed to decode PEM CA certificate {IN_CONFIGMAP}: not an X.509 certificate",
        ),
    ],
    ids=["empty", "blank", "no-pem", "no-base64", "an-integer"],
)
def test_an_unreadable_ca_is_reported_with_its_configmap(pem: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ca_hash(pem)


@given(st.data())
def test_a_truncated_certificate_is_reported(data: st.DataObject) -> None:
    der = base64.b64decode("".join(EC_CA.splitlines()[1:-1]))
    length = data.draw(st.integers(0, len(der) - 1))
    with pytest.raises(ValueError, match="cut short"):
        ca_hash(pem_of(der[:length]))


# --- the script ---


def render(**changes: object) -> str:
    values: dict[str, object] = {
        "version": "1.31",
        "project": "my-project",
        "zone": "us-central1-c",
        "node_labels": {"cloud.google.com/gke-tpu-topology": "2x2x2", "a": "b"},
        "node_taints": ["google.com/tpu=present:NoSchedule"],
        **changes,
    }
    return render_startup_script(**values)  # type: ignore[arg-type]


def assignments(script: str) -> dict[str, str]:
    """Return the variables that the script's first lines set in bash."""
    lines = [line for line in script.splitlines() if line.startswith("readonly ")][:5]
    return dict(
        "".join(shlex.split(line.removeprefix("readonly "))).split("=", 1) for line in lines
    )


def test_the_script_sets_the_values_of_the_slice() -> None:
    assert assignments(render()) == {
        "KUBERNETES_MINOR": "1.31",
        "PROJECT": "my-project",
        "ZONE": "us-central1-c",
        "NODE_LABELS": "a=b,cloud.google.com/gke-tpu-topology=2x2x2",
        "NODE_TAINTS": "google.com/tpu=present:NoSchedule",
    }


def test_the_labels_and_taints_in_the_script_may_be_empty() -> None:
    rendered = assignments(render(node_labels={}, node_taints=[]))
    assert (rendered["NODE_LABELS"], rendered["NODE_TAINTS"]) == ("", "")


def test_the_script_has_no_placeholder_left() -> None:
    assert not re.findall(r"@[A-Z_]+@", render())


@pytest.mark.parametrize(
    "text", ["a b", "$(id)", "`id`", "x'y", 'x"y', "a;b", "a\nb", "a\\b", "@ZONE@"]
)
@pytest.mark.parametrize(
    "place",
    [
        lambda text: {"version": text},
        lambda text: {"project": text},
        lambda text: {"zone": text},
        lambda text: {"node_labels": {text: "x"}},
        lambda text: {"node_labels": {"x": text}},
        lambda text: {"node_taints": [text]},
    ],
    ids=["version", "project", "zone", "label-key", "label-value", "taint"],
)
def test_a_value_with_an_unsafe_character_is_rejected(
    place: Callable[[str], dict[str, object]], text: str
) -> None:
    with pytest.raises(ValueError, match="of the startup script has an unusable character"):
        render(**place(text))


def test_the_script_is_much_smaller_than_the_limit_of_a_metadata_value() -> None:
    assert len(render().encode()) < 262144 / 8


def test_importing_the_module_imports_no_heavy_library() -> None:
    heavy = ("cryptography", "kubernetes", "google.auth", "pyasn1", "ssl")
    code = (
        f"import sys, shared.node_groups.bootstrap; print([m for m in {heavy} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
