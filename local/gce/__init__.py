"""A simulated Compute Engine: HTTP as google-cloud-compute speaks it, strict, on a given clock.

See docs/reference/simulated-compute-engine.md.
"""

from local.base.controls import UnknownFault
from local.gce.callers import ConditionalRole, Principal
from local.gce.calls import CallLog, CallRecord
from local.gce.dials import Dials
from local.gce.faults import Faults
from local.gce.inventory import Inventory, InventoryUnreadable, read_inventory
from local.gce.refusals import Refused
from local.gce.simulator import Simulator

__all__ = [
    "CallLog",
    "CallRecord",
    "ConditionalRole",
    "Dials",
    "Faults",
    "Inventory",
    "InventoryUnreadable",
    "Principal",
    "Refused",
    "Simulator",
    "UnknownFault",
    "read_inventory",
]
