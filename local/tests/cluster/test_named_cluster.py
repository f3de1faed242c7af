"""Somebody's own cluster: which kubeconfigs will do, and the words about what is in the way."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from local.base.access import KubeconfigUnusable, read_kubeconfig
from local.cluster.leftovers import Leftovers, Run
from local.cluster.named import describe_leftovers, describe_version
from local.kube import CertificateAuthority
from tests.harness import ROOT

KUBECONFIG = Path("/home/me/config")
HERE = Run.this()
ENDED = Run(HERE.pid, HERE.started - 1, HERE.host)


def write_kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    """A kubeconfig of one context."""
    path = folder / "config"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"} | cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return path


def test_ca_and_token_may_be_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    ca = CertificateAuthority.create(datetime.now(UTC)).certificate_pem
    (tmp_path / "ca.crt").write_text(ca)
    (tmp_path / "token").write_text("secret")
    path = write_kubeconfig(tmp_path, {"certificate-authority": "ca.crt"}, {"tokenFile": "token"})
    access = read_kubeconfig(path, tmp_path)
    assert (access.server, access.ca_pem) == ("https://10.0.0.1:6443", ca)
    assert access.authorization() == "Bearer secret"
    assert "secret" not in repr(access)


def test_a_token_may_come_from_a_program(tmp_path: Path) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "fresh"},
    }
    program = {"apiVersion": credential["apiVersion"], "command": "echo"}
    path = write_kubeconfig(tmp_path, {}, {"exec": program | {"args": [json.dumps(credential)]}})
    access = read_kubeconfig(path, tmp_path)
    assert access.authorization() == "Bearer fresh"
    assert access.ca_pem is None


@pytest.mark.parametrize(
    "cluster, said",
    [
        pytest.param(
            {"insecure-skip-tls-verify": True},
            "insecure-skip-tls-verify is set; set certificate-authority-data instead",
            id="no CA",
        ),
        pytest.param(
            {"tls-server-name": "kubernetes"},
            "tls-server-name is set, which VMs do not support; set a server name of the certificate",
            id="another name",
        ),
        pytest.param(
            {"proxy-url": "http://10.0.0.2:3128"},
            "proxy-url is set, which VMs here do not support; set a server that needs no proxy",
            id="a proxy",
        ),
        pytest.param(
            {"server": "http://10.0.0.1"},
            "its server is http://10.0.0.1; only https is supported",
            id="no TLS",
        ),
    ],
)
def test_a_kubeconfig_that_vms_cannot_follow_is_refused(
    tmp_path: Path, cluster: dict[str, Any], said: str
) -> None:
    path = write_kubeconfig(tmp_path, cluster, {"token": "t"})
    with pytest.raises(KubeconfigUnusable) as refused:
        read_kubeconfig(path, tmp_path)
    assert str(refused.value) == f"{path} cannot be used here: {said}"


@pytest.mark.parametrize("text", ["", "clusters: []", "{", "just words"])
def test_what_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeconfigUnusable, match=f"{path} cannot be used: "):
        read_kubeconfig(path, tmp_path)


@pytest.mark.parametrize(
    "leftovers, lines",
    [
        pytest.param(Leftovers(), [], id="nothing"),
        pytest.param(
            Leftovers(installation=[f"ClusterRole {n}" for n in range(8)]),
            [
                "  tpu-functions is installed there:",
                *(f"    ClusterRole {n}" for n in range(6)),
                "    and 2 more",
                "  Two installations would work on the same groups. Name a cluster without one, or "
                "remove",
                "  it as it was installed, its TPUNodeGroups first.",
            ],
            id="an installation",
        ),
        pytest.param(
            Leftovers(earlier_run=["Namespace tpu-functions"], run=ENDED),
            [
                "  an earlier run has left things there:",
                "    Namespace tpu-functions",
                "  Remove them: make demo KUBECONFIG=/home/me/config ARGS=--clean",
            ],
            id="a run that was killed",
        ),
        pytest.param(
            Leftovers(earlier_run=["Namespace tpu-functions"], run=HERE),
            [
                "  an earlier run has left things there:",
                "    Namespace tpu-functions",
                f"  it is process {HERE.pid} of {HERE.host}; end it by Ctrl-C",
            ],
            id="a run that goes on",
        ),
        pytest.param(
            Leftovers(jobsets=["default/train", "research/tune"]),
            [
                "  there are JobSets that ask for TPUs, and this run would give them simulated slices:",
                "    default/train",
                "    research/tune",
                "  Delete them, or name a cluster without such JobSets.",
            ],
            id="JobSets of others",
        ),
    ],
)
def test_what_is_in_the_way_is_said_with_what_would_be_right(
    leftovers: Leftovers, lines: list[str]
) -> None:
    assert describe_leftovers(leftovers, KUBECONFIG, gives_slices=True).splitlines() == lines


@pytest.mark.parametrize(
    "major, minor, expected",
    [
        ("1", "30", ""),
        ("1", "33+", ""),
        ("2", "0", ""),
        (
            "1",
            "29+",
            "runs Kubernetes v1.29+\nName a cluster of 1.30 or newer: the manifests have "
            "ValidatingAdmissionPolicies.",
        ),
    ],
)
def test_a_cluster_that_is_too_old_is_named_with_its_version(
    major: str, minor: str, expected: str
) -> None:
    version = {"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}"}
    assert describe_version(version) == expected


def test_jobsets_of_others_are_not_in_the_way_of_who_gives_them_nothing() -> None:
    assert (
        describe_leftovers(Leftovers(jobsets=["default/train"]), KUBECONFIG, gives_slices=False)
        == ""
    )


@pytest.mark.parametrize(
    "run, is_running",
    [
        pytest.param(HERE, True, id="this process"),
        pytest.param(ENDED, False, id="another process had this number"),
        pytest.param(Run(HERE.pid, HERE.started, "elsewhere"), False, id="another machine"),
        pytest.param(Run(max(psutil.pids()) + 999, 0, HERE.host), False, id="nobody"),
    ],
)
def test_a_run_is_running_as_long_as_its_process(run: Run, is_running: bool) -> None:
    assert run.is_running() is is_running
    assert Run.parse(run.render()) == run


def test_an_annotation_that_is_no_run_is_none() -> None:
    assert Run.parse("") is None
    assert Run.parse("one two three") is None


@pytest.mark.parametrize("target", ["demo", "local"])
@pytest.mark.parametrize(
    "arguments, named",
    [
        pytest.param([], False, id="exported"),
        pytest.param(["KUBECONFIG=/home/me/config"], True, id="on the command line"),
    ],
)
def test_make_takes_the_cluster_of_its_command_line_only(
    target: str, arguments: list[str], named: bool
) -> None:
    said = subprocess.run(
        ["make", "--dry-run", target, *arguments],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": "/somebody/elses"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert ('--kubeconfig "/home/me/config"' in said) is named
    assert "/somebody/elses" not in said
