"""Bootstrap tokens: expired ones are deleted, valid ones sign ``cluster-info``."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from functools import lru_cache

from local.base.clock import Clock, Timer
from local.kube.authentication import BOOTSTRAP_SECRET_TYPE, is_expired, read_token_secret
from local.kube.controllers.queue import Cluster, WorkQueue
from local.kube.formats import parse_time
from local.kube.resources import Resources
from local.kube.store import Change, Key
from local.kube.users import controller

CLUSTER_INFO: Key = ("kube-public", "cluster-info")
_SIGNATURE_PREFIX = "jws-kubeconfig-"


class TokenController:
    """The token cleaner and the bootstrap signer."""

    def __init__(self, resources: Resources, clock: Clock) -> None:
        self._cluster = Cluster(resources, controller("token-cleaner"))
        self._clock = clock
        self._timers: dict[Key, Timer] = {}
        self._known: dict[Key, dict[str, str]] = {}
        self._tokens: WorkQueue[Key] = WorkQueue(clock, self._clean)
        self._signatures: WorkQueue[Key] = WorkQueue(clock, self._sign)
        resources.store.listen(self._follow_secret, "secrets")
        resources.store.listen(self._follow_config_map, "configmaps")

    def _follow_secret(self, change: Change) -> None:
        key = change.record.key
        self._known.pop(key, None)
        record = change.record
        if record.key[0] == "kube-system" and record.document.get("type") == BOOTSTRAP_SECRET_TYPE:
            if change.type != "DELETED":
                self._known[key] = read_token_secret(change.record)
            self._tokens.add(key)
            self._signatures.add(CLUSTER_INFO)

    def _follow_config_map(self, change: Change) -> None:
        if change.record.key == CLUSTER_INFO and change.type != "DELETED":
            self._signatures.add(CLUSTER_INFO)

    def _clean(self, key: Key) -> None:
        """Delete an expired token; for one that will expire, schedule that."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        record = self._cluster.find("secrets", key)
        if record is None or "expiration" not in (data := read_token_secret(record)):
            return
        if is_expired(data, self._clock):
            self._cluster.delete("secrets", key, {"preconditions": {"uid": record.metadata["uid"]}})
            return
        left_s = (parse_time(data["expiration"]) - self._clock.now()).total_seconds()
        self._timers[key] = self._clock.call_later(left_s, lambda: self._tokens.add(key))

    def _sign(self, key: Key) -> None:
        """Update the signatures in ``cluster-info`` for the tokens that may sign."""
        record = self._cluster.find("configmaps", key)
        if record is None or "kubeconfig" not in record.document.get("data", {}):
            return
        signing = [data for _, data in sorted(self._known.items()) if self._may_sign(data)]
        wanted = signed_data(record.document["data"], signing)
        if wanted != record.document["data"]:
            self._cluster.modify("configmaps", key, lambda document: document.update(data=wanted))

    def _may_sign(self, data: Mapping[str, str]) -> bool:
        return (
            data.get("usage-bootstrap-signing") == "true"
            and {"token-id", "token-secret"} <= set(data)
            and not is_expired(data, self._clock)
        )


def signed_data(data: Mapping[str, str], tokens: list[dict[str, str]]) -> dict[str, str]:
    """The data of ``cluster-info`` with exactly one detached signature per token."""
    others = {name: value for name, value in data.items() if not name.startswith(_SIGNATURE_PREFIX)}
    signatures = {
        _SIGNATURE_PREFIX + token["token-id"]: detached_jws(
            data["kubeconfig"], token["token-id"], token["token-secret"]
        )
        for token in tokens
    }
    return {**others, **signatures}


@lru_cache(maxsize=8192)  # a change of tokens rewrites all signatures
def detached_jws(content: str, token_id: str, token_secret: str) -> str:
    """A JWS by HMAC with the token's secret as key, without its content (RFC 7515, appendix F)."""
    header = _base64url(
        json.dumps({"alg": "HS256", "kid": token_id}, separators=(",", ":")).encode()
    )
    signed = f"{header}.{_base64url(content.encode())}".encode()
    return f"{header}..{_base64url(hmac.digest(token_secret.encode(), signed, hashlib.sha256))}"


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
