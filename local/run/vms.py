"""The software in the simulated VMs: agents in Python, and some that run the startup script."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from weakref import WeakSet

from local.base.clock import Clock
from local.base.events import Observe, SerialText
from local.base.machine import Machine, VmAgent
from local.vm import agents
from local.vm.conversation import Identity
from local.vm.kubelet import KubeletBehaviour
from local.vm.script_agent import ScriptAgent, Spawn
from local.vm.transport import Network

_SCRIPT = "startup-script"


class Vms:
    """Creates the agent of each VM, and reports what VMs write to their serial ports.

    At most ``scripts`` VMs at a time run their startup script, as processes that ``spawn`` starts;
    ``api_server`` returns the URL of the cluster, ``behaviour`` is that of their kubelets.
    A VM without startup script joins if ``joins_by_itself`` is true for its image: its kubelet registers
    with the identity that ``identify`` returns. A VM never joins if ``has_packages`` is false for its
    version of Kubernetes.
    ``exists`` returns whether a VM of a name exists.
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        *,
        timings: agents.Timings,
        behaviour: KubeletBehaviour,
        random: Random,
        scratch: Path,
        api_server: Callable[[], str],
        identify: Callable[[], Identity],
        joins_by_itself: Callable[[str], bool],
        has_packages: Callable[[str], bool],
        exists: Callable[[str], bool],
        observe: Observe,
        scripts: int,
        spawn: Spawn,
    ) -> None:
        self._clock = clock
        self._network = network
        self._timings = timings
        self._behaviour = behaviour
        self._random = random
        self._scratch = scratch
        self._api_server = api_server
        self._identify = identify
        self._joins_by_itself = joins_by_itself
        self._has_packages = has_packages
        self._exists = exists
        self._observe = observe
        self._spawn = spawn
        self._max_scripts = scripts if shutil.which("bash") else 0
        self._scripted: set[_TrackedScriptAgent] = set()
        self._others: WeakSet[VmAgent] = WeakSet()

    def boot(self, machine: Machine) -> VmAgent:
        """The agent of a new VM: a `local.base.machine.VmAgentFactory`."""
        monitored = _MonitoredMachine(machine, self._observe)
        if _SCRIPT not in machine.attributes():
            if not self._joins_by_itself(machine.image):
                return self._track(_Bystander(monitored))
            registers = replace(self._timings, identity=lambda _: self._identify())
            return self._track(self._python_agent(monitored, registers))
        minor = agents.read_minor(machine.attributes()[_SCRIPT])
        if not self._has_packages(minor):
            return self._track(_AgentWithoutPackages(monitored, minor))
        if sum(agent.is_on for agent in self._scripted) < self._max_scripts:
            return self._script_agent(monitored)
        return self._track(self._python_agent(monitored, self._timings))

    async def close(self) -> None:
        """Power off all VMs, and wait until their processes have ended."""
        for agent in (*self._scripted, *self._others):
            agent.power_off()
        await asyncio.gather(*(agent.closed() for agent in self._scripted))

    def _track(self, agent: VmAgent) -> VmAgent:
        self._others.add(agent)
        return agent

    def _python_agent(self, machine: Machine, timings: agents.Timings) -> VmAgent:
        seed = self._random.random()
        return agents.KubeAgent(machine, self._clock, self._network, timings, Random(seed))

    def _script_agent(self, machine: Machine) -> VmAgent:
        self._delete_disks()
        disk = self._scratch / f"{machine.name}-{machine.id}"
        agent = ScriptAgent(machine, self._api_server, disk, self._behaviour, self._spawn)
        scripted = _TrackedScriptAgent(machine.name, disk, agent)
        self._scripted.add(scripted)
        return scripted

    def _delete_disks(self) -> None:
        """Delete the disks of VMs that are deleted; a stopped VM keeps its disk."""
        for agent in [one for one in self._scripted if not one.is_on and not self._exists(one.vm)]:
            shutil.rmtree(agent.disk, ignore_errors=True)
            self._scripted.discard(agent)


class _TrackedScriptAgent:
    """A `ScriptAgent` with its disk and power state."""

    def __init__(self, vm: str, disk: Path, agent: ScriptAgent) -> None:
        self.vm = vm
        self.disk = disk
        self.is_on = False
        self._agent = agent

    def power_on(self) -> None:
        self.is_on = True
        self._agent.power_on()

    def power_off(self) -> None:
        self.is_on = False
        self._agent.power_off()

    def metadata_changed(self) -> None:
        self._agent.metadata_changed()

    async def closed(self) -> None:
        await self._agent.closed()


class _AgentWithoutPackages:
    """A VM agent whose startup script repeatedly requests packages that do not exist."""

    def __init__(self, machine: Machine, minor: str) -> None:
        self._machine = machine
        self._minor = minor

    def power_on(self) -> None:
        wanted = f"kubelet={self._minor}.* kubeadm={self._minor}.*"
        self._machine.write_serial(f"tpu-functions: installing: {wanted}\n")
        # Assumed: the response of the package repository for a missing version.
        self._machine.write_serial("curl: (22) The requested URL returned error: 403\n")
        failed = "their setup failed (see /var/log/tpu-functions-startup.log) and is retried"
        self._machine.write_serial(f"tpu-functions: waiting: for packages or services: {failed}\n")

    def power_off(self) -> None:
        """Does nothing: the agent runs nothing."""

    def metadata_changed(self) -> None:
        """Does nothing: the agent does not wait for a token."""


class _Bystander:
    """A VM agent of an image that knows nothing of the cluster: it boots to its login prompt."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def power_on(self) -> None:
        self._machine.write_serial(f"{self._machine.name} login: \n")

    def power_off(self) -> None:
        """Does nothing: the agent runs nothing."""

    def metadata_changed(self) -> None:
        """Does nothing: the agent reads no metadata."""


class _MonitoredMachine:
    """A machine whose serial output is reported to ``observe``."""

    def __init__(self, machine: Machine, observe: Observe) -> None:
        self._machine = machine
        self._observe = observe

    @property
    def project(self) -> str:
        return self._machine.project

    @property
    def zone(self) -> str:
        return self._machine.zone

    @property
    def name(self) -> str:
        return self._machine.name

    @property
    def id(self) -> str:
        return self._machine.id

    @property
    def machine_type(self) -> str:
        return self._machine.machine_type

    @property
    def image(self) -> str:
        return self._machine.image

    def attributes(self) -> Mapping[str, str]:
        return self._machine.attributes()

    def write_serial(self, text: str) -> None:
        self._machine.write_serial(text)
        self._observe(SerialText(self.name, text))

    def set_guest_attribute(self, namespace: str, key: str, value: str) -> None:
        self._machine.set_guest_attribute(namespace, key, value)
