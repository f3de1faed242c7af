"""``python -m relay`` with a real cluster, as its ServiceAccount of the manifests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from local.base.ports import LOOPBACK
from local.cloud.simulation import PROJECT
from local.control_plane.plane import ControlPlane
from tests.real.relay.waiting import TIMEOUT_S

ROOT = Path(__file__).parents[3]
ACCOUNT = "/api/v1/namespaces/tpu-functions/serviceaccounts/relay"
TOKEN_LIFE_S = 3600


class RelayProcess:
    """A started relay; created by `run_relay`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        """The log lines so far."""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = int(self.wait_for_line(lambda line: "port" in line, "started")["port"])

    def wait_for_line(
        self,
        matches: Callable[[dict[str, Any]], bool],
        description: str,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """Wait for the first line of its log that matches."""

        def found() -> dict[str, Any] | None:
            return next((line for line in self.lines if matches(line)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, timeout_s)
            line = found()
        assert line is not None, f"no line in the log: {description}: {self.lines[-5:]}"
        return line

    def wait_until_listed(
        self,
        times: int = 1,
        kinds: Sequence[str] = ("TPUNodeGroup", "Node", "CertificateSigningRequest"),
    ) -> None:
        """Wait until each kind has been listed this many times."""
        for kind in kinds:
            self.wait_for_line(
                lambda line, kind=kind: self._has_listed(line, kind, times),  # type: ignore[misc]
                f"listed {kind} {times} times",
            )

    def _has_listed(self, line: dict[str, Any], kind: str, times: int) -> bool:
        if (line["message"], line.get("kind")) != ("listed", kind):
            return False
        index = self.lines.index(line) + 1
        earlier = self.lines[:index]
        return (
            sum((one["message"], one.get("kind")) == ("listed", kind) for one in earlier) >= times
        )

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of an HTTP path."""
        try:
            url = f"http://{LOOPBACK}:{self.port}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"tpu_functions_relay_{name}"
            and labels.items() <= sample.labels.items()
        )

    def suspend(self) -> None:
        """Stop the process until `resume`."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process."""
        self.process.send_signal(signal.SIGCONT)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(text))
                self._changed.notify_all()


@contextmanager
def run_relay(kubeconfig: Path, pubsub_address: str, **settings: str) -> Iterator[RelayProcess]:
    """Run a relay in its own process until the block ends, and then terminate it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "relay"],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "PUBSUB_PROJECT": PROJECT,
            "TOPIC_PREFIX": "tpu-functions-",
            "PUBSUB_EMULATOR_HOST": pubsub_address,
            "KUBECONFIG": str(kubeconfig),
            "PORT": "0",
            **settings,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield RelayProcess(process)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(TIMEOUT_S)


def request_token(plane: ControlPlane, bound_to: dict[str, Any] | None = None) -> str:
    """Return a token of the ServiceAccount ``relay``, perhaps bound to a Secret."""
    spec: dict[str, Any] = {"expirationSeconds": TOKEN_LIFE_S}
    if bound_to is not None:
        metadata = bound_to["metadata"]
        reference = {"name": metadata["name"], "uid": metadata["uid"]}
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Secret", **reference}
    code, answer = plane.request("POST", f"{ACCOUNT}/token", {"spec": spec})
    assert code == 201, answer
    return str(answer["status"]["token"])


def write_kubeconfig(plane: ControlPlane, folder: Path, port: int, token: str) -> Path:
    """Write a kubeconfig with a token file and a port that leads to the API server."""
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_text(plane.ca_pem)
    server = f"https://{LOOPBACK}:{port}"
    cluster = {"server": server, "certificate-authority": str(folder / "ca.crt")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "relay", "user": {"tokenFile": str(folder / "token")}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "relay"}}],
        "current-context": "tests",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path
