"""One structured line for each invocation, as Cloud Logging reads it from stdout."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SEVERITY = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR"}


def _severity(
    _logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event["severity"] = _SEVERITY.get(method, "INFO")
    event["message"] = event.pop("event")
    return event


def make_logger() -> Any:
    """A logger that writes a JSON object a line: ``severity``, ``message`` and what is given."""
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stdout),
        processors=[_severity, structlog.processors.JSONRenderer(default=str)],
        wrapper_class=structlog.BoundLogger,
    )
