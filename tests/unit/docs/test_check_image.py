"""The script that checks an image: what it reports for the programs that it finds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.docs.pages import ROOT

PROGRAMS = {
    "systemctl": 'case $1 in show) echo "${LIMIT-infinity}" ;; esac',
    "modprobe": "",
    "sysctl": "",
    "swapoff": "",
    "curl": "",
    "apt-get": "",
    "containerd": "echo containerd github.com/containerd/containerd v${CONTAINERD-1.7.2} abc",
    "kubelet": "echo Kubernetes v1.33.4",
    "kubeadm": "echo v1.33.4",
}


def check(folder: Path, *without: str, minor: str = "1.33", **more: str) -> tuple[int, list[str]]:
    """Run the script with stubs of programs; return its code and the lines that are not "ok"."""
    for name, body in PROGRAMS.items():
        if name not in without:
            (folder / name).write_text(f"#!/bin/bash\n{body}\n")
            (folder / name).chmod(0o755)
    for name in ("bash", "sed", "grep", "date"):
        (folder / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [str(folder / "bash"), str(ROOT / "examples/check-image.sh"), minor],
        env={"PATH": str(folder), "LC_ALL": os.environ.get("LC_ALL", "C"), **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, [line for line in done.stdout.splitlines() if line[:2] != "ok"]


@pytest.mark.parametrize(
    "without, minor, more, code, lines",
    [
        ((), "1.33", {}, 0, []),
        (("kubelet",), "1.33", {}, 0, ["added    kubelet of Kubernetes 1.33"]),
        (("kubelet", "apt-get"), "1.33", {}, 1, ["missing  kubelet of Kubernetes 1.33"]),
        (
            (),
            "1.34",
            {},
            0,
            ["added    kubelet of Kubernetes 1.34", "added    kubeadm of Kubernetes 1.34"],
        ),
        (
            (),
            "1.33",
            {"LIMIT": "8388608"},
            0,
            ["added    containerd without a limit of locked memory"],
        ),
        (("curl",), "1.33", {}, 1, ["missing  curl"]),
        (
            ("kubelet", "kubeadm"),
            "1.38",
            {},
            1,
            [
                "added    kubelet of Kubernetes 1.38",
                "added    kubeadm of Kubernetes 1.38",
                "missing  containerd 2, which Kubernetes 1.38 needs",
            ],
        ),
        (
            ("kubelet", "kubeadm"),
            "1.38",
            {"CONTAINERD": "2.1.0"},
            0,
            ["added    kubelet of Kubernetes 1.38", "added    kubeadm of Kubernetes 1.38"],
        ),
    ],
    ids=[
        "whole",
        "added",
        "no apt",
        "other minor",
        "limit",
        "no curl",
        "containerd 1",
        "containerd 2",
    ],
)
def test_an_image_is_checked(
    tmp_path: Path,
    without: tuple[str, ...],
    minor: str,
    more: dict[str, str],
    code: int,
    lines: list[str],
) -> None:
    assert check(tmp_path, *without, minor=minor, **more) == (code, lines)
