"""A cluster that a kubeconfig of its administrator names: checked, used, left as it was.

All manifests are applied but those of Pods. The functions and the relay are the ServiceAccounts of the
manifests, by tokens that are requested and renewed. VMs join over TLS, and the cluster signs their
certificates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from local.base.access import Access, KubeconfigUnusable, read_kubeconfig
from local.base.cluster_client import ClusterClient, Document, Refused
from local.base.events import ClusterAction, Observe
from local.cluster.credentials import ADMIN, write_private
from local.cluster.embedded import KUBECONFIG, ClusterUnusable
from local.cluster.jobsets import (
    JOBS_OF_RUN,
    JOBSETS_OF_RUN,
    PODS_OF_RUN,
    SELECTOR,
    has_controller,
)
from local.cluster.leftovers import GROUPS, JOBSET_CRD, RUN, Leftovers, Run, find_leftovers
from local.cluster.manifests import (
    collection_path,
    item_path,
    object_path,
    read_labelled_manifests,
)
from local.cluster.removal import remove_everything
from local.cluster.trial import try_to_join
from local.jobsets import BESIDE_A_CONTROL_PLANE, OF_JOBSET
from local.vm.conversation import Bearer, Certificate, Identity
from local.vm.kubeadm import JoinFailed
from local.vm.transport import Https, Network

OLDEST = (1, 30)
"""The oldest supported version of Kubernetes."""
TOKEN_LIFE_S = 24 * 3600
"""The requested lifetime; the cluster may give less."""
RENEW_AT = 0.5
"""The fraction of its lifetime after which a token is renewed."""
DRAIN_S = 60.0
_ESTABLISHED_S = 30.0
_RENEW_AGAIN_S = 30.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_NEEDED = "The cluster needs what `kubeadm init` creates for nodes that join: see docs/local.md."
_POLL_S = 0.2
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, Refused)


class NamedCluster:
    """The cluster that a kubeconfig names; a `local.cluster.Cluster`."""

    def __init__(
        self,
        kubeconfig: Path,
        identities: Iterable[str],
        directory: Path,
        observe: Observe,
        hurry: asyncio.Event,
        slices: str = "",
    ) -> None:
        """Raises `ClusterUnusable`. Once ``hurry`` is set, `drain` does not wait any more.

        ``slices`` are what JobSets get; empty where they get none.
        """
        self.controllers = BESIDE_A_CONTROL_PLANE
        self.selector = SELECTOR
        self._slices = slices
        self._kubeconfig = kubeconfig
        self._identities = tuple(identities)
        self._directory = directory
        self._observe = observe
        self._hurry = hurry
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
        self._report(
            "checks the cluster: nothing of tpu-functions or tpu-operator may be there", self.url
        )
        await check(self._access, self._kubeconfig, gives_slices=bool(self._slices))

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._leave)
        try:
            await _uninterrupted(self._apply())
            async with self.client() as client:
                await try_to_join(client, self.url, self.network)
            good_for_s = await self._write_identities()
        except JoinFailed as error:
            raise ClusterUnusable(f"VMs cannot join {self.url}: {error}\n{_NEEDED}") from error
        except _FAILURES as error:
            raise ClusterUnusable(f"the manifests could not be applied: {_words(error)}") from error
        renewal = asyncio.create_task(self._renew(good_for_s))
        stack.callback(renewal.cancel)

    async def drain(self) -> None:
        try:
            async with self.client() as client:
                await self._drain(client)
        except _FAILURES as error:
            self._report("could not delete what is left", _words(error), is_bad=True)

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

    async def _apply(self) -> None:
        manifests = read_labelled_manifests(self._slices)
        async with self.client() as client:
            if await client.find(JOBSET_CRD) is not None:
                manifests = [one for one in manifests if object_path(one) != JOBSET_CRD]
                if await has_controller(client):
                    self.controllers -= OF_JOBSET
            namespace, *rest = manifests
            namespace["metadata"]["annotations"] = {RUN: Run.this().render()}
            for manifest in (namespace, *rest):
                await client.create(collection_path(manifest), manifest)
            async with asyncio.timeout(_ESTABLISHED_S):
                while (await client.request("GET", GROUPS))[0] != 200:  # 404, then 429, then served
                    await asyncio.sleep(_POLL_S)
        what = f"has applied {len(manifests)} manifests (CRD, permissions, admission policies)"
        self._report(
            what, "not the relay's Deployment and the device plugin: both are simulated here"
        )

    async def _leave(self) -> None:
        await self._https.closed()
        self._report("removes what it has applied to the cluster")
        try:
            async with self.client() as client:
                await _uninterrupted(remove_everything(client, Run.this()))
        except _FAILURES as error:
            raise ClusterUnusable(
                f"{self.url} could not be cleaned up: {_words(error)}\n"
                f"Remove what is left: {_clean_command(self._kubeconfig)}"
            ) from error

    async def _drain(self, client: ClusterClient) -> None:
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        # JobSets first: a group that is deleted before its JobSet is created again.
        for kind, path, awaited in (
            ("JobSets", JOBSETS_OF_RUN, (JOBSETS_OF_RUN, JOBS_OF_RUN, PODS_OF_RUN)),
            ("TPUNodeGroups", GROUPS, (GROUPS,)),
        ):
            if found := await client.list(path):
                names = ", ".join(one["metadata"]["name"] for one in found)
                self._report(f"deletes the {kind} that are left: {names}", f"{DRAIN_S:g} s at most")
            while any([await client.list(one) for one in awaited]):
                for one in await client.list(path):
                    if "deletionTimestamp" not in one["metadata"]:
                        await client.delete(item_path(path, one), one["metadata"]["uid"])
                if self._hurry.is_set() or asyncio.get_running_loop().time() > deadline:
                    self._report("removes them by force", "finalizers and all", is_bad=True)
                    return
                await asyncio.sleep(_POLL_S)

    async def _write_identities(self) -> float:
        """Request a token for each identity; returns for how many seconds all are valid."""
        expires = []
        async with self.client() as client:
            for name in self._identities:
                status = await _request_token(client, name)
                expires.append(datetime.fromisoformat(status["expirationTimestamp"]))
                write_private(self.kubeconfig_of(name), self._access.kubeconfig(status["token"]))
        return (min(expires) - datetime.now(UTC)).total_seconds()

    async def _renew(self, good_for_s: float) -> None:
        """Renew the tokens half-way. The product reads a kubeconfig again when it changes."""
        while True:
            await asyncio.sleep(good_for_s * RENEW_AT)
            try:
                good_for_s = await self._write_identities()
            except _FAILURES as error:
                self._report("could not renew the tokens", _words(error), is_bad=True)
                good_for_s = _RENEW_AGAIN_S / RENEW_AT

    def _report(self, what: str, why: str = "", *, is_bad: bool = False) -> None:
        self._observe(ClusterAction(what, why, is_bad))


async def check(access: Access, kubeconfig: Path, *, gives_slices: bool) -> None:
    """Raise `ClusterUnusable` with all obstacles; changes nothing."""
    try:
        async with ClusterClient(access) as client:
            await _check_administrator(client)
            too_old = describe_version((await client.request("GET", "/version"))[1])
            if too_old:
                raise ClusterUnusable(f"{access.server} {too_old}")
            leftovers = await find_leftovers(client)
            problem = describe_leftovers(leftovers, kubeconfig, gives_slices=gives_slices)
            if problem:
                raise ClusterUnusable(f"{access.server} has been left as it is, because\n{problem}")
    except _FAILURES as error:
        raise ClusterUnusable(
            f"{access.server}, which {kubeconfig} names, cannot be used: {_words(error)}"
        ) from error


async def clean(kubeconfig: Path, directory: Path) -> Sequence[str]:
    """Remove what an earlier run has left; returns descriptions of it.

    Raises `ClusterUnusable`, also if that run is still running.
    """
    access = _read(kubeconfig, directory)
    try:
        async with ClusterClient(access) as client:
            leftovers = await find_leftovers(client)
            if leftovers.run is not None and leftovers.run.is_running():
                raise ClusterUnusable(
                    f"the run that uses {access.server} is still running: {_end(leftovers)}"
                )
            await remove_everything(client)
    except _FAILURES as error:
        raise ClusterUnusable(f"{access.server} cannot be cleaned: {_words(error)}") from error
    return leftovers.earlier_run


def describe_version(version: Mapping[str, Any]) -> str:
    """Describe a cluster that is older than the manifests allow; empty if it is not."""
    minor = int("".join(filter(str.isdigit, version["minor"])))  # some clusters append a +
    if (int(version["major"]), minor) >= OLDEST:
        return ""
    oldest = ".".join(map(str, OLDEST))
    return (
        f"runs Kubernetes {version['gitVersion']}\n"
        f"Name a cluster of {oldest} or newer: the manifests have ValidatingAdmissionPolicies."
    )


def describe_leftovers(leftovers: Leftovers, kubeconfig: Path, *, gives_slices: bool) -> str:
    """Describe the obstacles and what to do; empty if there is none.

    JobSets of others are an obstacle only to a run that ``gives_slices``.
    """
    parts = []
    if leftovers.installation:
        right = (
            "Two installations would work on the same groups. Name a cluster without one, or remove\n"
            "  it as it was installed, its TPUNodeGroups first."
        )
        parts.append(_part("tpu-functions is installed there:", leftovers.installation, right))
    if leftovers.operator:
        right = "Both would work on the same groups. Name a cluster without tpu-operator."
        parts.append(_part("tpu-operator is installed there:", leftovers.operator, right))
    if leftovers.earlier_run:
        right = (
            _end(leftovers)
            if leftovers.run is not None and leftovers.run.is_running()
            else f"Remove them: {_clean_command(kubeconfig)}"
        )
        parts.append(_part("an earlier run has left things there:", leftovers.earlier_run, right))
    if leftovers.jobsets and gives_slices:
        head = "there are JobSets that ask for TPUs, and this run would give them simulated slices:"
        right = "Delete them, or name a cluster without such JobSets."
        parts.append(_part(head, leftovers.jobsets, right))
    return "\n".join(parts)


def _end(leftovers: Leftovers) -> str:
    assert leftovers.run is not None
    return f"it is process {leftovers.run.pid} of {leftovers.run.host}; end it by Ctrl-C"


def _clean_command(kubeconfig: Path) -> str:
    return f"make demo KUBECONFIG={kubeconfig} ARGS=--clean"


def _part(head: str, found: Sequence[str], right: str) -> str:
    shown = [f"    {one}" for one in found[:6]]
    more = [f"    and {len(found) - 6} more"] if len(found) > 6 else []
    return "\n".join([f"  {head}", *shown, *more, f"  {right}"])


async def _check_administrator(client: ClusterClient) -> None:
    """Raise `ClusterUnusable` unless the user may do everything."""
    review = {"spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}}
    code, answer = await client.request("POST", _REVIEWS, review)
    if code != 201 or not answer["status"]["allowed"]:
        raise ClusterUnusable(
            "the kubeconfig's user is not the cluster's administrator\n"
            "Name a user that is bound to cluster-admin: a CRD and ClusterRoles are applied."
        )


def _words(error: Exception) -> str:
    return str(error) or "the request has timed out"


def _read(kubeconfig: Path, scratch: Path) -> Access:
    try:
        return read_kubeconfig(kubeconfig, scratch)
    except KubeconfigUnusable as error:
        raise ClusterUnusable(str(error)) from error


async def _request_token(client: ClusterClient, account: str) -> Document:
    path = f"/api/v1/namespaces/tpu-functions/serviceaccounts/{account}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_LIFE_S},
    }
    status: Document = (await client.create(path, request))["status"]
    return status


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Finish ``work`` even if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
