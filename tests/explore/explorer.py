"""One run: slices are created while the faults of a world happen; then it heals and must converge."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from local.base import turns
from local.base.controls import UnknownFault
from local.base.http import Request, Response
from local.cloud.simulation import PROJECT
from local.gce.refusals import Refused
from local.kube.store import Snapshot
from shared.base.names import (
    PAUSED_ANNOTATION,
    RESOURCE_NAME_LABEL,
    VM_ID_LABEL,
    find_resource_name,
)
from shared.node_groups.node_group import resource_name
from shared.node_groups.status import Type
from shared.triggers.message import Cause
from shared.triggers.routes import SWEEP
from tests.explore.rules import GROUPS, NODES, SECRETS, Rules, Violation
from tests.explore.workloads import Workloads
from tests.explore.world import (
    BREAKS_FOR_S,
    CALLS,
    MAINTENANCE,
    MESSAGES,
    MODELS,
    USERS,
    ZONES,
    Fault,
    World,
)
from tests.faults.jobsets import FULL, SETTINGS, limit_zone, make_class
from tests.stories import helpers
from tests.support.harness import Harness, ProcessKilled
from tests.support.manifests import manifest

HEALS_WITHIN = timedelta(minutes=100)
GONE_WITHIN = timedelta(minutes=75)
MAINTENANCE_REPORTED_WITHIN = timedelta(minutes=75)
"""The hourly count of all VMs finds what events did not report."""
RESTARTED_WITHIN_S = 2400.0
_FIELDS = {
    f"{helpers.REGION}/resourcePolicies": ("name", "description", "workloadPolicy"),
    f"projects/{PROJECT}/global/instanceTemplates": ("name", "description", "properties"),
    f"{helpers.ZONE}/instanceGroupManagers": (
        "name",
        "description",
        "baseInstanceName",
        "instanceTemplate",
        "targetSize",
        "targetSizePolicy",
        "resourcePolicies",
        "instanceLifecyclePolicy",
    ),
}
"""What a person gives to create resources as those of a slice, in this order."""
WRITES = ("POST", "PUT", "PATCH", "DELETE")
CALLS_WHEN_READY = 150
"""At most so many calls in half an hour about slices that are Ready: most of them are the sweep's."""


@dataclass
class Run:
    """What happened in a run. ``problem`` is empty if all rules held."""

    world: World
    problem: str = ""
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Invocations, calls, and faults that hit something."""

    @property
    def hash(self) -> str:
        """The hash of the trace, without names that are made of keys."""
        text = re.sub(r"node-csr-[\w-]+", "node-csr", "\n".join(self.trace))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def explore(world: World) -> Run:
    """Run a world."""
    run = Run(world)
    explorer = Explorer(world, run)
    try:
        explorer.live()
    except (AssertionError, Refused) as error:
        run.problem = explorer.rules.broken or f"{type(error).__name__}: {error}"
    return run


class ExploredHarness(Harness):
    """A harness that knows the message of each running invocation."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.counts: Counter[str] = Counter()
        self.bodies: dict[int, tuple[str, bytes]] = {}
        super().__init__(*args, **named)

    def _serve(self, step: str) -> Callable[[bytes], int]:
        serve = super()._serve(step)

        def remember(body: bytes) -> int:
            thread = threading.get_ident()
            outer = self.bodies.get(thread, ("", b""))
            self.bodies[thread] = (step, body)
            self.counts["invocations"] += 1
            try:
                return serve(body)
            finally:
                self.bodies[thread] = outer

        return remember

    def begin_again(self) -> None:
        """Begin a second invocation for the message of the current one."""
        step, body = self.bodies[threading.get_ident()]
        serve = self._serve(step)
        self.clock.call_later(0, lambda: self.begin(lambda: void(serve(body))))


def void(_: object) -> None:
    """Drop a value."""


class Explorer:
    """Lets a world happen to the product."""

    def __init__(self, world: World, run: Run) -> None:
        self._world, self._run = world, run
        self._random = Random(world.seed + 1)
        self._faults = [one for one in world.faults if one.kind in (*CALLS, *MESSAGES)]
        self._lost_vms, self._deleted_nodes, self._maintenance_to_end = False, False, 0
        self._taken: list[str] = []
        self._snapshots: dict[Fault, tuple[Snapshot, set[str]]] = {}
        slices = SETTINGS.get(world.provider)
        self.harness = ExploredHarness(world.options, seed=world.seed, slices=slices)
        self.harness.counts = run.counts
        self._begun = self.harness.clock.now()
        self.rules = Rules(self.harness)
        has_workloads = bool(world.workloads)
        self.workloads = Workloads(self.harness, self.rules, world) if has_workloads else None
        self._server: Any = self.harness.simulation.kube
        self._publish = self.harness.simulation.publish
        self.harness.simulation.publish = self._deliver  # type: ignore[method-assign]
        self.harness.hooks.around = self._call
        self.harness.hooks.before = self._before

    # the run

    def live(self) -> None:
        """Create, break, heal, delete."""
        for name in self._world.slices:
            self._apply(name)
        if self._world.candidates:
            options = {"giveUpAfter": "1m", "limits": {"slices": self._world.limit}}
            make_class(self.harness, [*map(dict, self._world.candidates)], **options)
            limit_zone(self.harness, FULL)
        if self.workloads is not None:
            self.workloads.apply()
        for fault in self._world.faults:
            if fault.kind not in (*CALLS, *MESSAGES):
                self.harness.clock.call_later(fault.at_s, partial(self._act, fault))
            if fault.kind == "restore":
                at_s = max(0.0, fault.at_s - fault.seconds)
                self.harness.clock.call_later(at_s, partial(self._take_snapshot, fault))
        self._watch(15.0)
        self.harness.run_for(timedelta(seconds=BREAKS_FOR_S))
        self._heal()
        self._converge()
        is_right = lambda: not self.rules.find_wrong_maintenance()  # noqa: E731
        self._until("maintenance reported", is_right, MAINTENANCE_REPORTED_WITHIN)
        self._delete_all()

    def _apply(self, name: str) -> None:
        answer = self.harness.apply(manifest(name, **self._world.slices[name]))
        assert answer["kind"] == "TPUNodeGroup", answer

    def _watch(self, every_s: float) -> None:
        self.rules.check_state()
        if self.workloads is not None and (problem := self.workloads.problem()):
            raise Violation(problem)
        self.harness.clock.call_later(every_s, lambda: self._watch(every_s))

    def _heal(self) -> None:
        self._note("heals")
        self._faults.clear()
        simulation = self.harness.simulation
        simulation.pubsub.end_outage()
        faults = simulation.gce.faults
        faults.break_sinks(False)
        faults.set_capacity("us-central1-c", "tpu7x")
        for zone in ZONES:
            for model in MODELS:
                self._limit_capacity(zone, model)
        for path in self._taken:
            self._as_user("DELETE", path)
            self.rules.strangers.discard(path)
        if self.workloads is not None:
            self.workloads.heal()
        self._resume()

    def _resume(self) -> None:
        for name in self._names():
            group = self.harness.group(name)
            if group is not None and "deletionTimestamp" not in group["metadata"]:
                self._pause(name, None)

    def _converge(self) -> None:
        if self.workloads is not None:
            self._converge_workloads(self.workloads)
            return
        names = list(self._world.slices)
        self._until("gone", lambda: not any(map(self._is_deleting, names)), GONE_WITHIN)
        for name in names:
            if self.harness.group(name) is None:
                self._apply(name)
        if self._deleted_nodes:
            self.harness.run_for(timedelta(minutes=20))
            self._reset_vms_without_nodes()
        self._until("Ready", lambda: all(map(self._is_right, names)), HEALS_WITHIN)
        self.harness.run_for(timedelta(minutes=5))
        before = self._run.counts["calls"]
        self.harness.run_for(timedelta(minutes=30))
        calls = self._run.counts["calls"] - before
        assert all(map(self._is_right, names)), f"Ready did not last\n{self._describe()}"
        if calls > CALLS_WHEN_READY * len(names) and not self._lost_vms:
            raise Violation(f"{calls} calls in half an hour")

    def _converge_workloads(self, workloads: Workloads) -> None:
        def are_right() -> bool:
            workloads.apply()
            names = self._names()
            is_ready = all(map(self.harness.is_ready, names))
            is_changing = self._maintenance_to_end or any(map(self._is_deleting, names))
            return workloads.are_right() and is_ready and not is_changing

        if self._lost_vms or self._deleted_nodes:
            self.harness.run_for(timedelta(minutes=20))
            self._reset_vms_without_nodes()
            self.harness.run_for(timedelta(minutes=10))
            workloads.replace_broken()
        self._until("Running", are_right, HEALS_WITHIN)
        self.harness.run_for(timedelta(minutes=5))
        before = self._run.counts["calls"]
        self.harness.run_for(timedelta(minutes=30))
        calls = self._run.counts["calls"] - before
        assert are_right(), f"Running did not last\n{self._describe()}"
        # An open request is looked at as often as a Pod that waits.
        objects = len(workloads.slices()) + 3 * len(workloads.queue.kinds)
        often = 1 + self._world.options.pubsub.duplicates
        if calls > CALLS_WHEN_READY * (3 + objects) * often and not self._lost_vms:
            raise Violation(f"{calls} calls in half an hour")

    def _names(self) -> list[str]:
        """The names of all groups, also of those that workloads have."""
        if self.workloads is None:
            return list(self._world.slices)
        return [one["metadata"]["name"] for one in self.rules.items(GROUPS)]

    def _delete_all(self) -> None:
        if self.workloads is not None:
            self.workloads.delete()
            gone = lambda: not self._names() and not self.harness.gke.leftovers()  # noqa: E731
        else:
            for name in self._world.slices:
                self.harness.delete(name)
            gone = lambda: not any(map(self.harness.group, self._world.slices))  # noqa: E731
        self._until("gone", gone, GONE_WITHIN)
        # A token whose creation was late expires.
        self.harness.run_for(timedelta(minutes=70))
        self.rules.check_end()

    def _until(self, what: str, holds: Callable[[], bool], timeout: timedelta) -> None:
        deadline = self.harness.clock.now() + timeout
        while not holds():
            if self.harness.clock.now() > deadline:
                raise Violation(f"not {what} within {timeout}\n{self._describe()}")
            self.harness.run_for(timedelta(seconds=20))
        self._note(what)

    def _describe(self) -> str:
        return helpers.describe_state(self.harness)

    def _is_deleting(self, name: str) -> bool:
        group = self.harness.group(name)
        return group is not None and "deletionTimestamp" in group["metadata"]

    def _is_right(self, name: str) -> bool:
        """Whether the slice is Ready, and truly; a BULK slice that has lost a VM says so."""
        group = self.harness.group(name)
        assert group is not None
        status = group.get("status", {})
        running = [vm for vm, state in self._vms(group).items() if state == "RUNNING"]
        proofs = {it["name"]: it["id"] for it in map(self.rules.find, running) if it is not None}
        nodes = [one for one in self.rules.items(NODES) if self._is_node_of(one, group, proofs)]
        is_whole = len(nodes) == len(running) == group["spec"]["nodeCount"]
        if self.harness.is_ready(name):
            return is_whole and not status.get("pending")
        is_bulk = group["spec"]["targetSizePolicyMode"] == "BULK"
        return is_bulk and self._lost_vms and not is_whole

    def _is_node_of(
        self, node: Mapping[str, Any], group: Mapping[str, Any], proofs: Mapping[str, str]
    ) -> bool:
        """Whether a Node is Ready, is one of these VMs' (ids by names), and has the labels of both."""
        resource, labels = self.rules.resource_name(group["metadata"]), node["metadata"]["labels"]
        is_proved = labels.get(VM_ID_LABEL) == proofs.get(node["metadata"]["name"], "?")
        conditions = node.get("status", {}).get("conditions", [])
        is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        return is_ready and is_proved and labels.get(RESOURCE_NAME_LABEL) == resource

    def _vms(self, group: Mapping[str, Any] | None = None) -> dict[str, str]:
        found = self.harness.simulation.gce.state()["instances"].items()
        name = (group or {}).get("metadata", {}).get("labels", {}).get(RESOURCE_NAME_LABEL, "tng-")
        is_strangers = self.rules.is_strangers
        return {vm: state for vm, state in found if f"/{name}" in vm and not is_strangers(vm)}

    def _reset_vms_without_nodes(self) -> None:
        """As the reason NodeDeleted advises."""
        names = {one["metadata"]["name"] for one in self.rules.items(NODES)}
        for vm, state in self._vms().items():
            if state == "RUNNING" and vm.rpartition("/")[2] not in names:
                self._as_user("POST", f"{vm}/reset")

    # calls and messages

    def _seconds(self) -> float:
        return (self.harness.clock.now() - self._begun).total_seconds()

    def _note(self, text: str) -> None:
        self._run.trace.append(f"{self._seconds():.3f} {text}")

    def _take(self, kinds: tuple[str, ...], step: str, request: Request | None) -> Fault | None:
        now = self._seconds()
        for fault in self._faults:
            if fault.at_s > now:
                break
            if fault.kind in kinds and fault.step in ("", step) and _matches(fault.target, request):
                self._faults.remove(fault)
                self._run.counts["faults"] += 1
                self._note(f"FAULT {fault}")
                return fault
        return None

    def _let_others_run(self) -> None:
        """While a call takes its time."""
        slow = self._random.choice((0.05, 0.05, 0.2, 0.5, 2.0))
        turns.sleep(self.harness.clock, self._random.uniform(0, slow))

    def _before(self, step: str, call: str) -> None:
        """Before the publication of a message by a step."""
        if call.startswith("publish "):
            turns.sleep(self.harness.clock, 0.1)
            self._note(f"{step} {call}")

    def _call(self, step: str, request: Request, server: Callable[[Request], Response]) -> Response:
        self._run.counts["calls"] += 1
        self._let_others_run()
        fault = self._take(CALLS, step, request)
        send = partial(self._send, step, request, server)
        if fault is None:
            return send()
        is_revocation = request.method == "DELETE" and request.path.startswith(SECRETS)
        self.rules.is_revocation_lost |= is_revocation
        match fault.kind:
            case "error":
                return _refuse(request, fault.number)
            case "error after":
                send()
                return _refuse(request, 503)
            case "reset":
                raise _no_answer(request)
            case "page":
                return Response(
                    200 + 300 * (fault.number % 2), {"Content-Type": "text/html"}, b"<html>"
                )
            case "late":
                self.harness.clock.call_later(fault.seconds, lambda: void(send(is_late=True)))
                turns.sleep(self.harness.clock, min(fault.seconds, 20.0) * self._random.random())
                raise _no_answer(request)
            case "pause":
                turns.sleep(self.harness.clock, fault.seconds)
            case "again":
                self._begin_again()
            case "crash":
                raise ProcessKilled
            case "crash after":
                send()
                raise ProcessKilled
        return send()

    def _begin_again(self) -> None:
        self.harness.begin_again()

    def _send(
        self,
        step: str,
        request: Request,
        server: Callable[[Request], Response],
        *,
        is_late: bool = False,
    ) -> Response:
        if request.method in WRITES:
            self.rules.check_write(step, request)
        response = server(request)
        late = " late" if is_late else ""
        self._note(f"{step} {request.method} {request.path}{late}: {response.status}")
        if request.method == "POST" and request.path == SECRETS and response.status == 201:
            self.rules.note_secret(response.json(), is_late=is_late)
        return response

    def _deliver(self, step: str, data: bytes, attributes: Mapping[str, str]) -> None:
        fault = self._take(MESSAGES, step, None)
        publish = partial(self._publish, step, data, dict(attributes))
        is_lost = fault is not None and fault.kind in ("drop", "delay")
        self.rules.are_events_lost |= is_lost
        if is_lost and (step == SWEEP or attributes.get("cause") in (Cause.RESYNC, Cause.SWEEP)):
            self.rules.begin_state()
        if fault is None or fault.kind != "drop":
            if fault is not None and fault.kind == "delay":
                self.harness.clock.call_later(fault.seconds, lambda: self._publish_later(publish))
            else:
                publish()
        if fault is not None and fault.kind == "double":
            publish()
        if fault is not None and fault.number > 1:
            again = Fault(fault.at_s, fault.kind, fault.step, "", fault.seconds, fault.number - 1)
            self._faults.insert(0, again)

    def _publish_later(self, publish: Callable[[], None]) -> None:
        if self.harness.simulation.pubsub.has_outage:
            self.harness.clock.call_later(10, lambda: self._publish_later(publish))
        else:
            publish()

    # the cloud and people

    def _as_user(self, method: str, path: str, body: dict[str, Any] | None = None) -> bool:
        try:
            self.harness.simulation.gce.faults.act_as_user(method, path, body)
        except Refused:
            return False
        return True

    def _limit_capacity(self, zone: str, model: str, vms: int | None = None) -> None:
        self.harness.simulation.gce.faults.set_capacity(zone, "ct6e", vms, model)
        self.harness.gke.faults.set_capacity(zone, "ct6e-standard", vms, model)

    def _pause(self, name: str, value: str | None) -> None:
        helpers.annotate(self.harness, PAUSED_ANNOTATION, value, name)

    def _act(self, fault: Fault) -> None:
        simulation, faults = self.harness.simulation, self.harness.simulation.gce.faults
        names = self._names() or [""]
        name = names[fault.number % len(names)]
        vms = sorted(self._vms())
        vm = vms[fault.number % len(vms)] if vms else ""
        self._note(f"FAULT {fault}")
        self._run.counts["faults"] += 1
        self.rules.are_events_lost |= fault.kind in ("outage", "no sinks")
        later = partial(self.harness.clock.call_later, fault.seconds)
        match fault.kind:
            case "outage":
                simulation.pubsub.begin_outage()
                later(simulation.pubsub.end_outage)
            case "no sinks":
                faults.break_sinks()
                later(lambda: faults.break_sinks(False))
            case "stockout":
                faults.set_capacity("us-central1-c", "tpu7x", 0)
                later(lambda: faults.set_capacity("us-central1-c", "tpu7x"))
            case "no capacity":
                zone, model = ZONES[fault.number % 3], MODELS[fault.number % 2]
                self._limit_capacity(zone, model, 0)
                later(lambda: self._limit_capacity(zone, model))
            case "rate limit":
                faults.rate_limit(seconds=fault.seconds / 5)
            case "failing inserts":
                verbs = (
                    "resourcePolicies",
                    "instanceTemplates",
                    "instanceGroupManagers",
                    "instances",
                )
                faults.fail_operations(f"{verbs[fault.number % 4]}.insert")
            case "failing metadata":
                faults.fail_operations("instances.setMetadata", fault.number or 1)
            case kind if kind in USERS and self.workloads is not None:
                self._lost_vms |= kind == "lose Nodes"
                self.workloads.act(fault)
            case kind if kind in MAINTENANCE:
                self._announce(fault, name)
            case "preempt" | "host error" | "reset" | "delete VM":
                self._hurt(fault.kind, vm)
            case _:
                self._act_as_person(fault, name, vm)

    def _take_snapshot(self, fault: Fault) -> None:
        """If all groups are under our finalizer: an older snapshot does not know whose VMs exist."""
        metas = [one["metadata"] for one in self.rules.items(GROUPS)]
        if metas and all(one.get("finalizers") for one in metas):
            uids = {one["uid"] for one in metas}
            self._snapshots[fault] = (self._server.snapshot(), uids)

    def _restore(self, snapshot: Snapshot, uids: set[str]) -> None:
        """If it knows all groups that exist: what another has created would be nobody's afterwards."""
        if not uids.issuperset(one["metadata"]["uid"] for one in self.rules.items(GROUPS)):
            return
        self._deleted_nodes = True
        before = {one["metadata"]["name"] for one in self.rules.items(SECRETS)}
        self._server.restore(snapshot)
        after = {one["metadata"]["name"] for one in self.rules.items(SECRETS)}
        self.rules.late |= after - before  # revoked once, and valid again until they end

    def _hurt(self, kind: str, vm: str) -> None:
        faults = self.harness.simulation.gce.faults
        self._lost_vms = True
        try:
            if kind == "preempt":
                faults.preempt(vm)
            elif kind == "host error":
                faults.host_error(vm)
            elif vm:
                self._as_user(*(("POST", f"{vm}/reset") if kind == "reset" else ("DELETE", vm)))
        except UnknownFault:
            return

    def _announce(self, fault: Fault, name: str) -> None:
        """Announce maintenance of a slice's VMs; it begins or is withdrawn later, or stays announced."""
        group = self.harness.group(name)
        if group is None:
            return
        resource = self.rules.resource_name(group["metadata"])
        vms = [vm for vm in self._vms() if find_resource_name(vm.rpartition("/")[2]) == resource]
        faults = self.harness.simulation.gce.faults
        for vm in vms:
            faults.announce_maintenance(vm, hours=fault.seconds / 3600)
        later = partial(self.harness.clock.call_later, fault.seconds)
        self._maintenance_to_end += fault.kind != "announced maintenance"
        if fault.kind == "maintenance":
            later(lambda: self._begin_maintenance(name, resource, vms))
        elif fault.kind == "withdrawn maintenance":
            later(lambda: self._end_maintenance(resource, vms))

    def _begin_maintenance(self, name: str, resource: str, vms: list[str]) -> None:
        """Stop the VMs; a VM of a BULK slice stops the others itself."""
        faults, group = self.harness.simulation.gce.faults, self.harness.group(name)
        self._note(f"maintenance of {resource} begins")
        if group is not None and self.rules.resource_name(group["metadata"]) == resource:
            self.rules.begin_maintenance(group)
        found = {vm: document for vm in vms if (document := self.rules.find(vm)) is not None}
        for vm, document in found.items():
            self._lost_vms |= not document["scheduling"]["automaticRestart"]
            faults.announce_maintenance(vm, hours=0.0, ongoing=True)
        for vm in found:
            with suppress(UnknownFault):
                faults.host_maintenance(vm)
        self._end_when_restarted(resource, vms, self._seconds() + RESTARTED_WITHIN_S)

    def _end_when_restarted(self, resource: str, vms: list[str], until_s: float) -> None:
        states = self.harness.simulation.gce.state()["instances"]
        if self._seconds() > until_s or {states.get(vm, "") for vm in vms} <= {"RUNNING", ""}:
            self._end_maintenance(resource, vms)
            return
        again = partial(self._end_when_restarted, resource, vms, until_s)
        self.harness.clock.call_later(10, again)

    def _end_maintenance(self, resource: str, vms: list[str]) -> None:
        self._note(f"maintenance of {resource} is over")
        self._maintenance_to_end -= 1
        self.rules.maintained.discard(resource)
        for vm in vms:
            with suppress(UnknownFault):
                self.harness.simulation.gce.faults.end_maintenance(vm)

    def _act_as_person(self, fault: Fault, name: str, vm: str) -> None:
        harness, node = self.harness, f"{NODES}/{vm.rpartition('/')[2]}"
        group = harness.group(name)
        if group is None:
            return
        self.rules.begin_state()
        status, path = group.get("status", {}), helpers.group_path(name)
        resource = self.rules.resource_name(group["metadata"])
        match fault.kind:
            case "delete":
                harness.delete(name)
            case "pause group":
                self._pause(name, "true")
                harness.clock.call_later(fault.seconds, lambda: self._pause(name, None))
            case "delete Node" if vm:
                self._deleted_nodes = True
                harness.simulation.admin("DELETE", node)
            case "wipe status":
                harness.simulation.admin("PUT", f"{path}/status", {**group, "status": {}})
            case "wipe entry":
                kinds = sorted(status.get("resources", {}))
                if kinds:
                    wiped = {kinds[fault.number % len(kinds)]: None}
                    helpers.patch(harness, f"{path}/status", {"status": {"resources": wiped}})
            case "wipe condition":
                kind = list(Type)[fault.number % len(Type)]
                kept = [one for one in status.get("conditions", []) if one["type"] != kind]
                helpers.patch(harness, f"{path}/status", {"status": {"conditions": kept}})
            case "edit labels":
                helpers.patch(harness, path, {"metadata": {"labels": {RESOURCE_NAME_LABEL: None}}})
            case "edit VM id" if vm:
                helpers.patch(harness, node, {"metadata": {"labels": {VM_ID_LABEL: "12345"}}})
            case "take name":
                taken = f"{helpers.REGION}/resourcePolicies"
                body = {"name": resource, "workloadPolicy": {"type": "HIGH_THROUGHPUT"}}
                if self._as_user("POST", taken, body):
                    self.rules.strangers.add(f"{taken}/{resource}")
                    self._taken.append(f"{taken}/{resource}")
            case "foreign VM" if vm:
                self._make_vm(vm)
            case "foreign slice":
                self._make_slice(group, resource)
            case "unknown words":
                known = status.get("resources", {})
                words = {kind: {**one, "state": "Hibernating"} for kind, one in known.items()}
                conditions = [
                    {**one, "reason": "Hibernating", "message": "It hibernates."}
                    for one in status.get("conditions", [])
                ]
                change = {"resources": words, "conditions": conditions, "hibernation": "Light"}
                helpers.patch(harness, f"{path}/status", {"status": change})
            case "restore" if fault in self._snapshots:
                self._restore(*self._snapshots[fault])
            case "foreign Node":
                harness.simulation.admin("POST", NODES, self.rules.foreign_node(resource))
                self.rules.strangers.add("worker-1")

    def _make_slice(self, group: Mapping[str, Any], own: str) -> None:
        """A slice of a group of the same name in another cluster, made from this group's resources."""
        name = resource_name("0" * 8, group["metadata"]["name"], "1" * 8)
        if self.rules.foreign:
            return
        self.rules.foreign.add(name)
        for at, (collection, fields) in enumerate(_FIELDS.items()):
            found = self.rules.find(f"{collection}/{own}")
            if found is None:
                continue  # not each slice has a policy
            text = json.dumps({key: found[key] for key in fields if key in found})
            body = json.loads(text.replace(own, name).replace(self.rules.cluster, "0" * 8))
            create = partial(self._as_user, "POST", collection, body)
            self.harness.clock.call_later(30.0 * at, partial(_drop_answer, create))
        self.rules.strangers.add(path := f"{helpers.ZONE}/instanceGroupManagers/{name}")
        self.harness.clock.call_later(120, lambda: self._forget_if_never_made(path))

    def _make_vm(self, model: str) -> None:
        """A VM with all that a VM of the slice has but its tokens; it is no member of the MIG."""
        found = self.rules.find(model)
        if found is None:
            return
        kept = ("networkInterfaces", "machineType", "scheduling", "serviceAccounts")
        body = {key: found[key] for key in kept if key in found}
        items = [one for one in found["metadata"]["items"] if not one["key"].startswith("kubeadm-")]
        path = f"{model[:-4]}zzzz"
        template = helpers.template()["properties"]
        body |= {"name": path.rpartition("/")[2], "metadata": {"items": items}}
        body |= {key: template[key] for key in ("disks", "networkInterfaces")}
        if self._as_user("POST", path.rpartition("/")[0], body):
            self.rules.strangers.add(path)
            self.harness.clock.call_later(60, lambda: self._forget_if_never_made(path))

    def _forget_if_never_made(self, path: str) -> None:
        """The insert of a VM may fail, as that of a slice's. No step can have deleted it unnoticed."""
        if self.rules.find(path) is None:
            self.rules.strangers.discard(path)


def _drop_answer(call: Callable[[], object]) -> None:
    call()


def _matches(target: str, request: Request | None) -> bool:
    if request is None or not target:
        return True
    if target == "secret":
        return request.path.endswith("/secrets") and request.method == "POST"
    if target == "insert":
        return request.method == "POST" and request.path.startswith("/compute/")
    if target == "node":
        return request.method == "DELETE" and request.path.startswith(f"{NODES}/")
    return request.method in WRITES if target == "write" else request.method == target


def _is_of_google(request: Request) -> bool:
    return not request.path.startswith("/api")


def _refuse(request: Request, http: int) -> Response:
    """The API's refusal of a call, in its own form."""
    if _is_of_google(request):
        reasons = {
            401: "authError",
            403: "forbidden",
            409: "resourceNotReady",
            412: "conditionNotMet",
        }
        reason = reasons.get(http, "rateLimitExceeded" if http == 429 else "backendError")
        errors = [{"reason": reason, "message": "drawn"}]
        return Response.of_json(
            {"error": {"code": http, "message": "drawn", "errors": errors}}, http
        )
    names = {401: "Unauthorized", 403: "Forbidden", 409: "Conflict", 429: "TooManyRequests"}
    if http == 412:
        http = 409
    status = {"kind": "Status", "status": "Failure", "reason": names.get(http, "InternalError")}
    return Response.of_json({**status, "code": http, "message": "drawn"}, http)


def _no_answer(request: Request) -> Exception:
    import requests
    from urllib3.exceptions import ProtocolError

    return requests.ConnectionError("drawn") if _is_of_google(request) else ProtocolError("drawn")
