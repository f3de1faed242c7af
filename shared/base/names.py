"""Names that more than one package uses: API names, labels, metadata keys, topics.

``tpu.google.com`` is Google's API group. It is kept so that manifests for tpu-operator continue to work
(`docs/decisions`). This project's own names are under ``tpu-functions.dev``.
"""

import re

GROUP = "tpu.google.com"
VERSION = "v1alpha1"
PLURAL = "tpunodegroups"
KIND = "TPUNodeGroup"
NODE_KIND = "Node"

FINALIZER = "tpu-functions.dev/cleanup"
PAUSED_ANNOTATION = "tpu-functions.dev/paused"
INSTALLATION_ANNOTATION = "tpu-functions.dev/installation-id"
"""On Namespace kube-system: the id of the installation whose cluster this is. deploy.sh writes it."""
RESOURCE_NAME_LABEL = "tpu-functions.dev/resource-name"
"""On the group and on its Nodes: the name of all GCE resources of the group."""
TOKEN_VM_LABEL = "tpu-functions.dev/vm"
"""On a token's Secret: the VM that the token belongs to."""
VM_ID_LABEL = "node-restriction.kubernetes.io/tpu-functions-vm-id"
"""On a Node: the numeric id of the VM on which it was proved to run. A kubelet cannot write labels
under this prefix (NodeRestriction), so only this system writes it."""
CORRECTIONS_KEY = "tpu-functions.dev/label-corrections"
"""On a Node: how often label_node has corrected its labels, since when: ``2 2026-11-20T10:00:00Z``."""
MAINTENANCE_LABEL = "tpu-functions.dev/maintenance-at"
"""On a Node: when announced maintenance of its VM's host begins, in seconds since 1970."""
BOOT_ID_LABEL = "node-restriction.kubernetes.io/tpu-functions-boot-id"
"""On a Node whose VM joined without a token of this system: the last known boot of that VM."""

THEIR_FINALIZER_PREFIX = "tpu.google.com/cleanup"
"""The prefix of tpu-operator's finalizers. tpu-operator manages a group that has one."""

TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
ACCELERATOR_COUNT_LABEL = "cloud.google.com/gke-accelerator-count"
GROUP_LABEL = "cloud.google.com/tpu-node-group"
GROUP_NAMESPACE_LABEL = "cloud.google.com/tpu-node-group-namespace"
GROUP_NAME_LABEL = "cloud.google.com/tpu-node-group-name"
TPU_RESOURCE = "google.com/tpu"
ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
HOSTNAME_LABEL = "kubernetes.io/hostname"
POOL_LABEL = "cloud.google.com/gke-nodepool"
"""On each Node of a JobSet's slice: the slice's name. GKE sets it on the Nodes of a node pool. Most
JobSets use it as the key of their exclusive topology."""

WORKLOAD_LABEL = "slices.tpu-functions.dev/workload"
"""On the Nodes of slices that a ProvisioningRequest asks for: `slices.units.Unit.workload_key`."""

UNIT_KIND_LABEL = "tpu-functions.dev/unit-kind"
"""On a TPUNodeGroup: the kind of the unit that it was created for; absent for a JobSet's Job."""

JOBSET_GROUP = "jobset.x-k8s.io"
JOBSET_VERSION = "v1alpha2"
JOBSET_PLURAL = "jobsets"
JOBSET_KIND = "JobSet"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_KEY = "jobset.sigs.k8s.io/job-key"
RESTART_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
JOB_NAME = "batch.kubernetes.io/job-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Keys that JobSet and the Job controller write on Jobs and Pods."""
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""A label of LeaderWorkerSet on its Pods: 0 on a leader."""

POLICIES, TEMPLATES, MIGS = "resourcePolicies", "instanceTemplates", "instanceGroupManagers"
VMS, NODE_POOLS = "instances", "nodePools"
"""The kinds of resources in Google's APIs, as errors of calls and audit log events name them."""

SYSTEM_NAMESPACE = "tpu-functions"
"""The namespace of this system's own objects."""
JOBSET_LABEL = "tpu-functions.dev/jobset-name"
"""On a group that was created for a JobSet: the JobSet's name."""

TOKEN_KEY = "kubeadm-join-token"
TOKEN_EXPIRY_KEY = "kubeadm-join-token-expires"
VM_STARTED_KEY = "kubeadm-join-token-vm-started"
"""The VM's last start when it got its token, by Compute Engine's clock; empty if that was not known."""
CONTROL_PLANE_KEY = "kubeadm-control-plane-ip"
CA_HASH_KEY = "kubeadm-ca-hash"
KUBE_LABELS_KEY = "kube-labels"
STARTUP_SCRIPT_KEY = "startup-script"

SIGNING_REQUEST_KIND = "CertificateSigningRequest"
KUBELET_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
"""The signer of kubelets' client certificates."""
BOOTSTRAP_GROUP = "system:bootstrappers:tpu-functions"
"""The group of this system's tokens. It may submit requests for certificates; only ``approve_join``
approves them."""
APPROVED_BY_US = "ApprovedByTpuFunctions"
"""The reason in the condition of a request that ``approve_join`` has approved."""


_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_PATH_SEGMENT = re.compile(r"[!-$&-.0-~]{1,253}")
_DNS_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


_OUR_VM_NAME = re.compile(r"(tng-[a-z0-9-]+-[0-9a-f]{8})-[a-z0-9]{4}")
"""The name of a VM: that of its managed instance group, and four random characters."""
MAX_VM_NAME = 63


def find_resource_name(vm: str) -> str:
    """The resource name of the group whose VM has this name; empty for any other name."""
    match = _OUR_VM_NAME.fullmatch(vm)
    return match[1] if match and len(vm) <= MAX_VM_NAME else ""


def is_dns_label(value: object) -> bool:
    """Whether the value is a DNS label (RFC 1123), such as the name of a namespace or of a VM."""
    return isinstance(value, str) and _DNS_LABEL.fullmatch(value) is not None


def is_dns_subdomain(value: object) -> bool:
    """Whether the value is a DNS subdomain (RFC 1123), such as the name of a Node."""
    return isinstance(value, str) and _DNS_SUBDOMAIN.fullmatch(value) is not None


def is_path_segment(value: object) -> bool:
    """Whether the value may be the name of a CertificateSigningRequest. The API server has no rule
    for it, and kubelets use capitals and underscores; names that cannot be printed are excluded."""
    is_segment = isinstance(value, str) and _PATH_SEGMENT.fullmatch(value) is not None
    return is_segment and value not in (".", "..")


def topic_id(prefix: str, step: str) -> str:
    """The id of a step's topic: ``create_resources`` is ``<prefix>create-resources``."""
    return prefix + step.replace("_", "-")
