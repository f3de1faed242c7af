"""tie_pod: an admission webhook that ties the Pods of a unit to the unit's slice.

It concerns new Pods that request TPUs and select a topology of several hosts, of the kinds of workloads
that are switched on by namespace (`shared.slices.kinds`); ``admit_job`` ties the Pods of JobSets. A Pod
gets a node selector ``job-key`` with its unit's key, which the Nodes of its slice have as a label, so no
Pod of another unit takes a host of the slice. The unit follows from the Pod alone. A Pod whose number
another webhook sets (LeaderWorkerSet's) is left alone until that webhook has been called: an API server
then calls this one again. A user's selector is kept, with a warning if it is not the unit's key.
"""

from dataclasses import replace

from shared.base.slice_names import JOB_KEY_SELECTOR
from shared.slices.kinds import find_kind
from shared.slices.kinds.kind import find_fence_violation
from shared.slices.units import has_opted_out, read_demand
from webhook.tpu_env.admission import AdmissionRequest, AdmissionResponse, set_keys


def tie(request: AdmissionRequest) -> AdmissionResponse:
    """The patch that adds the node selector to a Pod."""
    pod = request.target
    if request.operation != "CREATE" or request.sub_resource or pod.get("kind") != "Pod":
        return AdmissionResponse()
    # The namespace of the request: a Pod cannot name the unit of another one.
    demand = replace(read_demand(pod), namespace=request.namespace)
    claim = find_kind(demand)
    if claim is None or claim.kind.is_always_on or claim.refusal:
        return AdmissionResponse()
    unit = claim.kind.find_unit(demand)
    if not unit or demand.hosts == 1 or has_opted_out(demand.labels, demand.annotations):
        return AdmissionResponse()
    if JOB_KEY_SELECTOR in demand.selector:
        violation = find_fence_violation(claim.kind, demand, unit)
        return AdmissionResponse(warnings=(violation,) if violation else ())
    patch = set_keys(pod["spec"], "/spec", "nodeSelector", {JOB_KEY_SELECTOR: unit.key})
    return AdmissionResponse(patch=tuple(patch))
