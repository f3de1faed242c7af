"""A VM for the startup script: a scratch root, stand-in tools, a metadata server.

The script is the real one, run by the real bash. Its PATH has the few tools of every Ubuntu image, and
stand-ins for the tools that would change the machine. All other tools are missing. No test waits for
time to pass: the tests change the metadata, which triggers the script.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml

from local.tests.vm.machine import TIMEOUT_S, Machine, MetadataThread
from shared.node_groups.bootstrap import render_startup_script

T = TypeVar("T")
TOKEN = "abc123.0123456789abcdef"
OTHER_TOKEN = "xyz789.fedcba9876543210"
PIN = "sha256:" + "5a" * 32
UBUNTU = ("bash", "cat", "chmod", "flock", "grep", "mkdir", "rm", "sed", "sleep", "tail")
"""Tools of every Ubuntu image that the script runs unchanged."""
STAND_IN_TOOLS = ("basename", "cp", "head", "stat")
"""Tools that only the stand-ins run."""

RECORD = """#!/bin/bash
echo "$(basename "$0") $*" >>"$SCRATCH/calls"
"""
STAND_INS = {
    "systemctl": "",
    "apt-mark": "",
    "modprobe": "",
    "sysctl": "",
    "swapoff": "",
    "containerd": """case "$2" in
dump) cat "$TNG_ROOT/etc/containerd/config.toml" ;;
default) echo '  SystemdCgroup = false' ;;
esac""",
    "kubelet": "echo Kubernetes v1.31.4",
    "kubeadm": """case "$1" in
version) echo v1.31.4 ;;
reset) rm -rf "$TNG_ROOT/etc/kubernetes" ;;
join)
  cat "$3" >>"$SCRATCH/join.yaml"
  echo --- >>"$SCRATCH/join.yaml"
  stat -c %a "$3" >>"$SCRATCH/modes"
  outcome=$(head -n 1 "$SCRATCH/outcomes")
  sed -i 1d "$SCRATCH/outcomes"
  mkdir -p "$TNG_ROOT/etc/kubernetes/pki"
  echo ca >"$TNG_ROOT/etc/kubernetes/pki/ca.crt"
  case "$outcome" in
    fails) echo "I0301 join.go:1"; echo "error execution phase preflight: no"; exit 1 ;;
    outlives-token) "$REAL_DATE" -d '+2 hours' +%s >"$SCRATCH/now"; echo "error late"; exit 1 ;;
    joins-late) echo conf >"$TNG_ROOT/etc/kubernetes/kubelet.conf"; exit 1 ;;
    leaks) echo "error $(cat "$3")"; cat "$3"; exit 1 ;;
    *) echo conf >"$TNG_ROOT/etc/kubernetes/kubelet.conf" ;;
  esac ;;
esac""",
    "apt-get": 'case "$*" in *install*) cp "$SCRATCH"/packages/* "$BIN" ;; esac',
    "date": """if [[ -e $SCRATCH/now && $2 == +%s ]]; then cat "$SCRATCH/now"
else exec "$REAL_DATE" "$@"; fi""",
    "curl": """case "$*" in
*pkgs.k8s.io*) while [[ $1 != --output ]]; do shift; done; echo key >"$2" ;;
*) exec "$REAL_CURL" "$@" ;;
esac""",
}
QUIET = ("date",)
"""Stand-ins whose calls are not recorded, because they are too many."""


class Vm:
    """One VM; `boot` runs the script."""

    def __init__(self, scratch: Path) -> None:
        self.root, self.state, self.bin = scratch / "root", scratch / "state", scratch / "bin"
        for folder in (self.root, self.state / "packages", self.bin):
            folder.mkdir(parents=True)
        self.machine = Machine()
        self.metadata = MetadataThread(self.machine)
        self.boots: list[Boot] = []
        self.slice: dict[str, Any] = {
            "version": "1.31",
            "project": "my-project",
            "zone": "us-central1-c",
            "node_labels": {"a": "b"},
            "node_taints": [],
        }
        self.outcomes()
        for tool in (*UBUNTU, *STAND_IN_TOOLS):
            (self.bin / tool).symlink_to(_which(tool))
        for name in STAND_INS:
            self.install(name)

    def install(self, name: str, body: str | None = None, into: Path | None = None) -> None:
        """Put a stand-in on the PATH, or into another folder, from which apt-get installs it."""
        file = (into or self.bin) / name
        record = "#!/bin/bash\n" if name in QUIET else RECORD
        file.write_text(record + (STAND_INS[name] if body is None else body) + "\n")
        file.chmod(0o755)

    def have_kubernetes(self, minor: str) -> None:
        """Use this minor version in the slice and the image."""
        self.slice["version"] = minor
        self.install("kubelet", f"echo Kubernetes v{minor}.1")
        self.install("kubeadm", STAND_INS["kubeadm"].replace("v1.31.4", f"v{minor}.1"))

    def outcomes(self, *outcomes: str) -> None:
        """Set the outcomes of the next runs of ``kubeadm join``; all later runs succeed."""
        (self.state / "outcomes").write_text("".join(f"{each}\n" for each in outcomes))

    def join_data(
        self, token: str = TOKEN, *, lifetime: timedelta = timedelta(hours=1)
    ) -> dict[str, str]:
        """Return the metadata that the functions write to a VM before its join."""
        return {
            "kubeadm-join-token": token,
            "kubeadm-join-token-expires": f"{datetime.now(UTC) + lifetime:%Y-%m-%dT%H:%M:%SZ}",
            "kubeadm-control-plane-ip": "10.128.0.2",
            "kubeadm-ca-hash": PIN,
        }

    def inject(
        self,
        token: str = TOKEN,
        change: Mapping[str, str] | None = None,
        *,
        lifetime: timedelta = timedelta(hours=1),
    ) -> None:
        """Write join data to the metadata, with some ``change``."""
        data = self.join_data(token, lifetime=lifetime) | dict(change or {})
        self.metadata.do(lambda: self.machine.metadata.update(data))

    def boot(self, *, umask: int = 0o022, **environment: str) -> Boot:
        """Run the script as Compute Engine does at every boot."""
        script = self.state / "startup-script"
        script.write_text(render_startup_script(**self.slice))
        boot = Boot(
            script,
            {
                "PATH": str(self.bin),
                "BIN": str(self.bin),
                "SCRATCH": str(self.state),
                "REAL_CURL": _which("curl"),
                "REAL_DATE": _which("date"),
                "TNG_ROOT": str(self.root),
                "TNG_BACKOFF_S": "0",
                "GCE_METADATA_HOST": self.metadata.address,
                **environment,
            },
            umask,
        )
        self.boots.append(boot)
        return boot

    @property
    def calls(self) -> list[str]:
        """The calls of the stand-ins."""
        file = self.state / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def calls_of(self, start: str) -> list[str]:
        return [call for call in self.calls if call.startswith(start)]

    @property
    def egress(self) -> list[str]:
        """The calls of curl to other addresses than the metadata server."""
        return [call for call in self.calls_of("curl") if self.metadata.address not in call]

    @property
    def configurations(self) -> list[dict[str, Any]]:
        """The JoinConfigurations that kubeadm received."""
        text = (self.state / "join.yaml").read_text()
        return [document for document in yaml.safe_load_all(text) if document]

    @property
    def log(self) -> str:
        return (self.root / "var/log/tpu-functions-startup.log").read_text()

    @property
    def join_state(self) -> str:
        """The guest attribute."""
        return self.machine.guest_attributes.get("tpu-functions/join-state", "")

    def read_everything(self) -> str:
        """Return the text of each file under the root and of the guest attribute."""
        files = (file for file in self.root.rglob("*") if file.is_file())
        return "\n".join([*(file.read_text() for file in files), self.join_state])

    def text(self, path: str) -> str:
        return (self.root / path).read_text()

    def put(self, path: str, text: str = "x\n") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def stop(self) -> None:
        for boot in self.boots:
            boot.kill()
        self.metadata.stop()


class Boot:
    """A run of the script: its lines and its exit code."""

    def __init__(self, script: Path, environment: dict[str, str], umask: int) -> None:
        self._process = subprocess.Popen(
            [environment["BIN"] + "/bash", str(script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            umask=umask,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, start: str) -> str:
        """Return the next line that starts with this text."""
        while True:
            line = self._next()
            assert line is not None, f"the script ended before {start!r}: {self.lines}"
            if line.startswith(f"tpu-functions: {start}"):
                return line

    def finish(self) -> int:
        """Read to the end and return the script's exit code."""
        while self._next() is not None:
            pass
        return self._process.wait(TIMEOUT_S)

    def _next(self) -> str | None:
        try:
            line = self._queue.get(timeout=TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"the script prints no further line: {self.lines}") from None
        if line is not None:
            self.lines.append(line)
        return line

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._reader.join()


def _which(tool: str) -> str:
    path = shutil.which(tool)
    assert path, f"{tool} is needed for these tests"
    return path
