"""``python -m webhook``: serve until SIGINT, or for a while after SIGTERM.

A Pod gets SIGTERM while it is being removed from the Service. Until all proxies have removed it, reviews
still arrive; an unanswered review may reject a workload."""

import asyncio
import os
import signal
import sys
from functools import partial

import structlog

from shared.base.environment import SettingsError
from shared.base.logs import configure_daemon
from webhook.admit_job import admit
from webhook.certificate import Certificate, UnusableCertificate
from webhook.inject_env import inject
from webhook.server import Webhook, serve
from webhook.settings import WebhookSettings, read_settings
from webhook.tie_pod import tie
from webhook.tpu_env.admission import Mutation

EXIT_CANNOT_START = 2
_LOG = structlog.get_logger()


def main() -> int:
    """The exit status: 0, or 2 with a last line that says what is wrong."""
    configure_daemon()
    try:
        settings = read_settings(sys.argv[1:], os.environ)
        asyncio.run(_run(settings, Certificate(settings.certificate, settings.key)))
    except (SettingsError, UnusableCertificate, OSError) as error:
        _LOG.critical(f"cannot start: {error}")
        return EXIT_CANNOT_START
    return 0


async def _run(settings: WebhookSettings, certificate: Certificate) -> None:
    going, stop = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, going.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    mutations: dict[str, Mutation] = {
        "/mutate": partial(inject, settings=settings.injection),
        "/mutate-namespace": partial(inject, settings=settings.injection, is_namespace_marked=True),
        "/mutate-jobs": partial(admit, settings=settings.admission),
        "/mutate-pods": tie,
    }
    webhook = Webhook(mutations, is_verbose=settings.is_verbose)
    runner, port = await serve(webhook, settings.host, settings.port, certificate.context)
    _LOG.info("started", port=port)
    following = asyncio.create_task(certificate.follow())
    draining = asyncio.create_task(_drain(going, webhook, settings.drain_s, stop))
    try:
        await stop.wait()
    finally:
        following.cancel()
        draining.cancel()
        await runner.cleanup()
    _LOG.info("ended")


async def _drain(going: asyncio.Event, webhook: Webhook, drain_s: int, stop: asyncio.Event) -> None:
    await going.wait()
    _LOG.info("ending", drain_s=drain_s)
    webhook.stop_keep_alive()
    await asyncio.sleep(drain_s)
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
