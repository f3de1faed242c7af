"""The minutes in which a waiting object is due, with and without a lag."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shared.base.backoff import is_due
from tests.support.builders import NOW


@pytest.mark.parametrize(
    "minutes, expected",
    [
        pytest.param(-2, True, id="a time in the future"),
        pytest.param(-1, False, id="a time in the next minute, by another clock"),
        pytest.param(0, False, id="in the first minute"),
        pytest.param(1, True, id="after a minute"),
        pytest.param(9, True, id="each minute, until an eighth of the wait is longer"),
        pytest.param(10, False, id="between two observations"),
        pytest.param(11, True, id="in the minute after 10 minutes and an eighth"),
    ],
)
def test_an_object_is_due_after_an_eighth_of_its_wait(minutes: int, expected: bool) -> None:
    assert NOW.second == 0
    assert is_due(NOW - timedelta(minutes=minutes), NOW) is expected


def test_an_object_that_has_waited_for_a_day_is_due_every_half_hour() -> None:
    since = NOW - timedelta(days=1)
    hour = [is_due(since, NOW + timedelta(minutes=minute)) for minute in range(60)]
    assert sum(hour) == 2


def test_a_lag_delays_an_observation_by_its_share_of_the_interval() -> None:
    since = NOW - timedelta(days=1)
    minutes = range(30)
    punctual, late = (
        next(m for m in minutes if is_due(since, NOW + timedelta(minutes=m), lag))
        for lag in (0.0, 0.5)
    )
    assert 14 <= (late - punctual) % 30 <= 15
