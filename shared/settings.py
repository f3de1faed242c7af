"""The settings of the functions, read from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from shared.base.environment import (
    Variables,
    read_choice,
    read_minutes,
    read_number,
    read_url,
    split_items,
)
from shared.ports.kubernetes.access_settings import Access, read_access
from shared.triggers.push import GOOGLES_CERTIFICATES, Pusher, PushVerification

if TYPE_CHECKING:
    from shared.ports.gke_settings import GkeSettings

SLICE_PROVIDERS = (GKE, TPU_NODE_GROUP) = ("gke", "tpu-node-group")
"""What slices are: node pools of GKE, or TPUNodeGroups."""


class JoinApproval(StrEnum):
    """Who approves the certificate requests of joining VMs."""

    APPROVE_JOIN = "approve_join"
    """This system, for the VM that holds the token. The tokens have a group of their own."""
    EXTERNAL = "external"
    """The cluster, for each holder of a bootstrap token of kubeadm's group."""


_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class Settings:
    """The settings of the functions."""

    pubsub_project: str
    """The project of the topics."""
    topic_prefix: str
    projects: frozenset[str]
    """The projects in which groups may request TPUs."""
    access: Access
    """How to connect to the cluster."""
    compute_endpoint: str
    """Another address of Compute Engine's API; empty: Google's."""
    join_timeout: timedelta
    """A started VM that has not joined after this time is late."""
    pusher: Pusher | None = None
    """The only account whose pushes are accepted; ``None``: the platform checks that alone."""
    installation_id: str = ""
    """The id that the annotation of the cluster's Namespace kube-system must have; empty: none."""
    join_approval: JoinApproval = JoinApproval.APPROVE_JOIN
    slice_provider: str = ""
    """What slices of workloads are, of `SLICE_PROVIDERS`; empty: workloads get none."""
    suspended_release: timedelta | None = None
    """The slice of a suspended JobSet is released after this time; ``None``: never."""
    lost_rebuild: timedelta | None = timedelta()
    """A slice that has lost a host is replaced so long after the loss, and not while it may recover by
    itself; ``None``: never."""
    gke: GkeSettings | None = None
    """The settings of node pools, if slices are node pools."""

    def serves(self, project: str) -> bool:
        """Whether groups of this installation may request TPUs in a project."""
        return project in self.projects


def describe_unserved(project: str, served: frozenset[str]) -> str:
    """The violation of a spec whose project is not served, with what would be right."""
    return (
        f"spec.project: {project} is not served by this installation; it serves "
        f"{', '.join(sorted(served))} (Terraform's variable projects)"
    )


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the settings; an empty variable counts as not set. Raises `SettingsError`."""
    variables = Variables(environment)
    project = variables.require("PUBSUB_PROJECT", "the id of the project with the topics")
    listed = variables.get("PROJECTS") or project
    projects = frozenset(split_items(listed))
    if not projects and listed:
        variables.reject("PROJECTS", "the ids of the projects with the TPUs, separated by commas")
    seconds = "a whole number of seconds above 0"
    join_timeout_s = read_number(
        variables, "NODE_JOIN_TIMEOUT_SECONDS", 900, range(1, 10**9), seconds
    )
    settings = Settings(
        pubsub_project=project,
        topic_prefix=variables.get("TOPIC_PREFIX") or "tpu-functions-",
        projects=projects,
        access=read_access(variables),
        compute_endpoint=read_url(variables, "COMPUTE_ENDPOINT"),
        join_timeout=timedelta(seconds=join_timeout_s),
        pusher=_pusher(variables),
        installation_id=variables.get("INSTALLATION_ID"),
        join_approval=read_choice(variables, "JOIN_APPROVAL", JoinApproval.APPROVE_JOIN),
        slice_provider=_slice_provider(variables),
        suspended_release=read_minutes(variables, "JOBSET_SUSPENDED_RELEASE_MINUTES"),
        lost_rebuild=read_minutes(variables, "JOBSET_LOST_REBUILD_MINUTES", timedelta()),
        gke=_gke(variables),
    )
    variables.check()
    return settings


def _slice_provider(variables: Variables) -> str:
    provider = variables.get("JOBSET_PROVIDER")
    if provider and provider not in SLICE_PROVIDERS:
        choices = " or ".join(SLICE_PROVIDERS)
        variables.reject("JOBSET_PROVIDER", f"{choices}, or empty: no slices are created then")
    return provider


def _gke(variables: Variables) -> GkeSettings | None:
    """The settings of node pools. Other installations need none."""
    if variables.get("JOBSET_PROVIDER") != GKE:
        return None
    from shared.ports.gke_settings import read_gke_settings

    return read_gke_settings(variables)


def _pusher(variables: Variables) -> Pusher | None:
    names = ("PUSH_SERVICE_ACCOUNT", "PUSH_AUDIENCE", "PUSH_CERTIFICATES_URL", "PUSH_VERIFICATION")
    if not any(variables.get(name) for name in names):
        return None
    verification = read_choice(variables, "PUSH_VERIFICATION", PushVerification.SIGNATURE)
    if verification is PushVerification.PLATFORM and variables.get("PUSH_CERTIFICATES_URL"):
        variables.problems.append(
            "PUSH_CERTIFICATES_URL is set, but with PUSH_VERIFICATION=platform no signature is "
            "verified: it must not be set"
        )
    return Pusher(
        service_account=variables.require(
            "PUSH_SERVICE_ACCOUNT", "the e-mail of the push subscriptions' service account", _EMAIL
        ),
        audience=variables.require("PUSH_AUDIENCE", "the audience of the push subscriptions"),
        certificates_url=read_url(variables, "PUSH_CERTIFICATES_URL") or GOOGLES_CERTIFICATES,
        verification=verification,
    )
