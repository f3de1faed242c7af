"""``python -m relay``: the process around the daemon."""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from google.auth.credentials import Credentials

from relay.daemon import Relay
from relay.health import serve
from relay.publisher import NoCredentials, PubSubPublisher, find_credentials
from relay.settings import VARIABLES, RelaySettings, read_settings
from relay.watching.api import CannotConnect, KubernetesApi
from relay.watching.watch import Timing
from shared.base.environment import SettingsError
from shared.base.logs import configure_daemon

EXIT_CANNOT_START = 2
"""A setting or the environment is invalid; the last line of the log names it."""

_NO_POD = "KUBECONFIG is not set, and this process does not run in a Pod"
_LOG = structlog.get_logger()


class _CannotStart(Exception):
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    # The settings are environment variables; there is no option but --help.
    lines = [
        f"  {one.name}{'' if one.default is None else f' ({one.default})' if one.default else ''}\n"
        f"      {one.meaning.replace('`', '')}"
        for one in VARIABLES.values()
    ]
    argparse.ArgumentParser(
        prog="python -m relay",
        description="Watch a cluster, and publish its changes to the topics of the functions.",
        epilog="environment variables, with their defaults:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    configure_daemon()
    try:
        settings = read_settings(os.environ)
        credentials = find_credentials()
        asyncio.run(_run(settings, credentials))
    except (SettingsError, NoCredentials, _CannotStart) as error:
        _LOG.critical(f"cannot start: {error}")
        return EXIT_CANNOT_START
    return 0


async def _run(settings: RelaySettings, credentials: Credentials) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        api = await KubernetesApi.connect(settings.kubeconfig)
    except CannotConnect as error:
        where = f"KUBECONFIG={settings.kubeconfig}" if settings.kubeconfig else _NO_POD
        raise _CannotStart(f"{where}: {error}") from error
    publisher = PubSubPublisher(settings.project, settings.topic_prefix, credentials, _now)
    relay = Relay(
        api,
        publisher,
        cluster_id=settings.cluster_id,
        now=_now,
        monotonic=time.monotonic,
        rng=random.Random(),
        timing=Timing(),
        with_jobsets=settings.jobsets,
        with_workloads=settings.slice_workloads,
    )
    try:
        runner, port = await serve(relay.health, settings.port)
    except OSError as error:
        raise _CannotStart(f"PORT={settings.port}: {error}") from error
    _LOG.info("started", port=port, project=settings.project, topic_prefix=settings.topic_prefix)
    try:
        await relay.run(stop)
    finally:
        await runner.cleanup()
        await publisher.close()
        await api.close()
    _LOG.info("ended")


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    sys.exit(main())
