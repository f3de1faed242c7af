"""kubectl sends protobuf for some commands. The answer names an alternative."""

from __future__ import annotations

import pytest

from local.tests.contract.kubernetes.embedded import Embedded

PROTOBUF = "application/vnd.kubernetes.protobuf"
PATHS = (
    "/api/v1/namespaces/default/configmaps",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
)


@pytest.mark.parametrize("path", PATHS)
def test_the_error_about_a_protobuf_body_names_an_alternative(path: str) -> None:
    answer = Embedded().send("POST", path, b"k8s\x00", PROTOBUF)
    assert answer.status == 415
    assert answer.document["reason"] == "UnsupportedMediaType"
    assert answer.document["message"] == (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json. This command sends protobuf, which the embedded API does "
        "not read: use `kubectl apply -f` with a manifest, or a real control plane "
        "(`make local ARGS=--real`)"
    )
