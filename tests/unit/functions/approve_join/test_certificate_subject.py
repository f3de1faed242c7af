# ruff: noqa: E501  (a table reads best with a row on a line)
"""A request for a Node's certificate must be exactly one PEM block with exactly one name."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from functions.approve_join.certificate_subject import Subject, read_subject
from tests.support.signing_requests import STRANGE_NAMES, USAGES, kubelets, manifest, pem

VM = "tng-my-slice-0123abcd-x7k2"
LONGEST = f"tng-{'s' * 45}-0123abcd-x7k2"
O, CN, OU = (  # noqa: E741 - the abbreviations of X.509
    NameOID.ORGANIZATION_NAME,
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
)
NODES, NODE = (O, "system:nodes"), (CN, f"system:node:{VM}")
OWN = pem(kubelets(VM))
OTHER = pem(kubelets("control-plane-1"))
BLOCK = (
    "it is not a certificate request: it must be one PEM block, CERTIFICATE REQUEST, and nothing "
    "else"
)
NO_ATTRIBUTES = "it has attributes, and a kubelet's request has none"


VALID: dict[str, tuple[dict[str, Any], str]] = {
    "a kubelet's request": (manifest(OWN), VM),
    "the longest name of a VM, which is longer than X.509 allows": (
        manifest(pem(kubelets(LONGEST))),
        LONGEST,
    ),
    "the longest name of a Node": (manifest(pem(kubelets("a" * 253))), "a" * 253),
    "an RSA key": (
        manifest(OWN, usages=["key encipherment", *USAGES]),
        VM,
    ),
    "usages in another order": (manifest(OWN, usages=USAGES[::-1]), VM),
    "no newline at the end": (manifest(OWN.rstrip()), VM),
    "the name of another Node": (manifest(OTHER), "control-plane-1"),
}


@pytest.mark.parametrize("case", VALID.values(), ids=VALID)
def test_the_node_is_read_from_a_kubelets_request(case: tuple[dict[str, Any], str]) -> None:
    raw, node = case
    assert read_subject(raw) == Subject(node)


NO_NODE = "its common name is not system:node: and the name of a Node"
INVALID: dict[str, tuple[dict[str, Any], str, str]] = {
    "alternative names that cannot be read": (manifest(pem(kubelets(VM), names_der=STRANGE_NAMES)), VM, NO_ATTRIBUTES),
    "a name longer than a Node's": (manifest(pem(kubelets("a" * 254))), "", NO_NODE),
    "two blocks, the first for another Node": (manifest(OTHER + OWN), "", BLOCK),
    "two blocks, the first for its own Node": (manifest(OWN + OTHER), "", BLOCK),
    "a block of another type before the request": (manifest(b"-----BEGIN X-----\nAAAA\n-----END X-----\n" + OWN), "", BLOCK),
    "text before the block": (manifest(b"Subject: me\n" + OWN), "", BLOCK),
    "text after the block": (manifest(OWN + b"me"), "", BLOCK),
    "headers in the block": (manifest(OWN.replace(b"REQUEST-----\n", b"REQUEST-----\nProc-Type: 4\n\n", 1)), "", BLOCK),
    "the older type of the block": (manifest(OWN.replace(b"CERT", b"NEW CERT")), "", BLOCK),
    "an empty request": (manifest(b""), "", BLOCK),
    "another organization": (manifest(pem([(O, "system:masters"), NODE])), VM, "its organization is not system:nodes alone"),
    "one more organization": (manifest(pem([NODES, (O, "system:masters"), NODE])), VM, "its organization is not system:nodes alone"),
    "no organization": (manifest(pem([NODE])), VM, "its organization is not system:nodes alone"),
    "two names": (manifest(pem([NODES, NODE, (CN, "system:node:control-plane-1")])), "", "its common name is not system:node: and the name of a Node"),
    "no name": (manifest(pem([NODES])), "", "its common name is not system:node: and the name of a Node"),
    "a user's name": (manifest(pem([NODES, (CN, "admin")])), "", "its common name is not system:node: and the name of a Node"),
    "an organizational unit": (manifest(pem([NODES, NODE, (OU, "x")])), VM, "its subject has more parts than an organization and a common name"),
    "an alternative name": (manifest(pem(kubelets(VM), names=["kubernetes.default"])), VM, "it asks for alternative names"),
    "a challenge password": (manifest(pem(kubelets(VM), attribute=b"x")), VM, NO_ATTRIBUTES),
    "a server's usages": (manifest(OWN, usages=["digital signature", "server auth"]), VM, "its usages are digital signature, server auth, not a kubelet's"),
    "an additional usage": (manifest(OWN, usages=[*USAGES, "cert sign"]), VM, "its usages are digital signature, client auth, cert sign, not a kubelet's"),
    "a usage twice": (manifest(OWN, usages=[*USAGES, "client auth"]), VM, "its usages are digital signature, client auth, client auth, not a kubelet's"),
    "no usages": (manifest(OWN, usages=[]), VM, "its usages are none, not a kubelet's"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID)
def test_a_request_that_no_kubelet_sends_has_a_violation(
    case: tuple[dict[str, Any], str, str],
) -> None:
    raw, node, violation = case
    assert read_subject(raw) == Subject(node, violation)


PADDED = next(one for one in (pem(kubelets(f"{VM}{'a' * n}")) for n in range(3)) if b"=\n-" in one)
LONGER: dict[str, bytes] = {
    "bytes": base64.encodebytes(base64.b64decode(b"".join(OWN.splitlines()[1:-1])) + b"\0\0"),
    "text after the padding": b"\n".join([*PADDED.splitlines()[1:-1], b"AAAA\n"]),
}


@pytest.mark.parametrize("body", LONGER.values(), ids=LONGER)
def test_data_after_the_request_in_its_block_is_a_violation(body: bytes) -> None:
    longer = (
        b"-----BEGIN CERTIFICATE REQUEST-----\n" + body + b"-----END CERTIFICATE REQUEST-----\n"
    )
    subject = read_subject(manifest(longer))
    assert subject.node == ""
    assert subject.violation.startswith("it is not a certificate request: ")


@given(st.integers(0, len(OWN) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_a_damaged_request_has_a_violation_or_names_a_node(at: int, put: bytes, cut: int) -> None:
    subject = read_subject(manifest(OWN[:at] + put + OWN[at + cut :]))
    assert subject.violation or subject.node


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda it: st.lists(it) | st.dictionaries(st.text(), it),
    )
)
def test_a_request_object_of_any_shape_has_a_violation(spec: Any) -> None:
    assert read_subject({"spec": spec}).violation
    assert read_subject({"spec": {"request": spec, "usages": spec}}).violation
