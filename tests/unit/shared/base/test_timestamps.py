"""Times and durations are read as users and APIs write them."""

import pytest

from shared.base.timestamps import parse_duration_s


@pytest.mark.parametrize(
    "text, seconds",
    [("90s", 90), ("30m", 1800), ("168h", 604800), ("7d", 604800), ("1w", None), ("", None)],
)
def test_a_duration_is_parsed_as_seconds_or_none(text: str, seconds: int | None) -> None:
    assert parse_duration_s(text) == seconds
