"""The durations of the simulated Compute Engine, in seconds.

A value is drawn from a `Range` each time. The defaults are of the order in public logs of real
slices; where none were found, they are assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Range = tuple[float, float]

OPERATION_S: Mapping[str, Range] = MappingProxyType(
    {
        "resourcePolicies.insert": (1.0, 3.0),
        "resourcePolicies.delete": (1.0, 3.0),
        "instanceTemplates.insert": (1.0, 3.0),
        "instanceTemplates.delete": (1.0, 3.0),
        "regionInstanceTemplates.insert": (1.0, 3.0),
        "regionInstanceTemplates.delete": (1.0, 3.0),
        "instanceGroupManagers.insert": (2.0, 5.0),
        "instanceGroupManagers.resize": (0.5, 2.0),
        "instanceGroupManagers.delete": (3.0, 10.0),
        "instances.insert": (10.0, 40.0),
        "instances.delete": (20.0, 60.0),
        "instances.setMetadata": (1.0, 4.0),
        "instances.reset": (1.0, 3.0),
        "instances.start": (10.0, 30.0),
        "instances.stop": (15.0, 30.0),
    }
)
"""How long an operation runs. The delete of a group counts from the deletion of its last VM."""


@dataclass(frozen=True)
class Timings:
    """Durations, and the few points on which public sources disagree.

    ``operation_s`` overrides `OPERATION_S`.
    """

    operation_s: Mapping[str, Range] = field(default_factory=dict)
    operation_retention_s: float = 14 * 24 * 3600.0
    """How long a finished operation can be asked for."""
    request_id_retention_s: float = 3600.0
    """How long a ``requestId`` is remembered. Documented without a figure; an hour is assumed."""

    running_after_insert_s: Range = (0.0, 0.5)
    """From the end of an insert or start to status RUNNING."""
    failed_insert_s: Range = (2.0, 8.0)
    """How long the failing insert of a VM runs."""
    list_lag_s: Range = (0.0, 2.0)
    """How long lists lag behind inserts and deletes; a get never does."""
    template_visibility_lag_s: Range = (0.0, 0.5)
    """How long a template that exists is still unknown to the group service."""
    in_use_lag_s: Range = (0.0, 1.0)
    """How long a template or policy is still "in use" by a deleted group."""
    metadata_propagation_s: Range = (1.0, 3.0)
    """From the end of setMetadata until the VM's metadata server shows it."""
    log_delay_s: Range = (0.3, 2.0)
    """From a log entry's timestamp to its delivery."""

    bulk_check_s: Range = (30.0, 60.0)
    """Between two tries of a group in BULK mode."""
    flex_start_grant_s: Range = (120.0, 420.0)
    """From the insert of FLEX_START VMs to the grant, capacity given."""
    ici_activation_s: Range = (5.0, 20.0)
    """From the last VM RUNNING to an ACTIVE accelerator topology."""
    create_retry_s: Range = (30.0, 60.0)
    """Before an INDIVIDUAL group retries a failed VM; doubles with each failure."""
    create_retry_limit_s: float = 960.0
    """The longest such pause; about 16 minutes were observed."""
    repair_after_s: Range = (2.0, 10.0)
    """From the loss of a VM to the beginning of its repair."""
    repair_delete_after_s: Range = (10.0, 50.0)
    """From the begin of a repair to the delete of the VM."""
    preemption_s: Range = (25.0, 30.0)
    """From the preemption notice to the end of the VM."""
    automatic_restart_after_s: Range = (30.0, 90.0)
    """From a host error to the automatic restart."""

    in_use_refused_by: Literal["call", "operation"] = "call"
    """Whether the delete of a used template or policy is rejected by the call or by its operation."""
    bulk_takes_all_instances_config: bool = True
    """Whether a group in BULK mode may have ``allInstancesConfig``; not known for the real one."""
    bulk_vms_are_logged: bool = True
    """Whether the inserts of a BULK group's VMs appear in the audit log; not known either."""
    repair_keeps_id: bool = False
    """Whether a VM that was repaired has the numeric id of its predecessor; sources disagree."""

    def operation(self, verb: str) -> Range:
        """How long an operation of this verb runs."""
        return self.operation_s.get(verb) or OPERATION_S[verb]
