"""A VM agent that runs the VM's real startup script, in a scratch directory of this machine.

The script in the VM's metadata is run by bash with a metadata server. Commands that would change the
machine are stand-ins on its PATH, which record their calls; ``kubeadm`` and ``kubelet`` are
`local.vm.kubeadm_cli`, which join over TLS.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from local.base.machine import Machine
from local.vm.kubelet import KubeletBehaviour, chips_of
from local.vm.metadata_server import MetadataServer

_REPOSITORY = Path(__file__).resolve().parents[2]
_SCRIPT = "startup-script"

# First what systemd starts, then the script. The shell remains the leader of the process group, which
# is ended with the VM.
_BOOT = """#!/bin/bash
if [[ -e $TNG_ROOT/enabled-kubelet && -e $TNG_ROOT/etc/kubernetes/kubelet.conf ]]; then
  systemctl start kubelet
fi
bash "$TNG_ROOT/startup-script"
echo "startup-script exit status $?"
exec sleep infinity
"""

_RECORD = """#!/bin/bash
echo "${0##*/} $*" >>"$TNG_ROOT/calls"
"""
_STAND_INS = {
    "apt-get": "exit 100",
    "apt-mark": "",
    "containerd": "[[ $2 != default ]] || echo '  SystemdCgroup = false'",
    "modprobe": "",
    "swapoff": "",
    "sysctl": "",
    "systemctl": """case "$*" in
"enable kubelet") : >"$TNG_ROOT/enabled-kubelet" ;;
"start kubelet")
  kubelet run >>"$TNG_ROOT/var/log/kubelet.log" 2>&1 </dev/null &
  echo $! >"$TNG_ROOT/run/kubelet.pid" ;;
"stop kubelet") [[ ! -e $TNG_ROOT/run/kubelet.pid ]] || kill "$(<"$TNG_ROOT/run/kubelet.pid")" ;;
esac""",
    "kubelet": """case "$1" in
--version) echo "Kubernetes v@MINOR@.4" ;;
*) exec @CLI@ kubelet ;;
esac""",
    "kubeadm": """case "$1" in
version) echo "v@MINOR@.4" ;;
reset) rm -rf "$TNG_ROOT/etc/kubernetes" ;;
join) exec @CLI@ "$@" ;;
esac""",
}


Spawn = Callable[..., Awaitable[asyncio.subprocess.Process]]
"""Like `asyncio.create_subprocess_exec`: starts a session leader, with stderr in stdout."""


async def _spawn(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *argv, stderr=asyncio.subprocess.STDOUT, start_new_session=True, **options
    )


class ScriptAgent:
    """A `local.base.machine.VmAgent` whose boots are processes. ``scratch`` is its disk.

    ``api_server`` returns the URL of the cluster. Needs a running event loop; `closed` waits until
    the last process has ended.
    """

    def __init__(
        self,
        machine: Machine,
        api_server: Callable[[], str],
        scratch: Path,
        behaviour: KubeletBehaviour | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        self._machine = machine
        self._api_server = api_server
        self._root = scratch
        self._behaviour = behaviour or KubeletBehaviour()
        self._spawn = spawn or _spawn
        self._server: MetadataServer | None = None
        self._boot: asyncio.Task[None] | None = None

    def power_on(self) -> None:
        self._boot = asyncio.get_running_loop().create_task(self._run(self._boot))

    def power_off(self) -> None:
        if self._boot is not None:
            self._boot.cancel()

    def metadata_changed(self) -> None:
        if self._server is not None:
            self._server.changed()

    async def closed(self) -> None:
        """Wait until all processes of the VM have ended; call `power_off` before."""
        if self._boot is not None:
            with suppress(asyncio.CancelledError):
                await self._boot

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._server = MetadataServer(self._machine)
        try:
            await self._run_processes(await self._server.start())
        finally:
            await self._server.stop()
            self._server = None

    async def _run_processes(self, metadata_host: str) -> None:
        self._write_files()
        environment = {
            "PATH": f"{self._root / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(_REPOSITORY),
            "TNG_ROOT": str(self._root),
            "GCE_METADATA_HOST": metadata_host,
        }
        boot = str(self._root / "boot")
        process = await self._spawn("bash", boot, env=environment, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._machine.write_serial(line.decode(errors="replace"))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _write_files(self) -> None:
        script = self._machine.attributes().get(_SCRIPT, "")
        for folder in ("bin", "var/log", "run"):
            (self._root / folder).mkdir(parents=True, exist_ok=True)
        (self._root / "boot").write_text(_BOOT)
        (self._root / "startup-script").write_text(script)
        minor = re.search(r"^readonly KUBERNETES_MINOR=(\S+)$", script, re.MULTILINE)
        version = minor[1] if minor else ""
        words = {"@MINOR@": version, "@CLI@": self._cli(version)}
        for name, body in _STAND_INS.items():
            for word, text in words.items():
                body = body.replace(word, text)
            file = self._root / "bin" / name
            file.write_text(f"{_RECORD}{body}\n")
            file.chmod(0o755)

    def _cli(self, minor: str) -> str:
        command = [sys.executable, "-m", "local.vm.kubeadm_cli"]
        command += ["--root", str(self._root), "--connect", self._api_server()]
        command += ["--chips", str(chips_of(self._machine.machine_type))]
        command += ["--kubelet-version", f"v{minor}.4"]
        return shlex.join([*command, "--behaviour", json.dumps(asdict(self._behaviour))])
