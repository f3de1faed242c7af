"""A page that is served in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from replay.web.hub import Hub, PageSubject
from replay.web.server import PageServer


@contextmanager
def serve(open_subject: Callable[[str], PageSubject | None]) -> Iterator[PageServer]:
    """A server of these subjects, on a free port."""
    with PageServer(0, Hub(open_subject, lambda: datetime.now(UTC))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
