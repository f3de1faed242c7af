"""A push without a valid token is rejected and logged without the token, and no step runs."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import functions_framework
import pytest
from flask.testing import FlaskClient
from google.auth import crypt, jwt

import main
from local.base.http import Request, Response
from local.base.ports import LOOPBACK, find_free_ports
from local.pubsub.model import PushIdentity
from local.pubsub.tokens import PushTokens
from shared.ports.id_tokens import KeysError, fetch_certificates
from shared.runtime import get_runtime
from shared.triggers.push import Gate, Pusher, PushVerification, RejectedPush
from tests.support.loopback import Loopback, open_loopback

EMAIL = "pusher@my-project.iam.gserviceaccount.com"
AUDIENCE = "https://label-node-abc.a.run.app"
URL = "https://keys.example/certs"
PUSHER = Pusher(EMAIL, AUDIENCE, URL)
ON_CLOUD_RUN = Pusher(EMAIL, AUDIENCE, URL, PushVerification.PLATFORM)
GOOGLE, OTHER_SIGNER = PushTokens(), PushTokens()
HOUR = 3600.0


def mint(
    email: str = EMAIL,
    audience: str = AUDIENCE,
    age: timedelta = timedelta(),
    keys: PushTokens = GOOGLE,
) -> str:
    """Return the header of a push as Pub/Sub sends it."""
    token = keys.render(PushIdentity(email, audience), "", datetime.now(UTC) - age)
    return f"Bearer {token}"


def forge(
    changes: Mapping[str, Any], header: Mapping[str, Any] | None = None, *, named: bool = True
) -> str:
    """Return a push's header with other claims, signed by Google."""
    claims = jwt.decode(mint().partition(" ")[2], verify=False) | changes
    (key_id,) = GOOGLE.certificates()
    signer = crypt.RSASigner(GOOGLE.key, key_id=key_id if named else None)
    token = jwt.encode(signer, {k: v for k, v in claims.items() if v is not None}, header)
    return f"Bearer {token.decode()}"


@dataclass
class Keys:
    """The keys or the error at the URL, and the number of fetches."""

    found: Mapping[str, str] | str = field(default_factory=GOOGLE.certificates)
    valid_s: float = HOUR
    fetches: int = 0

    def fetch(self, url: str) -> tuple[Mapping[str, str], float]:
        """Return the keys, as `fetch_certificates` does."""
        assert url == URL
        self.fetches += 1
        if isinstance(self.found, str):
            raise KeysError(self.found)
        return self.found, self.valid_s


@dataclass
class Time:
    """A clock that the test sets."""

    s: float = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        return self.s


def make_gate(keys: Keys | None = None, clock: Time | None = None) -> Gate:
    """Return the gate of a function."""
    return Gate(PUSHER, fetch=(keys or Keys()).fetch, monotonic=(clock or Time()).now)


def test_pushes_of_the_configured_account_are_accepted_and_the_keys_are_fetched_once() -> None:
    keys = Keys()
    gate = make_gate(keys)
    assert [gate.refuse(mint()) for _ in range(3)] == [None, None, None]
    assert keys.fetches == 1


def test_both_issuer_names_of_google_are_accepted() -> None:
    assert make_gate().refuse(forge({"iss": "accounts.google.com"})) is None


NO_TOKEN = "there is no bearer token"
NO_JWT = "the token is not a JWT that RS256 signs with a named key"
WRONG_SIGNATURE = "the token's signature or its times are wrong"
UNKNOWN_KEY = f"{URL} does not have the token's key"
NOT_PUSHER = f", not PUSH_SERVICE_ACCOUNT={EMAIL!r}"
OTHER = "other@my-project.iam.gserviceaccount.com"


def tampered() -> str:
    """Return the claims of one token with the signature of another."""
    head, _, _ = mint().rpartition(".")
    _, _, signature = mint(email=OTHER).rpartition(".")
    return f"{head}.{signature}"


def unsigned() -> str:
    """Return a token with forged claims and no signature."""
    parts = ({"alg": "none", "typ": "JWT"}, {"aud": AUDIENCE, "email": EMAIL})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return f"Bearer {'.'.join(encoded)}."


INVALID_TOKENS: dict[str, tuple[Callable[[], str], int, str]] = {
    "no header": (lambda: "", 401, NO_TOKEN),
    "a password": (lambda: "Basic bWU6c2VjcmV0", 401, NO_TOKEN),
    "no token after Bearer": (lambda: "Bearer ", 401, NO_TOKEN),
    "no JWT": (lambda: "Bearer secret", 401, NO_JWT),
    "a malformed JWT": (lambda: "Bearer a.b.c", 401, NO_JWT),
    "a JWT of lists": (lambda: "Bearer W10.W10.W10", 401, NO_JWT),
    "no signature": (unsigned, 401, NO_JWT),
    "another algorithm": (lambda: forge({}, {"alg": "ES256"}), 401, NO_JWT),
    "no key id": (lambda: forge({}, named=False), 401, NO_JWT),
    "a key of another signer": (lambda: mint(keys=OTHER_SIGNER), 401, UNKNOWN_KEY),
    "the signature of another token": (tampered, 401, WRONG_SIGNATURE),
    "no expiry": (lambda: forge({"exp": None}), 401, WRONG_SIGNATURE),
    "an expiry that is not a number": (lambda: forge({"exp": "soon"}), 401, WRONG_SIGNATURE),
    "another issuer": (
        lambda: forge({"iss": "https://issuer.example"}),
        401,
        "the token's issuer is 'https://issuer.example', not https://accounts.google.com",
    ),
    "another audience": (
        lambda: mint(audience="https://sweep-abc.a.run.app"),
        401,
        f"the token's audience is 'https://sweep-abc.a.run.app', not PUSH_AUDIENCE={AUDIENCE!r}",
    ),
    "several audiences": (
        lambda: forge({"aud": [AUDIENCE]}),
        401,
        f"the token's audience is [{AUDIENCE!r}], not PUSH_AUDIENCE={AUDIENCE!r}",
    ),
    "another account": (lambda: mint(OTHER), 403, f"the token's e-mail is {OTHER!r}{NOT_PUSHER}"),
    "no account": (lambda: forge({"email": None}), 403, f"the token's e-mail is None{NOT_PUSHER}"),
    "an account that is not verified": (
        lambda: forge({"email_verified": False}),
        403,
        f"the token's e-mail is {EMAIL!r} (not verified){NOT_PUSHER}",
    ),
    "email_verified as a string": (
        lambda: forge({"email_verified": "true"}),
        403,
        f"the token's e-mail is {EMAIL!r} (not verified){NOT_PUSHER}",
    ),
    "a token without its signature": (
        lambda: mint().rpartition(".")[0] + ".SIGNATURE_REMOVED_BY_GOOGLE",
        401,
        "Cloud Run has verified the token itself and removed its signature, so that it cannot be "
        "verified again: set PUSH_VERIFICATION=platform if this is a Cloud Run service that is not "
        "public",
    ),
}


@pytest.mark.parametrize("case", INVALID_TOKENS)
def test_an_invalid_token_is_rejected_with_the_reason(case: str) -> None:
    header, http, note = INVALID_TOKENS[case]
    assert make_gate().refuse(header()) == RejectedPush(http, note)


@pytest.mark.parametrize(
    "age, message",
    [
        (timedelta(hours=1, seconds=30), "Token expired, "),
        (timedelta(seconds=-30), "used too early"),
    ],
    ids=["expired", "issued in the future"],
)
def test_a_token_is_rejected_outside_its_lifetime(age: timedelta, message: str) -> None:
    refusal = make_gate().refuse(mint(age=age))
    assert refusal is not None
    assert refusal.http == 401
    assert message in refusal.note


@pytest.mark.parametrize("case", INVALID_TOKENS)
def test_no_rejection_contains_the_token(case: str) -> None:
    header = INVALID_TOKENS[case][0]().removeprefix("Bearer ")
    refusal = make_gate().refuse(f"Bearer {header}")
    assert refusal is not None
    parts = [part for part in header.split(".") if len(part) > 5 and part.isascii()]
    assert not [part for part in parts if part in refusal.note.replace("REMOVED_BY_GOOGLE", "")]


# On Cloud Run


def without_signature(header: str) -> str:
    """Return a token as Cloud Run passes it on after verification."""
    return header.rpartition(".")[0] + ".SIGNATURE_REMOVED_BY_GOOGLE"


def on_cloud_run(now: float | None = None) -> Gate:
    """Return the gate of a function on Cloud Run, which never fetches keys."""
    return Gate(ON_CLOUD_RUN, fetch=Keys("no keys").fetch, now=lambda: now or time.time())


def test_a_token_without_its_signature_is_accepted_on_cloud_run() -> None:
    assert on_cloud_run().refuse(without_signature(mint())) is None


def test_a_token_with_its_signature_is_accepted_on_cloud_run() -> None:
    assert on_cloud_run().refuse(mint()) is None


INVALID_ON_CLOUD_RUN = (
    *("no header", "a password", "no token after Bearer", "another issuer", "another audience"),
    *("several audiences", "another account", "no account", "an account that is not verified"),
    "email_verified as a string",
)


@pytest.mark.parametrize("case", INVALID_ON_CLOUD_RUN)
def test_the_claims_are_verified_on_cloud_run(case: str) -> None:
    header, http, note = INVALID_TOKENS[case]
    token = header()
    sent = without_signature(token) if token.count(".") == 2 else token
    assert on_cloud_run().refuse(sent) == RejectedPush(http, note)


@pytest.mark.parametrize("token", ["secret", "a.b.c", "W10.W10.W10", "W10.W10", "a.b.c.d"])
def test_a_malformed_token_is_rejected_on_cloud_run(token: str) -> None:
    refusal = on_cloud_run().refuse(f"Bearer {token}")
    assert refusal in (
        RejectedPush(401, "the token is not a JWT"),
        RejectedPush(401, "the token expired at None (seconds since 1970)"),
    )


@pytest.mark.parametrize("end", [None, "soon", float("nan"), 1_000_000])
def test_a_token_without_a_valid_expiry_is_rejected_on_cloud_run(end: Any) -> None:
    why = f"the token expired at {end!r} (seconds since 1970)"
    assert on_cloud_run().refuse(without_signature(forge({"exp": end}))) == RejectedPush(401, why)


def test_clocks_may_differ_by_ten_seconds_on_cloud_run() -> None:
    header = without_signature(forge({"exp": 1_000_000}))
    assert on_cloud_run(1_000_010).refuse(header) is None
    assert on_cloud_run(1_000_011).refuse(header) is not None


# Keys


def test_keys_are_fetched_again_when_they_expire() -> None:
    keys, clock = Keys(), Time()
    gate = make_gate(keys, clock)
    for now, fetches in ((0, 1), (HOUR - 1, 1), (HOUR, 2), (2 * HOUR - 1, 2)):
        clock.s = now
        assert gate.refuse(mint()) is None
        assert keys.fetches == fetches


def test_a_new_key_is_fetched_before_the_old_ones_expire() -> None:
    keys, clock = Keys(OTHER_SIGNER.certificates()), Time()
    gate = make_gate(keys, clock)
    assert gate.refuse(mint()) == RejectedPush(401, UNKNOWN_KEY)
    keys.found = GOOGLE.certificates()
    clock.s = 60
    assert gate.refuse(mint()) is None


def test_unknown_keys_are_fetched_at_most_once_a_minute() -> None:
    keys, clock = Keys(), Time()
    gate = make_gate(keys, clock)
    for second in range(120):
        clock.s = second
        assert gate.refuse(mint(keys=OTHER_SIGNER)) == RejectedPush(401, UNKNOWN_KEY)
    assert keys.fetches == 2


def test_a_push_is_retried_while_the_keys_cannot_be_fetched() -> None:
    keys, clock = Keys("the keys cannot be fetched"), Time()
    gate = make_gate(keys, clock)
    for now, fetches in ((0, 1), (4, 1), (5, 2)):
        clock.s = now
        assert gate.refuse(mint()) == RejectedPush(503, "the keys cannot be fetched")
        assert keys.fetches == fetches
    keys.found, clock.s = GOOGLE.certificates(), 10
    assert gate.refuse(mint()) is None


def test_valid_keys_are_used_while_their_source_is_unavailable() -> None:
    keys, clock = Keys(), Time()
    gate = make_gate(keys, clock)
    assert gate.refuse(mint()) is None
    keys.found, clock.s = "unavailable", HOUR - 1
    assert gate.refuse(mint(keys=OTHER_SIGNER)) == RejectedPush(503, "unavailable")
    assert gate.refuse(mint()) is None
    clock.s = HOUR + 5
    assert gate.refuse(mint()) == RejectedPush(503, "unavailable")


@dataclass
class KeyServer:
    """A server with one answer."""

    answer: Response

    def handle(self, _: Request) -> Response:
        """Return the answer."""
        return self.answer


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with open_loopback() as opened:
        yield opened


MAX_AGES = {
    "max-age and Age": (
        {"Cache-Control": "public, max-age=19826, must-revalidate", "Age": "26"},
        19800,
    ),
    "no Cache-Control": ({}, 300),
    "an Age that is no decimal number": ({"Cache-Control": "max-age=99", "Age": "\xb2"}, 99),
    "a very short max-age": ({"Cache-Control": "max-age=1"}, 60),
    "a very long max-age": ({"Cache-Control": "max-age=999999999"}, 86_400),
}


@pytest.mark.parametrize("case", MAX_AGES)
def test_keys_are_valid_for_the_max_age_of_the_answer(loopback: Loopback, case: str) -> None:
    headers, valid_s = MAX_AGES[case]
    answer = Response.of_json(GOOGLE.certificates(), headers=headers)
    url = f"http://{LOOPBACK}:{loopback.serve(KeyServer(answer))}/certs"
    assert fetch_certificates(url) == (GOOGLE.certificates(), valid_s)


NO_KEYS = {
    "an error": (Response(500, {}, b"oops"), "the keys at {url} cannot be fetched: 500"),
    "no JSON": (
        Response(200, {}, b"<html>"),
        "{url} did not return certificates in PEM form by key id",
    ),
    "an object among certificates": (
        Response.of_json({"key-1": "PEM", "key-2": {}}),
        "{url} did not return certificates in PEM form by key id",
    ),
    "a JWK set": (
        Response.of_json({"keys": []}),
        "{url} did not return certificates in PEM form by key id",
    ),
}


@pytest.mark.parametrize("case", NO_KEYS)
def test_an_answer_without_keys_is_reported(loopback: Loopback, case: str) -> None:
    answer, message = NO_KEYS[case]
    url = f"http://{LOOPBACK}:{loopback.serve(KeyServer(answer))}/certs"
    with pytest.raises(KeysError) as raised:
        fetch_certificates(url)
    assert str(raised.value) == message.format(url=url)


def test_an_unreachable_source_of_keys_is_named() -> None:
    url = f"http://{LOOPBACK}:{find_free_ports(1)[0]}/certs"
    with pytest.raises(KeysError) as raised:
        fetch_certificates(url)
    assert str(raised.value) == f"the keys at {url} cannot be fetched: Connection refused"


# The function


POISON = b'{"message": {"messageId": "4711", "data": "cG9pc29u"}}'


@pytest.fixture
def function(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> Iterator[FlaskClient]:
    """Serve the step by functions-framework; pushes are verified by keys from loopback."""
    port = loopback.serve(GOOGLE)
    for name, value in {
        "PUBSUB_PROJECT": "p",
        "KUBECONFIG": str(tmp_path / "none"),
        "PUSH_SERVICE_ACCOUNT": EMAIL,
        "PUSH_AUDIENCE": AUDIENCE,
        "PUSH_CERTIFICATES_URL": f"http://{LOOPBACK}:{port}/certs",
    }.items():
        monkeypatch.setenv(name, value)
    get_runtime.cache_clear()
    app = functions_framework.create_app("label_node", main.__file__, "http")
    yield app.test_client()
    get_runtime.cache_clear()


def test_only_an_accepted_push_reaches_the_step(
    function: FlaskClient, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = function.post("/", data=POISON, headers={"Authorization": mint()})
    assert answer.status_code == 400
    assert answer.text.startswith("Poison: ")
    capsys.readouterr()

    answer = function.post("/", data=POISON, headers={"Authorization": mint(OTHER)})
    assert (answer.status_code, answer.text) == (403, "PushRefused\n")
    line = json.loads(capsys.readouterr().out)
    assert line == {
        "severity": "WARNING",
        "message": "label_node: PushRefused",
        "step": "label_node",
        "decision": "PushRefused",
        "note": f"the token's e-mail is {OTHER!r}{NOT_PUSHER}",
        "message_id": "4711",
    }

    for body in (POISON, b"rubbish", b"[]", b'{"message": 1}'):
        assert function.post("/", data=body).status_code == 401
    ids = [json.loads(line)["message_id"] for line in capsys.readouterr().out.splitlines()]
    assert ids == ["4711", "unknown", "unknown", "unknown"]


def test_a_function_that_cannot_start_names_the_message_in_its_log(
    function: FlaskClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PUSH_VERIFICATION", "sometimes")
    assert function.post("/", data=POISON).status_code == 503
    line = json.loads(capsys.readouterr().out)
    assert line == {
        "severity": "ERROR",
        "message": "label_node: CannotStart",
        "step": "label_node",
        "decision": "CannotStart",
        "note": "PUSH_VERIFICATION='sometimes' is wrong: it must be platform or signature",
        "message_id": "4711",
    }
