"""The real API server as an `Application` of a story; the package describes the adaptations."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from local.base.clock import Clock
from local.base.http import Request, Response
from local.kube import Call, CallLog, ClusterOptions
from local.kube.requests import RequestInfo, parse_request
from local.vm.conversation import Bearer, Certificate, Send
from local.vm.transport import OnReply
from tests.real.bridge.administrator import MERGE_PATCH, Document
from tests.real.bridge.connections import Caller, trusting, with_certificate, without_verification
from tests.real.bridge.heartbeats import Heartbeats, lease_of
from tests.real.bridge.installation import MIRRORED, Installation
from tests.real.bridge.mirror import Mirror
from tests.real.bridge.pending import condition, name_of, token_of
from tests.real.bridge.stream import RealStream
from tests.real.bridge.times import Times

_READS = ("get", "list", "watch")
_ROLES = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_DETECTION_S = 130.0
"""The time in which the real node-lifecycle-controller sets Unknown on a silent Node."""


class RealCluster:
    """One story's access to the installation. Not thread-safe; call `close` at the end."""

    def __init__(self, installation: Installation, clock: Clock, options: ClusterOptions) -> None:
        self.calls = CallLog()
        self._installation = installation
        self._clock = clock
        self._times = Times(clock.now)
        self._heartbeats = Heartbeats(
            clock, options.node_grace_s, self._renew, self._await_unknown, real=installation.grace
        )
        self._streams: list[RealStream] = []
        self._agents: dict[tuple[object, str | None], Caller] = {}
        self._tokens: set[str] = set()
        self._is_delivering = False
        self._read: dict[tuple[str, str, str], Response] = {}
        self._read_at = 0
        installation.clean()

    def close(self) -> None:
        """End the watches and the agents' connections."""
        for stream in self._streams:
            stream.cancel()
        for caller in self._agents.values():
            self._installation.connections.forget(caller)

    def apply_manifests(self, _: Iterable[Mapping[str, Any]]) -> None:
        """Do nothing: they are already applied, once for all stories."""

    def handle(self, request: Request) -> Response:
        """Forward a request of a step, the relay or the administrator to the real server."""
        return self._exchange(self._caller(request), request)

    def send(self, step: Send, on_reply: OnReply) -> None:
        """Forward a VM's request: the cluster is also its `local.vm.transport.Network`."""
        on_reply(self._exchange(self._agent(step), step.request))

    # -- callers ----------------------------------------------------------------------------------

    def _caller(self, request: Request) -> Caller:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token == "admin":
            return self._installation.admin.caller
        if token in self._installation.accounts:
            return self._installation.accounts[token]
        user = f"system:bootstrap:{token.partition('.')[0]}"
        return Caller(user, self._installation.accounts["relay"].tls, token)

    def _agent(self, step: Send) -> Caller:
        if isinstance(step.credential, Bearer) and step.credential.token == "admin":
            return self._installation.admin.caller
        key = (step.credential, step.verify_ca)
        if key not in self._agents:
            tls = without_verification() if step.verify_ca is None else trusting(step.verify_ca)
            self._agents[key] = _agent(step, tls)
        return self._agents[key]

    # -- one request ------------------------------------------------------------------------------

    def _exchange(self, caller: Caller, request: Request) -> Response:
        self._heartbeats.renew_leases()
        info = parse_request(request)
        if info.verb == "watch":
            response = self._watch(caller, request, info)
        elif caller is self._installation.admin.caller and info.verb in _READS:
            response = self._read_cached(caller, request)
        else:
            response = self._ask(caller, request, info)
        self._record(caller, info, response.status)
        return response

    def _ask(self, caller: Caller, request: Request, info: RequestInfo) -> Response:
        response = self._installation.connections.send(caller, self._outgoing(request))
        is_done = response.status < 300 and not request.argument("dryRun")
        if info.verb not in _READS and is_done:
            self._read.clear()
            self._follow_up(info, response.json())
        response = self._incoming(response)
        self._deliver()
        return response

    def _read_cached(self, caller: Caller, request: Request) -> Response:
        """Cache answers until a change: stories repeat their reads at each step of the clock."""
        changes = self._installation.changes()
        if changes != self._read_at:
            self._read.clear()
            self._read_at = changes
        key = (request.path, str(request.query), request.headers.get("accept", ""))
        if key not in self._read:
            self._read[key] = self._ask(caller, request, parse_request(request))
        return self._read[key]

    def _record(self, caller: Caller, info: RequestInfo, status: int) -> None:
        resource = info.resource or info.path
        self.calls.add(
            Call(
                caller.user,
                info.verb,
                resource,
                info.subresource,
                info.namespace,
                info.name,
                status,
            )
        )

    def _outgoing(self, request: Request) -> Request:
        document = _document(request.body)
        if document is None:
            return request
        self._times.to_real(document)
        return replace(request, body=json.dumps(document).encode())

    def _incoming(self, response: Response) -> Response:
        document = _document(response.body)
        if document is None:
            return response
        self._times.to_virtual(document)
        return Response.of_json(document, response.status, response.headers)

    def _follow_up(self, info: RequestInfo, document: Document) -> None:
        """Wait for all effects of a write."""
        if info.verb == "create" and not info.subresource:
            self._times.created(document)
        if info.resource in _ROLES:
            self._installation.is_altered = True
            self._installation.canaries.await_roles()
        if info.resource == "customresourcedefinitions":
            self._installation.is_altered = True
            self._installation.canaries.await_crds()
            if info.verb in ("update", "patch"):
                self._await_watch_ends(document)
        mirror = self._mirror(info)
        if mirror is not None:
            self._installation.await_none(
                lambda: _not_mirrored(mirror, document), self._heartbeats.renew_leases
            )
        self._record_heartbeat(info, document)
        self._await_effects()
        if info.resource == "secrets" and info.verb == "create":
            self._follow_token(document)

    def _mirror(self, info: RequestInfo) -> Mirror | None:
        """Return the mirror that receives a write."""
        mirror = self._installation.mirrors.get(info.resource)
        if mirror is None:
            return None
        parts = MIRRORED[info.resource].split("/")
        is_elsewhere = info.resource != "namespaces" and "namespaces" in parts
        return None if is_elsewhere and info.namespace not in parts else mirror

    def _await_effects(self) -> None:
        """Wait for the controllers, the authenticator and the watches, and deliver their events."""
        self._installation.await_none(
            self._installation.pending_work, self._heartbeats.renew_leases
        )
        with self._installation.changed:
            secrets = list(self._installation.mirrors["secrets"].objects.values())
        known = {secret["metadata"]["uid"]: token_of(secret) for secret in secrets}
        for uid, token in known.items():
            if token and uid not in self._tokens:
                self._installation.await_token(token)
                self._tokens.add(uid)
        self._installation.await_none(self._behind, self._heartbeats.renew_leases)
        self._deliver()

    # -- watches ----------------------------------------------------------------------------------

    def _watch(self, caller: Caller, request: Request, info: RequestInfo) -> Response:
        lines, response = self._installation.connections.watch(caller, request)
        if response.status != 200:
            return response
        mirror = self._installation.mirrors[info.resource]
        since = int(request.argument("resourceVersion", "0"))
        stream = RealStream(lines, mirror, since, self._installation.changed)
        self._streams.append(stream)
        return Response(200, response.headers, stream=stream)

    def _await_watch_ends(self, definition: Document) -> None:
        """Wait until the server ends all watches of the objects of a changed CRD, a second later."""
        plural = definition["spec"]["names"]["plural"]
        ended = [it for it in self._streams if it.is_open and it.mirror.path.endswith(f"/{plural}")]
        self._installation.await_none(
            lambda: [f"the end of a watch of {plural}" for stream in ended if stream.is_open]
        )

    def _behind(self) -> list[str]:
        """Return the watches that have not yet delivered all versions."""
        return [
            f"a watch of {stream.mirror.path} at {stream.version}, not {stream.mirror.version}"
            for stream in self._streams
            if stream.is_open and stream.version < stream.mirror.version
        ]

    def _deliver(self) -> None:
        """Deliver the received events of the watches to their subscribers."""
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            for stream in list(self._streams):
                stream.deliver(self._virtual_line)
                if stream.has_ended:
                    self._streams.remove(stream)
        finally:
            self._is_delivering = False

    def _virtual_line(self, line: bytes) -> bytes:
        event = json.loads(line)
        self._times.to_virtual(event["object"])
        return json.dumps(event).encode() + b"\n"

    # -- expiry -----------------------------------------------------------------------------------

    def _follow_token(self, secret: Document) -> None:
        expiration = (secret.get("data") or {}).get("expiration")
        if token_of(secret) and expiration:
            expires = datetime.fromisoformat(base64.b64decode(expiration).decode())
            delay_s = (expires - self._clock.now()).total_seconds()
            self._clock.call_later(delay_s, lambda: self._expire(secret))

    def _expire(self, secret: Document) -> None:
        """Expire a token in real time after the virtual clock has passed its expiration."""
        mirror = self._installation.mirrors["secrets"]
        with self._installation.changed:
            if secret["metadata"]["uid"] not in mirror.objects:
                return
        now = base64.b64encode(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}".encode())
        path = f"{mirror.path}/{name_of(secret)}"
        change = {"data": {"expiration": now.decode()}}
        self._installation.admin.demand("PATCH", path, change, MERGE_PATCH)
        self._installation.await_none(
            lambda: [f"the deletion of {path}"] * (secret["metadata"]["uid"] in mirror.objects)
        )
        self._await_effects()

    # -- heartbeats -------------------------------------------------------------------------------

    def _record_heartbeat(self, info: RequestInfo, document: Document) -> None:
        is_status = info.resource == "nodes" and info.subresource == "status"
        if is_status or (info.resource == "leases" and info.verb in ("create", "update")):
            self._heartbeats.record(name_of(document))
        if info.resource == "nodes" and info.verb == "delete":
            self._heartbeats.forget(info.name)

    def _renew(self, node: str) -> None:
        lease = lease_of(node)
        change = {"spec": lease["spec"]}
        path = f"{_LEASES}/{node}"
        answer = self._installation.admin.ask("PATCH", path, change, MERGE_PATCH)
        if answer.status == 404:
            self._installation.admin.demand("POST", _LEASES, lease)

    def _await_unknown(self, node: str) -> None:
        mirror = self._installation.mirrors["nodes"]

        def missing() -> list[str]:
            found = mirror.find(node)
            is_known = found is not None and condition(found, "Ready") not in ("", "Unknown")
            return [f"Node {node}: the status Unknown of Ready"] * is_known

        timeout_s = self._installation.grace.real_s + _DETECTION_S
        self._installation.await_none(missing, self._heartbeats.renew_leases, timeout_s)
        self._await_effects()


def _document(body: bytes) -> Document | None:
    """Return the JSON object of a body, or ``None``."""
    if not body.startswith(b"{"):
        return None
    document: Document = json.loads(body)
    return document


def _not_mirrored(mirror: Mirror, document: Document) -> list[str]:
    """Return the changes of a write, by its answer, that a mirror has not received yet."""
    metadata = document.get("metadata") or {}
    if document.get("kind") == "Status":
        deleted = (document.get("details") or {}).get("uid", "")
        return [f"{mirror.path}: the deletion of {deleted}"] * (deleted in mirror.objects)
    if "items" in document:  # the objects of a deleted collection
        uids = [item["metadata"]["uid"] for item in document["items"]]
        return [f"{mirror.path}: the deletion of {uid}" for uid in uids if uid in mirror.objects]
    uid, version = metadata["uid"], int(metadata["resourceVersion"])
    if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
        has_spec_finalizers = bool(document.get("spec", {}).get("finalizers"))  # of a namespace
        if not has_spec_finalizers:
            return [f"{mirror.path}: the deletion of {uid}"] * (uid in mirror.objects)
    return [f"{mirror.path}: version {version}"] * (mirror.version < version)


def _agent(step: Send, tls: ssl.SSLContext) -> Caller:
    credential = step.credential
    if isinstance(credential, Bearer):
        user = f"system:bootstrap:{credential.token.partition('.')[0]}"
        return Caller(user, tls, credential.token)
    if isinstance(credential, Certificate):
        subject = x509.load_pem_x509_certificate(credential.cert_pem.encode()).subject
        name = subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        return Caller(str(name), with_certificate(tls, credential))
    return Caller("system:anonymous", tls)
