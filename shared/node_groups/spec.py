"""The fields of a TPUNodeGroup's spec (`SPEC`), and its name (`NAME`): what each may hold.

`spec_rules` has the rules across fields and checks a spec; `node_group` builds the typed value of it.
No other place states the fields: ``make pages`` renders infra/chart/manifests/base/crd.yaml and
docs/reference/tpunodegroup.md from these declarations. The functions check them again, because the
CustomResourceDefinition of a cluster may be older than the functions, or an object older than a rule.

They are compatible with tpu-operator's: the same names and meanings, and its messages for its rules.
Specs that tpu-operator accepts and that Compute Engine or kubeadm reject later are rejected here, with
a message that has the valid values.
"""

import re

from shared.base import topology
from shared.base.fields import (
    Entries,
    Items,
    Must,
    Number,
    OneOf,
    Record,
    Text,
    any_of,
    match,
    match_cel,
    match_keys,
    matches,
)
from shared.base.names import CA_HASH_KEY, CONTROL_PLANE_KEY, TOKEN_EXPIRY_KEY, TOKEN_KEY
from shared.base.timestamps import SECONDS, parse_duration_s

MAX_NODES = 2304
"""The number of VMs with four chips in the largest slice."""
MIN_RUN_S, MAX_RUN_S = 30, 7 * 24 * 3600
"""The limits of a flex-start VM's run duration (documented: at most seven days)."""
MAX_METADATA_VALUE = 256 * 1024
"""The limit of one value in bytes (documented)."""
MAX_METADATA = 448 * 1024
"""The limit of keys and values together in bytes. Compute Engine's is 512 KiB (documented); the metadata
for joining needs the rest."""
DEFAULT_VERSION = "1.31"
"""The default minor version of Kubernetes, as in tpu-operator."""
DEFAULT_SUBNETWORK = "default"

_GCE_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_RESERVED = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_PROJECT = r"[a-z][a-z0-9-]{4,28}[a-z0-9]"
REGION = r"[a-z]+-[a-z]+[0-9]+"
ZONE = rf"{REGION}-[a-z][a-z0-9]*"
_QUALIFIED_NAME = (
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_IPV6 = r"[0-9A-Fa-f]{0,4}(:[0-9A-Fa-f]{0,4}){2,7}"
_HOST = r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?"
_WITH_PORT = r"([^:]+|\[.+\]):[0-9]{1,5}"

# The machine type and the duration.

_FAMILIES = "(tpu7x-|tpu7-|ct6e-)"
_MACHINE_TYPE = re.sub(r"\?P<\w+>", "", topology.MACHINE_TYPE.pattern)
_DURATION = "[0-9]{1,6}[smhd]"


def _is_run_duration(text: str) -> bool:
    seconds = parse_duration_s(text)
    return seconds is not None and MIN_RUN_S <= seconds <= MAX_RUN_S


# The keys of metadata and labels.

_RESERVED_METADATA = [
    TOKEN_KEY,
    TOKEN_EXPIRY_KEY,
    CONTROL_PLANE_KEY,
    CA_HASH_KEY,
    "created-by",
    "instance-template",
]
# Labels that a kubelet may set itself: it registers with them, and the API server (NodeRestriction)
# refuses a kubelet that names others of kubernetes.io and k8s.io (documented).
_OF_KUBERNETES = "^([^/]*[.])?(kubernetes|k8s)[.]io/"
_KUBELETS_OWN = (
    "^([^/]*[.])?(node|kubelet)[.]kubernetes[.]io/|^topology[.]kubernetes[.]io/(region|zone)$"
)
_OURS = (
    "^(tpu-functions[.]dev/|cloud[.]google[.]com/(gke-tpu-|gke-accelerator-count$|tpu-node-group))"
)
_LABEL_KEYS = (
    match_keys(
        _QUALIFIED_NAME, "nodeLabels keys must be label keys, as in team or example.com/team"
    ),
    Must(
        "nodeLabels of kubernetes.io and k8s.io must be topology.kubernetes.io/region, "
        "topology.kubernetes.io/zone, or under node.kubernetes.io/ or kubelet.kubernetes.io/",
        lambda key: not re.search(_OF_KUBERNETES, key) or re.search(_KUBELETS_OWN, key),
        cel=f"self.all(k, !k.matches('{_OF_KUBERNETES}') || k.matches('{_KUBELETS_OWN}'))",
    ),
    Must(
        "nodeLabels must not be tpu-functions.dev/*, cloud.google.com/gke-tpu-*, "
        "cloud.google.com/gke-accelerator-count or cloud.google.com/tpu-node-group*, "
        "which identify the slice of a Node and are set automatically",
        lambda key: not re.search(_OURS, key),
        cel=f"self.all(k, !k.matches('{_OURS}'))",
    ),
)


def is_settable_label(key: str) -> bool:
    """Whether ``nodeLabels`` may hold a label of this key."""
    return all(must.holds(key) for must in _LABEL_KEYS)


def _is_port_possible(endpoint: str) -> bool:
    has_port = re.fullmatch(_WITH_PORT, endpoint) is not None
    return not has_port or 1 <= int(endpoint.rpartition(":")[2]) <= 65535


_INSTANCE_CONFIG = Record(
    "Configuration of the VMs. An instance template is created from it and deleted with the group. "
    "Either this or instanceTemplateURI.",
    {
        "machineType": Text(
            "Machine type of the VMs, as in tpu7x-standard-4t or ct6e-standard-8t. The number before "
            "the t is the chips of a VM.",
            Must(
                "Only v6 and v7 TPU machine types are supported",
                re.compile(_FAMILIES).match,
                cel=f"self.matches('^{_FAMILIES}')",
            ),
            Must(
                "machineType must end in the chips of a VM (-1t, -2t, -4t or -8t), as in "
                "tpu7x-standard-4t",
                topology.MACHINE_TYPE.fullmatch,
                cel=f"!self.matches('^{_FAMILIES}') || self.{matches(_MACHINE_TYPE)}",
            ),
            most=63,
        ),
        "provisioningModel": OneOf(
            "Provisioning model of the VMs. STANDARD: on demand. SPOT: cheaper, and may be preempted at "
            "any time. RESERVATION_BOUND: from a reservation, until it ends. FLEX_START: queued for "
            "capacity, for maxRunDuration at most. By default, RESERVATION_BOUND with a reservation, "
            "else STANDARD.",
            ("STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START"),
        ),
        "reservation": Text(
            "Reservation to consume: its name, or projects/PROJECT/reservations/NAME for one that "
            "another project shares. Either may end in /reservationBlocks/BLOCK, and that in "
            "/reservationSubBlocks/SUB_BLOCK.",
            match_cel(
                rf"(projects/{_PROJECT}/reservations/)?{_RESERVED}"
                rf"(/reservationBlocks/{_RESERVED}(/reservationSubBlocks/{_RESERVED})?)?",
                "reservation must be a name, or projects/PROJECT/reservations/NAME, and may end in "
                "/reservationBlocks/BLOCK or /reservationBlocks/BLOCK/reservationSubBlocks/SUB_BLOCK",
            ),
            least=1,
            most=320,
        ),
        "maxRunDuration": Text(
            "FLEX_START only: time after which Compute Engine deletes the VMs: a number of seconds (s), "
            "minutes (m), hours (h) or days (d), as in 90m, 168h or 7d; from 30s to 7d.",
            Must(
                "maxRunDuration must be a number of s, m, h or d, as in 90m or 168h, from 30s to 7d",
                _is_run_duration,
                cel=f"""self.{matches(_DURATION)}
                    && [int(self.substring(0, self.size() - 1))
                    * {SECONDS}[self.substring(self.size() - 1)]].exists(s,
                    s >= {MIN_RUN_S} && s <= {MAX_RUN_S})""",
            ),
            most=16,
        ),
        "image": Text(
            "Boot disk image, as in projects/PROJECT/global/images/NAME or "
            "projects/PROJECT/global/images/family/FAMILY. It must hold the TPU driver.",
            least=1,
            most=512,
        ),
        "bootDiskSizeGB": Number(
            "Size of the boot disk in GB. By default, the size of the image.", 10, 65536
        ),
        "diskType": Text(
            "Type of the boot disk, without a path. By default, hyperdisk-balanced.",
            match(_GCE_NAME, "must be a bare name, as in hyperdisk-balanced"),
            most=63,
        ),
        "subnetwork": Text(
            "Subnetwork of the VMs: a name, or projects/PROJECT/regions/REGION/subnetworks/NAME (needed "
            "where the network is in custom mode). The VMs get no external address: bootstrapping "
            "needs egress, such as Cloud NAT.",
            least=1,
            most=512,
            default=DEFAULT_SUBNETWORK,
        ),
        "serviceAccounts": Items(
            "The service account of the VMs. Compute Engine accepts one at most.",
            Record(
                "",
                {
                    "email": Text(
                        "Email of the service account, or default for the project's Compute Engine "
                        "default service account.",
                        least=1,
                        most=254,
                    ),
                    "scopes": Items(
                        "OAuth scopes, as in https://www.googleapis.com/auth/cloud-platform.",
                        Text("", least=1, most=256),
                        least=1,
                        most=64,
                    ),
                },
                required=("email", "scopes"),
            ),
            most=1,
        ),
        "networkTags": Items(
            "Network tags of the VMs, for firewall rules.",
            Text("", match(_GCE_NAME, "must be a network tag, as in my-tag"), most=63),
            most=64,
        ),
        "metadata": Entries(
            "Metadata of the VMs. Do not put secrets here: who may see a VM can read it. The slice's "
            "labels are added to the entries of kube-labels.",
            Text(
                "",
                Must(  # CEL cannot count bytes
                    f"must be at most {MAX_METADATA_VALUE} bytes",
                    lambda value: len(value.encode()) <= MAX_METADATA_VALUE,
                ),
                most=MAX_METADATA_VALUE,
            ),
            most=64,
            keys=(
                match_keys(
                    "[a-zA-Z0-9_-]{1,127}",
                    "metadata keys must be letters, digits, dashes and underscores, at most 127 of them",
                ),
                Must(
                    f"metadata must not hold {any_of(_RESERVED_METADATA)}, which are written for each "
                    "VM when it is created or joins",
                    lambda key: key not in _RESERVED_METADATA,
                    cel=f"{_RESERVED_METADATA}.all(k, !(k in self))",
                    message_of="metadata must not hold %s, which is written for each VM when it is "
                    "created or joins",
                    cel_text=f"{_RESERVED_METADATA}.filter(k, k in self)[0]",
                ),
            ),
        ),
    },
    required=("machineType", "image"),
)
_BOOTSTRAP = Record(
    "Installs Kubernetes on the VMs and joins them with kubeadm. If it is absent, the VMs must join by "
    "themselves, with --provider-id=gce://PROJECT/ZONE/NAME.",
    {
        "version": Text(
            "Kubernetes version to install, as in 1.31; the newest patch of it. Use the minor version "
            "of your cluster.",
            match(r"[0-9]+\.[0-9]+", "must be a minor version, as in 1.31"),
            most=8,
            default=DEFAULT_VERSION,
        ),
        "controlPlaneIP": Text(
            "Address of the API server for the VMs: an IP address or a DNS name, with a port if it is "
            "not 6443. An IPv6 address with a port is in brackets.",
            match_cel(
                rf"({_HOST}(:[0-9]{{1,5}})?|{_IPV6}|\[{_IPV6}\](:[0-9]{{1,5}})?)",
                "controlPlaneIP must be HOST, HOST:PORT, an IPv6 address, or [IPv6]:PORT",
            ),
            Must(
                "controlPlaneIP's port must be from 1 to 65535",
                _is_port_possible,
                cel=f"""!self.{matches(_WITH_PORT)}
                    || [int(self.substring(self.lastIndexOf(':') + 1))].exists(p,
                    p >= 1 && p <= 65535)""",
            ),
            most=261,
        ),
    },
    required=("controlPlaneIP",),
)
_TAINT = Record(
    "",
    {
        "key": Text(
            "Key of the taint, as in google.com/tpu.",
            match(_QUALIFIED_NAME, "must be a taint's key, as in google.com/tpu"),
            most=317,
        ),
        "value": Text(
            "Value of the taint, as in present.",
            match(_LABEL_VALUE, "must be a taint's value, as in present"),
            most=63,
        ),
        "effect": OneOf(
            "What happens to Pods that do not tolerate it.",
            ("NoSchedule", "PreferNoSchedule", "NoExecute"),
        ),
    },
    required=("key", "effect"),
)
RECREATE = "Recreate"
"""The value of ``spec.repair`` with which a lost slice is created again."""
SPEC = Record(
    "The desired state. Only repair can be changed later. To change another field, delete the group and "
    "apply a new one.",
    {
        "project": Text(
            "Id of the Google Cloud project in which the VMs are created. The installation must serve "
            "it.",
            match(_PROJECT, "must be a project id, as in my-project"),
            most=30,
        ),
        "nodeLocation": Text(
            "Zone of the VMs, as in us-central1-c or us-south1-ai1b. All VMs of a group are in one "
            "zone.",
            match_cel(ZONE, "nodeLocation must be a zone, as in us-central1-c"),
            most=63,
        ),
        "nodeCount": Number(
            "Number of VMs, each of which becomes a Node. BULK: the chips of the topology divided by "
            f"the chips of a VM. INDIVIDUAL: the number of slices. {MAX_NODES} VMs of four chips are "
            "the largest possible slice; a zonal managed instance group holds 1000 VMs unless Google "
            "has raised that limit for the project.",
            1,
            MAX_NODES,
        ),
        "minNodeCount": Number(
            "Accepted for manifests written for tpu-operator, and without effect, as there: a BULK "
            "slice is created as a whole or not at all.",
            0,
        ),
        "acceleratorConnectionMode": OneOf(
            "How the chips are connected. STATIC (fixed when the VMs are created) is the only mode.",
            ("STATIC",),
        ),
        "topology": Text(
            "Shape of a slice, in chips: two dimensions for v6e (4x4), three for TPU7x (2x2x2). Nodes "
            "have it in the label cloud.google.com/gke-tpu-topology.",
            Must(
                topology.UNKNOWN_SHAPE,
                topology.is_known_shape,
                cel=f"""self in {[*topology.V6E_SHAPES]}
                    || self in {[*topology.TPU7_SMALL_SHAPES]}
                    || (self.{matches("[1-9][0-9]{0,2}x[1-9][0-9]{0,2}x[1-9][0-9]{0,2}")}
                    && [self.split('x').map(n, int(n))].exists(d,
                    d.all(n, n % 4 == 0) && d[0] <= d[1] && d[1] <= d[2]
                    && d[0] * d[1] * d[2] <= {topology.TPU7_CHIPS}))""",
            ),
            most=11,
        ),
        "targetSizePolicyMode": OneOf(
            "BULK: one slice of all VMs, created as a whole or not at all. INDIVIDUAL: each VM is a "
            "slice by itself, created and repaired independently.",
            ("BULK", "INDIVIDUAL"),
        ),
        "instanceConfig": _INSTANCE_CONFIG,
        "instanceTemplateURI": Text(
            "An existing instance template in the same project, global or in the zone's region: "
            "projects/PROJECT/global/instanceTemplates/NAME, "
            "projects/PROJECT/regions/REGION/instanceTemplates/NAME, or its selfLink. It is used as it "
            "is and never changed or deleted. Either this or instanceConfig.",
            most=255,
        ),
        "bootstrapKubernetes": _BOOTSTRAP,
        "nodeLabels": Entries(
            "Labels for every Node of the group. The kubelet registers with them, so keys are those "
            "that a kubelet may set itself. `job-key`, and the name of a JobSet's slice in "
            "`cloud.google.com/gke-nodepool`, are allowed only for the group's own Job.",
            Text("", match(_LABEL_VALUE, "must be a label's value, as in a or a.b"), most=63),
            most=32,
            keys=_LABEL_KEYS,
        ),
        "nodeTaints": Items(
            "Taints for every Node of the group. No other taint is set, also not google.com/tpu.",
            _TAINT,
            most=16,
            keys=("key", "effect"),
        ),
        "repair": OneOf(
            "What happens when a BULK slice loses a VM and Compute Engine does not restore it. Never: "
            "the slice stays as it is, not Ready, until the group is deleted. Recreate: all of its "
            "VMs are deleted and created again: Spot VMs immediately, others 30 minutes after the "
            "last loss, at most eight times a day at growing intervals, and not after the end of "
            "maxRunDuration. VMs of an INDIVIDUAL group are repaired by their managed instance group "
            "in any case, those of FLEX_START never.",
            ("Never", RECREATE),
            default="Never",
        ),
    },
    required=(
        "project",
        "nodeLocation",
        "nodeCount",
        "acceleratorConnectionMode",
        "topology",
        "targetSizePolicyMode",
    ),
)
CHANGEABLE = ("repair",)
"""The fields that may change; a rule of the CustomResourceDefinition keeps each other as it is."""

_NAME = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
NAME = Text(  # it becomes part of names on Compute Engine, and the value of a label
    "",
    match_cel(_NAME, "metadata.name must be at most 63 of a-z, 0-9 and -, without dots"),
    most=253,
)
