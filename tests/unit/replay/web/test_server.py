"""Who gets an answer from the page's server, and which."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.request import urlopen

import pytest

from replay.web import hub
from replay.web import server as server_module
from replay.web.hub import PageSubject
from replay.web.server import FILES, PageServer
from replay.web.state import Sections
from replay.web.subjects import ALWAYS
from tests.unit.replay.web.serving import serve

PAGE = Path(server_module.__file__).parent


def open_subject(name: str) -> PageSubject | None:
    def read() -> Iterator[Sections]:
        yield {name: "<script>"}

    return PageSubject(read, 3600, "error") if name != "unknown" else None


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[PageServer]:
    with serve(open_subject) as server:
        yield server


def get(
    server: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    """The status, the body and the headers of an answer; ``headers`` are of the request."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    answer: HTTPResponse = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_the_address_is_on_loopback_and_has_a_secret_of_256_bits(server: PageServer) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[-\w]{43}/", server.address)
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_served_at_the_address(server: PageServer, name: str) -> None:
    status, body, headers = get(server, f"/{server.secret}/{name}")
    assert (status, body.encode()) == (200, FILES[name][1])
    assert headers["Content-Type"] == f"{FILES[name][0]}; charset=utf-8"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "//",
        "/{wrong}/",
        "/{wrong}/events",
        "/{short}/",
        "/{secret}",
        "/{secret}/no",
        "/%C3%BC/",
    ],
)
@pytest.mark.parametrize("headers", [{}, {"Cookie": "a=b"}], ids=["", "with a cookie"])
def test_without_the_secret_nothing_is_found(
    server: PageServer, path: str, headers: dict[str, str]
) -> None:
    secret = server.secret
    other = "x" if secret[0] != "x" else "y"
    words = {"secret": secret, "wrong": other + secret[1:], "short": secret[:-1]}
    status, body, answered = get(server, path.format(**words) or "/", **headers)
    assert status == 404
    assert secret not in body + json.dumps(answered)


@pytest.mark.parametrize(
    "host",
    ["evil.test", "127.0.0.1.evil.test", "localhost.", "[::1]", "", "0.0.0.0", "127.0.0.2"],
)
def test_another_host_is_refused_also_with_the_secret(server: PageServer, host: str) -> None:
    status, body, _ = get(server, f"/{server.secret}/", Host=host)
    assert (status, body) == (403, "This page is served to 127.0.0.1 or localhost only.\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:8400"])
def test_a_forwarded_port_is_served(server: PageServer, host: str) -> None:
    assert get(server, f"/{server.secret}/", Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.test", "null", "http://127.0.0.1:1", "https://127.0.0.1", ""]
)
def test_another_origin_is_refused_also_with_the_secret(server: PageServer, origin: str) -> None:
    for path in ("", "events"):
        assert get(server, f"/{server.secret}/{path}", Origin=origin)[0] == 403


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_get_is_answered(server: PageServer, method: str) -> None:
    status, body, headers = get(server, f"/{server.secret}/", method)
    assert status == 405
    assert body == ("" if method == "HEAD" else "This page only reads.\n")
    assert not [name for name in headers if name.startswith("Access-Control")]


def test_each_answer_forbids_scripts_frames_referrers_and_caches(server: PageServer) -> None:
    for path in (f"/{server.secret}/", "/"):
        _, _, headers = get(server, path)
        policy = dict(one.split(" ", 1) for one in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Server"] == "kubectl-tng"


def test_the_page_names_no_other_host_and_has_no_script_or_style_of_its_own() -> None:
    texts = {path.name: path.read_text() for path in PAGE.glob("page.*")}
    assert set(texts) == {"page.html", "page.js", "page.css"}
    assert not re.search(r"https?:|//\w+\.|@import|url\(", "".join(texts.values()))
    assert not re.search(
        r"<style|style=|<script(?! type=\"module\" src=)| on\w+=", texts["page.html"]
    )


def test_sections_are_sent_as_they_come_and_the_socket_shows_when_the_tab_is_gone(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "HEARTBEAT_S", 0.05)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        path = f"/{server.secret}/events?view=slice/default/a"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        text = ""
        while not {*ALWAYS, "slice/default/a"} <= set(re.findall(r'"([^"]+)":"<', text)):
            text += connection.recv(65536).decode()
        while not text.endswith("\n\ndata: {}\n\n"):  # an event, which a page notices
            text += connection.recv(65536).decode()
        (thread,) = (one for one in threading.enumerate() if one.name == "read slice/default/a")
    thread.join(60)
    assert not thread.is_alive()
    assert "Content-Type: text/event-stream" in text


@pytest.mark.parametrize(
    "error, said", [(ConnectionResetError, ""), (TimeoutError, ""), (KeyError, "KeyError")]
)
def test_a_client_that_has_gone_is_no_bug(
    server: PageServer, error: type[Exception], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except error:
        server.handle_error(None, ("127.0.0.1", 1))
    shown = capsys.readouterr().err
    assert said in shown
    assert bool(shown) is bool(said)


def test_more_tabs_than_the_limit_are_told_so(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(server, "streams", threading.BoundedSemaphore(1))
    path = f"/{server.secret}/events"
    with urlopen(f"{server.address}events", timeout=60) as first:
        assert first.status == 200
        status, body, _ = get(server, path)
        assert (status, body) == (503, "Too many tabs show this page.\n")
    assert server.streams.acquire(timeout=60)  # when the tab has gone
