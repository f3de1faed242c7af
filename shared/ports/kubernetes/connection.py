"""The session of requests to the API server, kept for the process and opened again when it is stale."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from shared.ports.kubernetes.access import Session, source_of
from shared.ports.kubernetes.access_settings import Access


class Connection:
    """The connection to the cluster: opened when it is first needed, then kept for the process.

    ``constants`` caches the ids of the cluster and its installation, and ``cached`` what is read seldom,
    with the time until which it is cached. Both are cleared when a kubeconfig is read again, and after a
    401: it may be another cluster. ``cluster_id`` is the id that was read last. Messages carry it, also
    after that: they are about objects of the cluster in which their invocation began.
    """

    def __init__(
        self,
        access: Access,
        *,
        prepare: Callable[[Any], None] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.access = access
        self._source = source_of(access, now)
        self._prepare = prepare
        self._session: Session | None = None
        self._lock = threading.Lock()
        self.cluster_id = ""
        self.constants: dict[str, str] = {}
        self.cached: dict[str, tuple[Any, datetime]] = {}

    def session(self, remaining_s: Callable[[], float]) -> Session:
        """The session for requests. Raises `AccessError`, `CallError` and `OutOfTimeError`."""
        with self._lock:
            if self._session is None or self._source.is_stale():
                self._session = self._open(remaining_s())
            return self._session

    def renew(self, refused: Session, remaining_s: Callable[[], float]) -> Session:
        """A new session after a 401, unless another thread has already opened one."""
        with self._lock:
            if self._session is None or self._session is refused:
                self._session = self._open(remaining_s())
                self.constants.clear()
                self.cached.clear()
            return self._session

    @property
    def hint(self) -> str:
        """Why the API server may have rejected a new session."""
        return self._source.hint

    @property
    def trust(self) -> str:
        """The variable that names the CA of the API server."""
        return self._source.trust

    def _open(self, timeout_s: float) -> Session:
        before, session = self._session, self._source.open(timeout_s)
        if before is None or session.client is not before.client:
            self.constants.clear()
            self.cached.clear()
            if self._prepare is not None:
                self._prepare(session.client)
        return session
