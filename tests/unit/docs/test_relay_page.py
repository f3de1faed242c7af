"""The reference pages agree with the code."""

from __future__ import annotations

from relay.changes.coalescing import WIDEST_GAP, WIDEST_RETRY_GAP
from relay.daemon import SHUTDOWN_S
from relay.kinds import End
from relay.watching.watch import Timing
from tools.pages.relay import END_MEANINGS


def test_every_end_of_a_watch_is_documented() -> None:
    assert set(END_MEANINGS) == set(End)


def test_the_times_in_the_text_are_equal_to_the_code() -> None:
    timing = Timing()
    assert (timing.watch_s, timing.grace_s, timing.silent_s, timing.stuck_s) == (240, 15, 255, 570)
    assert (timing.first_backoff_s, timing.longest_backoff_s) == (0.5, 30)
    assert (WIDEST_GAP.seconds, WIDEST_RETRY_GAP.seconds, SHUTDOWN_S) == (10, 10, 5)
