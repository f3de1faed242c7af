"""The embedded server on a real port with TLS, in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import yaml

from local.base.clock import LoopClock
from local.base.web import serve
from local.kube import ADMIN, CertificateAuthority, KubeApi, kubeconfig


@contextmanager
def served(directory: Path) -> Iterator[Path]:
    """Run a server within the context, and yield its administrator's kubeconfig."""
    path = directory / "admin.yaml"
    started = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        authority = CertificateAuthority.create(clock.now())
        api = KubeApi(clock, random=Random(1), ca=authority, tokens={"admin": ADMIN})
        context = authority.server_context(["127.0.0.1"], clock.now())
        runner, port = await serve(api, tls=context)
        config = kubeconfig(f"https://127.0.0.1:{port}", authority.certificate_pem, "admin")
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        ended = asyncio.Event()
        stop.append((loop, ended))
        started.set()
        await ended.wait()
        api.restart()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(10), "the server must start within ten seconds"
    try:
        yield path
    finally:
        loop, ended = stop[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
