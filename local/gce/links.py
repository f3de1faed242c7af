"""Names, paths, URLs, times and fingerprints in the formats of Compute Engine.

The simulator identifies a resource by its path, ``projects/P/zones/Z/instances/N``; responses have full
URLs.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from random import Random

ROOT = "https://www.googleapis.com/compute/v1/"

PACIFIC = timezone(timedelta(hours=-8))
"""Compute Engine writes Pacific time; here without daylight saving."""

_SCOPED = ("zones/", "regions/", "global/")
_ABSOLUTE = re.compile(
    r"https://(?:www|compute)\.googleapis\.com/compute/(?:v1|beta|alpha)/(projects/.+)"
)
_PATH = re.compile(
    r"projects/[^/]+/(?:global|zones/[^/]+|regions/[^/]+)/[A-Za-z]+/(?:family/)?[^/]+"
)
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z][a-z0-9]*")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")


def url(path: str) -> str:
    """The full URL of a path."""
    return ROOT + path


def is_name(text: str) -> bool:
    """Whether it is a name by RFC 1035 of at most 63 characters."""
    return _NAME.fullmatch(text) is not None


def is_zone(text: str) -> bool:
    """Whether it looks like a zone."""
    return _ZONE.fullmatch(text) is not None


def is_region(text: str) -> bool:
    """Whether it looks like a region."""
    return _REGION.fullmatch(text) is not None


def region_of(zone: str) -> str:
    """The region of a zone."""
    return zone.rpartition("-")[0]


def find_path(reference: str, project: str) -> str | None:
    """Find the path of a URL or a partial URL; ``None`` if it is malformed.

    Accepts the same forms as the real service: full URLs, ``projects/...`` and, relative to ``project``,
    ``zones/...``, ``regions/...``, ``global/...``.
    """
    match = _ABSOLUTE.fullmatch(reference)
    path = match.group(1) if match else reference
    if path.startswith(_SCOPED):
        path = f"projects/{project}/{path}"
    return path if _PATH.fullmatch(path) else None


def name_of(path: str) -> str:
    """The last part of a path or URL."""
    return path.rpartition("/")[2]


def pacific(moment: datetime) -> str:
    """Render a time like Compute Engine: milliseconds, with an offset."""
    return moment.astimezone(PACIFIC).isoformat(timespec="milliseconds")


def zulu(moment: datetime) -> str:
    """Render a time like Cloud Logging: microseconds and ``Z``."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def numeric_id(random: Random) -> str:
    """A resource's id: 64 bits, as a decimal string."""
    return str(random.randrange(10**18, 9 * 10**18))


def operation_name(random: Random, moment: datetime, prefix: str = "operation") -> str:
    """A name such as ``operation-1795171829865-9696fa0f3e46c-bcb4283b-bf005779``."""
    milliseconds = int(moment.timestamp() * 1000)
    bits = random.getrandbits(116)
    tail = f"{bits:029x}"
    return f"{prefix}-{milliseconds}-{tail[:13]}-{tail[13:21]}-{tail[21:]}"


def fingerprint(parts: Iterable[str]) -> str:
    """A fingerprint in the real form: eight bytes that are a function of content alone."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return base64.urlsafe_b64encode(digest).decode()


EMPTY_METADATA = "x4iOk7cA2GY="
"""The fingerprint of metadata without items, seen in real answers."""
EMPTY_TAGS = "42WmSpB8rSM="
"""The fingerprint of no tags, seen in real answers."""


def metadata_fingerprint(items: dict[str, str]) -> str:
    """The fingerprint of metadata."""
    return _fingerprint_of(tuple(items.items())) if items else EMPTY_METADATA


@lru_cache(maxsize=4096)  # each list returns those of all VMs, with their startup scripts
def _fingerprint_of(items: tuple[tuple[str, str], ...]) -> str:
    return fingerprint(part for pair in items for part in pair)
