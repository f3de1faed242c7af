"""Shows the lifecycle of a JobSet: applied, provisioned, run, gone (``make demo-jobset``).

The controllers of JobSets, Jobs and Pods, which the embedded Kubernetes API does not have, are simulated
(`local.jobsets`). Exits with 0 only if nothing is left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from local.base.cluster_client import ClusterClient
from local.cluster.jobsets import label_jobset
from local.cluster.manifests import GROUPS, NODES
from local.run.supervisor import GKE, ROOT, TPU_NODE_GROUP, Supervisor
from local.show.demo import PODS, WORKLOAD_LEFTOVERS, Demo, Kind, run_demo
from local.show.options import add_options, parse_with_jobset, run_clean_up
from local.show.timeline import Line, Timeline
from local.show.timeline_printer import (
    render_event,
    render_group,
    render_jobset,
    render_node,
    render_pod,
)

EXAMPLES = {
    TPU_NODE_GROUP: ROOT / "examples" / "jobset-v6e-multislice.yaml",
    GKE: ROOT / "examples" / "jobset-v4-2x2x4.yaml",
}
TEMPLATE = ROOT / "examples" / "jobset-template.yaml"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
EVENTS = "/api/v1/events"
OPTIONS = "/api/v1/namespaces/tpu-functions/configmaps/jobsets"
RUNNING_WITHIN_S = 120.0
ENDED_WITHIN_S = 60.0
GONE_WITHIN_S = 120.0
SWEEP_EVERY_S = 5.0
"""The accelerated interval of the sweep."""


class JobSetDemo(Demo):
    """A run that shows a JobSet."""

    kinds = (
        Kind(JOBSETS, render_jobset),
        Kind(PODS, render_pod),
        Kind(EVENTS, render_event),
        Kind(GROUPS, lambda _, before, found: render_group(before, found)),
        Kind(NODES, render_node),
    )
    leftover_paths: Mapping[str, str] = {
        **Demo.leftover_paths,
        **WORKLOAD_LEFTOVERS,
        "JobSets": JOBSETS,
    }

    shows_sweeps = False

    async def show(self, supervisor: Supervisor, client: ClusterClient) -> None:
        example = EXAMPLES[supervisor.setup.slices]
        manifest = label_jobset(yaml.safe_load(example.read_text()))
        name = manifest["metadata"]["name"]
        tables = {"kubectl get jobsets": JOBSETS}
        if supervisor.setup.slices == TPU_NODE_GROUP:
            await self._apply_template(client)
            tables["kubectl get tng"] = GROUPS
        async with self.watching(client) as seen:
            await self._apply_jobset(client, example, manifest)
            wanted = _count_pods(manifest)
            await self.until(
                lambda: _running(_of(name, seen.all(PODS))) == wanted,
                RUNNING_WITHIN_S,
                "not all Pods run",
            )
            self.measure(supervisor)
            await self.show_tables(client, tables)
            self._show_places(_of(name, seen.all(PODS)))
            await self.until(
                lambda: "terminalState" in seen.find(JOBSETS, name).get("status", {}),
                ENDED_WITHIN_S,
                "the JobSet is not finished",
            )
            await self.until(
                lambda: not (seen.all(GROUPS) or seen.all(NODES) or _pools(supervisor)),
                GONE_WITHIN_S,
                "the slices are not gone",
                lambda: _describe_wait(seen.all(GROUPS)),
            )
            await self._delete_jobset(client, manifest)
            await self.until(
                lambda: not (seen.find(JOBSETS, name) or _of(name, seen.all(PODS))),
                ENDED_WITHIN_S,
                "Pods are left",
            )

    async def _apply_template(self, client: ClusterClient) -> None:
        self.timeline.print_heading(f"kubectl apply -f {TEMPLATE.relative_to(ROOT)}")
        data = yaml.safe_load(TEMPLATE.read_text())["data"]
        what = "configures the slices of JobSets"
        self.timeline.print(Line("person", what, "ConfigMap jobsets of tpu-functions"))
        await self.ask(client, "PATCH", OPTIONS, {"data": data})

    async def _apply_jobset(
        self, client: ClusterClient, example: Path, manifest: dict[str, Any]
    ) -> None:
        self.timeline.print_heading(f"kubectl apply -f {example.relative_to(ROOT)}")
        (job,) = manifest["spec"]["replicatedJobs"]
        why = f"Jobs: {job['replicas']}, hosts of each: {job['template']['spec']['completions']}"
        self.timeline.print(Line("person", f"applies JobSet {manifest['metadata']['name']}", why))
        await self.ask(client, "POST", _collection(manifest), manifest)

    async def _delete_jobset(self, client: ClusterClient, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        self.timeline.print_heading(f"kubectl delete jobset {name}")
        self.timeline.print(Line("person", f"deletes JobSet {name}"))
        await self.ask(client, "DELETE", f"{_collection(manifest)}/{name}")

    def _show_places(self, pods: list[dict[str, Any]]) -> None:
        self.timeline.print_heading("kubectl get pods -o wide")
        for pod in sorted(pods, key=lambda one: str(one["spec"]["hostname"])):
            self.timeline.print_text(f"  {pod['spec']['hostname']}   {pod['spec']['nodeName']}")


def _describe_wait(groups: Sequence[dict[str, Any]]) -> str:
    """Describe why nothing changes: the slices of a finished JobSet stay for half a minute."""
    waiting = [one for one in groups if not one["metadata"].get("deletionTimestamp")]
    if not waiting:
        return ""
    return "waits: the slices stay for half a minute, in case the JobSet is applied again"


def _pools(supervisor: Supervisor) -> list[str]:
    return supervisor.pools.leftovers() if supervisor.pools else []


def _of(jobset: str, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The Pods of a JobSet."""
    label = "jobset.sigs.k8s.io/jobset-name"
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get(label) == jobset]


def _collection(manifest: dict[str, Any]) -> str:
    namespace = manifest["metadata"]["namespace"]
    return JOBSETS.replace("jobsets", f"namespaces/{namespace}/jobsets")


def _count_pods(manifest: dict[str, Any]) -> int:
    return sum(
        job["replicas"] * job["template"]["spec"]["completions"]
        for job in manifest["spec"]["replicatedJobs"]
    )


def _running(pods: Sequence[dict[str, Any]]) -> int:
    return sum(pod.get("status", {}).get("phase") in ("Running", "Succeeded") for pod in pods)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-jobset", description=__doc__)
    parser.add_argument(
        "--keep-logs", action="store_true", help="leave the logs of all processes, and say where"
    )
    parser.add_argument(
        "--gke", action="store_true", help="slices are node pools of a simulated GKE cluster"
    )
    add_options(parser)
    options = parse_with_jobset(parser, arguments)
    if options.gke and (options.kubeconfig or options.real):
        parser.error("--gke is a simulated cluster; --kubeconfig and --real are others")
    if options.clean:
        return run_clean_up("make demo-jobset", options, Timeline())
    return run_demo(
        JobSetDemo,
        options,
        slices=GKE if options.gke else TPU_NODE_GROUP,
        jobset=options.jobset,
        sweep_every_s=SWEEP_EVERY_S,
    )


if __name__ == "__main__":
    sys.exit(main())
