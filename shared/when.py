"""Times as Kubernetes and Compute Engine write them."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str) -> datetime:
    """An RFC 3339 time, with ``Z`` or an offset, in UTC. Raises `ValueError` if it is none."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def find_time(text: str | None) -> datetime | None:
    """The same for a field that may be absent."""
    return parse_time(text) if text else None


def render_time(moment: datetime) -> str:
    """A time in whole seconds, as Kubernetes writes its own."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
