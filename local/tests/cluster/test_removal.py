"""What a run has left in a named cluster: where an object is, and for which Node a request asks."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from local.cluster.manifests import Manifest, item_path
from local.cluster.removal import node_of
from local.vm.kubeadm import signing_request

GROUPS = "/apis/tpu.google.com/v1alpha1/tpunodegroups"


@pytest.mark.parametrize(
    "collection, metadata, path",
    [
        pytest.param("/api/v1/nodes", {"name": "n"}, "/api/v1/nodes/n", id="of the cluster"),
        pytest.param(
            GROUPS,
            {"name": "n", "namespace": "team"},
            "/apis/tpu.google.com/v1alpha1/namespaces/team/tpunodegroups/n",
            id="in a list of all namespaces",
        ),
        pytest.param(
            "/api/v1/namespaces/team/secrets",
            {"name": "n", "namespace": "team"},
            "/api/v1/namespaces/team/secrets/n",
            id="in the list of its namespace",
        ),
        pytest.param(
            "/api/v1/pods?labelSelector=a=b/c",
            {"name": "n", "namespace": "team"},
            "/api/v1/namespaces/team/pods/n",
            id="in a list with a selector",
        ),
        pytest.param("/api/v1/namespaces", {"name": "n"}, "/api/v1/namespaces/n", id="a namespace"),
    ],
)
def test_where_an_item_of_a_list_is(collection: str, metadata: Manifest, path: str) -> None:
    assert item_path(collection, {"metadata": metadata}) == path


def test_a_signing_request_names_the_node_of_its_kubelet() -> None:
    request = signing_request(ec.generate_private_key(ec.SECP256R1()), "tng-a-1")
    assert node_of(request) == "tng-a-1"


@pytest.mark.parametrize("pem", [b"", b"no PEM", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
def test_a_request_that_cannot_be_read_is_for_no_node(pem: bytes) -> None:
    assert node_of({"spec": {"request": base64.b64encode(pem).decode()}}) == ""
