"""The embedded Kubernetes API: an `Application` with a store and a cluster's controllers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

import yaml

from local.base.clock import Clock
from local.base.http import Request, Response
from local.base.kubeconfig import kubeconfig
from local.kube import discovery
from local.kube.account_tokens import AccountTokens
from local.kube.admission import approve_for_signers, taint_new_nodes
from local.kube.authentication import Authenticator
from local.kube.authorization import Authorizer, impersonate
from local.kube.bootstrap import initial_objects
from local.kube.calls import Call, CallLog
from local.kube.catalogue import Catalogue
from local.kube.certificates import CertificateAuthority
from local.kube.controllers import start_controllers
from local.kube.controllers.tokens import CLUSTER_INFO
from local.kube.crds import CrdRegistrar
from local.kube.errors import ApiError, UnknownPath, method_not_allowed
from local.kube.handlers import Handlers
from local.kube.kinds import Document
from local.kube.node_authorizer import restrict_nodes
from local.kube.options import ClusterOptions
from local.kube.policies import Policies
from local.kube.requests import RequestInfo, parse_request
from local.kube.resources import Resources
from local.kube.reviews import Reviews
from local.kube.store import Snapshot, Store
from local.kube.users import ADMIN, ANONYMOUS, User
from local.kube.watch import Watches, end_watches
from local.kube.writing import Admission, Write

_NO_TOKENS: Mapping[str, User] = MappingProxyType({})
_TEXT = "text/plain; charset=utf-8"
_OK_PATHS = frozenset({"/healthz", "/livez", "/readyz"})


class KubeApi:
    """A Kubernetes API server with its controllers, in one object.

    ``tokens`` maps static bearer tokens to users. All time comes from ``clock`` and all randomness
    from ``random``, so a run can be repeated; only keys and signatures differ. Not thread-safe.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        random: Random,
        ca: CertificateAuthority | None = None,
        tokens: Mapping[str, User] = _NO_TOKENS,
        options: ClusterOptions = ClusterOptions(),  # noqa: B008 - frozen
    ) -> None:
        self.ca = ca or CertificateAuthority.create(clock.now())
        self.calls = CallLog()
        self._clock = clock
        self._store = Store(options.history)
        self._catalogue = Catalogue()
        self._resources = Resources(self._store, self._catalogue, clock, random)
        issuer = AccountTokens(self._store, clock, random, options.max_token_s)
        self._authenticator = Authenticator(self._store, clock, self.ca, tokens, issuer)
        self._authorizer = Authorizer(self._store)
        self._resources.admission += [
            restrict_nodes,
            taint_new_nodes,
            approve_for_signers(self._authorizer),
            Policies(self._store),
        ]
        self._watches: Watches = {}
        reviews = Reviews(self._authorizer, clock)
        self._handlers = Handlers(self._resources, reviews, issuer, self._watches, clock, random)
        CrdRegistrar(self._store, self._catalogue, self._watches)
        start_controllers(self._resources, self._authorizer, clock, self.ca, options)
        self.apply_manifests(initial_objects())
        self.advertise(options.server)

    def add_admission(self, plugin: Admission) -> None:
        """Call this plugin, too, about each write, such as a webhook's mutation."""
        self._resources.admission.append(plugin)

    # -- HTTP -------------------------------------------------------------------------------------

    def handle(self, request: Request) -> Response:
        """Answer one request. The response to a watch has a stream."""
        info = parse_request(request)
        user = ANONYMOUS
        try:
            user = self._authenticator.authenticate(request)
            user = impersonate(self._authorizer, user, request.headers)
            self._authorizer.check(user, info)
            response = self._answer(request, info, user)
        except UnknownPath as error:
            response = Response(error.code, {"Content-Type": _TEXT}, error.TEXT.encode())
        except ApiError as error:
            response = Response.of_json(error.status(), error.code)
        self.calls.add(
            Call(
                user.name,
                info.verb,
                info.resource or info.path,
                info.subresource,
                info.namespace,
                info.name,
                response.status,
            )
        )
        return response

    def _answer(self, request: Request, info: RequestInfo, user: User) -> Response:
        if info.resource:
            return self._handlers.handle(request, info, user)
        if request.path in _OK_PATHS:
            return Response(200, {"Content-Type": _TEXT}, b"ok")
        if request.path == "/openapi/v2" and request.method == "GET":
            return Response(200, {"Content-Type": discovery.V2_PROTOBUF}, discovery.EMPTY_V2)
        parts = tuple(part for part in request.path.split("/") if part)
        document = discovery.find_document(self._catalogue, parts)
        if document is None:
            raise UnknownPath
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        headers = {"Content-Type": _TEXT} if parts == ("openapi", "v3") else None
        return Response.of_json(document, headers=headers)

    # -- in process -------------------------------------------------------------------------------

    def apply_manifests(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Create or replace objects as the cluster's administrator. The kinds of CRDs are served
        immediately.

        Raises `ApiError` for what an API server would reject, including unknown fields.
        """
        for document in documents:
            self._apply_manifest(json.loads(json.dumps(document)))

    def _apply_manifest(self, document: Document) -> None:
        group, _, version = str(document.get("apiVersion", "")).rpartition("/")
        kind = self._catalogue.find_kind(group, str(document.get("kind", "")))
        if kind is None or kind.version != version:
            raise ApiError(
                404,
                "NotFound",
                f'no matches for kind "{document.get("kind")}" in version '
                f'"{document.get("apiVersion")}"',
            )
        write = Write(kind, ADMIN, field_validation="Strict")
        meta = document.setdefault("metadata", {})
        namespace = meta.get("namespace", "default") if kind.namespaced else ""
        record = self._store.find(kind.resource, (namespace, meta.get("name", "")))
        if record is None:
            self._resources.create(write, namespace, document)
        else:
            self._resources.replace(write, record, document)

    def advertise(self, server: str) -> None:
        """Write this server's URL to ``kube-public/cluster-info``, where joining nodes read it."""
        cluster = kubeconfig(server, self.ca.certificate_pem, "")["clusters"][0]["cluster"]
        clusters = [{"name": "", "cluster": cluster}]
        config = {"apiVersion": "v1", "kind": "Config", "clusters": clusters}
        rendered = yaml.safe_dump(config, sort_keys=False)
        namespace, name = CLUSTER_INFO
        meta = {"name": name, "namespace": namespace}
        info = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        self.apply_manifests([{**info, "data": {"kubeconfig": rendered}}])

    def restart(self) -> None:
        """Simulate a restart of the process: watches end, the history is lost, objects remain."""
        self._store.compact()
        end_watches(self._watches)

    def compact(self) -> None:
        """Discard the history: watches and lists from an earlier revision get 410."""
        self._store.compact()

    def snapshot(self) -> Snapshot:
        """All objects of this moment, for `restore`."""
        return self._store.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Simulate etcd restored from a snapshot, with ``--bump-revision``, and a restart."""
        self._store.restore(snapshot)
        self.restart()

    @property
    def watches(self) -> int:
        """The number of open watches."""
        return len(self._watches)
