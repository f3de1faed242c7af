"""An embedded Kubernetes API, for kubectl's everyday commands and for this project.

`KubeApi` is the server. ``local/docs/embedded-kubernetes.md`` lists its features and limits.
"""

from local.base.kubeconfig import kubeconfig
from local.kube.calls import Call, CallLog
from local.kube.certificates import CertificateAuthority, KeyPair
from local.kube.errors import ApiError
from local.kube.options import ClusterOptions
from local.kube.server import KubeApi
from local.kube.users import ADMIN, User

__all__ = [
    "ADMIN",
    "ApiError",
    "Call",
    "CallLog",
    "CertificateAuthority",
    "ClusterOptions",
    "KeyPair",
    "KubeApi",
    "User",
    "kubeconfig",
]
