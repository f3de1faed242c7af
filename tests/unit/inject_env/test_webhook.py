# ruff: noqa: E501  (a table reads best with a row on a line)
"""The webhook's server: what the API server and the probes meet, over TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import flask
import pytest

import main
from functions.inject_env import MAX_BYTES, Injection, read_injection
from local.kube import CertificateAuthority
from shared.settings import SettingsError
from tests.unit.inject_env.workloads import as_review, stateful_set
from webhook.certificate import Certificate, UnusableCertificate
from webhook.server import Webhook, serve
from webhook.settings import read_settings

Ask = Callable[..., Awaitable[tuple[int, str]]]


def write_pair(directory: Path, ca: CertificateAuthority) -> tuple[Path, Path]:
    pair = ca.issue_server(("localhost",), datetime.now(UTC))
    paths = directory / "tls.crt", directory / "tls.key"
    for path, text in zip(paths, (pair.certificate_pem, pair.key_pem), strict=True):
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)
    return paths


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[str, Certificate, CertificateAuthority]]:
    ca = CertificateAuthority.create(datetime.now(UTC))
    certificate = Certificate(*write_pair(directory, ca))
    runner, port = await serve(Webhook(Injection()), "127.0.0.1", 0, certificate.context)
    try:
        yield f"https://localhost:{port}", certificate, ca
    finally:
        await runner.cleanup()


async def ask(url: str, ca: CertificateAuthority, body: Any = None) -> tuple[int, str]:
    trust = ssl.create_default_context(cadata=ca.certificate_pem)
    async with (
        aiohttp.ClientSession() as session,
        session.request("POST" if body is not None else "GET", url, data=body, ssl=trust) as answer,
    ):
        return answer.status, await answer.text()


def test_a_review_is_answered_over_tls_and_the_next_one_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (url, _, ca):
            for body, status in (
                (b"{", 400),
                (b"x" * (MAX_BYTES + 1), 413),
                (json.dumps(as_review(stateful_set())).encode(), 200),
            ):
                code, text = await ask(f"{url}/mutate", ca, body)
                assert code == status
            response = json.loads(text)["response"]
            assert response["patchType"] == "JSONPatch"

    asyncio.run(run())


@pytest.mark.parametrize(
    "path, status, text",
    [("/healthz", 200, "ok\n"), ("/readyz", 200, "ok\n"), ("/", 404, "404: Not Found")],
)
def test_probes_have_paths_of_their_own(path: str, status: int, text: str, tmp_path: Path) -> None:
    """proto-root"""

    async def run() -> tuple[int, str]:
        async with serving(tmp_path) as (url, _, ca):
            return await ask(url + path, ca)

    assert asyncio.run(run()) == (status, text)


def test_the_metrics_count_reviews_by_what_came_of_them(tmp_path: Path) -> None:
    async def run() -> str:
        async with serving(tmp_path) as (url, _, ca):
            await ask(f"{url}/mutate", ca, json.dumps(as_review(stateful_set(service=""))).encode())
            _, text = await ask(f"{url}/metrics", ca)
            return text

    text = asyncio.run(run())
    counts = dict(
        line.rsplit(" ", 1)
        for line in text.splitlines()
        if line.startswith("tpu_functions_webhook_reviews_total{")
    )
    assert set(counts) == {
        f'tpu_functions_webhook_reviews_total{{outcome="{outcome}"}}'
        for outcome in ("patched", "unchanged", "warned", "refused", "invalid")
    }
    assert float(counts['tpu_functions_webhook_reviews_total{outcome="warned"}']) >= 1


def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (url, certificate, old):
            assert not certificate.reload_if_changed()
            new = CertificateAuthority.create(datetime.now(UTC))
            write_pair(tmp_path, new)
            assert certificate.reload_if_changed()
            assert (await ask(f"{url}/healthz", new))[0] == 200
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await ask(f"{url}/healthz", old)

    asyncio.run(run())


def test_a_broken_pair_leaves_the_one_that_there_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (url, certificate, ca):
            (tmp_path / "tls.key").write_text("no key")
            assert not certificate.reload_if_changed()
            assert (await ask(f"{url}/healthz", ca))[0] == 200

    asyncio.run(run())


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableCertificate, match=r"tls\.crt: No such file or directory"):
        Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")


@pytest.mark.parametrize(
    "arguments, environment, expected",
    [
        ([], {}, ("/etc/tls/tls.crt", "/etc/tls/tls.key", 8443, False)),
        ([], {"GTEI_TLS_CERT_FILE": "/a", "GTEI_TLS_KEY_FILE": "/b", "GTEI_VERBOSE": "true", "PORT": "443"},
         ("/a", "/b", 443, True)),
        (["--tls-cert-file", "/c", "--tls-key-file=/d", "--verbose", "--port", "1"],
         {"GTEI_TLS_CERT_FILE": "/a"}, ("/c", "/d", 1, True)),
    ],
)  # fmt: skip
def test_the_flags_and_variables_of_gke_tpu_env_injector_work(
    arguments: list[str], environment: dict[str, str], expected: tuple[str, str, int, bool]
) -> None:
    read = read_settings(arguments, environment)
    assert (str(read.certificate), str(read.key), read.port, read.is_verbose) == expected


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"INJECT_PROCESS_PORT": "0"}, "INJECT_PROCESS_PORT='0' must be a port, 1 to 65535"),
        ({"INJECT_STRICT": "yes"}, "INJECT_STRICT='yes' must be true or false"),
    ],
)
def test_a_wrong_setting_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_injection(environment)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    "body, status",
    [(json.dumps(as_review(stateful_set())), 200), ("{", 400), ("x" * (MAX_BYTES + 1), 413)],
    ids=["a review", "no review", "too large"],
)
def test_the_function_answers_as_the_server_does(body: str, status: int) -> None:
    app = flask.Flask("test")
    with app.test_request_context("/", method="POST", data=body):
        answer = main.inject_env(flask.request)
    assert answer[1] == status
    if status == 200:
        assert json.loads(answer[0])["response"]["uid"] == "u-1"
