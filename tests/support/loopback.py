"""Servers on loopback for tests that are not asynchronous: an event loop in a thread."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

from local.base.http import Application, Request, Response
from local.base.web import serve
from local.pubsub.model import PushIdentity
from local.pubsub.tokens import PushTokens

Result = TypeVar("Result")


class Loopback:
    """Runs an event loop in a thread; created by `open_loopback`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._runners: list[web.AppRunner] = []

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run on the loop, and wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def call(self, function: Callable[[], Result]) -> Result:
        """Call on the loop's thread, for applications that are not thread-safe."""

        async def work() -> Result:
            return function()

        return self.run(work())

    def serve(self, application: Application, tls: ssl.SSLContext | None = None) -> int:
        """Serve at a free port; returns it."""
        runner, port = self.run(serve(application, tls=tls))
        self._runners.append(runner)
        return port

    def close(self) -> None:
        """End all servers."""
        for runner in self._runners:
            self.run(runner.cleanup())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def open_loopback() -> Iterator[Loopback]:
    """A `Loopback` that is closed at the end of the block."""
    loopback = Loopback()
    try:
        yield loopback
    finally:
        loopback.close()


@dataclass
class Google:
    """Google as the issuer of ID tokens, for one service account.

    ``ages_s`` are the ages in seconds of the next tokens, which are valid for 3,600; later tokens are
    new. ``claims`` override the claims of Google's tokens.
    """

    email: str
    keys: PushTokens = field(default_factory=PushTokens)
    ages_s: list[int] = field(default_factory=list)
    claims: dict[str, Any] = field(default_factory=dict)

    def mint(self, audience: str) -> str:
        """An ID token."""
        age_s = self.ages_s.pop(0) if self.ages_s else 0
        token = self.keys.render(
            PushIdentity(self.email, audience), "", datetime.now(UTC) - timedelta(seconds=age_s)
        )
        if not self.claims:
            return token
        (key_id,) = self.keys.certificates()
        signer = crypt.RSASigner(self.keys.key, key_id=key_id)
        claims = jwt.decode(token, verify=False) | self.claims
        return str(jwt.encode(signer, claims).decode())


@dataclass
class Issuer:
    """Google's discovery document and keys, as of an issuer called ``name``, at ``url``."""

    google: Google
    name: str = ""
    url: str = ""

    def handle(self, request: Request) -> Response:
        """Answer as OpenID Connect Discovery requires."""
        if request.path == "/keys":
            ((key_id, pem),) = self.google.keys.certificates().items()
            key = x509.load_pem_x509_certificate(pem.encode()).public_key()
            assert isinstance(key, rsa.RSAPublicKey)
            numbers = key.public_numbers()
            parts = {"n": _encode(numbers.n), "e": _encode(numbers.e)}
            about = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": key_id}
            return Response.of_json({"keys": [{**about, **parts}]})
        return Response.of_json(
            {
                "issuer": self.name,
                "jwks_uri": f"{self.url}/keys",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )


def _encode(number: int) -> str:
    raw = number.to_bytes((number.bit_length() + 7) // 8)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@dataclass
class MetadataServer:
    """The metadata server of a function: tokens of its service account.

    ``answers`` replace the first answers; ``asked`` are the requested paths, ``given`` all tokens.
    """

    google: Google
    answers: list[Response] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)

    def handle(self, request: Request) -> Response:
        """Answer as documented for ``metadata.google.internal``."""
        account = "/computeMetadata/v1/instance/service-accounts/default/"
        if request.headers.get("metadata-flavor") != "Google":
            return Response(403, {}, b"Missing Metadata-Flavor:Google header.")
        what = request.path.removeprefix(account)
        self.asked.append(what or "account")
        if self.answers:
            return self.answers.pop(0)
        if what == "identity":
            token = self.google.mint(request.argument("audience"))
            self.given.append(token)
            return Response(200, {"Content-Type": "text/html"}, token.encode())
        if what == "token":
            token = f"ya29.{len(self.given)}-{request.argument('scopes')}"
            self.given.append(token)
            age_s = self.google.ages_s.pop(0) if self.google.ages_s else 0
            return Response.of_json(
                {"access_token": token, "expires_in": 3599 - age_s, "token_type": "Bearer"}
            )
        return Response.of_json({"email": self.google.email, "scopes": [], "aliases": ["default"]})


@dataclass
class TrustsGoogle:
    """An API server that accepts tokens of Google and forwards requests to another one as ``user``.

    ``accept`` validates a token. The first ``refuse`` requests are rejected although their tokens are
    valid. ``seen`` are the tokens of all requests, and ``agents`` their user agents.
    """

    api: Application
    accept: Callable[[str], bool]
    user: str
    refuse: int = 0
    seen: list[str] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)

    def handle(self, request: Request) -> Response:
        """Answer as the API server does to this user, or to an unknown user."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.seen.append(token)
        self.agents.add(request.headers.get("user-agent", ""))
        if self.refuse:
            self.refuse -= 1
            user = "nobody"
        else:
            user = self.user if self.accept(token) else "nobody"
        headers: Mapping[str, str] = {**request.headers, "authorization": f"Bearer {user}"}
        return self.api.handle(replace(request, headers=headers))


def is_id_token(google: Google, audience: str) -> Callable[[str], bool]:
    """The check of a kube-apiserver that trusts Google for this audience."""

    def accept(token: str) -> bool:
        try:
            claims = jwt.decode(token, certs=google.keys.certificates(), audience=audience)
        except ValueError:
            return False
        return bool(claims["email_verified"]) and claims["email"] == google.email

    return accept


def encode_ca(pem: str) -> str:
    """Encode a CA for ``CLUSTER_CA`` and ``certificate-authority-data``."""
    return base64.b64encode(pem.encode()).decode()


def kubeconfig(server: str, ca_pem: str, token: str) -> str:
    """A kubeconfig's content."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "c",
                    "cluster": {"server": server, "certificate-authority-data": encode_ca(ca_pem)},
                }
            ],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )
