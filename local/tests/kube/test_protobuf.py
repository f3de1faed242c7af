"""The protobuf bodies that kubectl sends, byte for byte as it sent them."""

from __future__ import annotations

import pytest

from local.kube.protobuf import ProtobufError, decode
from local.tests.contract.kubernetes.embedded import Embedded

PROTOBUF = "application/vnd.kubernetes.protobuf"


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return bytes([number << 3 | 2, len(payload)]) + payload


def message(version: str, kind: str, raw: bytes) -> bytes:
    type_meta = field(1, version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, type_meta) + field(2, raw)


def test_a_config_map_is_read() -> None:
    metadata = field(1, b"c") + field(3, b"ns") + field(11, field(1, b"k") + field(2, b"v"))
    raw = field(1, metadata) + field(2, field(1, b"a") + field(2, b"b"))
    assert decode(message("v1", "ConfigMap", raw)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "ns", "labels": {"k": "v"}},
        "data": {"a": "b"},
    }


def test_a_secrets_bytes_become_base64() -> None:
    raw = field(1, field(1, b"s")) + field(2, field(1, b"a") + field(2, b"\xff")) + field(3, b"t/x")
    assert decode(message("v1", "Secret", raw))["data"] == {"a": "/w=="}


def test_an_access_review_is_read() -> None:
    attributes = field(1, b"default") + field(2, b"get") + field(5, b"pods")
    raw = field(2, field(1, attributes))
    assert decode(message("authorization.k8s.io/v1", "SelfSubjectAccessReview", raw))["spec"] == {
        "resourceAttributes": {"namespace": "default", "verb": "get", "resource": "pods"}
    }


BROKEN = {
    "another form": (b"{}", "does not begin as a Kubernetes protobuf message"),
    "cut short": (message("v1", "ConfigMap", b"")[:-1], "ends within"),
    "a field cut short": (b"k8s\x00" + b"\x0a\x7f", "the message ends within a field"),
    "a number cut short": (b"k8s\x00" + b"\xff", "the message ends within a number"),
    "a number for a text": (message("v1", "ConfigMap", b"\x08\x01"), "a number stands where"),
    "an unknown wire type": (b"k8s\x00" + b"\x0b", "wire type 3 is not known"),
}


@pytest.mark.parametrize("body, why", BROKEN.values(), ids=BROKEN.keys())
def test_what_cannot_be_read_says_why(body: bytes, why: str) -> None:
    with pytest.raises(ProtobufError, match=why):
        decode(body)


DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"


@pytest.mark.parametrize(
    "path, body",
    [
        ("/api/v1/namespaces/default/pods", message("v1", "Pod", b"")),
        (DAEMON_SETS, message("apps/v1", "DaemonSet", b"")),
    ],
    ids=["Pod", "DaemonSet"],
)
def test_a_kind_that_is_not_read_is_refused_as_by_a_server_without_protobuf(
    path: str, body: bytes
) -> None:
    answer = Embedded().send("POST", path, body, PROTOBUF)
    assert answer.status == 415
    assert answer.document["reason"] == "UnsupportedMediaType"
    assert answer.document["message"] == (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json, application/yaml"
    )
