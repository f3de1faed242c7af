"""Shows how a slice is had where there is capacity (``make demo-capacity``).

A TPUSliceClass has three candidates: a zone without capacity, a reservation that is in use, and Spot.
A JobSet gets a Spot slice. When the zone has capacity again, Spot is preempted, and the next try begins
with the first candidate. It takes about seven minutes, because a refusal is remembered for five. Exits
with 0 only if nothing is left.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from local.cloud.simulation import PROJECT
from local.cluster.manifests import GROUPS, collection_path
from local.jobsets import PodBehaviour
from local.run.supervisor import CLASS, TPU_NODE_GROUP, read_slice_class
from local.show.demo import Kind, run_demo
from local.show.options import add_options, run_clean_up
from local.show.timeline import Line, Timeline
from local.show.timeline_printer import render_class
from local.show.workload_demo import (
    RUNNING_WITHIN_S,
    SWEEP_EVERY_S,
    WorkloadDemo,
)

CLASSES = "/apis/tpu-functions.dev/v1alpha1/tpusliceclasses"
FIRST, RESERVED, LAST = "us-east5-b", "us-east5-a", "us-central1-b"
"""The zones of the candidates."""
RESERVATION = f"projects/{PROJECT}/zones/{RESERVED}/reservations/my-v6e-reservation"
_QUIET_S = 30.0
HOSTS = 2


class CapacityDemo(WorkloadDemo):
    """A run that shows the candidates of a class."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__("jobset", timeline)
        self._workload = replace(self._workload, show=show_candidates)
        self.kinds = (*self.kinds, Kind(CLASSES, render_class))
        self.leftover_paths = {**self.leftover_paths, "TPUSliceClasses": CLASSES}

    async def _configure(self) -> None:
        self.spec["replicatedJobs"][0]["replicas"] = 1
        faults = self._supervisor.gce.faults
        faults.set_capacity(FIRST, "ct6e", 0, "STANDARD")
        faults.set_reservation(RESERVATION, "ct6e-standard-4t", HOSTS - 1)
        self._say("compute engine", f"{FIRST} has no capacity for v6e, the reservation one VM left")
        self.timeline.print_heading(f"kubectl apply -f {CLASS.name}")
        self._say("person", "applies TPUSliceClass v6e", f"{FIRST}, a reservation, or Spot")
        manifest = read_slice_class()
        manifest["spec"]["isDefault"] = True
        await self.ask(self._client, "POST", collection_path(manifest), manifest)

    async def until_in(self, zone: str, *, replaced: bool = False) -> None:
        """Wait until the Pods run on a slice in this zone."""
        await self.until(
            lambda: self._zones() == [zone], RUNNING_WITHIN_S, f"no slice is created in {zone}"
        )
        await self.run_pods(HOSTS, replaced=replaced)

    async def show_state(self) -> None:
        """Show the slice and the class."""
        await self.show_tables(
            self._client, {"kubectl get tng": GROUPS, "kubectl get tsc": CLASSES}
        )

    async def until_forgotten(self) -> None:
        """Wait until the refusal of the first candidate has ended."""

        listed = self._seen.find(CLASSES, "v6e").get("status", {}).get("refusals", ())
        ends = [datetime.fromisoformat(one["until"]) for one in listed if FIRST in one["candidate"]]
        while (left_s := (max(ends) - datetime.now(UTC)).total_seconds()) > 0:
            self._say("demo", f"waits: nobody asks {FIRST} for {left_s:.0f} s more")
            await asyncio.sleep(min(left_s, _QUIET_S))

    async def lose_spot(self) -> None:
        """Preempt the slice's VMs while the first candidate has capacity, and delete the slice, which
        would be replaced after ten minutes."""
        faults = self._supervisor.gce.faults
        faults.set_capacity(FIRST, "ct6e", None, "STANDARD")
        self._say("compute engine", f"{FIRST} has capacity again, and Spot VMs are preempted")
        for path in self._supervisor.gce.leftovers():
            if "/instances/" in path:
                faults.preempt(path)
        (name,) = (one["metadata"]["name"] for one in self._seen.all(GROUPS))
        self.timeline.print_heading(f"kubectl delete tng {name}")
        self._say("person", f"deletes TPUNodeGroup {name}", "it is replaced after ten minutes")
        path = f"{GROUPS.replace('tpunodegroups', '')}namespaces/default/tpunodegroups/{name}"
        await self.ask(self._client, "DELETE", path)

    async def _delete_example(self) -> None:
        await super()._delete_example()
        self.timeline.print_heading("kubectl delete tsc v6e")
        await self.ask(self._client, "DELETE", f"{CLASSES}/v6e")

    def _zones(self) -> list[str]:
        found = [
            one for one in self._seen.all(GROUPS) if "deletionTimestamp" not in one["metadata"]
        ]
        return [one["spec"]["nodeLocation"] for one in found]

    def _say(self, who: str, what: str, why: str = "") -> None:
        self.timeline.print(Line(who, what, why))


async def show_candidates(demo: WorkloadDemo) -> None:
    """Three tries; the loss of the slice; the first candidate."""
    assert isinstance(demo, CapacityDemo)
    for zone in (FIRST, RESERVED):
        await demo.until(
            lambda zone=zone: demo._zones() == [zone],  # type: ignore[misc]
            RUNNING_WITHIN_S,
            f"no slice is asked for in {zone}",
        )
    await demo.until_in(LAST)
    await demo.show_state()
    await demo.until_forgotten()
    await demo.lose_spot()
    await demo.until_in(FIRST, replaced=True)
    await demo.show_state()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-capacity", description=__doc__)
    parser.add_argument(
        "--keep-logs", action="store_true", help="leave the logs of all processes, and say where"
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.clean:
        return run_clean_up("make demo-capacity", options, Timeline())
    return run_demo(
        CapacityDemo,
        options,
        slices=TPU_NODE_GROUP,
        pods=PodBehaviour(ends=lambda _: ""),
        sweep_every_s=SWEEP_EVERY_S,
    )


if __name__ == "__main__":
    sys.exit(main())
