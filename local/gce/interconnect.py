"""The interconnect between the chips of a slice."""

from __future__ import annotations

from datetime import datetime

from local.base.clock import Timer
from local.gce import links
from local.gce.environment import Environment
from local.gce.schema import Document


class Interconnect:
    """The state in ``appliedAcceleratorTopologies``; none before all VMs have run once."""

    def __init__(self, environment: Environment, group_path: str, topology: str) -> None:
        self._environment = environment
        self._group_path = group_path
        self._topology = topology
        self._state = ""
        self._since: datetime | None = None
        self._timer: Timer | None = None

    def follow(self, *, all_run: bool) -> None:
        """Handle a change of the VMs: activate when all run, deactivate when one does not."""
        if not self._topology or self._state == "DEACTIVATING":
            return
        if all_run and self._state in ("", "INCOMPLETE"):
            self._enter("REACTIVATING" if self._state else "ACTIVATING")
            activation_s = self._environment.timings.ici_activation_s
            self._timer = self._environment.later(activation_s, self._activated)
        elif not all_run and self._state not in ("", "INCOMPLETE"):
            self._enter("INCOMPLETE")

    def dissolve(self) -> None:
        """Handle the deletion of the group."""
        if self._state:
            self._enter("DEACTIVATING")

    def clear(self) -> None:
        """Clear the state."""
        self._enter("")

    def _activated(self) -> None:
        outcome = self._environment.fault_plan.interconnect_outcome(self._group_path)
        if outcome:
            self._enter(outcome)

    def _enter(self, state: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._state = state
        self._since = self._environment.clock.now()

    def document(self) -> list[Document]:
        """The content of ``appliedAcceleratorTopologies``; empty without a state."""
        if not self._state or self._since is None:
            return []
        details: Document = {"timestamp": links.pacific(self._since)}
        if self._state == "FAILED":
            message = "The accelerator topology could not be activated."  # the message is assumed
            details["error"] = {"errors": [{"code": "INTERNAL_ERROR", "message": message}]}
        return [
            {
                "acceleratorTopology": self._topology,
                "state": self._state,
                "stateDetails": details,
            }
        ]
