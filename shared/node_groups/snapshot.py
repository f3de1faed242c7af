"""Which fields of TPUNodeGroups, VMs and Nodes are written to the snapshots in log lines.

Left out are secrets (tokens, metadata of VMs and templates, the CA), what others have written into
documents, and ids that no decision compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shared.base.documents import read_mapping
from shared.base.names import PAUSED_ANNOTATION, RESOURCE_NAME_LABEL, TOKEN_EXPIRY_KEY, TOKEN_KEY
from shared.frame.snapshot import Rule, Rules, whole
from shared.node_groups.bootstrap import Token, parse_token
from shared.node_groups.node_group import GroupObject, InstanceConfig, Spec
from shared.node_groups.status import Status
from shared.ports.gce.values import Instance, Mig, Template
from shared.ports.kubernetes.nodes import Node

_NO_SECRET = "0" * 16


def leave_out(_value: Any) -> str:
    """The rule of a text that is left out."""
    return ""


def leave_out_all(_value: Any) -> dict[str, Any]:
    """The rule of a document that is left out."""
    return {}


def _pick(*keys: str) -> Rule:
    def pick(given: Mapping[str, str]) -> dict[str, str]:
        return {key: given[key] for key in keys if key in given}

    return pick


def _hide_token(metadata: Mapping[str, str]) -> dict[str, str]:
    """The token's id and expiry, without its secret.

    A text that is not a token may contain most of a secret: it becomes empty, which is not a token
    either.
    """
    if TOKEN_KEY not in metadata:
        return {}
    try:
        token = parse_token(metadata[TOKEN_KEY], metadata.get(TOKEN_EXPIRY_KEY, ""))
    except ValueError:
        return {TOKEN_KEY: ""}
    shown = replace(token, secret=_NO_SECRET)
    return {TOKEN_KEY: shown.text, TOKEN_EXPIRY_KEY: shown.expiry_text}


def _pick_of_node(raw: Mapping[str, Any]) -> dict[str, Any]:
    created = read_mapping(raw, "metadata").get("creationTimestamp")
    return {"metadata": {"creationTimestamp": created, "resourceVersion": ""}}


RULES: Rules = {
    (GroupObject, "labels"): _pick(RESOURCE_NAME_LABEL),
    (GroupObject, "annotations"): _pick(PAUSED_ANNOTATION),
    (GroupObject, "raw"): leave_out_all,
    (Spec, "node_labels"): whole,
    (InstanceConfig, "metadata"): leave_out_all,
    (Status, "conditions"): whole,
    (Status, "resources"): whole,
    (Instance, "metadata"): _hide_token,
    (Instance, "fingerprint"): leave_out,
    (Template, "metadata"): leave_out_all,
    (Mig, "topologies"): whole,
    (Node, "labels"): whole,
    (Node, "taints"): whole,
    (Node, "uid"): leave_out,
    (Node, "raw"): _pick_of_node,
    (Token, "secret"): lambda _: _NO_SECRET,
}
