# ruff: noqa: E501  (a table reads best with a row on a line)
"""A named cluster: valid kubeconfigs, and the run that uses and cleans up the cluster."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from local.base.access import KubeconfigUnusable, read_kubeconfig
from local.cluster.embedded import ClusterUnusable
from local.cluster.named import NamedCluster, clean
from local.cluster.owned import describe_process, find_claim
from local.cluster.preflight import find_obstacle
from local.kube import CertificateAuthority
from local.tests.product.small_cluster import SmallCluster, claim, open_cluster
from tests.support.harness import ROOT


def write_kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    """Write a kubeconfig with one context."""
    path = folder / "config"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"} | cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return path


def test_ca_and_token_can_be_files_next_to_the_kubeconfig(tmp_path: Path) -> None:
    ca = CertificateAuthority.create(datetime.now(UTC)).certificate_pem
    (tmp_path / "ca.crt").write_text(ca)
    (tmp_path / "token").write_text("secret")
    path = write_kubeconfig(tmp_path, {"certificate-authority": "ca.crt"}, {"tokenFile": "token"})
    access = read_kubeconfig(path, tmp_path)
    assert (access.server, access.ca_pem) == ("https://10.0.0.1:6443", ca)
    assert access.authorization() == "Bearer secret"
    assert "secret" not in repr(access)


def test_a_token_can_come_from_an_exec_plugin(tmp_path: Path) -> None:
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
    "cluster, message",
    [
        pytest.param({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify is set; set certificate-authority-data instead", id="no CA"),
        pytest.param(
            {"tls-server-name": "kubernetes"},
            "tls-server-name is set, which VMs do not support; set a server name of the certificate",
            id="another name",
        ),
        pytest.param({"proxy-url": "http://10.0.0.2:3128"}, "proxy-url is set, which VMs here do not support; set a server that needs no proxy", id="a proxy"),
        pytest.param({"server": "http://10.0.0.1"}, "its server is http://10.0.0.1; only https is supported", id="no TLS"),
    ],
)  # fmt: skip
def test_a_kubeconfig_that_vms_cannot_use_is_an_error(
    tmp_path: Path, cluster: dict[str, Any], message: str
) -> None:
    path = write_kubeconfig(tmp_path, cluster, {"token": "t"})
    with pytest.raises(KubeconfigUnusable) as refused:
        read_kubeconfig(path, tmp_path)
    assert str(refused.value) == f"{path} cannot be used here: {message}"


@pytest.mark.parametrize("text", ["", "clusters: []", "{", "just words"])
def test_the_error_about_an_invalid_kubeconfig_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeconfigUnusable, match=f"{path} cannot be used: "):
        read_kubeconfig(path, tmp_path)


def open_named(cluster: SmallCluster, folder: Path) -> NamedCluster:
    return NamedCluster(cluster.kubeconfig, ["relay"], folder, lambda _: None)


def test_the_second_of_two_concurrent_runs_does_not_start(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_cluster(tmp_path) as cluster:
            named = open_named(cluster, tmp_path)
            await named.check()
            await cluster.create(claim())
            with pytest.raises(ClusterUnusable) as refused:
                async with AsyncExitStack() as stack:
                    await named.start(stack)
            assert str(refused.value).splitlines() == [
                f"{cluster.url} has been left as it is.",
                "Another run uses the cluster or was killed: process 1 on elsewhere.",
                "End it by Ctrl-C. If it was killed, remove what is left: "
                f"make demo KUBECONFIG={cluster.kubeconfig} ARGS=--clean",
            ]
            assert await find_claim(cluster.client) == "process 1 on elsewhere"

    asyncio.run(story())


def test_a_run_that_fails_to_start_removes_its_objects(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_cluster(tmp_path) as cluster:
            named = NamedCluster(cluster.kubeconfig, ["nobody"], tmp_path, lambda _: None)
            with pytest.raises(
                ClusterUnusable, match="serviceaccounts/nobody/token was answered 404"
            ):
                async with AsyncExitStack() as stack:
                    await named.start(stack)
            assert await find_obstacle(cluster.client, cluster.kubeconfig, gives_slices=True) == ""

    asyncio.run(story())


def test_a_run_that_is_still_running_is_not_cleaned_up(tmp_path: Path) -> None:
    here = describe_process(psutil.Process())

    async def story() -> None:
        async with open_cluster(tmp_path) as cluster:
            await cluster.create(claim(here))
            with pytest.raises(ClusterUnusable) as refused:
                await clean(cluster.kubeconfig, tmp_path)
            assert str(refused.value) == f"The run is still running: end it by Ctrl-C ({here})."
            assert await find_claim(cluster.client) == here

    asyncio.run(story())


@pytest.mark.parametrize("target", ["demo", "local"])
@pytest.mark.parametrize(
    "arguments, named",
    [
        pytest.param([], False, id="exported"),
        pytest.param(["KUBECONFIG=/home/me/config"], True, id="on the command line"),
    ],
)
def test_make_uses_only_the_cluster_of_its_command_line(
    target: str, arguments: list[str], named: bool
) -> None:
    printed = subprocess.run(
        ["make", "--dry-run", target, *arguments],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": "/somebody/elses"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert ('--kubeconfig "/home/me/config"' in printed) is named
    assert "/somebody/elses" not in printed
