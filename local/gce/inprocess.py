"""HTTP clients without a socket: requests sessions that call an application in this process."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from local.base.http import Application, Request


class InProcessAdapter(BaseAdapter):
    """A transport adapter of requests in front of an `Application` that does not stream."""

    def __init__(self, application: Application) -> None:
        super().__init__()
        self._application = application

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 - the signature is that of requests
        timeout: Any = None,  # noqa: ARG002
        verify: Any = True,  # noqa: ARG002
        cert: Any = None,  # noqa: ARG002
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> requests.Response:
        """Call the application and wrap its response."""
        headers = {str(name): str(value) for name, value in request.headers.items()}
        asked = Request.of(
            request.method or "GET", request.url or "/", headers=headers, body=request.body
        )
        answered = self._application.handle(asked)
        response = requests.Response()
        response.status_code = answered.status
        response.headers = CaseInsensitiveDict(answered.headers)
        response.raw = BytesIO(answered.body)
        response.url = request.url or ""
        response.request = request
        response.encoding = "utf-8"
        return response

    def close(self) -> None:
        """Does nothing."""


def mount(session: requests.Session, application: Application) -> None:
    """Let all requests of a session go to an application.

    For a client of google-cloud-compute the session is ``client.transport._session``.
    """
    adapter = InProcessAdapter(application)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
