"""The log: one JSON object a line on stdout, with the keys that Cloud Logging reads.

A function makes a logger for its invocations (`make_logger`); a daemon configures structlog and the
standard library's logging for its process (`configure_daemon`).
"""

import json
import logging
import sys
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any


def _render_json(event: Any, **options: Any) -> str:
    """JSON in ASCII; a lone surrogate, which no reader of the log need accept, becomes ``?``."""
    text = json.dumps(event, **options)
    if "\\ud" not in text:
        return text
    valid = json.dumps(event, ensure_ascii=False, **options).encode(errors="replace")
    return json.dumps(json.loads(valid))


def _make_renderer() -> Any:
    import structlog

    return structlog.processors.JSONRenderer(_render_json, default=str)


def make_logger() -> Any:
    """A logger that writes a JSON object a line: ``severity``, ``message`` and what is given."""
    import structlog  # kubectl tng, which imports this module, logs nothing

    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stdout),
        processors=[_rename_keys, _make_renderer()],
        wrapper_class=structlog.BoundLogger,
    )


def _rename_keys(
    _logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event["severity"] = "ERROR" if method == "exception" else method.upper()
    event["message"] = event.pop("event")
    return event


def configure_daemon() -> None:
    """Send this program's log, and warnings of the libraries, to stdout."""
    import structlog

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        _add_severity,
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
    ]
    structlog.configure(
        processors=[*shared, _make_renderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    formatter = structlog.stdlib.ProcessorFormatter
    last: list[structlog.typing.Processor] = [formatter.remove_processors_meta, _make_renderer()]
    handler.setFormatter(formatter(foreign_pre_chain=shared, processors=last))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    sys.excepthook = _log_crash


def _log_crash(
    type_: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    import structlog

    structlog.get_logger().critical("crashed", exc_info=(type_, error, traceback))


def _add_severity(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event["severity"] = event.pop("level").upper()
    return event
