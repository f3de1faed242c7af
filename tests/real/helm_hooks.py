"""The uninstallation's check, which helm waits for, and what is left afterwards.

No kubelet runs: a thread runs the command of the check's Pod as a process, with a token of the Pod's
ServiceAccount, and reports its exit code and output as a kubelet would.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local.control_plane.plane import OwnControlPlane
from tests.real.inventory import list_everything
from tests.real.relay.process import write_kubeconfig
from tests.support.harness import ROOT

PODS = "/api/v1/namespaces/tpu-functions/pods"
MERGE_PATCH = "application/merge-patch+json"


@contextmanager
def checks_run(plane: OwnControlPlane, folder: Path) -> Iterator[list[str]]:
    """Run the Pods of the uninstallation's check; yields their outputs."""
    outputs: list[str] = []
    is_over = threading.Event()

    def run() -> None:
        seen = set()
        while not is_over.wait(0.2):
            _, listed = plane.request(
                "GET", f"{PODS}?labelSelector=app.kubernetes.io/name=uninstall-check"
            )
            for pod in listed["items"]:
                uid = pod["metadata"]["uid"]
                if uid in seen or "nodeName" not in pod["spec"]:
                    continue
                seen.add(uid)
                (container,) = pod["spec"]["containers"]
                token = plane.run_kubectl(
                    *("create", "token", pod["spec"]["serviceAccountName"], "-n", "tpu-functions")
                ).stdout.strip()
                port = int(plane.server.rpartition(":")[2])
                kubeconfig = write_kubeconfig(plane, folder, port, token)
                done = subprocess.run(
                    [sys.executable, *container["command"][1:]],
                    cwd=ROOT,
                    env={**os.environ, "KUBECONFIG": str(kubeconfig)},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                outputs.append(done.stdout + done.stderr)
                ended = {"exitCode": done.returncode, "reason": "Completed"}
                status = {
                    "phase": "Failed" if done.returncode else "Succeeded",
                    "containerStatuses": [
                        {
                            "name": container["name"],
                            "image": "x",
                            "imageID": "x",
                            "ready": False,
                            "restartCount": 0,
                            "state": {"terminated": ended},
                        }
                    ],
                }
                path = f"{PODS}/{pod['metadata']['name']}/status"
                plane.request("PATCH", path, {"status": status}, MERGE_PATCH)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outputs
    finally:
        is_over.set()
        thread.join()


def list_left(plane: OwnControlPlane, before: set[str]) -> set[str]:
    """Return what is new in the cluster, without what the cluster deletes itself."""
    short_lived = ("event", "lease", "pod")
    return {
        one for one in list_everything(plane) - before if not one.lower().startswith(short_lived)
    }
