"""A simulated Compute Engine: its HTTP API, strict, on a given clock.

See local/docs/simulated-compute-engine.md.
"""

from local.base.controls import UnknownFault
from local.gce.callers import ConditionalRole, Principal
from local.gce.calls import CallLog, CallRecord
from local.gce.faults import Faults
from local.gce.inventory import Inventory, InventoryUnreadable, read_inventory
from local.gce.refusals import Refused
from local.gce.simulator import Simulator
from local.gce.timings import Timings

__all__ = [
    "CallLog",
    "CallRecord",
    "ConditionalRole",
    "Faults",
    "Inventory",
    "InventoryUnreadable",
    "Principal",
    "Refused",
    "Simulator",
    "Timings",
    "UnknownFault",
    "read_inventory",
]
