"""The page's server: loopback only, GET only, and nothing without the secret in the address.

The address is printed, and in no argument, so that no other user of the machine can read it. A page of
another origin is refused by Host and Origin, also if its name resolves to this machine.
"""

import json
import secrets
import sys
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import parse_qs, urlsplit

from replay import timeline_html
from replay.web.hub import Hub
from replay.web.subjects import ALWAYS

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""The names in the Host header. Its port may be another: ssh forwards ports."""
MAX_STREAMS = 24
"""Open tabs that are shown, of all browsers."""
TIMEOUT_S = 10.0
_FOLDER = Path(__file__).parent
FILES = {
    "": ("text/html", (_FOLDER / "page.html").read_bytes()),
    "page.js": ("text/javascript", (_FOLDER / "page.js").read_bytes()),
    "page.css": ("text/css", (_FOLDER / "page.css").read_bytes()),
    "timeline.css": ("text/css", timeline_html.STYLE.encode()),
}
EVENTS = "events"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """Serves the page of a hub at `address`. Raises `OSError` if the port cannot be used."""

    daemon_threads = True

    def __init__(self, port: int, hub: Hub) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.hub = hub
        self.secret = secrets.token_urlsafe(32)
        self.streams = BoundedSemaphore(MAX_STREAMS)

    @property
    def address(self) -> str:
        """The address of the page. Who knows it can read the page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.secret}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a bug; a client that has gone is none."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        if not self._is_of_this_machine():
            names = " or ".join(NAMES)
            self._refuse(HTTPStatus.FORBIDDEN, f"This page is served to {names} only.")
            return
        url = urlsplit(self.path)
        secret, slash, name = url.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(secret.encode(), self.server.secret.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "The address is the one that the tool has printed.")
        elif name == EVENTS:
            self._stream(parse_qs(url.query).get("view", [""])[0])
        elif slash and name in FILES:
            self._answer(HTTPStatus.OK, *FILES[name])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such file.")

    def _refuse_method(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "This page only reads.")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse_method

    def _is_of_this_machine(self) -> bool:
        """Whether the request is for this machine by name, and from no page but this one."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        return host.partition(":")[0] in NAMES and origin in (None, f"http://{host}")

    def _stream(self, view: str) -> None:
        """Send the sections of a view, then their changes, until the tab is closed."""
        if not self.server.streams.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many tabs show this page.")
            return
        try:
            self._begin(HTTPStatus.OK, "text/event-stream")
            with closing(self.server.hub.watch(*ALWAYS, view)) as changes:
                for sections in changes:
                    data = json.dumps(sections, separators=(",", ":"))
                    self.wfile.write(f"data: {data}\n\n".encode())
        except OSError:
            return  # the tab is closed, or does not read
        finally:
            self.server.streams.release()

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        self._answer(status, "text/plain", f"{words}\n".encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._begin(status, kind)
        self.wfile.write(body)

    def _begin(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def version_string(self) -> str:
        return "kubectl-tng"

    def log_message(self, *_: object) -> None:
        """Nothing: the secret is in the path."""
