"""What is watched, and which steps its changes trigger."""

from __future__ import annotations

from typing import Literal

WatchedKind = Literal["TPUNodeGroup", "Node", "CertificateSigningRequest", "Pod", "JobSet"]
Change = Literal["ADDED", "MODIFIED", "DELETED"]

KINDS: tuple[WatchedKind, ...] = (
    "TPUNodeGroup",
    "Node",
    "CertificateSigningRequest",
    "Pod",
    "JobSet",
)

CREATE_RESOURCES, TEAR_DOWN, LABEL_NODE = "create_resources", "tear_down", "label_node"
APPROVE_JOIN = "approve_join"
PROVISION_SLICE, RELEASE_SLICE = "provision_slice", "release_slice"
TRIGGERED_STEPS = (
    CREATE_RESOURCES,
    TEAR_DOWN,
    APPROVE_JOIN,
    LABEL_NODE,
    PROVISION_SLICE,
    RELEASE_SLICE,
)
"""The steps to whose topics the relay publishes."""
