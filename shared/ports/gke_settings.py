"""The settings of node pools, from the environment: the cluster, and what all pools have in common.

The variables have TPU Provisioner's names and meanings.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from shared.base.environment import Variables, read_number, read_url, split_items

OWN_DOMAIN = "tpu-functions.dev"
OWNERSHIP_DOMAINS = ("google.com", OWN_DOMAIN)
"""Domains of the labels that show who owns a pool and when it may be deleted."""

NETWORKS_MEANING = "network:subnetwork pairs, separated by commas"

_PLACE = re.compile(r"[a-z]+-[a-z]+[0-9]+(-[a-z][a-z0-9]*)?")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z][a-z0-9]*")
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_CLUSTER = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_TRUE_OR_FALSE = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
_PODS = range(8, 257)
"""The limit of Pods on a Node of GKE (documented)."""


@dataclass(frozen=True)
class Network:
    """An additional network of each Node."""

    network: str
    subnetwork: str


@dataclass(frozen=True)
class GkeSettings:
    """The cluster of the node pools, and what all of them have in common."""

    project: str
    location: str
    """The cluster's zone or region."""
    cluster: str
    endpoint: str = ""
    """Another address of GKE's API; empty: Google's."""
    zone: str = ""
    """The zone of pools for Pods that select none; empty: they must select one."""
    service_account: str = ""
    tags: tuple[str, ...] = ()
    pod_to_node_labels: tuple[str, ...] = ()
    secondary_disk: str = ""
    networks: tuple[Network, ...] = ()
    disk_type: str = ""
    boot_disk_kms_key: str = ""
    secure_boot: bool = True
    confidential_storage: bool = False
    force_on_demand: bool = False
    max_pods: int = 15

    @property
    def cluster_path(self) -> str:
        """The cluster's name in GKE's API."""
        return f"projects/{self.project}/locations/{self.location}/clusters/{self.cluster}"


def read_gke_settings(variables: Variables) -> GkeSettings:
    """Read TPU Provisioner's variables; an empty one counts as not set."""
    return GkeSettings(
        project=variables.require("GCP_PROJECT_ID", "the id of the cluster's project", _PROJECT),
        location=variables.require("GCP_CLUSTER_LOCATION", "the cluster's zone or region", _PLACE),
        cluster=variables.require("GCP_CLUSTER", "the cluster's name", _CLUSTER),
        endpoint=read_url(variables, "CONTAINER_ENDPOINT"),
        zone=_zone(variables),
        service_account=variables.get("GCP_NODE_SERVICE_ACCOUNT"),
        tags=split_items(variables.get("GCP_NODE_TAGS")),
        pod_to_node_labels=_labels_to_copy(variables),
        secondary_disk=variables.get("GCP_NODE_SECONDARY_DISK"),
        networks=_networks_of_all(variables),
        disk_type=variables.get("GCP_NODE_DISK_TYPE"),
        boot_disk_kms_key=variables.get("GCP_NODE_BOOT_DISK_KMS_KEY"),
        secure_boot=_is_on(variables, "GCP_NODE_SECURE_BOOT", default=True),
        confidential_storage=_is_on(variables, "GCP_NODE_CONFIDENTIAL_STORAGE"),
        force_on_demand=_is_on(variables, "GCP_FORCE_ON_DEMAND"),
        max_pods=read_number(
            variables,
            "GKE_MAX_PODS_PER_NODE",
            GkeSettings.max_pods,
            _PODS,
            f"a whole number from {_PODS[0]} to {_PODS[-1]}",
        ),
    )


def _zone(variables: Variables) -> str:
    zone, location = variables.get("GCP_ZONE"), variables.get("GCP_CLUSTER_LOCATION")
    region = "-".join(location.split("-")[:2]) if _PLACE.fullmatch(location) else ""
    if zone and not _ZONE.fullmatch(zone):
        variables.reject("GCP_ZONE", "a zone, such as us-east5-a")
    elif zone and region and not zone.startswith(f"{region}-"):
        variables.reject("GCP_ZONE", f"a zone of the cluster's region, {region}")
    return zone


def _labels_to_copy(variables: Variables) -> tuple[str, ...]:
    keys = split_items(variables.get("GCP_POD_TO_NODE_LABELS"))
    if any(is_below(key, OWNERSHIP_DOMAINS) for key in keys):
        meaning = f"labels of Pods that are not under google.com or {OWN_DOMAIN}"
        variables.reject("GCP_POD_TO_NODE_LABELS", meaning)
    return keys


def _networks_of_all(variables: Variables) -> tuple[Network, ...]:
    try:
        return parse_networks(variables.get("GCP_NODE_ADDITIONAL_NETWORKS"))
    except ValueError:
        variables.reject("GCP_NODE_ADDITIONAL_NETWORKS", NETWORKS_MEANING)
        return ()


def _is_on(variables: Variables, name: str, *, default: bool = False) -> bool:
    text = variables.get(name)
    if text and text.lower() not in _TRUE_OR_FALSE:
        variables.reject(name, "true or false")
    return _TRUE_OR_FALSE.get(text.lower(), default)


def is_below(key: str, domains: Iterable[str]) -> bool:
    """Whether a label's prefix is one of these domains or below one."""
    prefix = key.rpartition("/")[0]
    return any(prefix == domain or prefix.endswith(f".{domain}") for domain in domains)


def parse_networks(text: str) -> tuple[Network, ...]:
    """The networks of a text in the form of `NETWORKS_MEANING`. Raises `ValueError`."""
    pairs = [[part.strip() for part in pair.split(":")] for pair in split_items(text)]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ValueError(text)
    return tuple(Network(*pair) for pair in pairs)
