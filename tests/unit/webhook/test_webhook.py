# ruff: noqa: E501  (each row of a table is one line)
"""The webhook's server over TLS: reviews, probes, metrics and certificates."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from local.kube import CertificateAuthority
from shared.base.environment import SettingsError
from tests.unit.webhook.workloads import as_review, injecting, stateful_set
from webhook import server
from webhook.certificate import Certificate, UnusableCertificate
from webhook.server import LARGE_BYTES, Webhook, serve
from webhook.settings import read_injection, read_settings
from webhook.tpu_env.admission import MAX_BYTES, AdmissionRequest, AdmissionResponse, Mutation

MUTATIONS: Mapping[str, Mutation] = {"/mutate": injecting()}


def write_pair(directory: Path, ca: CertificateAuthority) -> tuple[Path, Path]:
    pair = ca.issue_server(("localhost",), datetime.now(UTC))
    paths = directory / "tls.crt", directory / "tls.key"
    for path, text in zip(paths, (pair.certificate_pem, pair.key_pem), strict=True):
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)
    return paths


@asynccontextmanager
async def serving(
    directory: Path, mutations: Mapping[str, Mutation] = MUTATIONS
) -> AsyncIterator[tuple[str, Certificate, CertificateAuthority]]:
    ca = CertificateAuthority.create(datetime.now(UTC))
    certificate = Certificate(*write_pair(directory, ca))
    runner, port = await serve(Webhook(mutations), "127.0.0.1", 0, certificate.context)
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


async def test_reviews_are_answered_over_tls_even_after_invalid_ones(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x"])
def test_a_body_with_a_content_encoding_is_rejected(encoding: str, tmp_path: Path) -> None:
    """No API server compresses a review, and a wrong header must not be an internal error."""

    async def run() -> tuple[int, str]:
        async with serving(tmp_path) as (url, _, ca):
            trust = ssl.create_default_context(cadata=ca.certificate_pem)
            body = json.dumps(as_review(stateful_set())).encode()
            headers = {"Content-Encoding": encoding}
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{url}/mutate", data=body, headers=headers, ssl=trust) as answer,
            ):
                return answer.status, await answer.text()

    status, text = asyncio.run(run())
    assert (status, text) == (
        415,
        f"a review must not have a Content-Encoding; this one has '{encoding}'\n",
    )


def test_each_mutation_has_a_path_and_its_own_count(tmp_path: Path) -> None:
    mutations = {
        **MUTATIONS,
        "/refuse": lambda _: AdmissionResponse(refusal="not here"),
        "/warn": lambda _: AdmissionResponse(warnings=("mind this",)),
    }

    async def run() -> tuple[list[Any], str]:
        async with serving(tmp_path, mutations) as (url, _, ca):
            body = json.dumps(as_review({"kind": "Node"})).encode()
            texts = [(await ask(f"{url}{path}", ca, body))[1] for path in mutations]
            _, metrics = await ask(f"{url}/metrics", ca)
            return [json.loads(text)["response"] for text in texts], metrics

    answers, metrics = asyncio.run(run())
    status = {"code": 422, "reason": "Invalid", "message": "not here"}
    assert answers == [
        {"uid": "u-1", "allowed": True},
        {"uid": "u-1", "allowed": False, "status": status},
        {"uid": "u-1", "allowed": True, "warnings": ["tpu-functions: mind this"]},
    ]
    for outcome, path in (("refused", "/refuse"), ("warned", "/warn")):
        name = "tpu_functions_webhook_reviews_total"
        assert f'{name}{{outcome="{outcome}",path="{path}"}} 1.0' in metrics


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def begin(url: str, ca: CertificateAuthority, size: int) -> Streams:
    """Send only the beginning of a review."""
    trust = ssl.create_default_context(cadata=ca.certificate_pem)
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("localhost", port, ssl=trust)
    head = f"POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    writer.write(f"{head}{{".encode())
    await writer.drain()
    return reader, writer


async def status_of(streams: Streams) -> int:
    return int((await streams[0].readline()).split()[1])


async def test_large_reviews_do_not_delay_an_ordinary_one(tmp_path: Path) -> None:
    ordinary = json.dumps(as_review(stateful_set())).encode()

    async with serving(tmp_path) as (url, _, ca):
        in_progress = [await begin(url, ca, MAX_BYTES) for _ in range(2)]
        one_more = await begin(url, ca, MAX_BYTES)
        assert await status_of(one_more) == 503
        assert (await ask(f"{url}/mutate", ca, ordinary))[0] == 200
        for _, writer in (*in_progress, one_more):
            writer.close()


async def test_a_large_review_is_decided_beside_ordinary_ones_and_one_at_a_time(
    tmp_path: Path,
) -> None:
    answered, decided = threading.Event(), 0

    def decide(request: AdmissionRequest) -> AdmissionResponse:
        nonlocal decided
        if request.target.get("kind") == "Job":
            decided += 1
            assert answered.wait(20), "the ordinary review waits for the large one"
            assert decided == 1
            decided -= 1
        return AdmissionResponse()

    long = {"metadata": {"annotations": {"a": "x" * LARGE_BYTES}}}
    large = json.dumps(as_review({"kind": "Job", **long})).encode()
    ordinary = json.dumps(as_review({"kind": "Pod"})).encode()
    async with serving(tmp_path, {"/mutate": decide}) as (url, _, ca):
        waiting = [asyncio.create_task(ask(f"{url}/mutate", ca, large)) for _ in range(3)]
        while not decided:
            await asyncio.sleep(0)
        assert (await ask(f"{url}/mutate", ca, ordinary))[0] == 200
        answered.set()
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 3


async def test_slow_reviews_do_not_delay_an_ordinary_one_and_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BODY_WITHIN_S", 0.2)
    ordinary = json.dumps(as_review(stateful_set())).encode()

    async with serving(tmp_path) as (url, _, ca):
        slow = [await begin(url, ca, size) for size in (*([20_000] * 20), MAX_BYTES, MAX_BYTES)]
        assert (await ask(f"{url}/mutate", ca, ordinary))[0] == 200
        assert {await status_of(one) for one in slow} == {408}
        # Their memory is free again.
        assert (await ask(f"{url}/mutate", ca, b"x" * MAX_BYTES))[0] == 400
        for _, writer in slow:
            writer.close()


@pytest.mark.parametrize(
    "path, status, text",
    [("/healthz", 200, "ok\n"), ("/readyz", 200, "ok\n"), ("/", 404, "404: Not Found")],
)
def test_the_probes_have_their_own_paths(path: str, status: int, text: str, tmp_path: Path) -> None:
    """proto-root"""

    async def run() -> tuple[int, str]:
        async with serving(tmp_path) as (url, _, ca):
            return await ask(url + path, ca)

    assert asyncio.run(run()) == (status, text)


def test_the_metrics_count_reviews_by_outcome(tmp_path: Path) -> None:
    async def run() -> str:
        async with serving(tmp_path) as (url, _, ca):
            await ask(f"{url}/mutate", ca, json.dumps(as_review(stateful_set(service=""))).encode())
            _, text = await ask(f"{url}/metrics", ca)
            return text

    text = asyncio.run(run())
    counts = dict(
        line.rsplit(" ", 1)
        for line in text.splitlines()
        if line.startswith("tpu_functions_webhook_reviews_total{") and "/mutate" in line
    )
    assert set(counts) == {
        f'tpu_functions_webhook_reviews_total{{outcome="{outcome}",path="/mutate"}}'
        for outcome in ("patched", "unchanged", "warned", "refused", "invalid")
    }
    assert (
        float(counts['tpu_functions_webhook_reviews_total{outcome="warned",path="/mutate"}']) >= 1
    )


async def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, certificate, old):
        assert not certificate.reload_if_changed()
        new = CertificateAuthority.create(datetime.now(UTC))
        write_pair(tmp_path, new)
        assert certificate.reload_if_changed()
        assert (await ask(f"{url}/healthz", new))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(f"{url}/healthz", old)


async def test_an_invalid_certificate_does_not_replace_the_current_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, certificate, ca):
        (tmp_path / "tls.key").write_text("no key")
        assert not certificate.reload_if_changed()
        assert (await ask(f"{url}/healthz", ca))[0] == 200


def test_a_missing_certificate_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnusableCertificate, match=r"tls\.crt: No such file or directory"):
        Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")


@pytest.mark.parametrize(
    "arguments, environment, expected",
    [
        ([], {}, ("/etc/tls/tls.crt", "/etc/tls/tls.key", 8443, False)),
        ([], {"GTEI_TLS_CERT_FILE": "/a", "GTEI_TLS_KEY_FILE": "/b", "GTEI_VERBOSE": "true", "PORT": "443"},
         ("/a", "/b", 443, True)),
        *((["--tls-cert-file", "/c", "--tls-key-file=/d", *flag],
         {"GTEI_TLS_CERT_FILE": "/a"}, ("/c", "/d", 8443, is_verbose))
         for flag, is_verbose in ((["--verbose"], True), (["--verbose=true"], True), (["--verbose=false"], False))),
    ],
)  # fmt: skip
def test_the_flags_and_variables_of_gke_tpu_env_injector_are_supported(
    arguments: list[str], environment: dict[str, str], expected: tuple[str, str, int, bool]
) -> None:
    read = read_settings(arguments, environment)
    assert (str(read.certificate), str(read.key), read.port, read.is_verbose) == expected


@pytest.mark.parametrize(
    "name, text, meaning",
    [
        *(("DRAIN_SECONDS", text, "a whole number of seconds") for text in ("-1", "soon", "0.5")),
        ("PORT", "65536", "a port, 0 to 65535"),
    ],
)
def test_an_invalid_number_is_an_error(name: str, text: str, meaning: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings([], {name: text})
    assert str(raised.value) == f"{name}={text!r} is wrong: it must be {meaning}"


@pytest.mark.parametrize(
    "environment, message",
    [
        (
            {"INJECT_PROCESS_PORT": "0"},
            "INJECT_PROCESS_PORT='0' is wrong: it must be a port, 1 to 65504",
        ),
        (
            {"INJECT_PROCESS_PORT": "8482"},
            "INJECT_PROCESS_PORT='8482' is wrong: it must be another port than "
            "INJECT_JAX_COORDINATOR_PORT, 8482",
        ),
        (
            {"INJECT_PROCESS_PORT": "65505"},
            "INJECT_PROCESS_PORT='65505' is wrong: it must be a port, 1 to 65504",
        ),
        ({"INJECT_STRICT": "yes"}, "INJECT_STRICT='yes' is wrong: it must be true or false"),
    ],
)
def test_an_invalid_setting_is_an_error_that_names_it(
    environment: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        read_injection(environment)
    assert str(raised.value) == message
