"""LeaderWorkerSet's webhook, and an API server that calls it and this system's webhook.

`mutate` changes the subdomain and the TPU variables of a Pod as LeaderWorkerSet 0.9 and 0.10 do
(pkg/webhooks/pod_webhook.go and pkg/utils/accelerators/tpu.go); no code is shared.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import yaml

from tests.unit.webhook.workloads import Answered, Manifest

CONFIGURATION = "lws-mutating-webhook-configuration"
"""The name of the webhook configuration in LeaderWorkerSet's manifests."""
PREFIX = "leaderworkerset.sigs.k8s.io"
_COMPONENT = Path(__file__).parents[3] / "infra" / "chart" / "manifests" / "inject-env"
OWN_CONFIGURATION = str(
    yaml.safe_load((_COMPONENT / "webhook.yaml").read_text())["metadata"]["name"]
)
FIRST_PORT = 8476


class RejectedError(Exception):
    """The webhook rejects the Pod."""


def mutate(pod: Manifest) -> Manifest:
    """Return the Pod as LeaderWorkerSet's webhook changes it."""
    pod = deepcopy(pod)
    labels, annotations = pod["metadata"]["labels"], pod["metadata"].get("annotations", {})
    if f"{PREFIX}/size" not in annotations:
        raise RejectedError("size annotation is unexpectedly missing")
    if labels.get(f"{PREFIX}/worker-index") == "0":
        if annotations.get(f"{PREFIX}/subdomainPolicy") == "UniquePerReplica":
            pod["spec"]["subdomain"] = pod["metadata"]["name"]
    else:
        labels[f"{PREFIX}/worker-index"] = str(_ordinal(pod)[1])
    requesting = [
        one
        for part in ("containers", "initContainers")
        for one in pod["spec"].get(part, [])
        if one.get("resources", {}).get("limits", {}).get("google.com/tpu", "0") != "0"
    ]
    first = {one["name"] for one in requesting[0].get("env", [])} if requesting else set()
    if requesting and not first & {"TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"}:
        _set_variables(pod, requesting)
    return pod


def _ordinal(pod: Manifest) -> tuple[str, int]:
    name, _, ordinal = pod["metadata"]["name"].rpartition("-")
    if not name or not ordinal.isdecimal():
        raise RejectedError(f"parsing pod ordinal for pod {pod['metadata']['name']}")
    return name, int(ordinal)


def _set_variables(pod: Manifest, requesting: list[Manifest]) -> None:
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    index = int(labels[f"{PREFIX}/worker-index"])
    leader = pod["metadata"]["name"] if index == 0 else _ordinal(pod)[0]
    has_leader = index == 0 or annotations.get(f"{PREFIX}/leader-requests-tpus") == "true"
    position = index if has_leader else index - 1
    members = range(0 if has_leader else 1, int(annotations[f"{PREFIX}/size"]))
    if f"{PREFIX}/subgroup-size" in annotations:
        size = int(annotations[f"{PREFIX}/subgroup-size"])
        requesting = requesting[:1]
        members = members[position // size * size :][:size]
        # The annotation of a leader's own Pod is missing, and Go's % keeps the sign.
        position = (
            position % size if index or (annotations.get(f"{PREFIX}/leader-requests-tpus")) else -1
        )
    ports = [_port(one, number) for number, one in enumerate(requesting)]
    subdomain = pod["spec"].get("subdomain", "")
    names = [f"{leader}-{one}.{subdomain}" if one else f"{leader}.{subdomain}" for one in members]
    for number, container in enumerate(requesting):
        has_port = any(one["name"] == "TPU_PROCESS_PORT" for one in container.get("env", []))
        container.setdefault("env", []).extend(
            {"name": name, "value": value}
            for name, value in {
                "TPU_WORKER_HOSTNAMES": ",".join(one for one in names for _ in requesting),
                "TPU_WORKER_ID": str(position * len(requesting) + number),
                "TPU_NAME": leader,
                "TPU_PROCESS_ADDRESSES": ",".join(
                    f"{one}:{port}" for one in names for port in ports
                ),
                **({} if has_port else {"TPU_PROCESS_PORT": ports[number]}),
            }.items()
        )


def _port(container: Manifest, number: int) -> str:
    given = [one for one in container.get("env", []) if one["name"] == "TPU_PROCESS_PORT"]
    return str(given[0].get("value", "")) if given else str(FIRST_PORT + number)


class Admitted(Answered):
    """A Pod of a LeaderWorkerSet as an API server stores it. Both webhooks are called in the order of
    their configurations' names; this system's is called again if the other one then changed the Pod."""

    def __init__(
        self, pod: Manifest, *, configuration: str = OWN_CONFIGURATION, is_strict: bool = False
    ) -> None:
        if configuration < CONFIGURATION:
            pod = Answered(pod).target
        super().__init__(mutate(pod), is_strict=is_strict)


ORDERS = (OWN_CONFIGURATION, "inject-env.tpu-functions.dev")
"""Names of this system's configuration: its own, and one that precedes LeaderWorkerSet's."""
