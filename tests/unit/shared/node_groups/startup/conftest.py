from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.shared.node_groups.startup.vm import Vm


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Vm]:
    """A VM whose image has every package that kubeadm needs."""
    vm = Vm(tmp_path)
    yield vm
    vm.stop()
