"""Shows the life of a workload that gets its slices (``make demo-workload KIND=...``).

Applies the kind's manifest in ``examples/``, changes it and deletes it. The controllers, the scheduler
and the kubelets, which the embedded Kubernetes API does not have, are simulated (`local.jobsets`). Exits
with 0 only if nothing is left.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from local.base.cluster_client import ClusterClient
from local.cluster.manifests import (
    GROUPS,
    LABEL,
    NODES,
    collection_path,
    label_workload,
    object_path,
)
from local.jobsets import REAL_CONTROLLERS, SIMULATED_CONTROLLERS, PodBehaviour
from local.jobsets.objects import DEPLOYMENTS, JOBS, JOBSETS, LEADER_WORKER_SETS, PATHS
from local.run.supervisor import GKE, ROOT, TPU_NODE_GROUP, Supervisor
from local.show.demo import PODS, WITH_PODS, WORKLOAD_LEFTOVERS, Demo, DemoFailed, Kind, run_demo
from local.show.options import add_options, parse_with_controllers, run_clean_up
from local.show.timeline import Line, Timeline
from local.show.timeline_printer import (
    render_event,
    render_group,
    render_node,
    render_pod,
    render_workload,
)

EXAMPLES = ROOT / "examples"
GKE_JOBSET = "jobset-v4-2x2x4.yaml"
TEMPLATE = EXAMPLES / "jobset-template.yaml"
EVENTS = "/api/v1/events"
OPTIONS = "/api/v1/namespaces/tpu-functions/configmaps/jobsets"
RUNNING_WITHIN_S = 120.0
ENDED_WITHIN_S = 60.0
GONE_WITHIN_S = 180.0
SWEEP_EVERY_S = 5.0
"""The accelerated interval of the sweep."""
RUN_S = 5.0
_LIMITS = {"slices": 3, "chips": 24}
_RELEASE_AFTER = "tpu-functions.dev/release-after"
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_ROLLED = {"metadata": {"annotations": {"example.com/revision": "2"}}}


@dataclass(frozen=True)
class Workload:
    """What is shown of a kind: the names of the kind and its example, and how it lives."""

    kind: str
    example: str
    show: Callable[[WorkloadDemo], Awaitable[None]]


def end_pod(pod: Mapping[str, Any]) -> str:
    """The last phase of a Pod: the first Pod of a JobSet fails once, while the others run."""
    metadata = pod["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if labels.get(_ATTEMPT) != "0":
        return "Succeeded"
    is_first = (labels.get(_JOB_INDEX), annotations.get(_COMPLETION_INDEX)) == ("0", "0")
    return "Failed" if is_first else ""


class WorkloadDemo(Demo):
    """A run that shows a workload. ``short`` is kubectl's name of its kind."""

    shows_sweeps = False
    subject = "Slices"

    def __init__(self, short: str, timeline: Timeline) -> None:
        super().__init__(timeline)
        self._short, self._workload = short, WORKLOADS[short]
        self._path = PATHS[self._workload.kind]
        self.kinds = (
            Kind(self._path, partial(render_workload, self._workload.kind)),
            Kind(PODS, self._render_pod),
            Kind(EVENTS, render_event),
            Kind(GROUPS, lambda _, before, found: render_group(before, found)),
            Kind(NODES, render_node),
        )
        others = {**WORKLOAD_LEFTOVERS, f"{self._workload.kind}s": self._path}
        self.leftover_paths = {**Demo.leftover_paths, **others}
        self._places: dict[str, str] = {}
        self._collision = ""
        self._most_slices = 0
        self._replicas = 1

    async def show(self, supervisor: Supervisor, client: ClusterClient) -> None:
        self._supervisor, self._client = supervisor, client
        is_gke = supervisor.setup.slices == GKE and self._short == "jobset"
        example = EXAMPLES / (GKE_JOBSET if is_gke else self._workload.example)
        self._manifest = label_workload(next(yaml.safe_load_all(example.read_text())))
        self.spec: dict[str, Any] = self._manifest["spec"]
        self._name = self._manifest["metadata"]["name"]
        self._shown = f"{self._workload.kind} {self._name}"
        await self._configure()
        async with self.watching(client) as self._seen:
            await self._apply_example(example)
            await self._workload.show(self)
            await self._delete_example()
        self.took.append(f"at most {self._most_slices} at the same time")

    async def until(
        self,
        condition: Callable[[], bool],
        within_s: float,
        otherwise: str,
        meanwhile: Callable[[], str] = str,
    ) -> None:
        def is_met() -> bool:
            if self._collision:
                raise DemoFailed(self._collision)
            self._most_slices = max(self._most_slices, len(self._slices()))
            return condition()

        await super().until(is_met, within_s, otherwise, meanwhile)

    async def run_pods(self, count: int, *, replaced: bool = False) -> None:
        """Wait until so many Pods run, and show where; ``replaced``: none of those that were
        shown."""
        old = set(self._places) if replaced else set[str]()

        def is_met() -> bool:
            found = {_uid(one): _phase(one) in ("Running", "Succeeded") for one in self._pods()}
            status = self._seen.find(self._path, self._name).get("status", {})
            is_known = (
                status.get("readyReplicas", 0) == self._replicas or "replicas" not in self.spec
            )
            return len(found) == count and all(found.values()) and not old & set(found) and is_known

        waiting = (
            "not all new Pods run"
            if replaced
            else "not all Pods run"
            if count
            else "the Pods are not gone"
        )
        await self.until(is_met, RUNNING_WITHIN_S, waiting)
        self.measure(self._supervisor)
        before = sorted(self._places.values())
        self._places = {_uid(one): one["spec"]["nodeName"] for one in self._pods()}
        if count:
            self.timeline.print_heading("kubectl get pods -o wide")
        width = max((len(name_pod(one)) for one in self._pods()), default=0)
        for pod in sorted(self._pods(), key=name_pod):
            self.timeline.print_row(f"  {name_pod(pod):<{width}}   {pod['spec']['nodeName']}")
        if replaced and before == sorted(self._places.values()):
            self.timeline.print(Line("demo", "the new Pods have the slices of the old ones"))

    async def show_objects(self) -> None:
        """Show the tables of the workload and its slices."""
        tables = {f"kubectl get {self._short}": self._path}
        if self._supervisor.setup.slices == TPU_NODE_GROUP:
            tables["kubectl get tng"] = GROUPS
        await self.show_tables(self._client, tables)

    async def scale(self, replicas: int) -> None:
        """Change the number of replicas."""
        self.timeline.print_heading(f"kubectl scale {self._target} --replicas={replicas}")
        self.timeline.print(Line("person", f"scales {self._shown} to {replicas}"))
        self._replicas = replicas
        await self._patch({"spec": {"replicas": replicas}})

    async def roll(self, change: dict[str, Any]) -> None:
        """Change the template of the Pods."""
        self.timeline.print_heading(
            f"kubectl patch {self._target} --type=merge -p '{json.dumps(change)}'"
        )
        self.timeline.print(Line("person", f"changes the Pods of {self._shown}"))
        await self._patch(change)

    async def until_ended(self) -> None:
        """Wait until the workload has completed."""
        await self.until(
            lambda: has_ended(self._seen.find(self._path, self._name)),
            ENDED_WITHIN_S,
            f"{self._shown} is not complete",
        )

    async def until_slices(self, count: int) -> None:
        """Wait until only so many slices are left, and no other Node."""
        few = (lambda: len(self._slices()) <= count) if count else self._has_no_slice
        left = "not all slices but one are gone" if count else "the slices are not gone"
        await self.until(few, GONE_WITHIN_S, left, self._describe_release)

    async def _configure(self) -> None:
        kind, data = self._workload.kind, dict[str, str]()
        if self._supervisor.setup.slices == TPU_NODE_GROUP:
            self.timeline.print_heading(f"kubectl apply -f {TEMPLATE.relative_to(ROOT)}")
            what = "configures the slices of workloads"
            self.timeline.print(Line("person", what, "ConfigMap jobsets of tpu-functions"))
            data = yaml.safe_load(TEMPLATE.read_text())["data"]
        if kind != JOBSETS:
            data["namespaces"] = json.dumps({"default": {"kinds": [kind], **_LIMITS}})
            limits = " and ".join(f"{number} {what}" for what, number in _LIMITS.items())
            what = f"switches {kind}s on for namespace default"
            self.timeline.print(Line("person", what, f"at most {limits}"))
        if data:
            await self.ask(self._client, "PATCH", OPTIONS, {"data": data})

    async def _apply_example(self, example: Path) -> None:
        self.timeline.print_heading(f"kubectl apply -f {example.relative_to(ROOT)}")
        self.timeline.print(Line("person", f"applies {self._shown}", count_pods(self.spec)[1]))
        await self.ask(self._client, "POST", collection_path(self._manifest), self._manifest)

    async def _delete_example(self) -> None:
        self.timeline.print_heading(f"kubectl delete {self._target}")
        self.timeline.print(Line("person", f"deletes {self._shown}"))
        await self.ask(self._client, "DELETE", object_path(self._manifest), WITH_PODS)
        await self.until(
            lambda: not (self._seen.find(self._path, self._name) or self._pods()),
            ENDED_WITHIN_S,
            f"{self._shown} and its Pods are not gone",
        )
        await self.until_slices(0)

    async def _patch(self, change: dict[str, Any]) -> None:
        await self.ask(self._client, "PATCH", object_path(self._manifest), change)

    @property
    def _target(self) -> str:
        return f"{self._short} {self._name}"

    def _pods(self) -> list[dict[str, Any]]:
        pods = self._seen.all(PODS)
        return [one for one in pods if LABEL in one["metadata"].get("labels", {})]

    def _slices(self) -> Sequence[Any]:
        pools = self._supervisor.pools
        return pools.leftovers() if pools else self._seen.all(GROUPS)

    def _has_no_slice(self) -> bool:
        return not (self._slices() or self._seen.all(NODES))

    def _render_pod(
        self, change: str, before: dict[str, Any], found: dict[str, Any]
    ) -> Line | None:
        live = [one for one in self._pods() if _phase(one) not in ("Succeeded", "Failed")]
        nodes = [one["spec"]["nodeName"] for one in live if one["spec"].get("nodeName")]
        if len(nodes) != len(set(nodes)):
            self._collision = f"two Pods are on one Node: {', '.join(map(name_pod, live))}"
        return render_pod(change, before, found)

    def _describe_release(self) -> str:
        """Say until when slices stay that are not needed any more; empty if none is waiting."""
        marks = [one["metadata"] for one in self._seen.all(GROUPS)]
        times = [
            datetime.fromisoformat(one["annotations"][_RELEASE_AFTER])
            for one in marks
            if _RELEASE_AFTER in one.get("annotations", {}) and "deletionTimestamp" not in one
        ]
        left_s = (max(times) - datetime.now(UTC)).total_seconds() if times else 0.0
        if left_s <= 0:
            return ""
        return f"waits: a slice is kept for {left_s:.0f} s more, in case its Pods come back"


async def show_jobset(demo: WorkloadDemo) -> None:
    """A restart by the failure policy, on the same slices, and the end."""
    count, _ = count_pods(demo.spec)
    await demo.run_pods(count)
    await demo.show_objects()
    what = "waits: the first Pod fails in some seconds, and the JobSet restarts"
    demo.timeline.print(Line("demo", what))
    await demo.run_pods(count, replaced=True)
    await demo.until_ended()
    await demo.until_slices(0)


async def show_leader_worker_set(demo: WorkloadDemo) -> None:
    """A second group, which is removed again, and a rolling update on the slice of the first one."""
    size = demo.spec["leaderWorkerTemplate"]["size"]
    await demo.run_pods(size)
    await demo.show_objects()
    await demo.scale(2)
    await demo.run_pods(2 * size)
    await demo.show_objects()
    await demo.scale(1)
    await demo.run_pods(size)
    await demo.until_slices(1)
    await demo.roll({"spec": {"leaderWorkerTemplate": {"workerTemplate": _ROLLED}}})
    await demo.run_pods(size, replaced=True)


async def show_deployment(demo: WorkloadDemo) -> None:
    """More replicas, and none."""
    await demo.run_pods(1)
    await demo.scale(3)
    await demo.run_pods(3)
    await demo.show_objects()
    await demo.scale(0)
    await demo.run_pods(0)
    await demo.until_slices(0)


async def show_job(demo: WorkloadDemo) -> None:
    """The end."""
    await demo.run_pods(demo.spec["completions"])
    await demo.show_objects()
    await demo.until_ended()
    await demo.until_slices(0)


WORKLOADS = {
    "deployment": Workload(DEPLOYMENTS, "deployment-v6e-2x2.yaml", show_deployment),
    "job": Workload(JOBS, "indexed-job-v6e-2x4.yaml", show_job),
    "jobset": Workload(JOBSETS, "jobset-v6e-multislice.yaml", show_jobset),
    "lws": Workload(LEADER_WORKER_SETS, "leaderworkerset-v6e-2x4.yaml", show_leader_worker_set),
}
"""The kinds by kubectl's names."""


def count_pods(spec: Mapping[str, Any]) -> tuple[int, str]:
    """The number of Pods of a workload, and its description."""
    if "replicatedJobs" in spec:
        (job,) = spec["replicatedJobs"]
        hosts = job["template"]["spec"]["completions"]
        return job["replicas"] * hosts, f"Jobs: {job['replicas']}, hosts of each: {hosts}"
    replicas = spec.get("replicas", 1)
    hosts = spec.get("completions") or spec.get("leaderWorkerTemplate", {}).get("size", 1)
    return replicas * hosts, f"slices: {replicas}, hosts of each: {hosts}"


def has_ended(found: Mapping[str, Any]) -> bool:
    """Whether a JobSet or a Job has completed."""
    status = found.get("status", {})
    ends = [one["type"] for one in status.get("conditions") or () if one["status"] == "True"]
    return "terminalState" in status or "Complete" in ends


def name_pod(pod: Mapping[str, Any]) -> str:
    """The host name of a Pod, or its name."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def _uid(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["uid"])


def _phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-workload", description=__doc__)
    parser.add_argument("kind", nargs="?", default="", help=f"KIND of make: {', '.join(WORKLOADS)}")
    parser.add_argument(
        "--keep-logs", action="store_true", help="leave the logs of all processes, and say where"
    )
    parser.add_argument(
        "--gke", action="store_true", help="slices are node pools of a simulated GKE cluster"
    )
    add_options(parser)
    options = parse_with_controllers(parser, arguments)
    if options.clean:
        return run_clean_up("make demo-workload", options, Timeline())
    if options.kind not in WORKLOADS:
        kinds = ", ".join(WORKLOADS)
        given = f"not {options.kind}" if options.kind else "as in make demo-workload KIND=lws"
        print(f"make demo-workload: KIND is one of {kinds}: {given}")
        return 2
    if options.gke and (options.kubeconfig or options.real):
        parser.error("--gke is a simulated cluster; --kubeconfig and --real are others")
    if options.controllers and options.kind not in ("jobset", "lws"):
        parser.error("--controllers is for KIND=jobset and KIND=lws: Kubernetes has the others")
    if options.kind == "lws" and (options.kubeconfig or options.real):
        if options.controllers == SIMULATED_CONTROLLERS:
            parser.error(
                "beside a control plane, the controller of LeaderWorkerSets is not simulated"
            )
        options.controllers = REAL_CONTROLLERS
    return run_demo(
        partial(WorkloadDemo, options.kind),
        options,
        slices=GKE if options.gke else TPU_NODE_GROUP,
        jobset=options.controllers if options.kind == "jobset" else "",
        needs=LEADER_WORKER_SETS if options.kind == "lws" else "",
        workloads=options.real and options.kind != "jobset",
        pods=PodBehaviour(run_s=RUN_S, ends=end_pod),
        sweep_every_s=SWEEP_EVERY_S,
    )


if __name__ == "__main__":
    sys.exit(main())
