"""The embedded API behind a port, for runs of kubectl."""

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
from tests.real_parts import miss


@dataclass(frozen=True)
class Embedded:
    """One server for many runs."""

    program: str
    kubeconfig: Path
    home: Path

    def open_terminal(self, identity: str) -> Terminal:
        """In an empty namespace, with the variables of a run in it; see `variables`."""
        known = variables(identity, datetime.now(UTC))
        terminal = Terminal(self.program, self.kubeconfig, self.home, known)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}"}}
        terminal("create", "-f", "-", stdin=namespace)
        return Terminal(self.program, self.kubeconfig, self.home, known)


@contextmanager
def open_embedded(home: Path) -> Iterator[Embedded]:
    """A server that has what runs need. Skips where there is no kubectl."""
    program = find_kubectl()
    if program is None:
        miss("there is no kubectl here; `make control-plane` makes one")
    with served(home) as kubeconfig:
        kubectl = Terminal(program, kubeconfig, home, {"ns": "default"})
        for crd in ALL:
            kubectl("create", "-f", "-", stdin=crd)
        yield Embedded(program, kubeconfig, home)
