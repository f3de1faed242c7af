"""The table of routes: each step, and what triggers it.

Decoding reads it. The topics, the log sinks' filters, the relay and the documentation are tested against
it. The names of the steps are written here and nowhere else in the product's Python code.
"""

from shared.base.names import JOBSET_KIND, KIND, SIGNING_REQUEST_KIND
from shared.triggers.message import POD_KIND, REQUEST_KIND, SLICE_KIND, SWEEP_KIND, Cause
from shared.triggers.route import Ends, Log, Result, Route

CREATE_RESOURCES = "create_resources"
INJECT_TOKEN = "inject_token"
LABEL_NODE = "label_node"
TEAR_DOWN = "tear_down"
APPROVE_JOIN = "approve_join"
SWEEP = "sweep"
REPORT_LEAKS = "report_leaks"
PROVISION_SLICE = "provision_slice"
RELEASE_SLICE = "release_slice"

_AT_A_TIME = {SWEEP_KIND: (Cause.SWEEP,)}

_TABLE = (
    Route(
        CREATE_RESOURCES,
        {
            KIND: (
                Cause.ADDED,
                Cause.SPEC_CHANGED,
                Cause.METADATA_CHANGED,
                Cause.FORWARDED,
                Cause.RESYNC,
            )
        },
        (
            Ends("compute.resourcePolicies", ("insert",)),
            Ends("compute.instanceTemplates", ("insert",)),
            Ends("compute.regionInstanceTemplates", ("insert",)),
            Ends(
                "compute.instanceGroupManagers",
                (
                    "insert",
                    "patch",
                    "update",
                    "resize",
                    "setInstanceTemplate",
                    "deleteInstances",
                    "recreateInstances",
                ),
            ),
            Ends("compute.instances", ("insert",), Result.FAILED),
        ),
    ),
    Route(
        INJECT_TOKEN,
        {KIND: (Cause.VMS_NEED_TOKENS, Cause.RESYNC)},
        (
            Ends("compute.instances", ("insert", "start", "reset"), Result.SUCCEEDED),
            Ends("compute.instances", ("automaticRestart",), Result.SUCCEEDED, Log.SYSTEM_EVENT),
        ),
    ),
    Route(
        LABEL_NODE,
        {
            KIND: (
                Cause.NODES_CHANGED,
                Cause.JOIN_NOT_APPROVED,
                Cause.JOIN_DENIED,
                Cause.CONTINUED,
                Cause.RESYNC,
            )
        },
        (
            Ends("compute.instances", ("stop", "delete")),
            Ends("compute.instances", ("start", "reset"), Result.FAILED),
            Ends(
                "compute.instances",
                (
                    "preempted",
                    "hostError",
                    "terminateOnHostMaintenance",
                    "guestTerminate",
                    "instanceManagerHaltForRestart",
                    "repair.recreateInstance",
                    "upcomingMaintenance",
                    "upcomingInfraMaintenance",
                ),
                log=Log.SYSTEM_EVENT,
            ),
        ),
    ),
    Route(
        TEAR_DOWN,
        {KIND: (Cause.DELETING, Cause.FORWARDED, Cause.CONTINUED, Cause.RESYNC)},
        (
            Ends("compute.resourcePolicies", ("delete",)),
            Ends("compute.instanceTemplates", ("delete",)),
            Ends("compute.regionInstanceTemplates", ("delete",)),
            Ends("compute.instanceGroupManagers", ("delete",)),
        ),
    ),
    Route(APPROVE_JOIN, {SIGNING_REQUEST_KIND: (Cause.JOIN_REQUESTED, Cause.CONTINUED)}),
    Route(SWEEP, _AT_A_TIME),
    Route(REPORT_LEAKS, _AT_A_TIME),
    Route(
        PROVISION_SLICE,
        {
            POD_KIND: (Cause.UNSCHEDULABLE, Cause.RESYNC),
            REQUEST_KIND: (Cause.ADDED, Cause.RESYNC),
            **_AT_A_TIME,
        },
        (Ends("container.nodePools", ("create", "delete")),),
        is_of_slices=True,
    ),
    Route(
        RELEASE_SLICE,
        {
            JOBSET_KIND: (Cause.COMPLETED, Cause.FAILED, Cause.DELETING, Cause.GONE),
            SLICE_KIND: (Cause.RESYNC,),
            **_AT_A_TIME,
        },
        (
            Ends("container.nodePools", ("create", "delete")),
            Ends("container.nodePools", ("update",), Result.FAILED),
        ),
        is_of_slices=True,
    ),
)

ROUTES = {route.step: route for route in _TABLE}

STEPS = tuple(step for step, route in ROUTES.items() if not route.is_of_slices)
"""The steps of every installation."""
SLICE_STEPS = tuple(step for step, route in ROUTES.items() if route.is_of_slices)
"""The steps that give workloads their slices, where that is switched on."""
GROUP_STEPS = tuple(step for step, route in ROUTES.items() if KIND in route.causes)
"""The steps with messages about TPUNodeGroups."""
