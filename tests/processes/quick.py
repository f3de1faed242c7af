"""Short delays of the simulated Compute Engine and VMs, for tests in real time."""

from __future__ import annotations

from local import gce
from local.vm import agents

SHORT = (0.1, 0.3)
QUICK_GCE = gce.Timings(
    operation_s=dict.fromkeys(gce.timings.OPERATION_S, SHORT),
    list_lag_s=(0.0, 0.1),
    template_visibility_lag_s=(0.0, 0.0),
    in_use_lag_s=(0.0, 0.0),
    metadata_propagation_s=SHORT,
    log_delay_s=SHORT,
    flex_start_grant_s=SHORT,
    bulk_check_s=SHORT,
    ici_activation_s=SHORT,
)
QUICK_AGENTS = agents.Timings(
    boot_s=SHORT, prepare_s=SHORT, join_s=SHORT, ready_s=SHORT, plugin_s=SHORT
)
