"""Somebody's own cluster, by a kubeconfig of its administrator's: checked, used, left as it was.

The manifests are applied but for those of Pods (the relay runs on this machine, the simulated VMs
bring their chips along). The functions and the relay are the ServiceAccounts of the manifests, by
tokens that are asked for and renewed. VMs join over TLS: the cluster itself signs what they get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
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
from local.cluster.jobset_leftovers import SELECTOR, delete_marked, find_marked, has_controller
from local.cluster.leftovers import (
    GROUPS,
    JOBSET_CRD,
    RUN,
    Leftovers,
    Run,
    find_leftovers,
    group_path,
    manifests_for_a_named_cluster,
    remove_everything,
)
from local.cluster.manifests import collection_path, object_path
from local.cluster.node_certificates import NotSigned, request_certificate
from local.cluster.requirements import UnmetRequirement, check_cluster, check_user
from local.jobsets import BESIDE_A_CONTROL_PLANE, OF_JOBSET
from local.vm.conversation import Identity
from local.vm.transport import Https, Network

TOKEN_LIFE_S = 24 * 3600
"""Asked for; the cluster may give less."""
RENEW_AT = 0.5
"""The part of its life after which a token is renewed."""
DRAIN_S = 60.0
_ESTABLISHED_S = 30.0
_SIGNED_S = 60.0
_RENEW_AGAIN_S = 30.0
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
        """Raises `ClusterUnusable`. Once ``hurry`` is set, nobody is waited for any more.

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
        self._say("looks whether the cluster has what it takes, and nothing of ours", self.url)
        await check(self._access, self._kubeconfig, gives_slices=bool(self._slices))

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._leave)
        try:
            await _uninterrupted(self._apply())
            good_for_s = await self._write_identities()
        except _FAILURES as error:
            raise ClusterUnusable(f"the manifests could not be applied: {_words(error)}") from error
        renewal = asyncio.create_task(self._renew(good_for_s))
        stack.callback(renewal.cancel)

    async def drain(self) -> None:
        try:
            async with self.client() as client:
                await self._drain(client)
        except _FAILURES as error:
            self._say("could not delete what is left", _words(error), is_bad=True)

    async def identify(self, node: str) -> Identity:
        try:
            async with self.client() as client:
                certificate = await request_certificate(client, node, _SIGNED_S)
        except (NotSigned, *_FAILURES) as error:
            self._say(f"VM {node} got no certificate", _words(error), is_bad=True)
            raise NotSigned(_words(error)) from error
        return Identity(self.url, self._access.ca_pem or "", certificate)

    async def _apply(self) -> None:
        manifests = manifests_for_a_named_cluster(self._slices)
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
        what = f"has applied {len(manifests)} manifests (CRD, rights, admission policies)"
        self._say(what, "no relay Deployment and no device plugin: both are played here")

    async def _leave(self) -> None:
        await self._https.closed()
        self._say("removes from the cluster what it has put there")
        try:
            async with self.client() as client:
                await _uninterrupted(remove_everything(client, Run.this()))
        except _FAILURES as error:
            raise ClusterUnusable(
                f"{self.url} could not be left as it was found: {_words(error)}\n"
                f"What is left there goes by: {_clean_command(self._kubeconfig)}"
            ) from error

    async def _drain(self, client: ClusterClient) -> None:
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        # While there is a JobSet, its groups would be made again.
        for kind, find, delete in (
            ("JobSets", find_marked, delete_marked),
            ("TPUNodeGroups", _find_groups, _delete_groups),
        ):
            found = await find(client)
            if found:
                names = ", ".join(one["metadata"]["name"] for one in found)
                self._say(f"deletes the {kind} that are left: {names}", f"{DRAIN_S:g} s at most")
            while await delete(client):
                if self._hurry.is_set() or asyncio.get_running_loop().time() > deadline:
                    self._say("removes them by force", "finalizers and all", is_bad=True)
                    return
                await asyncio.sleep(_POLL_S)

    # --- identities ---

    async def _write_identities(self) -> float:
        """A new token for each; for how many seconds all are good."""
        expires = []
        async with self.client() as client:
            for name in self._identities:
                status = await _request_token(client, name)
                expires.append(datetime.fromisoformat(status["expirationTimestamp"]))
                write_private(self.kubeconfig_of(name), self._access.kubeconfig(status["token"]))
        return (min(expires) - datetime.now(UTC)).total_seconds()

    async def _renew(self, good_for_s: float) -> None:
        """Renew the tokens half-way, for ever. The product reads a kubeconfig that changes again."""
        while True:
            await asyncio.sleep(good_for_s * RENEW_AT)
            try:
                good_for_s = await self._write_identities()
            except _FAILURES as error:
                self._say("could not renew the tokens", _words(error), is_bad=True)
                good_for_s = _RENEW_AGAIN_S / RENEW_AT

    def _say(self, what: str, why: str = "", *, is_bad: bool = False) -> None:
        self._observe(ClusterAction(what, why, is_bad))


async def check(access: Access, kubeconfig: Path, *, gives_slices: bool) -> None:
    """Raises `ClusterUnusable` with all that is in the way; nothing is changed before."""
    try:
        async with ClusterClient(access) as client:
            await _raise_unmet(await check_user(client), access)
            leftovers = await find_leftovers(client)
            problem = describe_leftovers(leftovers, kubeconfig, gives_slices=gives_slices)
            if problem:
                raise ClusterUnusable(f"{access.server} has been left as it is, because\n{problem}")
            await _raise_unmet(await check_cluster(client, access), access)
    except _FAILURES as error:
        raise ClusterUnusable(
            f"{access.server}, which {kubeconfig} names, cannot be used: {_words(error)}"
        ) from error


async def clean(kubeconfig: Path, directory: Path) -> Sequence[str]:
    """Remove what an earlier run has left, and return it in words.

    Raises `ClusterUnusable`, also when that run still goes on.
    """
    access = _read(kubeconfig, directory)
    try:
        async with ClusterClient(access) as client:
            leftovers = await find_leftovers(client)
            if leftovers.run is not None and leftovers.run.goes_on():
                raise ClusterUnusable(
                    f"the run that uses {access.server} goes on: {_end(leftovers)}"
                )
            await remove_everything(client)
    except _FAILURES as error:
        raise ClusterUnusable(f"{access.server} cannot be cleaned: {_words(error)}") from error
    return leftovers.earlier_run


def describe_leftovers(leftovers: Leftovers, kubeconfig: Path, *, gives_slices: bool) -> str:
    """What is in the way, and what would be right; empty when nothing is.

    Only to a run that ``gives_slices`` are the JobSets of others in the way.
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
            if leftovers.run is not None and leftovers.run.goes_on()
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


async def _raise_unmet(unmet: Sequence[UnmetRequirement], access: Access) -> None:
    if unmet:
        lines = [f"  - {one.what}\n    right: {one.right}" for one in unmet]
        raise ClusterUnusable("\n".join([f"{access.server} lacks what it takes:", *lines]))


async def _find_groups(client: ClusterClient) -> Sequence[Document]:
    return await client.list(GROUPS)


async def _delete_groups(client: ClusterClient) -> bool:
    """Begin to delete them, those too that have come meanwhile; whether any is left."""
    groups = await _find_groups(client)
    for group in groups:
        if "deletionTimestamp" not in group["metadata"]:
            await client.delete(group_path(group), group["metadata"]["uid"])
    return bool(groups)


def _words(error: Exception) -> str:
    return str(error) or "it takes too long"


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
    """Done to its end even when somebody cancels it meanwhile, who then waits a little."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
