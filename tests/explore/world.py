"""What a seed draws: the world, its slices, and what is broken in it, when.

Everything is drawn before the run, so that single faults can be left out to shrink a failure.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from local import gce, kube, pubsub
from local.cloud.simulation import Clocks, Options
from local.vm import agents
from shared.settings import GKE, TPU_NODE_GROUP
from shared.triggers.routes import SLICE_STEPS, STEPS

BREAKS_FOR_S = 900.0
"""How long a world is being broken; then it heals."""
LATEST_EFFECT_S = 60.0
"""The latest effect of a call whose client gave up, after that (`lifecycle.SURELY_ABSENT_AFTER`)."""

CALLS = ("error", "error after", "reset", "late", "page", "pause", "crash", "crash after", "again")
"""Of one call: an error before and after its effect, no answer before it, an effect after the client
gave up, a page of a proxy, a process that pauses or dies, and its message delivered again meanwhile."""
MESSAGES = ("drop", "double", "delay")
CLOUD = ("outage", "no sinks", "stockout", "rate limit", "failing inserts", "failing metadata")
VMS = ("preempt", "host error", "reset", "delete VM")
MAINTENANCE = ("maintenance", "withdrawn maintenance", "announced maintenance")
"""Of all VMs of a slice: it begins and ends, it is withdrawn, or it is still announced at the end."""
PEOPLE = (
    "delete",
    "pause group",
    "delete Node",
    "wipe status",
    "wipe entry",
    "wipe condition",
    "edit labels",
    "edit VM id",
    "take name",
    "foreign VM",
    "foreign Node",
    "foreign slice",
    "unknown words",
    "restore",
)
"""``foreign slice``: that of a group with the same name in another cluster of the project. ``unknown
words``: a later version's, after a rollback. ``restore``: etcd, from a snapshot."""
USERS = (
    "delete workload",
    "delete workload",
    "delete Pod",
    "scale",
    "suspend",
    "pause slices",
    "delete slice",
    "lose Nodes",
    "failing pools",
)
"""What users do to workloads, and what happens to their node pools."""
TARGETS = ("", "", "GET", "write", "insert", "insert", "secret")
"""Which calls a fault of a call may hit: any, reads, writes, inserts of resources, tokens' Secrets. The
worlds of lost VMs also have ``node``, deletes of Nodes."""
KINDS_BY_HOSTS = (
    {"JobSet": 1, "LeaderWorkerSet": 2},
    {"Deployment": 2, "StatefulSet": 2, "Job": 1, "Pod": 1},
)
"""Kinds of workloads with two hosts a slice and with one, each with the most slices that it needs.

Groups of a LeaderWorkerSet and Pods of one host are not tied to their slices, and may take each other's.
Not drawn together are a LeaderWorkerSet and a JobSet, which is tied: on the JobSet's slice a group
keeps it waiting. Nor is a Deployment with others of one host: no slice is created for its Pods that run.
"""
QUEUED = ("JobSet", "Job")
"""The kinds that a queue may suspend. Their Pods are tied to their slices: a Job is in a queue only
without other kinds of one host, whose Pods would take its slice before it has any."""
KINDS = {kind: most for of_size in KINDS_BY_HOSTS for kind, most in of_size.items()}
INDIVIDUAL: dict[str, Any] = {
    "nodeCount": 2,
    "topology": "2x2x1",
    "targetSizePolicyMode": "INDIVIDUAL",
    "instanceConfig": {"provisioningModel": "STANDARD", "reservation": None},
}
"""Two VMs that are created again one by one."""
HTTP = (503, 401, 403, 409, 412, 429, 500)
ZONES = tuple(f"us-central1-{zone}" for zone in "abf")
"""Those of the candidates of a class."""
MODELS = ("STANDARD", "SPOT")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, at its time: in seconds since the world began."""

    at_s: float
    kind: str
    step: str = ""
    """The step whose call or message it hits; empty: any."""
    target: str = ""
    seconds: float = 0.0
    number: int = 0
    """The HTTP status of an error; how many messages; which VM or group."""

    def __str__(self) -> str:
        where = " ".join(filter(None, (self.step, self.target)))
        return f"{self.at_s:.1f} s: {self.kind} ({where or 'any'}, {self.seconds:.1f} s, {self.number})"


@dataclass(frozen=True)
class World:
    """One world: a simulation's options, the changes of the slices' specs, and the faults.

    ``workloads``: how many slices each kind of workload needs, with this ``provider``; then the world
    has no other slices.
    """

    seed: int
    options: Options
    slices: Mapping[str, Mapping[str, Any]]
    faults: Sequence[Fault] = field(default_factory=tuple)
    workloads: Mapping[str, int] = field(default_factory=dict)
    provider: str = ""
    candidates: Sequence[Mapping[str, str]] = ()
    """Those of the class of the slices of workloads; with none there is no class."""
    limit: int = 0
    """How many slices the class may have."""
    queued: Sequence[str] = ()
    """The kinds of workloads that a queue admits when their ProvisioningRequests are provisioned."""


def number_of_commit() -> int:
    """A number that changes with the commit; 0 without Git."""
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(found.stdout[:4] or "0", 16)


def draw(seed: int) -> World:
    """Draw the world of a seed. Each third world has workloads; of nine, one loses VMs whose Nodes have
    joined, and of one the status is wiped during its deletion. A quarter has maintenance."""
    return _add_maintenance(_draw(seed))


def _add_maintenance(world: World) -> World:
    """Add maintenance, after which VMs take longer to restart. A generator of its own draws it, so
    that the other worlds and faults of a seed stay the same."""
    random = Random(f"maintenance {world.seed}")
    if random.random() >= 0.25:
        return world
    drawn = [_draw_maintenance(random) for _ in range(random.randrange(1, 4))]
    faults = sorted((*world.faults, *drawn), key=lambda fault: fault.at_s)
    restart = (30.0, random.uniform(60, 1200))
    timings = replace(world.options.gce, automatic_restart_after_s=restart)
    return replace(world, faults=tuple(faults), options=replace(world.options, gce=timings))


def _draw_maintenance(random: Random) -> Fault:
    at_s, seconds = random.uniform(60, BREAKS_FOR_S), random.uniform(1, 600)
    return Fault(at_s, random.choice(MAINTENANCE), "", "", seconds, random.randrange(6))


def _draw(seed: int) -> World:
    random = Random(seed)
    if seed % 3 == 2:
        return _draw_workloads(seed, random)
    names = ("one", "two")[: random.choice((1, 1, 2))]
    slices = {name: _draw_slice(random) for name in names}
    faults = [_draw_fault(random) for _ in range(random.randrange(1, 25))]
    if random.random() < 0.4:
        # While a slice is created, its deletion meets inserts that are late.
        at_s = random.uniform(0.5, 60)
        faults.append(Fault(at_s, "delete", number=random.randrange(2)))
        for _ in range(random.randrange(3)):
            kind = random.choice(("late", "pause", "crash", "crash after"))
            seconds = random.uniform(1, LATEST_EFFECT_S)
            begin_s = random.uniform(0, at_s)
            faults.append(Fault(begin_s, kind, "create_resources", "insert", seconds))
    options = _draw_options(random)
    if random.random() < 0.15:
        # A name can be taken only before the group has it.
        faults.append(Fault(random.uniform(0, 4), "take name", number=random.randrange(2)))
    if seed % 9 == 1:
        faults, slices = [*faults[:4], *_draw_lost_vms(Random(-seed))], {"one": INDIVIDUAL}
    elif seed % 9 == 3:
        faults, slices = [*_draw_wiped(Random(-seed))], {"one": {}}
    faults.sort(key=lambda fault: fault.at_s)
    return World(seed, options, slices, tuple(faults))


def _draw_lost_vms(random: Random) -> Iterator[Fault]:
    """VMs are deleted once their Nodes have joined, and deletes of Nodes take effect late: meanwhile the
    Nodes of the next VMs may have joined."""
    for _ in range(random.randrange(2, 6)):
        at_s = random.uniform(90, 400)
        yield Fault(at_s, "delete VM", number=random.randrange(2))
        yield Fault(at_s, "late", "", "node", random.uniform(30, LATEST_EFFECT_S))


def _draw_wiped(random: Random) -> Iterator[Fault]:
    """A status is wiped after the deletion, while the second insert of an invocation is late."""
    yield Fault(0, "pause", "create_resources", "insert", random.uniform(10, 28))
    yield Fault(0.1, "late", "create_resources", "insert", random.uniform(45, LATEST_EFFECT_S))
    at_s = random.uniform(3, 20)
    yield Fault(at_s, "delete")
    for _ in range(random.randrange(1, 4)):
        kind = random.choice(("wipe status", "wipe entry"))
        yield Fault(at_s + random.uniform(0, 20), kind, number=random.randrange(3))


def _draw_workloads(seed: int, random: Random) -> World:
    provider = random.choice((TPU_NODE_GROUP, TPU_NODE_GROUP, GKE))
    kinds = [random.choice(sorted(of_size)) for of_size in random.sample(KINDS_BY_HOSTS, 2)]
    if random.random() < 0.3:
        kinds = random.sample([one for one in KINDS_BY_HOSTS[1] if one != "Deployment"], 2)
    kinds = kinds[: random.choice((1, 2))]
    workloads = {kind: random.randrange(1, 1 + KINDS[kind]) for kind in kinds}
    options = _draw_options(random)
    # The stand-ins of controllers have the API server's clock.
    clocks = replace(options.clocks, api_server_s=0.0)
    faults = [_draw_fault(random) for _ in range(random.randrange(1, 12))]
    for _ in range(random.randrange(1, 8)):
        at_s, seconds = random.uniform(0, BREAKS_FOR_S), random.uniform(1, 300)
        what = random.choice((*USERS, *CALLS, *MESSAGES))
        step = random.choice(SLICE_STEPS) if what not in USERS else ""
        number = random.choice(HTTP) if what in CALLS else random.randrange(6)
        if what in CALLS:
            seconds = min(seconds, LATEST_EFFECT_S)
        faults.append(Fault(at_s, what, step, "", seconds, number))
    options = replace(options, clocks=clocks, workloads=True)
    candidates = []
    if random.random() < 0.6:
        places = [{"zone": zone, "provisioningModel": model} for zone in ZONES for model in MODELS]
        candidates = random.sample(places, random.randrange(1, 4))
        for _ in range(random.randrange(1, 6)):
            at_s, seconds = random.uniform(0, random.choice((1, 300))), random.uniform(30, 900)
            number = random.randrange(6)
            if provider == GKE:  # there are fewer of these worlds: each fault is of a candidate
                one = candidates[number % len(candidates)]
                found = ZONES.index(one["zone"]), MODELS.index(one["provisioningModel"])
                number = next(n for n in range(6) if (n % 3, n % 2) == found)
            faults.append(Fault(at_s, "no capacity", "", "", seconds, number))
    faults.sort(key=lambda fault: fault.at_s)
    limit = sum(workloads.values()) + random.randrange(3)
    queued = tuple(one for one in workloads if one in QUEUED and random.random() < 0.5)
    if len({"Job", *workloads} & KINDS_BY_HOSTS[1].keys()) > 1:
        queued = tuple(one for one in queued if one != "Job")
    made = World(seed, options, {}, tuple(faults), workloads, provider, tuple(candidates), limit)
    return replace(made, queued=queued)


def _draw_slice(random: Random) -> dict[str, Any]:
    size = random.choice((1, 2, 2, 3))
    change: dict[str, Any] = {
        "nodeCount": size,
        "topology": "2x2x1",
        "targetSizePolicyMode": "INDIVIDUAL",
    }
    if size == 2 and random.random() < 0.5:
        change = {"repair": random.choice(("Never", "Recreate"))}
    if random.random() < 0.6:
        model = random.choice(("SPOT", "STANDARD"))
        change["instanceConfig"] = {"provisioningModel": model, "reservation": None}
    return change


def _draw_options(random: Random) -> Options:
    offsets = [random.choice((0.0, 0.0, random.uniform(-150, 150))) for _ in range(3)]
    lag = random.choice((0.0, 2.0, 10.0))
    return Options(
        gce=gce.Timings(
            list_lag_s=(0.0, lag),
            template_visibility_lag_s=(0.0, lag / 2),
            in_use_lag_s=(0.0, 2 * lag),
            repair_keeps_id=random.random() < 0.2,
        ),
        agents=agents.Timings(
            boot_s=(3.0, 20.0),
            prepare_s=(1.0, 5.0),
            join_s=(1.0, 5.0),
            lease_s=20.0,
            join_fault_chance=random.choice((0.0, 0.2)),
        ),
        kube=kube.ClusterOptions(node_grace_s=50.0),
        pubsub=pubsub.Timings(
            duplicates=random.choice((0.0, 0.1, 0.5)), delay_s=random.choice((0.0, 1.0, 10.0))
        ),
        clocks=Clocks(*offsets),
    )


def _draw_fault(random: Random) -> Fault:
    # Most slices are created within three minutes, and most faults meet that.
    at_s = random.uniform(0, random.choice((120.0, 240.0, BREAKS_FOR_S)))
    kind = random.choice(random.choice((CALLS, CALLS, CALLS, MESSAGES, CLOUD, VMS, PEOPLE)))
    step = random.choice(("", random.choice(STEPS)))
    seconds = random.uniform(1, LATEST_EFFECT_S)
    if kind in CALLS:
        return Fault(at_s, kind, step, random.choice(TARGETS), seconds, random.choice(HTTP))
    if kind in MESSAGES:
        return Fault(at_s, kind, step, "", seconds * random.choice((1, 10)), random.randrange(1, 9))
    return Fault(at_s, kind, "", "", seconds * 5, random.randrange(6))
