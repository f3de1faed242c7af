"""From apply to Ready, part by part: what tpu-functions takes, and what the cloud and the VMs take.

The parts are those of the VM whose Node is Ready last. The clock is virtual, so that a part of the cloud
is what the simulated Compute Engine and VMs take, and a part of tpu-functions what messages wait for:
the relay's gaps, Pub/Sub, retries, the sweep. What the virtual clock does not count is added to a part
of tpu-functions: the calls of its invocation up to the one that ends the part, at `CALL_S` each, and the
CPU time of the invocation in this process, without that of the simulated servers. The functions are
warm, and Pub/Sub delivers at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from local.base.http import Request, Response
from tests.support.harness import Harness
from tests.support.manifests import manifest

CALL_S = {"/compute/": 0.15, "/api": 0.02}
"""Assumed seconds of a call, by the begin of its path: to Compute Engine, to the API server."""
PARTS = {
    "inserts": "policy and template inserted",
    "resources": "Compute Engine creates them",
    "MIG": "MIG inserted",
    "VMs": "Compute Engine creates MIG and VMs",
    "token": "the VM's token written",
    "boot": "the VM boots, and runs kubeadm",
    "approval": "its certificate approved",
    "join": "its Node joins, with network and chips",
    "Ready": "Ready written",
}
"""Each part, named by its end."""
OWN_TOTAL = "* tpu-functions"
OWN = ("inserts", "MIG", "token", "approval", "Ready")
"""The parts of tpu-functions."""
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_HOUR = timedelta(hours=1)


@dataclass
class _Invocation:
    """The calls of an invocation so far, and its CPU seconds without the servers'."""

    calls: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Part:
    """Seconds of a part: waiting on the virtual clock; calls and CPU of an invocation."""

    wait_s: float
    calls_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.wait_s + self.calls_s + self.cpu_s


class _Recorder(Harness):
    """A simulation that notes when what happened, and what each invocation did."""

    def __init__(self) -> None:
        self.entries: dict[str, datetime] = {}
        """When the last entry of an insert arrived at the sinks, by the resource's path."""
        self.requests: dict[str, datetime] = {}
        """When VMs requested certificates, by the request's name."""
        self.requesters: dict[str, str] = {}
        self.calls: dict[str, tuple[datetime, _Invocation, int]] = {}
        """The last call of each kind, with its invocation and the number of its calls until then."""
        self._current = _Invocation()
        super().__init__()
        self.hooks.before = self._note
        self.hooks.around = self._around
        self.hooks.on_entry = self._enter
        self._kube = self.simulation.kube.handle
        self.simulation.kube.handle = self._watch  # type: ignore[method-assign]

    def _serve(self, step: str) -> Callable[[bytes], int]:
        serve = super()._serve(step)

        def timed(body: bytes) -> int:
            self._current = current = _Invocation()
            begun = time.process_time()
            try:
                return serve(body)
            finally:
                current.cpu_s += time.process_time() - begun

        return timed

    def _note(self, step: str, call: str) -> None:
        self._current.calls.append(call.partition(" ")[2])
        key = f"{step} {call}"
        self.calls[key] = (self.clock.now(), self._current, len(self._current.calls))

    def _around(
        self, _step: str, request: Request, server: Callable[[Request], Response]
    ) -> Response:
        begun = time.process_time()
        try:
            return server(request)
        finally:
            self._current.cpu_s -= time.process_time() - begun

    def _enter(self, entry: Mapping[str, Any]) -> None:
        payload = entry["protoPayload"]
        if entry.get("operation", {}).get("last") and payload["methodName"].endswith(".insert"):
            self.entries[payload["resourceName"]] = self.clock.now()

    def _watch(self, request: Request) -> Response:
        response = self._kube(request)
        if request.method == "POST" and request.path == _CSRS:
            document = json.loads(response.body)
            self.requests[document["metadata"]["name"]] = self.clock.now()
            self.requesters[document["metadata"]["name"]] = str(document)
        return response

    def find_call(self, step: str, method: str, ending: str) -> tuple[datetime, _Invocation, int]:
        """The last call of a step whose path ends so."""
        found = [
            made
            for call, made in self.calls.items()
            if call.startswith(f"{step} {method} ") and call.endswith(ending)
        ]
        return max(found, key=lambda made: made[0])


def measure(hosts: int, topology: str) -> dict[str, Part]:
    """The parts of a slice's creation, in the order of `PARTS`."""
    harness = _Recorder()
    begun = harness.clock.now()
    harness.apply(manifest("bench", nodeCount=hosts, topology=topology))
    whole: set[str] = set()
    last = ""

    def are_whole() -> bool:
        nonlocal last
        found = set(_list_whole_nodes(harness))
        last = next(iter(found - whole), last)
        whole.update(found)
        return len(found) == hosts

    assert harness.run_until(are_whole, _HOUR)
    chips = harness.clock.now()
    assert harness.run_until(lambda: harness.is_ready("bench"), _HOUR)
    mig = harness.find_call("create_resources", "POST", "/instanceGroupManagers")
    inserts = max(
        harness.find_call("create_resources", "POST", f"/{kind}")
        for kind in ("resourcePolicies", "instanceTemplates")
    )
    resources = max(
        at
        for name, at in harness.entries.items()
        if "/resourcePolicies/" in name or "/instanceTemplates/" in name
    )
    (vm,) = (at for name, at in harness.entries.items() if name.endswith(f"/instances/{last}"))
    token = harness.find_call("inject_token", "POST", f"/{last}/setMetadata")
    (request,) = (name for name, said in harness.requesters.items() if last in said)
    approval = harness.find_call("approve_join", "PUT", f"/{request}/approval")
    ready = harness.find_call("label_node", "PUT", "/tpunodegroups/bench/status")
    ends: dict[str, datetime | tuple[datetime, _Invocation, int]] = {
        "inserts": inserts,
        "resources": resources,
        "MIG": mig,
        "VMs": vm,
        "token": token,
        "boot": harness.requests[request],
        "approval": approval,
        "join": chips,
        "Ready": ready,
    }
    times = [begun, *(one[0] if isinstance(one, tuple) else one for one in ends.values())]
    waits = [(end - start).total_seconds() for start, end in pairwise(times)]
    return {
        name: Part(wait_s, *_costs(end) if isinstance(end, tuple) else ())
        for (name, end), wait_s in zip(ends.items(), waits, strict=True)
    }


def _costs(made: tuple[datetime, _Invocation, int]) -> tuple[float, float]:
    """The seconds of an invocation's calls up to one, and of its CPU."""
    _, invocation, count = made
    calls = invocation.calls[:count]
    took = sum(s for call in calls for begin, s in CALL_S.items() if call.startswith(begin))
    return took, invocation.cpu_s


def _list_whole_nodes(harness: Harness) -> list[str]:
    """The Nodes that are Ready and offer chips."""
    nodes = harness.simulation.admin("GET", "/api/v1/nodes")["items"]
    return [
        node["metadata"]["name"]
        for node in nodes
        if "google.com/tpu" in node["status"].get("allocatable", {})
        and any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in node["status"].get("conditions", ())
        )
    ]


def render(found: Mapping[int, Mapping[str, Part]]) -> list[str]:
    """The table of the parts, by the number of hosts."""
    lines = [f"{'hosts':42}" + "".join(f"{hosts:9}" for hosts in found)]

    def add(title: str, read: Callable[[Mapping[str, Part]], str]) -> None:
        lines.append(f"{title:42}" + "".join(f"{read(parts):>9}" for parts in found.values()))

    def own(parts: Mapping[str, Part]) -> list[Part]:
        return [parts[name] for name in OWN]

    def total_s(parts: Mapping[str, Part]) -> float:
        return sum(part.total_s for part in parts.values())

    for name, words in PARTS.items():
        title = f"{'*' if name in OWN else ' '} {words}"
        add(title, lambda parts, name=name: f"{parts[name].total_s:.2f}")  # type: ignore[misc]
    add("apply to Ready", lambda parts: f"{total_s(parts):.2f}")
    add(OWN_TOTAL, lambda parts: f"{sum(one.total_s for one in own(parts)):.2f}")
    add(
        "  of which waiting for messages",
        lambda parts: f"{sum(one.wait_s for one in own(parts)):.2f}",
    )
    add("  of which calls", lambda parts: f"{sum(one.calls_s for one in own(parts)):.2f}")
    add("  of which CPU", lambda parts: f"{sum(one.cpu_s for one in own(parts)):.2f}")
    add(
        "* share",
        lambda parts: f"{sum(one.total_s for one in own(parts)) / total_s(parts):.1%}",
    )
    return lines
