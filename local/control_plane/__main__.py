"""Prepares a real control plane for the tests, with JobSet and LeaderWorkerSet (``make control-plane``).

With --kueue, Kueue is built as well, for `make test-all`.

Prints the source of the control plane: TEST_KUBECONFIG, KUBEBUILDER_ASSETS, PATH, or a cached build with
Go. With --run, an empty control plane then runs until Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from local.control_plane import helm, jobset_crd, plane, workload_controllers
from local.control_plane.binaries import NAMES, Binaries, Unavailable, can_build, obtain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make control-plane", description=__doc__)
    parser.add_argument("--run", action="store_true", help="start it, and serve until Ctrl-C")
    parser.add_argument("--kueue", action="store_true", help="also build Kueue, for make test-all")
    options = parser.parse_args(arguments)
    try:
        path = os.environ.get("TEST_KUBECONFIG")
        if path:
            with plane.named(path) as cluster:
                _, version = cluster.request("GET", "/version")
                print(f"TEST_KUBECONFIG={path}: {cluster.server}, {version['gitVersion']}")
            return 0
        binaries = obtain(os.environ, lambda line: print(line, flush=True))
        _show(binaries)
        _obtain_controllers(binaries, builds_kueue=options.kueue)
        _obtain_helm()
        if options.run:
            with plane.start(binaries) as started:
                print(f"\nexport KUBECONFIG={started.kubeconfig}\n\nCtrl-C stops it.", flush=True)
                signal.pause()
    except (Unavailable, plane.ControlPlaneError) as error:
        print(f"make control-plane: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing runs any more")
        return 128 + signal.SIGINT
    return 0


def _obtain_controllers(binaries: Binaries, *, builds_kueue: bool) -> None:
    def obtain_all(*controllers: workload_controllers.WorkloadController) -> Path:
        print_text = lambda line: print(line, flush=True)  # noqa: E731
        return workload_controllers.obtain(os.environ, binaries, print_text, controllers)

    try:
        jobset_crd.obtain(os.environ)
        print(f"JobSet and LeaderWorkerSet: {obtain_all(*workload_controllers.CONTROLLERS)}")
        if builds_kueue:
            print(f"Kueue: {obtain_all(workload_controllers.KUEUE)}")
    except Unavailable as error:
        if can_build():
            raise
        print(f"no JobSet and LeaderWorkerSet, whose tests are skipped: {error}")


def _obtain_helm() -> None:
    try:
        print(f"helm: {helm.obtain(os.environ, lambda line: print(line, flush=True))}")
    except Unavailable as error:
        if can_build():
            raise
        print(f"no helm, whose tests are skipped: {error}")


def _show(binaries: Binaries) -> None:
    print(f"control plane: {binaries.origin}")
    for name in NAMES:
        arguments = ["version", "--client"] if name == "kubectl" else ["--version"]
        printed = subprocess.run(
            [binaries.path(name), *arguments], capture_output=True, text=True, check=True
        )
        print(f"  {name:<24}{printed.stdout.splitlines()[0].split()[-1]}")


if __name__ == "__main__":
    sys.exit(main())
