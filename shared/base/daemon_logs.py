"""One JSON object a line on stdout, with the keys that Cloud Logging reads."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any

import structlog

_SEVERITIES = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "critical": "CRITICAL",
    "exception": "ERROR",
}


def configure() -> None:
    """Send this program's log, and warnings of the libraries, to stdout."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        _add_severity,
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(default=str)],
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    sys.excepthook = _log_crash


def _log_crash(
    type_: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    structlog.get_logger().critical("crashed", exc_info=(type_, error, traceback))


def _add_severity(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event["severity"] = _SEVERITIES[event.pop("level")]
    return event
