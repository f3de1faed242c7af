"""The controllers of kube-controller-manager, on the clock of the embedded server."""

from __future__ import annotations

from local.base.clock import Clock
from local.kube.authorization import Authorizer
from local.kube.certificates import CertificateAuthority
from local.kube.controllers.csr import CsrController
from local.kube.controllers.definitions import DefinitionController
from local.kube.controllers.garbage import GarbageCollector
from local.kube.controllers.namespaces import NamespaceController
from local.kube.controllers.nodes import NodeLifecycleController
from local.kube.controllers.tokens import TokenController
from local.kube.options import ClusterOptions
from local.kube.resources import Resources


def start_controllers(
    resources: Resources,
    authorizer: Authorizer,
    clock: Clock,
    ca: CertificateAuthority,
    options: ClusterOptions,
) -> None:
    """Start all controllers. Each listens to changes of the store."""
    NamespaceController(resources, clock, ca)
    GarbageCollector(resources, clock)
    CsrController(resources, authorizer, clock, ca)
    TokenController(resources, clock)
    NodeLifecycleController(resources, clock, options.node_grace_s)
    DefinitionController(resources, clock)
