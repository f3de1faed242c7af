"""The tables of the reference pages `relay.md` and `metrics.md`."""

from __future__ import annotations

from collections.abc import Mapping

from relay.kinds import KINDS, TRIGGERED_STEPS, End
from relay.metrics import (
    DESCRIPTIONS,
    LABELS,
    NOT_REPORTED,
    OTHER,
    READY,
    CreationPhase,
    GroupState,
)
from relay.settings import VARIABLES
from shared.base.reasons import Reason, find_entry
from shared.slices.kinds import KINDS as UNIT_KINDS
from tools.pages.markdown import render_table

END_MEANINGS = {
    End.CLOSED: "the server closed it normally, as it closes every watch after a few minutes",
    End.EXPIRED: "the resource version is too old (410): a new list follows",
    End.SILENT: "nothing was received for longer than the server's own timeout",
    End.UNREACHABLE: "no connection could be made",
    End.BROKEN: "the connection was lost, or an answer could not be parsed",
    End.REFUSED: "the API server answered with an error",
}
_MEANINGS: Mapping[str, Mapping[str, str]] = {
    "kind": dict.fromkeys(KINDS, "the kind of object that is watched"),
    "step": dict.fromkeys(TRIGGERED_STEPS, "the step whose topic receives the messages"),
    "event": {
        "ADDED": "an object was added",
        "MODIFIED": "an object was changed",
        "DELETED": "an object was deleted",
        "BOOKMARK": "nothing has changed up to this version",
        "OTHER": "an unknown type",
    },
    "end": {str(end): meaning for end, meaning in END_MEANINGS.items()},
    "state": {
        GroupState.READY: "the condition `Ready` is True",
        GroupState.NOT_READY: "the condition `Ready` is not True, or not written yet",
        GroupState.DELETING: "the TPUNodeGroup has a deletionTimestamp",
    },
    "reason": {
        READY: "the slice is Ready",
        **{
            reason: f"[what it means](../{find_entry(reason).removeprefix('docs/')})"
            for reason in Reason
        },
        NOT_REPORTED: "no step has written the condition `Ready` yet",
        OTHER: "an unknown reason",
    },
    "phase": {
        CreationPhase.RESOURCES: "from the creation of the TPUNodeGroup until its MIG exists",
        CreationPhase.VMS: "from there until all VMs are created, including the wait for capacity",
        CreationPhase.TOKENS: "from there until every VM has a join token",
        CreationPhase.NODES: "from there until every Node has joined",
        CreationPhase.READY: "from there until the slice is Ready",
    },
    "unit_kind": {one.name: f"a {one.name}" for one in UNIT_KINDS},
    "provisioning_model": {
        "STANDARD": "on demand",
        "SPOT": "Spot VMs",
        "RESERVATION_BOUND": "from a reservation",
        "FLEX_START": "queued for capacity, possibly for days",
        OTHER: "an unknown model, or none",
    },
}
"""The values of each label, and what each means."""


def render_settings() -> dict[str, str]:
    """The environment variables."""
    rows = (
        (f"`{variable.name}`", _default(variable.default), variable.meaning)
        for variable in VARIABLES.values()
    )
    return {"settings": render_table(("Variable", "Default", "Meaning"), rows)}


def render_metrics() -> dict[str, str]:
    """The metrics, and the values of their labels."""
    metrics = (
        (f"`{one.name}`", one.type, ", ".join(f"`{label}`" for label in one.labels), one.meaning)
        for one in DESCRIPTIONS
    )
    labels = (
        (f"`{label}`", f"`{value}`", _MEANINGS[label][value])
        for label, values in LABELS.items()
        for value in values
    )
    return {
        "metrics": render_table(("Metric", "Type", "Labels", "Meaning"), metrics),
        "labels": render_table(("Label", "Value", "Meaning"), labels),
    }


def _default(default: str | None) -> str:
    if default is None:
        return "required"
    return f"`{default}`" if default else ""
