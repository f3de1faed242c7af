"""The embedded API on a port, for runs of kubectl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from local.tests.contract.kubernetes.definitions import ALL
from local.tests.contract.kubernetes.dialogue import variables
from local.tests.contract.kubernetes.kubectl.terminal import Terminal, find_kubectl
from local.tests.contract.kubernetes.serving import served
from local.tests.real_parts import miss


@dataclass(frozen=True)
class Embedded:
    """One server for all runs."""

    program: str
    kubeconfig: Path
    home: Path

    def open_terminal(self, identity: str) -> Terminal:
        """Open a terminal in a new namespace, with the variables of a run; see `variables`."""
        known = variables(identity, datetime.now(UTC))
        terminal = Terminal(self.program, self.kubeconfig, self.home, known)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}"}}
        terminal("create", "-f", "-", stdin=namespace)
        return Terminal(self.program, self.kubeconfig, self.home, known)


@contextmanager
def open_embedded(home: Path) -> Iterator[Embedded]:
    """Start a server with the CRDs that runs need. Skips if no kubectl is found."""
    program = find_kubectl()
    if program is None:
        miss("kubectl is not installed; `make control-plane` installs one")
    with served(home) as kubeconfig:
        kubectl = Terminal(program, kubeconfig, home, {"ns": "default"})
        for crd in ALL:
            kubectl("create", "-f", "-", stdin=crd)
        yield Embedded(program, kubeconfig, home)
