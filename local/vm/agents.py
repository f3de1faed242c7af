"""The software of a simulated VM: it joins a cluster as the startup script does.

`KubeAgent` simulates the script, kubeadm and the kubelet on a clock. From the script it reads only the
values of the slice (labels, taints, version).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from random import Random
from typing import TypeVar

from local.base.clock import Clock, Timer
from local.base.machine import Machine
from local.vm.conversation import Conversation, Identity, Reply, Send
from local.vm.kubeadm import JoinConfiguration, JoinFailed, join
from local.vm.kubelet import KubeletBehaviour, Node, chips_of, parse_labels, run_kubelet
from local.vm.transport import Network

T = TypeVar("T")
Range = tuple[float, float]
"""Minimum and maximum in seconds; drawn each time."""

_PAUSE_S = (20.0, 200.0)
"""The first and the longest pause between tries with a token; doubles with each failure."""
_SCRIPT = "startup-script"
_TOKEN = "kubeadm-join-token"
_EXPIRES = "kubeadm-join-token-expires"
_ENDPOINT = "kubeadm-control-plane-ip"
_CA_HASH = "kubeadm-ca-hash"


class JoinFault(Enum):
    """A failure of an attempt to join."""

    KUBEADM_FAILS = "kubeadm fails before it has asked anybody"
    TOKEN_EXPIRES = "the attempt begins when its token has just expired"


@dataclass(frozen=True)
class Timings:
    """Durations and faults in a VM.

    ``prepare_s`` is the installation of packages. ``plugin_s`` is `None` for a cluster without the
    device plugin, ``lease_s`` for kubelets without heartbeats. ``join_faults`` are for a VM's first
    attempts in order, `None` for a success; later attempts fail with ``join_fault_chance``. With
    ``identity``, the VM does not join: its kubelet registers with what that callable returns.
    """

    boot_s: Range = (15.0, 30.0)
    prepare_s: Range = (5.0, 10.0)
    join_s: Range = (5.0, 15.0)
    ready_s: Range = (5.0, 15.0)
    plugin_s: Range | None = (10.0, 20.0)
    lease_s: float | None = 10.0
    join_faults: tuple[JoinFault | None, ...] = ()
    join_fault_chance: float = 0.0
    joins: bool = True
    identity: Callable[[Machine], Identity] | None = None


class Boot:
    """The time from a power_on to its power_off, which cancels all timers and conversations."""

    def __init__(self, clock: Clock, network: Network) -> None:
        self._clock = clock
        self._network = network
        self._timers: set[Timer] = set()
        self._is_on = True
        self.is_waiting = False
        self.tried = ""
        self.tries = 0
        self.pauses_until: datetime | None = None

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            callback()

        timer = self._clock.call_later(delay_s, run)
        self._timers.add(timer)

    def converse(
        self,
        conversation: Conversation[T],
        on_end: Callable[[T], None] = lambda _: None,
        on_failure: Callable[[JoinFailed], None] | None = None,
    ) -> None:
        """Run a conversation in the background, to its result or failure."""

        def advance(reply: Reply | None = None) -> None:
            if not self._is_on:
                return
            try:
                step = conversation.send(reply)
            except StopIteration as end:
                on_end(end.value)
                return
            except JoinFailed as failure:
                if on_failure is None:
                    raise
                on_failure(failure)
                return
            if isinstance(step, Send):
                self._network.send(step, advance)
            else:
                self.later(step.seconds, advance)

        advance()

    def end(self) -> None:
        self._is_on = False
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


@dataclass(frozen=True)
class _JoinData:
    """The metadata for the join."""

    token: str = field(repr=False)
    expires: datetime
    endpoint: str
    ca_hash: str


@dataclass(frozen=True)
class _Slice:
    """The values of the slice in the rendered script."""

    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    minor: str = "1.31"


def _parse_script(script: str) -> _Slice:
    def value(name: str) -> str:
        match = re.search(rf"^readonly {name}=(.*)$", script, re.MULTILINE)
        return "".join(shlex.split(match[1])) if match else ""

    taints = tuple(taint for taint in value("NODE_TAINTS").split(",") if taint)
    minor = value("KUBERNETES_MINOR") or _Slice.minor
    return _Slice(parse_labels(value("NODE_LABELS")), taints, minor)


def read_minor(script: str) -> str:
    """Read the minor version of Kubernetes that a startup script installs."""
    return _parse_script(script).minor


class KubeAgent:
    """A VM agent that boots, waits for its token, joins, and is a Node from then on.

    Without a startup script and ``timings.identity`` it only boots.
    """

    def __init__(
        self,
        machine: Machine,
        clock: Clock,
        network: Network,
        timings: Timings | None = None,
        random: Random | None = None,
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._network = network
        self._timings = timings or Timings()
        self._random = random or Random(machine.id)
        self._boot: Boot | None = None
        self._identity: Identity | None = None  # on the disk: it survives a boot
        self._join_faults = list(self._timings.join_faults)
        self._boots = 0

    def power_on(self) -> None:
        self._boot = Boot(self._clock, self._network)
        self._boots += 1
        self._later(self._timings.boot_s, self._start)

    def power_off(self) -> None:
        if self._boot is not None:
            self._boot.end()
            self._boot = None

    def metadata_changed(self) -> None:
        if self._boot is not None and self._boot.is_waiting:
            self._boot.later(0, self._look_for_token)

    def _start(self) -> None:
        if not self._timings.joins:
            return
        if self._identity is not None:
            self._report("joined", "before this boot; the kubelet uses its own certificate")
            self._run_kubelet(self._identity)
        elif self._timings.identity is not None:
            self._later(self._timings.join_s, self._register_otherwise)
        elif _SCRIPT in self._machine.attributes():
            self._later(self._timings.prepare_s, self._wait_for_token)

    def _register_otherwise(self) -> None:
        assert self._timings.identity is not None
        self._identity = self._timings.identity(self._machine)
        self._run_kubelet(self._identity)

    def _wait_for_token(self) -> None:
        self._running.is_waiting = True
        self._look_for_token()

    def _look_for_token(self) -> None:
        boot = self._running
        if not boot.is_waiting:
            return
        if self._is_pausing():
            return
        obstacle = self._find_obstacle()
        boot.is_waiting = obstacle is not None
        if obstacle is not None:
            self._report("waiting", obstacle)
        else:
            self._try_to_join(self._join_data())

    def _is_pausing(self) -> bool:
        """Whether it pauses after a failed try; another token ends the pause."""
        boot = self._running
        is_same = self._machine.attributes().get(_TOKEN) == boot.tried
        return is_same and boot.pauses_until is not None and self._clock.now() < boot.pauses_until

    def _find_obstacle(self) -> str | None:
        attributes = self._machine.attributes()
        missing = [key for key in (_TOKEN, _EXPIRES, _ENDPOINT, _CA_HASH) if key not in attributes]
        if missing:
            return f"for {', '.join(missing)} in the metadata of this VM"
        if self._clock.now() >= self._join_data().expires:
            return f"for another token: this one expired at {attributes[_EXPIRES]}"
        return None

    def _join_data(self) -> _JoinData:
        attributes = self._machine.attributes()
        expires = datetime.fromisoformat(attributes[_EXPIRES])
        endpoint = _with_port(attributes[_ENDPOINT])
        return _JoinData(attributes[_TOKEN], expires, endpoint, attributes[_CA_HASH])

    def _try_to_join(self, data: _JoinData) -> None:
        boot = self._running
        boot.tries = boot.tries + 1 if boot.tried == data.token else 1
        boot.tried = data.token
        words = f"{data.endpoint} as {self._machine.name}, try {boot.tries} with this token"
        self._report("joining", words)
        join_fault = self._next_join_fault()

        def run() -> None:
            if join_fault is JoinFault.KUBEADM_FAILS:
                self._failed(
                    JoinFailed("error execution phase preflight: [preflight] Some fatal errors")
                )
                return
            configuration = JoinConfiguration(
                data.endpoint, data.token, (data.ca_hash,), self._node()
            )
            self._running.converse(join(configuration, self._clock.now), self._joined, self._failed)

        delay_s = self._draw(self._timings.join_s)
        if join_fault is JoinFault.TOKEN_EXPIRES:
            delay_s = (data.expires - self._clock.now()).total_seconds() + 1
        self._running.later(delay_s, run)

    def _failed(self, failure: JoinFailed) -> None:
        self._report("failed", f"kubeadm join: {failure}")
        boot, (shortest_s, longest_s) = self._running, _PAUSE_S
        pause_s = min(longest_s, shortest_s * 2 ** (boot.tries - 1))
        boot.pauses_until = self._clock.now() + timedelta(seconds=pause_s)
        boot.later(pause_s, self._look_for_token)
        self._wait_for_token()

    def _joined(self, identity: Identity) -> None:
        self._identity = identity
        self._report("joined", f"{identity.server} as {self._machine.name}")
        self._run_kubelet(identity)

    def _run_kubelet(self, identity: Identity) -> None:
        plugin_s = None if self._timings.plugin_s is None else self._draw(self._timings.plugin_s)
        behaviour = KubeletBehaviour(
            ready_s=self._draw(self._timings.ready_s),
            plugin_s=plugin_s,
            lease_s=self._timings.lease_s,
        )
        conversation = run_kubelet(identity, self._node(), behaviour, self._clock.now)
        self._running.converse(conversation)

    @property
    def _running(self) -> Boot:
        assert self._boot is not None, "timers end with the boot that set them"
        return self._boot

    def _node(self) -> Node:
        machine = self._machine
        values = _parse_script(machine.attributes().get(_SCRIPT, ""))
        return Node(
            name=machine.name,
            provider_id=f"gce://{machine.project}/{machine.zone}/{machine.name}",
            labels=values.labels,
            taints=values.taints,
            chips=chips_of(machine.machine_type),
            kubelet_version=f"v{values.minor}.4",
            boot=f"{machine.id} {self._boots}",
        )

    def _next_join_fault(self) -> JoinFault | None:
        if self._join_faults:
            return self._join_faults.pop(0)
        return (
            JoinFault.KUBEADM_FAILS
            if self._random.random() < self._timings.join_fault_chance
            else None
        )

    def _draw(self, between: Range) -> float:
        return self._random.uniform(*between)

    def _later(self, between: Range, callback: Callable[[], None]) -> None:
        self._running.later(self._draw(between), callback)

    def _report(self, state: str, text: str) -> None:
        self._machine.write_serial(f"tpu-functions: {state}: {text}\n")
        self._machine.set_guest_attribute("tpu-functions", "join-state", f"{state}: {text}")


def _with_port(endpoint: str) -> str:
    """Add the default port to a host or an IPv6 address that has none."""
    if endpoint.count(":") > 1 and not endpoint.startswith("["):
        return f"[{endpoint}]:6443"
    has_port = re.search(r":\d+$", endpoint.rpartition("]")[2])
    return endpoint if has_port else f"{endpoint}:6443"
