"""The dependencies of the tool: cluster, Compute Engine, Pub/Sub, time. Tests replace them."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from replay.cloud_logging import CloudLogging, Logs
from replay.errors import in_plain_words
from replay.subscriptions import Subscriptions
from shared.base.environment import Variables
from shared.frame.step import SECONDS_FOR_CALLS
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access import AccessError
from shared.ports.kubernetes.access_settings import Access, Kubeconfig, read_access
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from shared.ports.pubsub import Topics
from shared.ports.unloaded import KUBERNETES, leave_unloaded
from shared.settings import Settings, from_environment

if TYPE_CHECKING:
    from shared.ports.gke import GkeClient

COMPLETION_S = 3.0
COMPONENT = "kubectl-tng"
"""The tool's part of the user agent."""
TOOL_SETTINGS = "ConfigMap tpu-functions/kubectl-tng"
_OF_SERVER = "CLUSTER_"
_OF_THIS_MACHINE = (_OF_SERVER, "KUBECONFIG", "COMPUTE_ENDPOINT", "CONTAINER_ENDPOINT")
"""How variables begin that are not taken from the cluster: who writes them would choose who is asked."""
_CREDENTIALS = ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "COMPUTE_ENDPOINT")
"""Variables with which there may be Google credentials, or none are needed."""
PublishData = Callable[[str, bytes, Mapping[str, str]], str]
"""Publishes data and attributes to a step's topic; returns the message's id, raises `CallError`."""


@dataclass(frozen=True)
class Choice:
    """What the user selects by the options of kubectl, and by ``--project``; empty: the default."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    project: str = ""


@dataclass(frozen=True)
class Dependencies:
    """The dependencies of a command.

    ``namespace``: that of names without one. ``found_in``: where in the cluster the settings were found;
    empty: on this machine. ``unknown``: why the settings are not known; ``unread``: why neither Google's
    log nor its VMs can be read. Both are empty if all is well. ``note``: which settings are defaults.
    """

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
    namespace: str = "default"
    found_in: str = ""
    unknown: str = ""
    unread: str = ""
    note: str = ""

    def open_cluster(self) -> Cluster:
        """The cluster, for the calls of the next 30 seconds."""
        return Cluster(self.connection, COMPONENT, self.count_down())

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


def open_dependencies(choice: Choice) -> Dependencies:
    """Open the real dependencies by the functions' environment variables, or by the settings in the
    cluster. Raises `SettingsError`, `AccessError`, `CallError`."""
    from shared.runtime import make_gke_client

    environment = dict(make_environment(choice, os.environ, Path.home()))
    connection = Connection(_read_access(environment, choice))
    found_in = unknown = note = ""
    if choice.project or not environment.get("PUBSUB_PROJECT"):
        found, why = _find_settings(connection, choice.project)
        if why and choice.project:
            note = (
                "With --project, TOPIC_PREFIX, PROJECTS and all other settings that are not "
                f"environment variables here are the defaults: {why}. Set those that differ."
            )
        elif why:
            unknown = f"PUBSUB_PROJECT is not set, and {why}"
        found_in = "" if why else TOOL_SETTINGS
        safe = {
            name: value for name, value in found.items() if not name.startswith(_OF_THIS_MACHINE)
        }
        own = {name: value for name, value in environment.items() if value}
        chosen = {"PUBSUB_PROJECT": choice.project} if choice.project else {}
        environment = {"PUBSUB_PROJECT": "unknown", **safe, **own, **chosen}
    settings = replace(from_environment(environment), access=connection.access)
    topics = Topics(settings.pubsub_project, settings.topic_prefix)
    return Dependencies(
        settings=settings,
        connection=connection,
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
        namespace=choice.namespace or find_namespace(connection.access),
        found_in=found_in,
        unknown=unknown,
        unread=unknown or _find_missing_credentials(environment),
        note=note,
    )


def _find_settings(connection: Connection, project: str) -> tuple[Mapping[str, str], str]:
    """The settings in the cluster, or why there are none; with ``project`` only those of it."""
    why = f"there is no {TOOL_SETTINGS}, which deploy.sh writes"
    try:
        found = _open_cluster(connection, SECONDS_FOR_CALLS).find_tool_settings()
        named = found.get("PUBSUB_PROJECT")
        if named and project in ("", named):
            return found, ""
        if named:
            why = f"{TOOL_SETTINGS} is of project {named}"
    except (AccessError, CallError, OutOfTimeError) as error:
        why = f"{TOOL_SETTINGS} cannot be read: {in_plain_words(error)}"
    return {}, why.rstrip(".")


def _find_missing_credentials(environment: Mapping[str, str]) -> str:
    """Why there are no Google credentials here, without the imports of google-auth's search for them."""
    from google.auth import _cloud_sdk

    if any(map(environment.get, _CREDENTIALS)):
        return ""
    on_google = "/sys/class/dmi/id/product_name"
    with suppress(OSError):
        if Path(on_google).read_text().startswith("Google"):
            return ""
    if Path(_cloud_sdk.get_application_default_credentials_path()).is_file():
        return ""
    return "there are no Google credentials here; run `gcloud auth application-default login`"


def open_cluster_only(choice: Choice) -> tuple[Cluster, str]:
    """The cluster and the namespace, for a shell that completes a word: it waits three seconds at
    most."""
    access = _read_access(make_environment(choice, os.environ, Path.home()), choice)
    namespace = choice.namespace or find_namespace(access)
    return _open_cluster(Connection(access), COMPLETION_S), namespace


def _open_cluster(connection: Connection, seconds: float) -> Cluster:
    end = time.monotonic() + seconds
    return Cluster(connection, COMPONENT, lambda: max(0.1, end - time.monotonic()))


def _read_access(environment: Mapping[str, str], choice: Choice) -> Access:
    variables = Variables(environment)
    access = read_access(variables)
    variables.check()
    return replace(access, context=choice.context) if isinstance(access, Kubeconfig) else access


def find_namespace(access: Access) -> str:
    """The namespace of the context, as kubectl takes it. An error in the file is reported later."""
    leave_unloaded(*KUBERNETES)
    from kubernetes.config import list_kube_config_contexts

    if not isinstance(access, Kubeconfig):
        return "default"
    with suppress(Exception):
        contexts, current = list_kube_config_contexts(access.path)
        for one in contexts if access.context else (current,):
            if access.context in ("", one["name"]):
                return one["context"].get("namespace") or "default"
    return "default"


def find_context(access: Access) -> str:
    """The context that is used; empty where there is none, or the file cannot be read."""
    leave_unloaded(*KUBERNETES)
    from kubernetes.config import list_kube_config_contexts

    if isinstance(access, Kubeconfig) and not access.context:
        with suppress(Exception):
            return str(list_kube_config_contexts(access.path)[1]["name"])
    return access.context if isinstance(access, Kubeconfig) else ""


def make_environment(
    choice: Choice, environment: Mapping[str, str], home: Path
) -> Mapping[str, str]:
    """The environment, with the kubeconfig that is chosen, or that kubectl takes where none is named."""
    if choice.kubeconfig or choice.context:
        environment = {
            name: value for name, value in environment.items() if not name.startswith(_OF_SERVER)
        }
    if choice.kubeconfig:
        return {**environment, "KUBECONFIG": choice.kubeconfig}
    if environment.get("KUBECONFIG") or environment.get("CLUSTER_SERVER"):
        return environment
    return {**environment, "KUBECONFIG": str(home / ".kube" / "config")}
