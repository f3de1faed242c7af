"""``python -m relay.uninstall REVISION KIND...``: the chart's check before an uninstallation.

It runs as the relay's ServiceAccount, and fails while TPUNodeGroups, or Nodes of node pools for
workloads, exist: without the permissions that are about to be deleted, nobody would delete their VMs.
KIND is TPUNodeGroup, or Node if this installation creates node pools: otherwise they are those of TPU
Provisioner. Without any, as an earlier chart calls it, both are looked for.

REVISION is that of the release, to which a rollback takes a refusal back. Without a revision, helm
would return to the release before it, or find none.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from http import HTTPStatus

import aiohttp

from relay.watching.api import API_FAILURES, KubernetesApi, Refused
from shared.base import names

_LISTS = {
    "TPUNodeGroup": (f"/apis/{names.GROUP}/{names.VERSION}/{names.PLURAL}", ""),
    "Node": ("/api/v1/nodes", "google.com/nodepool-manager=tpu-provisioner"),
}
_SHOWN = 50
_REFUSAL = """\
Slices exist, and without tpu-functions nobody would delete them:

  {}

Delete them, or the workloads that they are for, and wait until they are gone. Then
uninstall again."""
_BACK = "To keep tpu-functions: helm rollback tpu-functions {} --namespace tpu-functions"


async def find_slices(kubeconfig: str, kinds: Sequence[str]) -> list[str]:
    """The groups, and the Nodes of node pools, that exist of these kinds; at most 50 of each.

    Raises an error of `API_FAILURES`.
    """
    api = await KubernetesApi.connect(kubeconfig)
    found = []
    try:
        for kind in kinds or _LISTS:
            path, selector = _LISTS[kind]
            query = {"labelSelector": selector, "limit": str(_SHOWN)}
            try:
                async with api.get(path, query, aiohttp.ClientTimeout(total=30)) as answer:
                    items = (await answer.json())["items"]
            except Refused as refused:
                if refused.status != HTTPStatus.NOT_FOUND:  # the CRD is deleted
                    raise
                continue
            for metadata in (item["metadata"] for item in items):
                namespace = f"{metadata['namespace']}/" if "namespace" in metadata else ""
                found.append(f"{kind} {namespace}{metadata['name']}")
    finally:
        await api.close()
    return found


def main(revision: str, *kinds: str) -> int:
    """Print what exists; the exit status is 0 if there is nothing."""
    try:
        found = asyncio.run(find_slices(os.environ.get("KUBECONFIG", ""), kinds))
    except API_FAILURES as error:
        print(f"It cannot be checked whether slices exist: {error}")
    else:
        if not found:
            return 0
        print(_REFUSAL.format("\n  ".join(found)))
    print(_BACK.format(revision))
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
