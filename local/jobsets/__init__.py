"""A stand-in for JobSet's controller and, on the embedded API, for those of Jobs and Pods.

The embedded Kubernetes API only stores objects. This package simulates, as far as slices need them, the
components that run a JobSet: JobSet's own controller (Jobs, their labels, exclusive placement, ends,
restarts), the controllers of LeaderWorkerSets, Jobs, Deployments and StatefulSets, the scheduler
(selectors, taints, affinity, ``google.com/tpu``), and kubelets (Pods run, and the Pods of a Job end
together). A cluster with its own control plane has the Job controller and the scheduler; there, only
JobSet's own controller and the kubelets are simulated.

Not simulated: success and failure policies, elastic Jobs, Services and DNS, time limits, resources other
than chips, priorities. There is no admission: if no webhook adds the node selector ``job-key``, the
stand-in for JobSet's controller can write it into the Job's template.
"""

from local.jobsets.controllers import BESIDE_A_CONTROL_PLANE as BESIDE_A_CONTROL_PLANE
from local.jobsets.controllers import OF_JOBSET as OF_JOBSET
from local.jobsets.controllers import REAL_CONTROLLERS as REAL_CONTROLLERS
from local.jobsets.controllers import SIMULATED_CONTROLLERS as SIMULATED_CONTROLLERS
from local.jobsets.controllers import WORKLOADS as WORKLOADS
from local.jobsets.controllers import Controller as Controller
from local.jobsets.controllers import PodBehaviour as PodBehaviour
from local.jobsets.live import LiveStandIn as LiveStandIn
from local.jobsets.stand_in import StandIn as StandIn
