"""VMs are read one by one for a limited time, so that time is left for the calls that follow."""

from __future__ import annotations

from typing import cast

import pytest

from shared.ports.errors import OutOfTimeError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.gce.values import Instance
from tests.support.compute import instance


class Slow(Gce):
    """Compute Engine that answers each read of a VM after a second."""

    def __init__(self, seconds: float) -> None:
        super().__init__(cast("Clients", None), self._count_down)
        self.left_s = seconds

    def _count_down(self) -> float:
        if self.left_s <= 0:
            raise OutOfTimeError("no time")
        return self.left_s

    def find_instance(self, project: str, zone: str, name: str) -> Instance | None:
        assert (project, zone) == ("p", "z")
        self.left_s -= 1
        return None if name == "vm-0" else instance(name)


@pytest.mark.parametrize("seconds, read", [(30.0, 10), (29.0, 10), (3.0, 1), (300.0, 20)])
def test_vms_are_read_for_a_third_of_the_remaining_time(seconds: float, read: int) -> None:
    names = [f"vm-{number}" for number in range(20)]
    found = Slow(seconds).find_instances("p", "z", names)
    assert list(found) == names[:read]
    assert found["vm-0"] is None
    assert all(vm is not None and vm.name == name for name, vm in list(found.items())[1:])


def test_a_read_fails_without_time_unless_no_vm_is_to_be_read() -> None:
    assert Slow(0).find_instances("p", "z", []) == {}
    with pytest.raises(OutOfTimeError):
        Slow(0).find_instances("p", "z", ["vm-1"])
