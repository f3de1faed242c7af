"""What a step gets from its process: environment, clocks, randomness and the ports, made once."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from shared.base.logs import make_logger
from shared.frame.plan import Publish
from shared.frame.step import Runtime
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.connection import Connection
from shared.ports.pubsub import Topics
from shared.settings import Settings, from_environment
from shared.triggers.message import Message
from shared.triggers.routes import ROUTES

if TYPE_CHECKING:
    from shared.ports.gke import GkeClient


@lru_cache(maxsize=1)
def get_runtime() -> Runtime:
    """The runtime of this process. Raises `SettingsError` while the environment is not right."""
    settings = from_environment(os.environ)
    connection = Connection(settings.access)
    topics = Topics(settings.pubsub_project, settings.topic_prefix)
    return Runtime(
        routes=ROUTES,
        project=settings.pubsub_project,
        settings=settings,
        connection=connection,
        clients=Clients(settings.compute_endpoint),
        publish=make_publish(topics, connection),
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        random_bytes=secrets.token_bytes,
        log=make_logger(),
        gke=make_gke_client(settings),
    )


def make_publish(topics: Topics, connection: Connection) -> Publish:
    """The function that publishes messages. They carry the cluster's id, if it has been read."""

    def publish(step: str, messages: Sequence[Message]) -> None:
        cluster = connection.constants.get("cluster", "")
        topics.publish(step, [(one.encode(), one.attributes(cluster)) for one in messages])

    return publish


def make_gke_client(settings: Settings) -> GkeClient | None:
    """GKE's client; ``None`` unless JobSets get node pools. It connects at the first call."""
    if settings.gke is None:
        return None
    from shared.ports.gke import GkeClient

    return GkeClient(settings.gke.endpoint)
