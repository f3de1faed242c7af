"""What a step gets from its process: environment, clocks, randomness and the ports, made once."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from shared.base.logs import make_logger
from shared.base.names import INSTALLATION_ANNOTATION
from shared.base.reasons import REASONS, Reason
from shared.frame.plan import Publish, StepRefused
from shared.frame.step import Runtime
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.cluster import Cluster
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
        find_refusal=partial(find_refusal, settings),
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        random_bytes=secrets.token_bytes,
        log=make_logger(),
        gke=make_gke_client(settings),
    )


def make_publish(topics: Topics, connection: Connection) -> Publish:
    """The function that publishes messages. They carry the cluster's id, if it has been read."""

    def publish(step: str, messages: Sequence[Message]) -> None:
        cluster = connection.cluster_id
        topics.publish(step, [(one.encode(), one.attributes(cluster)) for one in messages])

    return publish


def find_refusal(settings: Settings, cluster: Cluster) -> StepRefused | None:
    """Why no step may do anything: the cluster is another installation's, or nobody says whose it is.

    An id that is right is cached like the cluster's own; any other is read again. Raises `CallError`.
    """
    found, own = cluster.get_installation_id(), settings.installation_id
    if found == own:
        return None
    cluster.forget_installation_id()
    reason = Reason.OTHER_INSTALLATION
    facts = (
        f"The annotation {INSTALLATION_ANNOTATION} of Namespace kube-system is "
        f"{found or 'not set'}, and INSTALLATION_ID of the functions is {own or 'not set'}."
    )
    return StepRefused(reason, f"{facts} {REASONS[reason]}")


def make_gke_client(settings: Settings) -> GkeClient | None:
    """GKE's client; ``None`` unless JobSets get node pools. It connects at the first call."""
    if settings.gke is None:
        return None
    from shared.ports.gke import GkeClient

    return GkeClient(settings.gke.endpoint)
