"""The table of TPU generations: accelerator labels, machine types, chips, cores.

Sources: the Cloud TPU and GKE documentation for machine types, the topologies of single hosts and
accelerator types; the TPU device plugin for the chip bounds of a host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CHIP_BOUNDS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
"""The arrangement of a host's chips, by their number (from the device plugin)."""
SLICE_HOST_CHIPS = 4
"""Chips of a host in a slice of more than one host, whatever the generation."""


@dataclass(frozen=True)
class Generation:
    """The facts of one TPU generation."""

    accelerator: str
    """Value of the Node label ``cloud.google.com/gke-tpu-accelerator``."""
    machine_prefix: str
    """The part of a machine type before the chips: ``ct6e-standard`` of ``ct6e-standard-4t``."""
    dimensions: int
    """The number of dimensions of a topology."""
    libtpu_name: str = ""
    """The prefix of libtpu's accelerator type, as in ``v6e-16``; empty where it is unknown."""
    cores: int = 0
    """Cores of a chip, as libtpu counts them."""
    single_host_shapes: Mapping[int, str] = field(default_factory=dict, hash=False)
    """GKE's machine types: their chips, each with the topology of a slice of one such host."""

    @property
    def family(self) -> str:
        """The family of the machine types, as ``ct6e``."""
        return self.machine_prefix.partition("-")[0]

    def machine_type(self, chips: int) -> str:
        """The name of the machine type with so many chips."""
        return f"{self.machine_prefix}-{chips}t"


GENERATIONS: Mapping[str, Generation] = {
    one.accelerator: one
    for one in (
        Generation("tpu-v4-podslice", "ct4p-hightpu", 3, "v4", 2, {4: "2x2x1"}),
        Generation(
            "tpu-v5-lite-podslice",
            "ct5lp-hightpu",
            2,
            "v5litepod",
            1,
            {1: "1x1", 4: "2x2", 8: "2x4"},
        ),
        Generation("tpu-v5p-slice", "ct5p-hightpu", 3, "v5p", 2, {4: "2x2x1"}),
        Generation("tpu-v6e-slice", "ct6e-standard", 2, "v6e", 1, {1: "1x1", 4: "2x2", 8: "2x4"}),
        Generation("tpu7", "tpu7-standard", 3),
        Generation("tpu7x", "tpu7x-standard", 3, "tpu7x", 2, {1: "1x1x1", 4: "2x2x1"}),
    )
}
"""By the value of ``cloud.google.com/gke-tpu-accelerator``."""
