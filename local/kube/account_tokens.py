"""Tokens of ServiceAccounts: TokenRequest, and the users whom the tokens authenticate."""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from random import Random
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from local.base.clock import Clock
from local.kube import errors
from local.kube.errors import FieldError
from local.kube.formats import parse_time, render_time
from local.kube.kinds import Document
from local.kube.store import Key, Record, Store
from local.kube.users import ALL_AUTHENTICATED, User

ISSUER = "https://kubernetes.default.svc.cluster.local"
"""kubeadm's, which is also the only audience of the API server."""
_HEADER = {"alg": "ES256", "kid": "embedded"}
_MIN_LIFE_S, _MAX_LIFE_S = 600, 1 << 32
_LEEWAY_S = 60
_NUMBER_BYTES = 32
_BOUND = {("v1", "Pod"): "pods", ("v1", "Secret"): "secrets", ("v1", "Node"): "nodes"}
_CLAIMS = {"pods": "pod", "secrets": "secret", "nodes": "node"}


class AccountTokens:
    """The key that signs tokens, and their checks. A token that expires later than ``max_life_s`` is
    shortened to it; 0 is no limit."""

    def __init__(self, store: Store, clock: Clock, random: Random, max_life_s: int) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._max_life_s = max_life_s

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())  # made late: most clusters need none

    # -- issuing ----------------------------------------------------------------------------------

    def complete(self, request: Document, account: Record) -> None:
        """Set what a TokenRequest omits. Raises 409 and 422, as before admission."""
        meta, spec = request["metadata"], request["spec"]
        namespace, name = account.key
        for field, own in (("name", name), ("namespace", namespace)):
            if meta.get(field, own) != own:
                who = "name" if field == "name" else "namespace"
                why = f"must match the service account {who} if specified"
                wrong = errors.invalid_value(f"metadata.{field}", meta[field], why)
                raise errors.invalid(_KIND, name, [wrong])
        uid = account.metadata["uid"]
        if meta.get("uid", uid) != uid:
            why = f"the UID in the token request ({meta['uid']}) does not match the UID of the service"
            raise errors.conflict(_KIND, name, f"{why} account ({uid})")
        now = render_time(self._clock.now())
        meta.update(name=name, namespace=namespace, uid=uid, creationTimestamp=now)
        spec["audiences"] = spec.get("audiences") or [ISSUER]
        request["status"] = {"token": "", "expirationTimestamp": None}
        violations = list(_find_life_errors(spec["expirationSeconds"]))
        if violations:
            raise errors.invalid(_KIND, "", violations)

    def sign(self, request: Document, account: Record) -> tuple[str, ...]:
        """Write the token to the status of an admitted request. Returns warnings.

        Raises 400, 404 and 409 for an object to which it is to be bound.
        """
        spec, now = request["spec"], self._clock.now()
        bound = self._find_bound(spec.get("boundObjectRef"), account.key)
        warnings: tuple[str, ...] = ()
        life_s = asked_s = spec["expirationSeconds"]
        if 0 < self._max_life_s < asked_s:
            life_s = spec["expirationSeconds"] = self._max_life_s
            warnings = (f"requested expiration of {asked_s} seconds shortened to {life_s} seconds",)
        namespace, name = account.key
        issued = int(now.timestamp())
        claims = {
            "aud": spec["audiences"],
            "exp": issued + life_s,
            "iat": issued,
            "iss": ISSUER,
            "jti": str(uuid.UUID(int=self._random.getrandbits(128), version=4)),
            "kubernetes.io": {
                "namespace": namespace,
                **{_CLAIMS[plural]: _refer(record) for plural, record in bound},
                "serviceaccount": _refer(account),
            },
            "nbf": issued,
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        request["status"] = {
            "token": self._render(claims),
            "expirationTimestamp": render_time(now + timedelta(seconds=life_s)),
        }
        return warnings

    def _find_bound(self, ref: Document | None, account: Key) -> Sequence[tuple[str, Record]]:
        if ref is None:
            return ()
        version, kind, name = ref.get("apiVersion", ""), ref.get("kind", ""), ref.get("name", "")
        plural = _BOUND.get((version, kind))
        if plural is None:
            shown = version if "/" in version else f"/{version}"
            raise errors.bad_request(f"cannot bind token to object of type {shown}, Kind={kind}")
        record = self._store.find(plural, ("" if plural == "nodes" else account[0], name))
        if record is None:
            raise errors.not_found(plural, name)
        if plural == "pods" and record.document["spec"].get("serviceAccountName") != account[1]:
            why = f'cannot bind token for serviceaccount "{account[1]}" to pod running with different '
            raise errors.bad_request(f"{why}serviceaccount name.")
        if ref.get("uid", record.metadata["uid"]) != record.metadata["uid"]:
            why = f"the UID in the bound object reference ({ref['uid']}) does not match the UID in"
            more = "record. The object might have been deleted and then recreated"
            raise errors.conflict(kind, name, f"{why} {more}")
        return ((plural, record),)

    def _render(self, claims: Mapping[str, Any]) -> str:
        signed = f"{_encode_json(_HEADER)}.{_encode_json(claims)}"
        numbers = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encode(b''.join(one.to_bytes(_NUMBER_BYTES) for one in numbers))}"

    # -- authenticating ---------------------------------------------------------------------------

    def find_user(self, token: str) -> User | None:
        """The ServiceAccount of a valid token; ``None`` for any other text."""
        try:
            claims = self._read(token)
            info = claims["kubernetes.io"]
            namespace = info["namespace"]
        except (ValueError, LookupError, TypeError, InvalidSignature):
            return None
        refs = [("serviceaccounts", namespace, info["serviceaccount"])]
        refs += [
            (plural, "" if plural == "nodes" else namespace, info[claim])
            for plural, claim in _CLAIMS.items()
            if claim in info
        ]
        if not self._is_current(claims) or not all(self._exists(*ref) for ref in refs):
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        uid = info["serviceaccount"]["uid"]
        return User(claims["sub"], (*groups, ALL_AUTHENTICATED), uid)

    def _read(self, token: str) -> Document:
        """The claims of a token with a valid signature."""
        header, claims, signature = token.split(".")
        raw = _decode(signature)
        if json.loads(_decode(header)) != _HEADER or len(raw) != 2 * _NUMBER_BYTES:
            raise ValueError
        numbers = (int.from_bytes(raw[:_NUMBER_BYTES]), int.from_bytes(raw[_NUMBER_BYTES:]))
        self._key.public_key().verify(
            encode_dss_signature(*numbers), f"{header}.{claims}".encode(), ec.ECDSA(hashes.SHA256())
        )
        read: Document = json.loads(_decode(claims))
        return read

    def _is_current(self, claims: Mapping[str, Any]) -> bool:
        now = self._clock.now().timestamp()
        return (
            claims["iss"] == ISSUER
            and ISSUER in claims["aud"]
            and claims["nbf"] - _LEEWAY_S <= now <= claims["exp"] + _LEEWAY_S
        )

    def _exists(self, plural: str, namespace: str, ref: Mapping[str, str]) -> bool:
        record = self._store.find(plural, (namespace, ref["name"]))
        if record is None or record.metadata["uid"] != ref["uid"]:
            return False
        deleted = record.metadata.get("deletionTimestamp")
        return deleted is None or (
            self._clock.now() - parse_time(deleted) <= timedelta(seconds=_LEEWAY_S)
        )


_KIND = "TokenRequest.authentication.k8s.io"


def _find_life_errors(life_s: int) -> Iterator[FieldError]:
    field = "spec.expirationSeconds"
    if life_s < _MIN_LIFE_S:
        why = "may not specify a duration less than 10 minutes"
        yield errors.invalid_value(field, life_s, why)
    if life_s > _MAX_LIFE_S:
        why = "may not specify a duration larger than 2^32 seconds"
        yield errors.invalid_value(field, life_s, why)


def _refer(record: Record) -> Document:
    return {"name": record.key[1], "uid": record.metadata["uid"]}


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _encode_json(value: Any) -> str:
    return _encode(json.dumps(value, separators=(",", ":")).encode())


def _decode(text: str) -> bytes:
    """Decode base64url without padding. Raises `ValueError`."""
    try:
        return base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True
        )
    except binascii.Error as error:
        raise ValueError from error
