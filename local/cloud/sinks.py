"""Log sinks: audit log entries that match a step's filter are published to its topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from local.cloud import logging_query

TIMESTAMP_ATTRIBUTE = "logging.googleapis.com/timestamp"
"""The sole attribute of a message that a sink publishes."""

Publish = Callable[[str, bytes, Mapping[str, str]], None]


class Sinks:
    """One sink for each step; ``publish(step, data, attributes)`` gets the matching entries.

    ``filters`` are queries by step. Raises `local.cloud.logging_query.QueryError` for an invalid
    query. An entry that matches several filters is published several times.
    """

    def __init__(self, filters: Mapping[str, str], publish: Publish) -> None:
        self._queries = {step: logging_query.parse(text) for step, text in filters.items()}
        self._publish = publish

    def on_log_entry(self, entry: Mapping[str, Any]) -> None:
        """Route one LogEntry, in its JSON form; the message's data is that JSON."""
        steps = self.find_steps(entry)
        data = json.dumps(entry, separators=(",", ":")).encode() if steps else b""
        for step in steps:
            self._publish(step, data, {TIMESTAMP_ATTRIBUTE: entry["timestamp"]})

    def find_steps(self, entry: Mapping[str, Any]) -> list[str]:
        """The steps whose filters match the entry."""
        return [step for step, matches in self._queries.items() if matches(entry)]
