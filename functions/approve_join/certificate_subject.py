"""For whom a kubelet's signing request asks, read as Kubernetes' signer reads it.

The signer takes the first PEM block and skips what precedes it; another parser may take another
block. So nothing is looked for here: the request must be one block and nothing else, its subject one
organization and one name and nothing else.
"""

import base64
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from shared.base.documents import read_list, read_mapping, read_text

_PEM = re.compile(
    rb"\s*-----BEGIN CERTIFICATE REQUEST-----\n([A-Za-z0-9+/=\r\n]+)"
    rb"-----END CERTIFICATE REQUEST-----\s*"
)
_ORGANIZATION = "system:nodes"
_NODE = "system:node:"
_USAGES = ["client auth", "digital signature"]
_ALLOWED_USAGES = (_USAGES, sorted([*_USAGES, "key encipherment"]))
"""Kubelets with an RSA key request the longer list."""
MAX_NODE = 253
"""The longest name of a Node."""


@dataclass(frozen=True)
class Subject:
    """The Node in the subject of a request. ``violation``: why no kubelet sends this request.

    ``node`` is empty if the subject cannot be parsed or names no Node.
    """

    node: str
    violation: str = ""


def read_subject(raw: Mapping[str, Any]) -> Subject:
    """Parse the subject of a CertificateSigningRequest. Never raises."""
    spec = read_mapping(raw, "spec")
    try:
        subject = _parse_subject(read_text(spec, "request"))
    except Exception as error:  # noqa: BLE001 - a parser of foreign bytes may raise anything
        return Subject("", f"it is not a certificate request: {str(error)[:200]}")
    usages, violation = read_list(spec, "usages"), subject.violation
    if not violation and sorted(map(str, usages)) not in _ALLOWED_USAGES:
        violation = f"its usages are {', '.join(map(str, usages)) or 'none'}, not a kubelet's"
    return Subject(subject.node, violation)


def _parse_subject(encoded: str) -> Subject:
    match = _PEM.fullmatch(base64.b64decode(encoded, validate=True))
    if match is None:
        raise ValueError("it must be one PEM block, CERTIFICATE REQUEST, and nothing else")
    der = base64.b64decode(b"".join(match[1].split()), validate=True)
    with warnings.catch_warnings():
        # X.509 limits a name to 64 bytes; a Node's has up to 75. Kubelets and signers ignore the limit.
        warnings.simplefilter("ignore", UserWarning)
        request = x509.load_der_x509_csr(der)
        parts = [(part.oid, part.value) for part in request.subject]
    organizations = [value for oid, value in parts if oid == NameOID.ORGANIZATION_NAME]
    names = [str(value) for oid, value in parts if oid == NameOID.COMMON_NAME]
    node = names[0].removeprefix(_NODE) if len(names) == 1 and names[0].startswith(_NODE) else ""
    if organizations != [_ORGANIZATION]:
        return Subject(node, f"its organization is not {_ORGANIZATION} alone")
    if not node or len(node) > MAX_NODE:
        return Subject("", f"its common name is not {_NODE} and the name of a Node")
    if len(parts) != 2:
        return Subject(node, "its subject has more parts than an organization and a common name")
    if not list(request.attributes):
        return Subject(node)
    try:
        has_names = any(
            isinstance(one.value, x509.SubjectAlternativeName) for one in request.extensions
        )
    except Exception:  # noqa: BLE001 - extensions that cannot be parsed are attributes, too
        has_names = False
    if has_names:
        return Subject(node, "it asks for alternative names")
    return Subject(node, "it has attributes, and a kubelet's request has none")
