"""The embedded server behind a real port with TLS, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import yaml

from local.clock import LoopClock
from local.kube import ADMIN, CertificateAuthority, KubeApi, User, kubeconfig
from local.web import serve


@dataclass(frozen=True)
class Served:
    """Where the server is, and kubeconfig files for ``admin`` and for ``joe``, who may nothing."""

    url: str
    admin: Path
    joe: Path


@contextmanager
def served(directory: Path) -> Iterator[Served]:
    """A server that lives as long as the context."""
    ready: list[Served] = []
    started = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        authority = CertificateAuthority.create(clock.now())
        tokens = {"admin": ADMIN, "joe": User("joe", ("devs",))}
        api = KubeApi(clock, random=Random(1), ca=authority, tokens=tokens)
        context = authority.server_context(["127.0.0.1"], clock.now())
        runner, port = await serve(api, tls=context)
        url = f"https://127.0.0.1:{port}"
        files = {}
        for name in tokens:
            files[name] = directory / f"{name}.yaml"
            config = kubeconfig(url, authority.certificate_pem, name)
            files[name].write_text(yaml.safe_dump(config), encoding="utf-8")
        ready.append(Served(url, files["admin"], files["joe"]))
        ended = asyncio.Event()
        stop.append((loop, ended))
        started.set()
        await ended.wait()
        api.restart()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(10), "the server should be up within ten seconds"
    try:
        yield ready[0]
    finally:
        loop, ended = stop[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
