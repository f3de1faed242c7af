"""``python -m relay.tokens``: the process around the token-writer."""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime

import structlog
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from relay.settings import VARIABLES
from relay.tokens.writer import Outcome, SecretManager, TokenWriter
from shared.base.environment import SettingsError, Variables, read_url, split_items
from shared.base.logs import configure_daemon
from shared.base.timestamps import render_time
from shared.ports.kubernetes.access_settings import read_server

ROUND_S = 300.0
RETRY_S = 60.0
_STUCK_S = 900.0
"""The process ends if a round and the wait after it take longer, so that the kubelet starts it again."""
_EXIT_CANNOT_START = 2
METRICS = CollectorRegistry()
_WRITTEN = Gauge(
    "tpu_functions_token_written_timestamp_seconds",
    "When the token of a step was last written.",
    ("step",),
    registry=METRICS,
)
_LOG = structlog.get_logger()


def read_settings(environment: Mapping[str, str]) -> tuple[TokenWriter, int]:
    """The token-writer of an environment, and the port of its metrics. Raises `SettingsError`."""
    variables = Variables(environment)
    project, prefix, port = (
        VARIABLES[it].read(variables) for it in ("project", "topic_prefix", "port")
    )
    kubeconfig = variables.require("KUBECONFIG", "the path of a kubeconfig file")
    steps = variables.require("STEPS", "ServiceAccounts of steps, separated by commas")
    secrets = {
        step: f"projects/{project}/secrets/{prefix}token-{step}" for step in split_items(steps)
    }
    server, ca_pem = read_server(variables)
    endpoint = read_url(variables, "SECRET_MANAGER_ENDPOINT")
    variables.check()
    manager = SecretManager(endpoint)
    return TokenWriter(
        server, ca_pem, secrets, kubeconfig, manager, lambda: datetime.now(UTC)
    ), int(port)


def main() -> int:
    """Run until SIGTERM or SIGINT; the exit status.

    Metrics are served from the end of the first round without a failure: the Pod is ready when each
    function has a token.
    """
    configure_daemon()
    try:
        writer, port = read_settings(os.environ)
    except SettingsError as error:
        _LOG.critical(f"cannot start: {error}")
        return _EXIT_CANNOT_START
    stop, is_ready = threading.Event(), False
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    _LOG.info("started", steps=sorted(writer.secrets), server=writer.server)
    while not stop.is_set():
        faulthandler.dump_traceback_later(_STUCK_S, exit=True)
        outcomes = writer.run_round()
        for outcome in outcomes:
            _report(outcome)
        has_failed = any(outcome.has_failed for outcome in outcomes)
        if not has_failed and not is_ready:
            start_http_server(port, registry=METRICS)
            is_ready = True
            _LOG.info("ready", port=port)
        stop.wait(RETRY_S if has_failed else ROUND_S)
    _LOG.info("ended")
    return 0


def _report(outcome: Outcome) -> None:
    written, facts = outcome.written, {"step": outcome.step}
    if outcome.error:
        facts["error"] = outcome.error
    log = _LOG.warning if outcome.error else _LOG.info
    if written:
        log("token written", **facts, version=written.number, expires=render_time(written.expires))
        _WRITTEN.labels(outcome.step).set(written.at.timestamp())
    elif outcome.error:
        log("token not written", **facts)


if __name__ == "__main__":
    sys.exit(main())
