"""An embedded Kubernetes API: what kubectl's everyday commands and this project need of one.

`KubeApi` is the server. What it holds and what it leaves out stands in
``docs/reference/embedded-kubernetes.md``.
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
