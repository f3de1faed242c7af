"""A server of the webhook that an API server on this machine can call."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from local.kube import CertificateAuthority
from webhook.certificate import Certificate
from webhook.server import Webhook, serve
from webhook.tpu_env.admission import Mutation


class Served:
    """A server's address and its CA's certificate."""

    def __init__(self, url: str, ca_pem: str) -> None:
        self._url = url
        self._ca_pem = ca_pem

    def configure(self, path: Path) -> dict[str, Any]:
        """Return a webhook configuration of the chart that names this server by URL."""
        configuration: dict[str, Any] = yaml.safe_load(path.read_text())
        bundle = base64.b64encode(self._ca_pem.encode()).decode()
        for one in configuration["webhooks"]:
            url = self._url + one["clientConfig"]["service"]["path"]
            one["clientConfig"] = {"url": url, "caBundle": bundle}
        return configuration


@contextmanager
def serving(
    directory: Path, mutations: Mapping[str, Mutation], make: Callable[..., Webhook] = Webhook
) -> Iterator[Served]:
    """Run the server in its own thread until the block ends, with its keys in ``directory``."""
    ca = CertificateAuthority.create(datetime.now(UTC))
    pair = ca.issue_server(("localhost", "127.0.0.1"), datetime.now(UTC))
    (directory / "tls.crt").write_text(pair.certificate_pem)
    (directory / "tls.key").write_text(pair.key_pem)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    certificate = Certificate(directory / "tls.crt", directory / "tls.key")
    runner, port = run(serve(make(mutations), "127.0.0.1", 0, certificate.context))
    try:
        yield Served(f"https://127.0.0.1:{port}", ca.certificate_pem)
    finally:
        run(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
