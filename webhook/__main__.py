"""``python -m webhook``: serve until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial

import structlog

from functions.admit_job import admit
from functions.inject_env import inject
from shared import daemon_logs
from shared.settings import SettingsError
from webhook.certificate import Certificate, UnusableCertificate
from webhook.server import Webhook, serve
from webhook.settings import Settings, read_settings

EXIT_CANNOT_START = 2
_LOG = structlog.get_logger()


def main() -> int:
    """The exit status: 0, or 2 with a last line that says what is wrong."""
    daemon_logs.configure()
    try:
        settings = read_settings(sys.argv[1:], os.environ)
        asyncio.run(_run(settings, Certificate(settings.certificate, settings.key)))
    except (SettingsError, UnusableCertificate, OSError) as error:
        _LOG.critical(f"cannot start: {error}")
        return EXIT_CANNOT_START
    return 0


async def _run(settings: Settings, certificate: Certificate) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    mutations = {
        "/mutate": partial(inject, settings=settings.injection),
        "/mutate-jobs": partial(admit, settings=settings.admission),
    }
    webhook = Webhook(mutations, is_verbose=settings.is_verbose)
    runner, port = await serve(webhook, settings.host, settings.port, certificate.context)
    _LOG.info("started", port=port)
    following = asyncio.create_task(certificate.follow())
    try:
        await stop.wait()
    finally:
        following.cancel()
        await runner.cleanup()
    _LOG.info("ended")


if __name__ == "__main__":
    sys.exit(main())
