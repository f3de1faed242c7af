"""The dependencies of the tool: cluster, Compute Engine, Pub/Sub, time. Tests replace them."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from replay.cloud_logging import CloudLogging, Logs
from replay.subscriptions import Subscriptions
from shared.base.environment import Variables
from shared.frame.step import SECONDS_FOR_CALLS
from shared.ports.errors import OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access_settings import read_access
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.ports.pubsub import Topics
from shared.settings import Settings, from_environment

if TYPE_CHECKING:
    from shared.ports.gke import GkeClient

COMPLETION_S = 3.0
PublishData = Callable[[str, bytes, Mapping[str, str]], str]
"""Publishes data and attributes to a step's topic; returns the message's id, raises `CallError`."""


@dataclass(frozen=True)
class Dependencies:
    """The dependencies of a command."""

    settings: Settings
    connection: Connection
    clients: Clients
    publish: PublishData
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    random_bytes: Callable[[int], bytes]
    subscriptions: Subscriptions
    logs: Logs
    sleep: Callable[[float], None]
    is_interactive: bool
    """Whether the command runs on a terminal and can ask the user."""
    gke: GkeClient | None = None
    """The client of GKE, if JobSets get node pools."""

    def open_cluster(self) -> Cluster:
        """The cluster, for the calls of the next 30 seconds."""
        return Cluster(self.connection, "replay", self.count_down())

    def open_gce(self) -> Gce:
        """Compute Engine, for the calls of the next 30 seconds."""
        return Gce(self.clients, self.count_down())

    def count_down(self) -> Callable[[], float]:
        """The seconds that are left for calls from now on. What it returns raises `OutOfTimeError`."""
        end = self.monotonic() + SECONDS_FOR_CALLS

        def remaining_s() -> float:
            left = end - self.monotonic()
            if left <= 0:
                raise OutOfTimeError(f"no answer within {SECONDS_FOR_CALLS:.0f} s")
            return left

        return remaining_s


def open_dependencies() -> Dependencies:
    """Open the real dependencies by the functions' environment variables. Raises `SettingsError`."""
    from shared.runtime import make_gke_client

    settings = from_environment(with_default_kubeconfig(os.environ, Path.home()))
    topics = Topics(settings.pubsub_project, settings.topic_prefix)
    return Dependencies(
        settings=settings,
        connection=Connection(settings.access),
        clients=Clients(settings.compute_endpoint),
        publish=lambda step, data, attributes: topics.publish(step, [(data, attributes)])[0],
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        random_bytes=secrets.token_bytes,
        subscriptions=Subscriptions(settings.pubsub_project),
        logs=CloudLogging(),
        sleep=time.sleep,
        is_interactive=sys.stdin.isatty(),
        gke=make_gke_client(settings),
    )


def open_cluster_only() -> Cluster:
    """The cluster, for a shell that completes a word: it waits three seconds at most."""
    variables = Variables(with_default_kubeconfig(os.environ, Path.home()))
    access = read_access(variables)
    variables.check()
    end = time.monotonic() + COMPLETION_S
    return Cluster(Connection(access), "replay", lambda: max(0.1, end - time.monotonic()))


def with_default_kubeconfig(environment: Mapping[str, str], home: Path) -> Mapping[str, str]:
    """The environment, with the kubeconfig that kubectl takes where none is named."""
    if environment.get("KUBECONFIG") or environment.get("CLUSTER_SERVER"):
        return environment
    return {**environment, "KUBECONFIG": str(home / ".kube" / "config")}
