"""What the environment says, read once, with an error that names the variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from shared.node_group import NodeGroup


class SettingsError(Exception):
    """A variable of the environment is missing or wrong; the message says what would be right."""


@dataclass(frozen=True)
class Settings:
    """How the functions are set up."""

    pubsub_project: str
    """Where the topics are."""
    topic_prefix: str
    projects: frozenset[str]
    """Projects in which groups may ask for TPUs."""
    kubeconfig: str
    """A file's path; in the cloud a secret's volume."""
    compute_endpoint: str
    """Another address of Compute Engine's API; empty for Google's."""
    join_timeout: timedelta
    """How long a started VM may take to join before it is called late."""

    def serves(self, group: NodeGroup) -> bool:
        """Whether the group asks for TPUs in a project of this installation."""
        return group.spec is not None and group.spec.project in self.projects


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the settings. Raises `SettingsError`."""
    project = _required(environment, "PUBSUB_PROJECT", "the id of the project with the topics")
    served = environment.get("PROJECTS", project)
    return Settings(
        pubsub_project=project,
        topic_prefix=environment.get("TOPIC_PREFIX", "tpu-functions-"),
        projects=frozenset(name.strip() for name in served.split(",") if name.strip()),
        kubeconfig=_required(environment, "KUBECONFIG", "the path of a kubeconfig file"),
        compute_endpoint=environment.get("COMPUTE_ENDPOINT", ""),
        join_timeout=_seconds(environment, "NODE_JOIN_TIMEOUT_SECONDS", 900),
    )


def _required(environment: Mapping[str, str], name: str, meaning: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise SettingsError(f"the environment variable {name} is not set; it must be {meaning}")
    return value


def _seconds(environment: Mapping[str, str], name: str, default: int) -> timedelta:
    text = environment.get(name, str(default))
    if not text.isdigit() or int(text) == 0:
        raise SettingsError(f"{name}={text!r} must be a whole number of seconds above 0")
    return timedelta(seconds=int(text))
