"""The whole relay with an API server that fails and a Pub/Sub that becomes unavailable."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from local.base.http import Request, Response
from local.base.web import serve
from local.kube import CertificateAuthority
from relay import daemon
from relay.watching import watch as watching
from relay.watching.watch import Timing
from shared.base.timestamps import render_time
from tests.unit.relay.objects import (
    RESOURCE_NAME,
    foreign_node,
    group,
    jobset,
    node,
    pod,
    settled_group,
    signing_request,
)
from tests.unit.relay.running import (
    FAST,
    TIMEOUT_S,
    Recorder,
    is_watch,
    relaying,
    running_relay,
    until_watched,
)
from tests.unit.relay.scripted_api import (
    CLUSTER_ID,
    GROUPS,
    JOBSETS,
    NODES,
    PODS,
    REQUESTS,
    ScriptedApi,
    error_response,
    write_kubeconfig,
)


def is_list(path: str) -> Callable[[Request], bool]:
    return lambda request: request.path == path and not request.argument("watch")


def fixed_clock() -> datetime:
    """Return a fixed time, so that messages with a delay never become due."""
    return datetime(2026, 1, 1, tzinfo=UTC)


async def test_only_certificate_requests_of_kubelets_are_listed_and_reported(
    tmp_path: Path,
) -> None:
    api = ScriptedApi()
    async with running_relay(tmp_path, api, watched=False) as running:
        for matches in (is_list(REQUESTS), is_watch(REQUESTS)):
            selected = (await running.request(matches)).argument("fieldSelector")
            assert selected == "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet"
        made = render_time(datetime.now(UTC))
        others = signing_request(group="system:bootstrappers:kubeadm:x", created=made)
        api.change(REQUESTS, "ADDED", others)
        api.change(REQUESTS, "ADDED", signing_request(created=made))
        assert await running.recorder.next() == ("approve_join", "", "")


async def test_a_new_group_is_published_to_create_resources_without_delay(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ScriptedApi(), now=fixed_clock) as running:
        running.api.change(GROUPS, "ADDED", group(finalizers=(), resource_name=""))
        assert await running.recorder.next() == ("create_resources", "train", "")
        assert running.recorder.attempts.qsize() == 1


async def test_changes_that_concern_no_step_are_not_published(tmp_path: Path) -> None:
    api = ScriptedApi()
    api.put(GROUPS, settled_group())
    api.put(NODES, node(), *(foreign_node(f"n-{index}") for index in range(20)))
    async with running_relay(tmp_path, api) as running:
        api.change(GROUPS, "MODIFIED", settled_group(observed=7))
        api.change(NODES, "MODIFIED", node(heartbeat="2026-01-01T00:05:00Z"))
        api.change(NODES, "MODIFIED", foreign_node("n-1"))
        api.change(NODES, "DELETED", foreign_node("n-2"))
        api.change(NODES, "BOOKMARK", {"metadata": {"name": ""}})
        api.change(NODES, "MODIFIED", node(ready="False"))
        assert await running.recorder.next() == ("label_node", "train", f"{RESOURCE_NAME}-ab12")
        assert running.recorder.attempts.qsize() == 1


async def test_a_restarted_relay_reports_only_what_it_missed(tmp_path: Path) -> None:
    api = ScriptedApi()
    api.put(GROUPS, settled_group(), settled_group(0, name="idle", uid="uid-2", resource_name="r"))
    api.put(NODES, node())
    async with running_relay(tmp_path, api) as running:
        pass
    assert running.recorder.attempts.empty()
    api.change(GROUPS, "MODIFIED", settled_group(deleting=True))
    async with running_relay(tmp_path, api) as running:
        assert await running.recorder.next() == ("tear_down", "train", "")
    assert running.recorder.attempts.qsize() == 1


async def test_waiting_pods_and_ended_jobsets_are_reported_if_that_is_enabled(
    tmp_path: Path,
) -> None:
    api = ScriptedApi()
    async with running_relay(tmp_path, api, watched=False, with_jobsets=True) as running:
        await running.request(is_watch(JOBSETS))
        api.change(JOBSETS, "ADDED", jobset())
        api.change(PODS, "ADDED", pod(index="1"))
        api.change(PODS, "ADDED", pod())
        expected = ("provision_slice", pod()["metadata"]["name"], "")
        assert await running.recorder.next() == expected
        api.change(JOBSETS, "MODIFIED", jobset(end="Completed"))
        assert await running.recorder.next() == ("release_slice", "train", "")
        assert running.recorder.attempts.qsize() == 2


SELECTORS = {
    "jobsets": (False, ["jobset.sigs.k8s.io/job-key", "status.phase=Pending"]),
    "all workloads": (True, ["", "spec.nodeName=,status.phase=Pending"]),
}


@pytest.mark.parametrize("with_workloads, selectors", SELECTORS.values(), ids=SELECTORS.keys())
async def test_only_pending_pods_are_listed_and_watched_and_only_those_of_jobsets_by_default(
    with_workloads: bool, selectors: list[str], tmp_path: Path
) -> None:
    api = ScriptedApi()
    async with running_relay(
        tmp_path, api, watched=False, with_jobsets=True, with_workloads=with_workloads
    ) as running:
        for matches in (is_list(PODS), is_watch(PODS)):
            request = await running.request(matches)
            selected = [request.argument(key) for key in ("labelSelector", "fieldSelector")]
            assert selected == selectors


async def test_pods_and_jobsets_are_not_listed_if_jobsets_are_disabled(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ScriptedApi(), watched=False) as running:
        paths = {(await running.api.requests.get()).path for _ in range(6)}
        assert paths == {GROUPS, NODES, REQUESTS}
        assert running.relay.health.list_not_ready() == []


async def test_groups_are_reported_without_the_crd_of_jobsets_and_jobsets_once_it_exists(
    tmp_path: Path,
) -> None:
    api = ScriptedApi()
    del api.objects[JOBSETS]
    async with running_relay(tmp_path, api, watched=False, with_jobsets=True) as running:
        await until_watched(api, PODS)
        for _ in range(2):
            await running.request(lambda request: request.path == JOBSETS)
        api.change(GROUPS, "ADDED", group())
        assert await running.recorder.next() == ("create_resources", "train", "")
        assert running.relay.health.list_stuck() == []
        assert running.relay.health.list_not_ready() == [
            "JobSet: not listed yet: 404: the API server does not know"
            " /apis/jobset.x-k8s.io/v1alpha2/jobsets; its CustomResourceDefinition must be"
            " applied"
        ]
        api.objects[JOBSETS] = {}
        await running.request(is_watch(JOBSETS))
        assert running.relay.health.list_not_ready() == []
        api.change(JOBSETS, "ADDED", jobset())
        api.change(JOBSETS, "DELETED", jobset())
        assert await running.recorder.next() == ("release_slice", "train", "")


async def test_with_all_workloads_jobset_need_not_be_installed_and_is_noticed_when_it_is(
    tmp_path: Path,
) -> None:
    api = ScriptedApi()
    del api.objects[JOBSETS]
    async with running_relay(tmp_path, api, watched=False, with_workloads=True) as running:
        await until_watched(api, PODS)
        for _ in range(2):
            await running.request(lambda request: request.path == JOBSETS)
        assert running.relay.health.list_not_ready() == []
        api.objects[JOBSETS] = {}
        await running.request(is_watch(JOBSETS))
        api.change(JOBSETS, "ADDED", jobset())
        api.change(JOBSETS, "DELETED", jobset())
        assert await running.recorder.next() == ("release_slice", "train", "")


async def test_lists_are_read_in_pages_of_500(tmp_path: Path) -> None:
    api = ScriptedApi()
    api.put(NODES, *(foreign_node(f"n-{index:04}") for index in range(1001)))
    async with running_relay(tmp_path, api, watched=False) as running:
        pages = [await running.request(is_list(NODES)) for _ in range(3)]
        assert [page.argument("limit") for page in pages] == ["500", "500", "500"]
        assert [page.argument("continue") for page in pages] == ["", "500", "1000"]
        await running.request(is_watch(NODES))


async def test_a_watch_requests_bookmarks_and_a_timeout_and_continues_from_its_list(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, ScriptedApi(), watched=False) as running:
        watch = await running.request(is_watch(NODES))
        assert watch.argument("allowWatchBookmarks") == "true"
        assert watch.argument("timeoutSeconds") == "240"
        assert watch.argument("resourceVersion") == "100"


ENDS: dict[str, Callable[[ScriptedApi], None]] = {
    "cleanly": ScriptedApi.close_watches,
    "with half a line": lambda api: _send_all(api, b'{"type": "MODIFIED", "obj'),
    "with an invalid event": lambda api: _send_all(api, b'["hello"]\n'),
    "with an error": lambda api: _send_all(
        api, b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n'
    ),
}


def _send_all(api: ScriptedApi, chunk: bytes) -> None:
    for watch in api.watches:
        watch.send(chunk)
    api.close_watches()


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_watch_that_ends_continues_from_the_last_version_without_a_list(
    tmp_path: Path, end: Callable[[ScriptedApi], None]
) -> None:
    async with running_relay(tmp_path, ScriptedApi()) as running:
        running.api.change(GROUPS, "ADDED", group())
        await running.recorder.next()
        running.api.change(GROUPS, "BOOKMARK", {"metadata": {"name": ""}})
        end(running.api)
        next_request = await running.request(lambda request: request.path == GROUPS)
        assert next_request.argument("resourceVersion") == "102"
        running.api.change(GROUPS, "ADDED", group("second", uid="uid-2"))
        assert await running.recorder.next() == ("create_resources", "second", "")


EXPIRIES: dict[str, Callable[[ScriptedApi], None]] = {
    "in the stream": ScriptedApi.compact,
    "as the answer": lambda api: api.watch_errors.extend([error_response(410, "Gone")] * 3),
}


@pytest.mark.parametrize("expire", EXPIRIES.values(), ids=EXPIRIES.keys())
async def test_an_expired_version_causes_a_list_that_reports_only_changes(
    tmp_path: Path, expire: Callable[[ScriptedApi], None]
) -> None:
    api = ScriptedApi()
    api.put(GROUPS, settled_group(), settled_group(0, name="b", uid="uid-2", resource_name="r"))
    api.put(NODES, node())
    async with running_relay(tmp_path, api) as running:
        api.put(GROUPS, settled_group(0, name="b", uid="uid-2", resource_name="r", generation=2))
        expire(api)
        api.close_watches()
        assert await running.recorder.next() == ("create_resources", "b", "")
        await running.request(is_watch(GROUPS))
        assert running.recorder.attempts.qsize() == 1


async def test_an_event_that_is_too_long_to_be_read_causes_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_EVENT_BYTES", 10_000)

    api = ScriptedApi()
    async with running_relay(tmp_path, api) as running:
        long = {**node("long"), "status": {"images": "x" * 20_000}}
        api.change(NODES, "ADDED", long)
        await running.request(is_list(NODES))
        await running.request(is_watch(NODES))
        api.change(GROUPS, "ADDED", group())
        assert await running.recorder.next() == ("create_resources", "train", "")


async def test_a_list_whose_second_page_has_expired_is_restarted(tmp_path: Path) -> None:
    api = ScriptedApi()
    api.put(NODES, *(foreign_node(f"n-{index:04}") for index in range(501)))
    runner, port = await serve(_ExpiringPages(api))
    kubeconfig = write_kubeconfig(tmp_path / "k", port)
    async with relaying(kubeconfig, Recorder()):
        continue_tokens: list[str] = []
        while len(continue_tokens) < 5:
            request = await api.requests.get()
            continue_tokens += [request.argument("continue")] if request.path == NODES else []
    assert continue_tokens == ["", "500", "", "500", ""]
    await runner.cleanup()


@dataclass
class _ExpiringPages:
    """Rejects the second page of the first list."""

    api: ScriptedApi
    rejected: bool = False

    def handle(self, request: Request) -> Response:
        if request.argument("continue") and not self.rejected:
            self.rejected = True
            self.api.requests.put_nowait(request)
            return error_response(410, "The provided continue parameter is too old")
        return self.api.handle(request)


async def test_a_version_that_is_rejected_three_times_causes_a_list(tmp_path: Path) -> None:
    api = ScriptedApi()
    async with running_relay(tmp_path, api) as running:
        too_large = error_response(504, "Too large resource version: 900, current: 100")
        api.watch_errors.extend([too_large] * 9)
        api.close_watches()
        await running.request(is_list(GROUPS))
        await running.request(is_watch(GROUPS))
        api.change(GROUPS, "ADDED", group())
        assert await running.recorder.next() == ("create_resources", "train", "")


async def test_a_failed_list_is_retried_and_reported_by_readyz(tmp_path: Path) -> None:
    api = ScriptedApi()
    api.list_errors.extend([error_response(403, "nodes is forbidden")] * 4)
    async with running_relay(tmp_path, api, watched=False) as running:
        assert running.relay.health.list_not_ready() == [
            "TPUNodeGroup: not listed yet",
            "Node: not listed yet",
            "CertificateSigningRequest: not listed yet",
        ]
        await until_watched(api)
        assert running.relay.health.list_not_ready() == []


class RecordedRandom(random.Random):
    """Records the upper bounds of the random delays."""

    def __init__(self) -> None:
        super().__init__(1)
        self.longest: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.longest.append(b)
        return a


async def test_delays_double_with_every_failure_and_restart_after_an_event(tmp_path: Path) -> None:
    api, recorder, rng = ScriptedApi(), Recorder(), RecordedRandom()
    no_end = replace(FAST, short_s=60, first_backoff_s=0.001, longest_backoff_s=0.004)
    runner, port = await serve(api)
    kubeconfig = write_kubeconfig(tmp_path / "k", port)
    async with relaying(kubeconfig, recorder, no_end, rng=rng):
        await until_watched(api)
        for name in ("first", "second"):
            _close(api, GROUPS, [error_response(500, "etcd")])
            rejected, watching = await api.requests.get(), await api.requests.get()
            assert is_watch(GROUPS)(rejected)
            assert is_watch(GROUPS)(watching)
            api.change(GROUPS, "ADDED", group(name, uid=name))
            await recorder.next()
    assert rng.longest == [0.001, 0.002, 0.001]
    api.close_watches()
    await runner.cleanup()


def _close(api: ScriptedApi, path: str, watch_errors: list[Response]) -> None:
    """End the watches of one kind, and answer the next ones with these errors."""
    api.watch_errors.extend(watch_errors)
    for watch in [watch for watch in api.watches if watch.path == path]:
        api.watches.remove(watch)
        watch.end()


SILENCES: dict[str, bytes] = {
    "before its answer": b"",
    "in its answer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("first_bytes", SILENCES.values(), ids=SILENCES.keys())
async def test_a_silent_connection_is_closed_and_does_not_count_as_contact(
    tmp_path: Path, first_bytes: bytes
) -> None:
    silent = Timing(
        watch_s=0, grace_s=0.05, list_s=0.05, first_backoff_s=0.001, longest_backoff_s=0.001
    )
    accepted: asyncio.Queue[None] = asyncio.Queue()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(None)
        writer.write(first_bytes)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with relaying(write_kubeconfig(tmp_path / "k", port), Recorder(), silent) as (
        relay,
        _,
        _,
    ):
        for _ in range(18):
            await asyncio.wait_for(accepted.get(), TIMEOUT_S)
        assert len(relay.health.list_stuck()) == 3
    server.close()


async def test_an_unavailable_api_server_makes_the_relay_unready_but_not_unhealthy(
    tmp_path: Path,
) -> None:
    hasty = Timing(watch_s=0, grace_s=0.02, first_backoff_s=0.001)  # stuck only after a minute

    api = ScriptedApi()
    runner, port = await serve(api)
    async with relaying(write_kubeconfig(tmp_path / "k", port), Recorder(), hasty) as (
        relay,
        _,
        _,
    ):
        await until_watched(api)
        await runner.cleanup()
        async with asyncio.timeout(TIMEOUT_S):
            while not relay.health.list_not_ready():
                await asyncio.sleep(0)
        assert all("no contact" in line for line in relay.health.list_not_ready())
        assert relay.health.list_stuck() == []


async def test_a_replaced_ca_makes_the_relay_unhealthy_so_that_it_starts_with_the_new_one(
    tmp_path: Path,
) -> None:
    """The file of the CA is read at the start alone."""
    authority, successor = (CertificateAuthority.create(datetime.now(UTC)) for _ in range(2))
    pair = successor.issue_server(("127.0.0.1",), datetime.now(UTC))
    (tmp_path / "pem").write_text(pair.certificate_pem + pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    path = write_kubeconfig(tmp_path / "k", server.sockets[0].getsockname()[1])
    (tmp_path / "ca").write_text(authority.certificate_pem)
    text = path.read_text().replace("http:", "https:")
    path.write_text(
        text.replace("server:", f"certificate-authority: {tmp_path / 'ca'}\n    server:")
    )
    hasty = Timing(watch_s=0, grace_s=0.1, first_backoff_s=0.001, longest_backoff_s=0.01)
    async with relaying(path, Recorder(), hasty) as (relay, _, _), asyncio.timeout(TIMEOUT_S):
        while len(relay.health.list_stuck()) < 3:
            await asyncio.sleep(0)
    server.close()


async def test_pending_changes_are_published_when_pubsub_is_available_again(tmp_path: Path) -> None:
    recorder = Recorder(unavailable=True)
    async with running_relay(tmp_path, ScriptedApi(), recorder=recorder) as running:
        running.api.change(GROUPS, "ADDED", group(resource_name=""))
        await recorder.attempts.get()
        recorder.unavailable = False
        assert await recorder.next() == ("create_resources", "train", "")


async def test_a_trigger_that_pubsub_does_not_answer_is_shown_as_pending(tmp_path: Path) -> None:
    def pending() -> float | None:
        running.relay.health.update_metrics()
        labels = {"step": "create_resources"}
        return REGISTRY.get_sample_value("tpu_functions_relay_pending_triggers", labels)

    answered = asyncio.Event()
    recorder = Recorder(before_publish=answered.wait)
    async with running_relay(tmp_path, ScriptedApi(), recorder=recorder) as running:
        running.api.change(GROUPS, "ADDED", group(resource_name=""))
        await recorder.attempts.get()
        assert pending() == 1
        answered.set()
        await recorder.next()
        assert pending() == 0


async def test_a_shutdown_publishes_changes_that_wait_for_their_interval(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ScriptedApi(), now=fixed_clock) as running:
        running.api.change(GROUPS, "ADDED", group(resource_name=""))
        await running.recorder.next()
        running.api.change(GROUPS, "MODIFIED", group(resource_name="", generation=2))
        running.api.change(GROUPS, "ADDED", group("marker", uid="uid-2", resource_name=""))
        assert await running.recorder.next() == ("create_resources", "marker", "")
        running.stop.set()
        assert await running.recorder.next() == ("create_resources", "train", "")
        await running.ended


async def test_a_shutdown_does_not_wait_for_a_pubsub_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "SHUTDOWN_S", 0.05)

    async with running_relay(
        tmp_path, ScriptedApi(), recorder=Recorder(before_publish=asyncio.Event().wait)
    ) as running:
        running.api.change(GROUPS, "ADDED", group())
        await running.recorder.attempts.get()
        running.stop.set()
        await asyncio.wait_for(running.ended, TIMEOUT_S)


async def test_the_cluster_id_is_read_from_kube_system_with_retries(tmp_path: Path) -> None:
    api, recorder = ScriptedApi(token="right"), Recorder()
    async with running_relay(
        tmp_path, api, recorder=recorder, cluster_id="", token="wrong", watched=False
    ) as running:
        await running.request(lambda request: request.path.endswith("/kube-system"))
        assert "Namespace kube-system" in running.relay.health.list_not_ready()[0]
        api.token = "wrong"
        api.put(GROUPS, group())
        await running.recorder.next()
        assert recorder.cluster_ids == {CLUSTER_ID}
        await until_watched(api)
        assert running.relay.health.list_not_ready() == []


async def test_an_expired_token_is_read_again(tmp_path: Path) -> None:
    api = ScriptedApi(token="old")
    async with running_relay(tmp_path, api, token="old") as running:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(kubeconfig.read_text().replace("old", "new"))
        api.token = "new"
        api.change(GROUPS, "ADDED", group())
        await running.recorder.next()
        api.close_watches()
        is_new = "Bearer new"
        await running.request(lambda request: request.headers["authorization"] == is_new)


def test_an_unexpected_error_ends_the_relay(tmp_path: Path) -> None:
    async def divide() -> float:
        return 1 / 0

    async def scenario() -> None:
        async with running_relay(
            tmp_path, ScriptedApi(), recorder=Recorder(before_publish=divide)
        ) as running:
            running.api.change(GROUPS, "ADDED", group())
            await asyncio.wait([running.ended], timeout=TIMEOUT_S)
            assert isinstance(running.ended.exception(), ZeroDivisionError)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scenario())


async def test_the_metrics_count_listed_and_watched_groups(tmp_path: Path) -> None:
    def count(state: str, reason: str) -> float | None:
        labels = {"state": state, "reason": reason}
        return REGISTRY.get_sample_value("tpu_functions_slices", labels)

    api = ScriptedApi()
    api.put(GROUPS, settled_group(0))
    async with running_relay(tmp_path, api, now=fixed_clock) as running:
        fresh = group(name="b", uid="uid-2", finalizers=(), resource_name="")
        api.change(GROUPS, "ADDED", fresh)
        assert await running.recorder.next() == ("create_resources", "b", "")
        running.relay.health.update_metrics()
        assert (count("Ready", "Ready"), count("NotReady", "NotReported")) == (1, 1)
