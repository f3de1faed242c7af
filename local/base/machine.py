"""The interface between the simulated Compute Engine and the software that runs inside its VMs.

The simulator owns the VM (`Machine`). A `VmAgent` is the software on it; like real software in a VM, it
has access to metadata, serial port and guest attributes. A VM agent also represents the VM's boot disk:
it survives stop, start and reset, and a recreated VM gets a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Machine(Protocol):
    """A VM, for its agent."""

    @property
    def project(self) -> str:
        """The project's id."""

    @property
    def zone(self) -> str:
        """The zone's name, as in ``us-central1-c``."""

    @property
    def name(self) -> str:
        """The instance's name."""

    @property
    def id(self) -> str:
        """The instance's numeric id, in decimal."""

    @property
    def machine_type(self) -> str:
        """The bare machine type, as in ``tpu7x-standard-4t``."""

    @property
    def image(self) -> str:
        """The path of the boot disk's image."""

    def attributes(self) -> Mapping[str, str]:
        """The metadata attributes as the metadata server shows them now."""

    def write_serial(self, text: str) -> None:
        """Write to serial port 1."""

    def set_guest_attribute(self, namespace: str, key: str, value: str) -> None:
        """Write a guest attribute."""


class VmAgent(Protocol):
    """The software of a VM. Methods return immediately; work is scheduled on the clock."""

    def power_on(self) -> None:
        """The VM has begun to run (first boot, start, reset, restart)."""

    def power_off(self) -> None:
        """The VM is being stopped, reset or deleted; called once for each `power_on`."""

    def metadata_changed(self) -> None:
        """`Machine.attributes` has changed."""


VmAgentFactory = Callable[[Machine], VmAgent]
