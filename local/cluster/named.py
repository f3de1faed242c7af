"""A cluster that an administrator's kubeconfig names. A run checks it, uses it, and restores its state.

A run applies all manifests except those of Pods. The functions and the relay use requested tokens of the
ServiceAccounts in the manifests. VMs join over TLS, and the cluster signs their certificates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from local.base.access import Access, KubeconfigUnusable, read_kubeconfig
from local.base.cluster_client import ClusterClient, Refused
from local.base.events import ClusterAction, Observe
from local.cluster.credentials import ADMIN, write_private
from local.cluster.embedded import KUBECONFIG, ClusterUnusable
from local.cluster.manifests import (
    GROUPS,
    JOBSET_CRD,
    NAMESPACE,
    SELECTOR,
    WEBHOOKS,
    collection_path,
    object_path,
    read_labelled_manifests,
    read_labelled_webhook_configurations,
)
from local.cluster.owned import (
    CLAIM,
    describe_process,
    find_claim,
    is_running,
    remove_owned,
)
from local.cluster.preflight import clean_command, find_obstacle
from local.jobsets import (
    BESIDE_A_CONTROL_PLANE,
    OF_JOBSET,
    REAL_CONTROLLERS,
    SIMULATED_CONTROLLERS,
    Controller,
)
from local.jobsets.objects import JOBSETS, PATHS
from local.vm.conversation import Bearer, Certificate, Identity
from local.vm.transport import Https, Network

_TOKEN_LIFE_S = 7 * 24 * 3600
"""The requested lifetime. A token is invalid as soon as its ServiceAccount is removed."""
_ESTABLISHED_S = 30.0
_POLL_S = 0.2


class NamedCluster:
    """The cluster that a kubeconfig names; a `local.cluster.embedded.Cluster`."""

    def __init__(
        self,
        kubeconfig: Path,
        identities: Iterable[str],
        directory: Path,
        observe: Observe,
        slices: str = "",
        jobset: str = "",
        needs: str = "",
        *,
        calls_webhooks: bool = False,
    ) -> None:
        """``slices`` is the kind of slices of JobSets; empty if they get none.

        ``jobset`` is whose controller runs JobSets, `REAL_CONTROLLERS` or `SIMULATED_CONTROLLERS`; by
        default the real one if JobSet's CRD exists. ``needs`` is another kind that must exist. Raises
        `ClusterUnusable`.
        """
        self.controllers = BESIDE_A_CONTROL_PLANE
        self.selector = SELECTOR
        self._slices = slices
        self._jobset = jobset
        self._needs = {JOBSETS: jobset == REAL_CONTROLLERS, needs: bool(needs)}
        self.calls_webhooks = calls_webhooks
        self._kubeconfig = kubeconfig
        self._identities = tuple(identities)
        self._directory = directory
        self._observe = observe
        self._access = _read(kubeconfig, directory)
        self._https = Https(lambda _server: self.url)
        self.network: Network = self._https

    @property
    def url(self) -> str:
        return self._access.server

    def client(self) -> ClusterClient:
        return ClusterClient(self._access)

    def kubeconfig_of(self, name: str) -> Path:
        return self._kubeconfig if name == ADMIN else self._directory / f"{name}.{KUBECONFIG}"

    async def check(self) -> None:
        self._report("checks the cluster", self.url)
        with _unusable(f"{self.url}, which {self._kubeconfig} names, cannot be used"):
            async with self.client() as client:
                obstacle = await find_obstacle(
                    *(client, self._kubeconfig),
                    gives_slices=bool(self._slices),
                    needs=[kind for kind, is_needed in self._needs.items() if is_needed],
                )
        if obstacle:
            raise ClusterUnusable(f"{self.url} has been left as it is.\n{obstacle}")

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._leave)
        with _unusable("the manifests could not be applied"):
            async with self.client() as client:
                await _uninterrupted(self._apply(client))
                for name in self._identities:
                    await self._write_identity(client, name)

    async def call_webhooks(self, url: str, ca_pem: str) -> None:
        async with self.client() as client:
            for manifest in read_labelled_webhook_configurations(url, ca_pem):
                await client.create(WEBHOOKS, manifest)
        self.controllers -= {Controller.JOB_SELECTOR}
        self._report("calls the webhooks inject_env and admit_jobs", url)

    def identify(self) -> Identity:
        access = self._access
        credential: Bearer | Certificate
        if access.client_certificate is not None:
            credential = Certificate(
                *(Path(file).read_text() for file in access.client_certificate)
            )
        else:
            credential = Bearer((access.authorization() or "").removeprefix("Bearer "))
        return Identity(self.url, access.ca_pem or "", credential, impersonates=True)

    async def _apply(self, client: ClusterClient) -> None:
        manifests = read_labelled_manifests(self._slices)
        if await client.find(JOBSET_CRD) is not None:
            manifests = [one for one in manifests if object_path(one) != JOBSET_CRD]
            # Whoever has installed the CRD runs the controller, too. Two would fight over the same Jobs.
            if self._jobset != SIMULATED_CONTROLLERS:
                self.controllers -= OF_JOBSET
        namespace, *rest = manifests
        namespace["metadata"]["annotations"] = {CLAIM: describe_process(psutil.Process())}
        try:
            await client.create(collection_path(namespace), namespace)
        except Refused:
            await self.check()  # names a run that has claimed the cluster since the first check
            raise
        for manifest in rest:
            await client.create(collection_path(manifest), manifest)
        async with asyncio.timeout(_ESTABLISHED_S):
            for path in (GROUPS, PATHS[JOBSETS]) if self._slices else (GROUPS,):
                while (await client.request("GET", path))[0] != 200:  # 404, then 429, then served
                    await asyncio.sleep(_POLL_S)
        what = f"has applied {len(manifests)} manifests (CRD, permissions, admission policies)"
        self._report(
            what, "not the relay's Deployment and the device plugin: both are simulated here"
        )

    async def _write_identity(self, client: ClusterClient, account: str) -> None:
        """Write the kubeconfig of a ServiceAccount."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_LIFE_S},
        }
        answer = await client.create(f"{NAMESPACE}/serviceaccounts/{account}/token", request)
        kubeconfig = self._access.kubeconfig(answer["status"]["token"])
        write_private(self.kubeconfig_of(account), kubeconfig)

    async def _leave(self) -> None:
        await self._https.closed()
        remedy = f"\nRemove what is left: {clean_command(self._kubeconfig)}"
        with _unusable(f"{self.url} could not be cleaned up", remedy):
            async with self.client() as client:
                await _uninterrupted(self._remove(client))

    async def _remove(self, client: ClusterClient) -> None:
        claim = await find_claim(client)
        if claim != describe_process(psutil.Process()):
            self._report("removes nothing", f"claimed by {claim or 'no run'}", is_bad=True)
            return
        self._report("removes what it has applied to the cluster", "in ten seconds or so")
        removed = await remove_owned(client)
        self._report(f"has removed {len(removed)} objects")

    def _report(self, what: str, why: str = "", *, is_bad: bool = False) -> None:
        self._observe(ClusterAction(what, why, is_bad))


async def clean(kubeconfig: Path, directory: Path) -> Sequence[str]:
    """Remove the objects of an earlier run; returns their descriptions.

    Raises `ClusterUnusable`, also if that run is still running on this machine.
    """
    access = _read(kubeconfig, directory)
    with _unusable(f"{access.server} could not be cleaned up"):
        async with ClusterClient(access) as client:
            claim = await find_claim(client)
            if is_running(claim):
                raise ClusterUnusable(f"The run is still running: end it by Ctrl-C ({claim}).")
            return await remove_owned(client)


def _read(kubeconfig: Path, scratch: Path) -> Access:
    try:
        return read_kubeconfig(kubeconfig, scratch)
    except KubeconfigUnusable as error:
        raise ClusterUnusable(str(error)) from error


@contextmanager
def _unusable(what: str, remedy: str = "") -> Iterator[None]:
    """Raise `ClusterUnusable` with these texts if the cluster returns an error or does not answer."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError, Refused) as error:
        why = str(error) or "the request has timed out"
        raise ClusterUnusable(f"{what}: {why}{remedy}") from error


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Finish ``work`` even if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
