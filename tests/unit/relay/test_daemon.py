"""The relay, whole, in front of an API server that misbehaves and a Pub/Sub that goes away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from local.base.http import Request, Response
from local.base.web import serve
from relay import daemon, metrics
from relay.changes.pending import OutgoingMessage
from relay.daemon import Relay
from relay.watching import watch as watching
from relay.watching.api import KubernetesApi
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
from tests.unit.relay.scripted_api import (
    CLUSTER_ID,
    GROUPS,
    JOBSETS,
    NODES,
    PODS,
    REQUESTS,
    ScriptedApi,
    refusal,
    write_kubeconfig,
)

FAST = Timing(first_backoff_s=0.01, longest_backoff_s=0.02, short_s=0)
PATIENCE_S = 10.0


@dataclass
class Recorder:
    """A publisher that keeps what it is given, and can be away."""

    published: asyncio.Queue[tuple[str, str, str]] = field(default_factory=asyncio.Queue)
    attempts: asyncio.Queue[Sequence[OutgoingMessage]] = field(default_factory=asyncio.Queue)
    cluster_ids: set[str] = field(default_factory=set)
    away: bool = False
    trouble: Callable[[], Awaitable[object]] | None = None
    """Awaited in the middle of publishing."""

    async def publish(
        self, publications: Sequence[OutgoingMessage], cluster_id: str
    ) -> list[OutgoingMessage]:
        self.attempts.put_nowait(publications)
        if self.trouble is not None:
            await self.trouble()
        if self.away:
            return list(publications)
        self.cluster_ids.add(cluster_id)
        for one in publications:
            message = one.message
            self.published.put_nowait((one.step, message.name, ",".join(message.nodes)))
        return []

    async def next(self) -> tuple[str, str, str]:
        """Step, group and Node names of the next message."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.published.get()


@dataclass
class Scene:
    """One relay, one API server, one Pub/Sub."""

    api: ScriptedApi
    recorder: Recorder
    relay: Relay
    stop: asyncio.Event
    ended: asyncio.Task[None]

    async def request(self, matches: Callable[[Request], bool]) -> Request:
        """The next request that fits."""
        async with asyncio.timeout(PATIENCE_S):
            while not matches(request := await self.api.requests.get()):
                pass
            return request


def is_watch(path: str) -> Callable[[Request], bool]:
    return lambda request: request.path == path and request.argument("watch") == "true"


def is_list(path: str) -> Callable[[Request], bool]:
    return lambda request: request.path == path and not request.argument("watch")


def stand_still() -> datetime:
    """A clock by which nothing becomes due that is not due at once."""
    return datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def playing(
    tmp_path: Path,
    api: ScriptedApi,
    *,
    recorder: Recorder | None = None,
    cluster_id: str = "c",
    timing: Timing = FAST,
    token: str = "token",
    watched: bool = True,
    with_jobsets: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[Scene]:
    """A relay that runs; ``watched``: wait until groups and Nodes are being watched."""
    runner, port = await serve(api)
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", port, token)
    recorder = recorder or Recorder()
    try:
        async with relaying(
            kubeconfig, recorder, timing, cluster_id, with_jobsets=with_jobsets, now=now
        ) as (relay, stop, ended):
            scene = Scene(api, recorder, relay, stop, ended)
            if watched:
                await until_watched(api)
            yield scene
    finally:
        api.close_watches()
        await runner.cleanup()


def test_only_certificate_requests_of_kubelets_are_listed_and_reported(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        api = ScriptedApi()
        async with playing(tmp_path, api, watched=False) as scene:
            for matches in (is_list(REQUESTS), is_watch(REQUESTS)):
                selected = (await scene.request(matches)).argument("fieldSelector")
                assert selected == "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet"
            made = render_time(datetime.now(UTC))
            others = signing_request(group="system:bootstrappers:kubeadm:x", created=made)
            api.change(REQUESTS, "ADDED", others)
            api.change(REQUESTS, "ADDED", signing_request(created=made))
            assert await scene.recorder.next() == ("approve_join", "", "")

    asyncio.run(story())


async def until_watched(api: ScriptedApi, *more: str) -> None:
    """Groups, Nodes and requests have been asked for, and what stands under more paths."""
    missing = {GROUPS, NODES, REQUESTS, *more}
    while missing:
        request = await asyncio.wait_for(api.requests.get(), PATIENCE_S)
        missing -= {request.path} if request.argument("watch") else set()


@asynccontextmanager
async def relaying(
    kubeconfig: Path,
    recorder: Recorder,
    timing: Timing = FAST,
    cluster_id: str = "c",
    rng: random.Random | None = None,
    *,
    with_jobsets: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[tuple[Relay, asyncio.Event, asyncio.Task[None]]]:
    """A relay that runs, and ends in order if it still does."""
    api = await KubernetesApi.connect(str(kubeconfig))
    relay = Relay(
        api,
        recorder,
        cluster_id=cluster_id,
        now=now,
        monotonic=time.monotonic,
        rng=rng or random.Random(1),
        timing=timing,
        with_jobsets=with_jobsets,
    )
    stop = asyncio.Event()
    ended = asyncio.create_task(relay.run(stop))
    try:
        yield relay, stop, ended
        stop.set()
        await asyncio.wait_for(ended, PATIENCE_S)
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        await api.close()


def test_a_new_group_is_published_to_create_resources_without_delay(tmp_path: Path) -> None:
    async def story() -> None:
        async with playing(tmp_path, ScriptedApi(), now=stand_still) as scene:
            scene.api.change(GROUPS, "ADDED", group(finalizers=(), resource_name=""))
            assert await scene.recorder.next() == ("create_resources", "train", "")
            assert scene.recorder.attempts.qsize() == 1

    asyncio.run(story())


def test_nothing_is_published_while_nothing_of_ours_happens(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi()
        api.put(GROUPS, settled_group())
        api.put(NODES, node(), *(foreign_node(f"n-{index}") for index in range(20)))
        async with playing(tmp_path, api) as scene:
            api.change(GROUPS, "MODIFIED", settled_group(observed=7))
            api.change(NODES, "MODIFIED", node(heartbeat="2026-01-01T00:05:00Z"))
            api.change(NODES, "MODIFIED", foreign_node("n-1"))
            api.change(NODES, "DELETED", foreign_node("n-2"))
            api.change(NODES, "BOOKMARK", {"metadata": {"name": ""}})
            api.change(NODES, "MODIFIED", node(ready="False"))
            assert await scene.recorder.next() == ("label_node", "train", f"{RESOURCE_NAME}-ab12")
            assert scene.recorder.attempts.qsize() == 1

    asyncio.run(story())


def test_a_restarted_relay_reports_only_what_it_missed(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi()
        api.put(
            GROUPS, settled_group(), settled_group(0, name="idle", uid="uid-2", resource_name="r")
        )
        api.put(NODES, node())
        async with playing(tmp_path, api) as scene:
            pass
        assert scene.recorder.attempts.empty()
        api.change(GROUPS, "MODIFIED", settled_group(deleting=True))
        async with playing(tmp_path, api) as scene:
            assert await scene.recorder.next() == ("tear_down", "train", "")
        assert scene.recorder.attempts.qsize() == 1

    asyncio.run(story())


def test_waiting_pods_and_ended_jobsets_are_reported_if_that_is_enabled(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        api = ScriptedApi()
        async with playing(tmp_path, api, watched=False, with_jobsets=True) as scene:
            await scene.request(is_watch(JOBSETS))
            api.change(JOBSETS, "ADDED", jobset())
            api.change(PODS, "ADDED", pod(index="1"))
            api.change(PODS, "ADDED", pod())
            told = ("provision_slice", pod()["metadata"]["name"], "")
            assert await scene.recorder.next() == told
            api.change(JOBSETS, "MODIFIED", jobset(end="Completed"))
            assert await scene.recorder.next() == ("release_slice", "train", "")
            assert scene.recorder.attempts.qsize() == 2

    asyncio.run(story())


def test_of_pods_only_those_of_jobsets_that_are_pending_are_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi()
        async with playing(tmp_path, api, watched=False, with_jobsets=True) as scene:
            for matches in (is_list(PODS), is_watch(PODS)):
                request = await scene.request(matches)
                selected = [request.argument(key) for key in ("labelSelector", "fieldSelector")]
                assert selected == ["jobset.sigs.k8s.io/job-key", "status.phase=Pending"]

    asyncio.run(story())


def test_neither_pods_nor_jobsets_are_asked_for_otherwise(tmp_path: Path) -> None:
    async def story() -> None:
        async with playing(tmp_path, ScriptedApi(), watched=False) as scene:
            paths = {(await scene.api.requests.get()).path for _ in range(6)}
            assert paths == {GROUPS, NODES, REQUESTS}
            assert scene.relay.health.list_not_ready() == []

    asyncio.run(story())


def test_without_the_crd_of_jobsets_groups_are_reported_and_jobsets_once_it_exists(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        api = ScriptedApi()
        del api.objects[JOBSETS]
        async with playing(tmp_path, api, watched=False, with_jobsets=True) as scene:
            await until_watched(api, PODS)
            for _ in range(2):
                await scene.request(lambda request: request.path == JOBSETS)
            api.change(GROUPS, "ADDED", group())
            assert await scene.recorder.next() == ("create_resources", "train", "")
            assert scene.relay.health.list_stuck() == []
            assert scene.relay.health.list_not_ready() == [
                "JobSet: not listed yet: 404: the API server does not know"
                " /apis/jobset.x-k8s.io/v1alpha2/jobsets; its CustomResourceDefinition must be"
                " applied"
            ]
            api.objects[JOBSETS] = {}
            await scene.request(is_watch(JOBSETS))
            assert scene.relay.health.list_not_ready() == []
            api.change(JOBSETS, "ADDED", jobset())
            api.change(JOBSETS, "DELETED", jobset())
            assert await scene.recorder.next() == ("release_slice", "train", "")

    asyncio.run(story())


def test_lists_come_in_pages_of_500(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi()
        api.put(NODES, *(foreign_node(f"n-{index:04}") for index in range(1001)))
        async with playing(tmp_path, api, watched=False) as scene:
            pages = [await scene.request(is_list(NODES)) for _ in range(3)]
            assert [page.argument("limit") for page in pages] == ["500", "500", "500"]
            assert [page.argument("continue") for page in pages] == ["", "500", "1000"]
            await scene.request(is_watch(NODES))

    asyncio.run(story())


def test_a_watch_asks_for_bookmarks_and_an_end_and_goes_on_from_its_list(tmp_path: Path) -> None:
    async def story() -> None:
        async with playing(tmp_path, ScriptedApi(), watched=False) as scene:
            watch = await scene.request(is_watch(NODES))
            assert watch.argument("allowWatchBookmarks") == "true"
            assert watch.argument("timeoutSeconds") == "240"
            assert watch.argument("resourceVersion") == "100"

    asyncio.run(story())


ENDS: dict[str, Callable[[ScriptedApi], None]] = {
    "in order": ScriptedApi.close_watches,
    "with half a line": lambda api: _send_all(api, b'{"type": "MODIFIED", "obj'),
    "with what is no event": lambda api: _send_all(api, b'["hello"]\n'),
    "with an error": lambda api: _send_all(
        api, b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n'
    ),
}


def _send_all(api: ScriptedApi, chunk: bytes) -> None:
    for watch in api.watches:
        watch.send(chunk)
    api.close_watches()


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_watch_that_ends_goes_on_from_the_last_version_without_a_list(
    tmp_path: Path, end: Callable[[ScriptedApi], None]
) -> None:
    async def story() -> None:
        async with playing(tmp_path, ScriptedApi()) as scene:
            scene.api.change(GROUPS, "ADDED", group())
            await scene.recorder.next()
            scene.api.change(GROUPS, "BOOKMARK", {"metadata": {"name": ""}})
            end(scene.api)
            next_request = await scene.request(lambda request: request.path == GROUPS)
            assert next_request.argument("resourceVersion") == "102"
            scene.api.change(GROUPS, "ADDED", group("second", uid="uid-2"))
            assert await scene.recorder.next() == ("create_resources", "second", "")

    asyncio.run(story())


EXPIRIES: dict[str, Callable[[ScriptedApi], None]] = {
    "in the stream": ScriptedApi.compact,
    "as the answer": lambda api: api.refusals.extend([refusal(410, "Gone")] * 3),
}


@pytest.mark.parametrize("expire", EXPIRIES.values(), ids=EXPIRIES.keys())
def test_an_expired_version_causes_a_list_that_reports_only_changes(
    tmp_path: Path, expire: Callable[[ScriptedApi], None]
) -> None:
    async def story() -> None:
        api = ScriptedApi()
        api.put(GROUPS, settled_group(), settled_group(0, name="b", uid="uid-2", resource_name="r"))
        api.put(NODES, node())
        async with playing(tmp_path, api) as scene:
            api.put(
                GROUPS, settled_group(0, name="b", uid="uid-2", resource_name="r", generation=2)
            )
            expire(api)
            api.close_watches()
            assert await scene.recorder.next() == ("create_resources", "b", "")
            await scene.request(is_watch(GROUPS))
            assert scene.recorder.attempts.qsize() == 1

    asyncio.run(story())


def test_an_event_that_is_too_long_to_be_read_causes_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_EVENT_BYTES", 10_000)

    async def story() -> None:
        api = ScriptedApi()
        async with playing(tmp_path, api) as scene:
            long = {**node("long"), "status": {"images": "x" * 20_000}}
            api.change(NODES, "ADDED", long)
            await scene.request(is_list(NODES))
            await scene.request(is_watch(NODES))
            api.change(GROUPS, "ADDED", group())
            assert await scene.recorder.next() == ("create_resources", "train", "")

    asyncio.run(story())


def test_a_list_whose_second_page_has_expired_begins_again(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi()
        api.put(NODES, *(foreign_node(f"n-{index:04}") for index in range(501)))
        runner, port = await serve(_ExpiringPages(api))
        kubeconfig = write_kubeconfig(tmp_path / "k", port)
        async with relaying(kubeconfig, Recorder()):
            seen: list[str] = []
            while len(seen) < 5:
                request = await api.requests.get()
                seen += [request.argument("continue")] if request.path == NODES else []
        assert seen == ["", "500", "", "500", ""]
        await runner.cleanup()

    asyncio.run(story())


@dataclass
class _ExpiringPages:
    """Refuses the second page of the first list."""

    api: ScriptedApi
    refused: bool = False

    def handle(self, request: Request) -> Response:
        if request.argument("continue") and not self.refused:
            self.refused = True
            self.api.requests.put_nowait(request)
            return refusal(410, "The provided continue parameter is too old")
        return self.api.handle(request)


@pytest.mark.parametrize(
    "malformed",
    [None, 7, {}, {"metadata": None}, {"metadata": {"resourceVersion": "101"}}],
    ids=str,
)
def test_an_object_without_identity_is_skipped_and_the_watch_goes_on(
    tmp_path: Path, malformed: object
) -> None:
    async def story() -> None:
        async with playing(tmp_path, ScriptedApi()) as scene:
            skipped = metrics.SKIPPED.labels("TPUNodeGroup")
            before = skipped._value.get()
            scene.api.send(GROUPS, {"type": "ADDED", "object": malformed})
            scene.api.change(GROUPS, "ADDED", group())
            assert await scene.recorder.next() == ("create_resources", "train", "")
            assert skipped._value.get() == before + 1
            assert not any(is_watch(GROUPS)(one) for one in drain(scene.api.requests))

    asyncio.run(story())


def drain(requests: asyncio.Queue[Request]) -> Iterator[Request]:
    """The requests that have come so far."""
    while not requests.empty():
        yield requests.get_nowait()


def test_a_list_with_what_is_no_object_is_read_without_it(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi()
        metadata = {"resourceVersion": "100"}
        items: list[object] = [None, "x", {"metadata": {}}, group()]
        api.list_refusals.extend([Response.of_json({"metadata": metadata, "items": items})] * 3)
        async with playing(tmp_path, api) as scene:
            assert await scene.recorder.next() == ("create_resources", "train", "")

    asyncio.run(story())


def test_a_version_that_is_refused_three_times_is_given_up_for_a_list(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi()
        async with playing(tmp_path, api) as scene:
            too_large = refusal(504, "Too large resource version: 900, current: 100")
            api.refusals.extend([too_large] * 9)
            api.close_watches()
            await scene.request(is_list(GROUPS))
            await scene.request(is_watch(GROUPS))
            api.change(GROUPS, "ADDED", group())
            assert await scene.recorder.next() == ("create_resources", "train", "")

    asyncio.run(story())


def test_a_failed_list_is_repeated_and_reported_by_readyz(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi()
        api.list_refusals.extend([refusal(403, "nodes is forbidden")] * 4)
        async with playing(tmp_path, api, watched=False) as scene:
            assert scene.relay.health.list_not_ready() == [
                "TPUNodeGroup: not listed yet",
                "Node: not listed yet",
                "CertificateSigningRequest: not listed yet",
            ]
            await until_watched(api)
            assert scene.relay.health.list_not_ready() == []

    asyncio.run(story())


class RecordedRandom(random.Random):
    """Keeps the longest delays that were drawn from."""

    def __init__(self) -> None:
        super().__init__(1)
        self.longest: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.longest.append(b)
        return a


def test_delays_double_with_every_failure_and_restart_after_an_event(tmp_path: Path) -> None:
    async def story() -> None:
        api, recorder, rng = ScriptedApi(), Recorder(), RecordedRandom()
        no_end = replace(FAST, short_s=60, first_backoff_s=0.001, longest_backoff_s=0.004)
        runner, port = await serve(api)
        kubeconfig = write_kubeconfig(tmp_path / "k", port)
        async with relaying(kubeconfig, recorder, no_end, rng=rng):
            await until_watched(api)
            for name in ("first", "second"):
                _close(api, GROUPS, [refusal(500, "etcd")])
                refused, watching = await api.requests.get(), await api.requests.get()
                assert is_watch(GROUPS)(refused)
                assert is_watch(GROUPS)(watching)
                api.change(GROUPS, "ADDED", group(name, uid=name))
                await recorder.next()
        assert rng.longest == [0.001, 0.002, 0.001]
        api.close_watches()
        await runner.cleanup()

    asyncio.run(story())


def _close(api: ScriptedApi, path: str, refusals: list[Response]) -> None:
    """End the watches of one kind, and refuse the next ones."""
    api.refusals.extend(refusals)
    for watch in [watch for watch in api.watches if watch.path == path]:
        api.watches.remove(watch)
        watch.end()


def test_an_api_server_that_is_restarted_is_watched_again(tmp_path: Path) -> None:
    async def story() -> None:
        api, recorder = ScriptedApi(), Recorder()
        runner, port = await serve(api)
        async with relaying(write_kubeconfig(tmp_path / "k", port), recorder) as (relay, _, _):
            await until_watched(api)
            await runner.cleanup()
            api.watches.clear()
            api.change(GROUPS, "ADDED", group())
            runner, _ = await serve(api, port=port)
            assert await recorder.next() == ("create_resources", "train", "")
            assert relay.health.list_stuck() == []
        await runner.cleanup()

    asyncio.run(story())


SILENCES: dict[str, bytes] = {
    "before its answer": b"",
    "in its answer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("first_words", SILENCES.values(), ids=SILENCES.keys())
def test_a_connection_that_goes_silent_is_given_up_and_counts_as_no_sign_of_life(
    tmp_path: Path, first_words: bytes
) -> None:
    silent = Timing(
        watch_s=0, grace_s=0.05, list_s=0.05, first_backoff_s=0.001, longest_backoff_s=0.001
    )
    accepted: asyncio.Queue[None] = asyncio.Queue()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(None)
        writer.write(first_words)

    async def story() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with relaying(write_kubeconfig(tmp_path / "k", port), Recorder(), silent) as (
            relay,
            _,
            _,
        ):
            for _ in range(18):
                await asyncio.wait_for(accepted.get(), PATIENCE_S)
            assert len(relay.health.list_stuck()) == 3
        server.close()

    asyncio.run(story())


def test_an_api_server_that_is_away_makes_the_relay_unready_but_not_unhealthy(
    tmp_path: Path,
) -> None:
    hasty = Timing(watch_s=0, grace_s=0.02, first_backoff_s=0.001)  # stuck only after a minute

    async def story() -> None:
        api = ScriptedApi()
        runner, port = await serve(api)
        async with relaying(write_kubeconfig(tmp_path / "k", port), Recorder(), hasty) as (
            relay,
            _,
            _,
        ):
            await until_watched(api)
            await runner.cleanup()
            async with asyncio.timeout(PATIENCE_S):
                while not relay.health.list_not_ready():
                    await asyncio.sleep(0)
            assert all("no contact" in line for line in relay.health.list_not_ready())
            assert relay.health.list_stuck() == []

    asyncio.run(story())


def test_what_is_dirty_is_published_when_pubsub_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        recorder = Recorder(away=True)
        async with playing(tmp_path, ScriptedApi(), recorder=recorder) as scene:
            scene.api.change(GROUPS, "ADDED", group(resource_name=""))
            await recorder.attempts.get()
            recorder.away = False
            assert await recorder.next() == ("create_resources", "train", "")

    asyncio.run(story())


def test_the_end_publishes_what_waits_for_its_gap(tmp_path: Path) -> None:
    async def story() -> None:
        async with playing(tmp_path, ScriptedApi(), now=stand_still) as scene:
            scene.api.change(GROUPS, "ADDED", group(resource_name=""))
            await scene.recorder.next()
            scene.api.change(GROUPS, "MODIFIED", group(resource_name="", generation=2))
            scene.api.change(GROUPS, "ADDED", group("marker", uid="uid-2", resource_name=""))
            assert await scene.recorder.next() == ("create_resources", "marker", "")
            scene.stop.set()
            assert await scene.recorder.next() == ("create_resources", "train", "")
            await scene.ended

    asyncio.run(story())


def test_the_end_does_not_wait_for_a_pubsub_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "SHUTDOWN_S", 0.05)

    async def story() -> None:
        async with playing(
            tmp_path, ScriptedApi(), recorder=Recorder(trouble=asyncio.Event().wait)
        ) as scene:
            scene.api.change(GROUPS, "ADDED", group())
            await scene.recorder.attempts.get()
            scene.stop.set()
            await asyncio.wait_for(scene.ended, PATIENCE_S)

    asyncio.run(story())


def test_the_cluster_is_read_from_kube_system_until_it_answers(tmp_path: Path) -> None:
    async def story() -> None:
        api, recorder = ScriptedApi(token="right"), Recorder()
        async with playing(
            tmp_path, api, recorder=recorder, cluster_id="", token="wrong", watched=False
        ) as scene:
            await scene.request(lambda request: request.path.endswith("/kube-system"))
            api.token = "wrong"
            api.put(GROUPS, group())
            await scene.recorder.next()
            assert recorder.cluster_ids == {CLUSTER_ID}

    asyncio.run(story())


@dataclass
class NamelessApi(ScriptedApi):
    """Its namespace kube-system cannot be read a few times."""

    failures: int = 3

    def handle(self, request: Request) -> Response:
        if request.path.endswith("/kube-system") and self.failures:
            self.failures -= 1
            return refusal(503, "starting")
        return super().handle(request)


def test_the_delays_until_the_cluster_is_identified_double(tmp_path: Path) -> None:
    async def story() -> None:
        rng, recorder = RecordedRandom(), Recorder()
        quick = replace(FAST, first_backoff_s=0.001, longest_backoff_s=0.004)
        api = NamelessApi()
        api.put(GROUPS, group())
        runner, port = await serve(api)
        async with relaying(write_kubeconfig(tmp_path / "k", port), recorder, quick, "", rng=rng):
            await recorder.next()
        assert rng.longest == [0.001, 0.002, 0.004]
        api.close_watches()
        await runner.cleanup()

    asyncio.run(story())


def test_an_expired_token_is_read_again(tmp_path: Path) -> None:
    async def story() -> None:
        api = ScriptedApi(token="old")
        async with playing(tmp_path, api, token="old") as scene:
            kubeconfig = tmp_path / "kubeconfig"
            kubeconfig.write_text(kubeconfig.read_text().replace("old", "new"))
            api.token = "new"
            api.change(GROUPS, "ADDED", group())
            await scene.recorder.next()
            api.close_watches()
            is_new = "Bearer new"
            await scene.request(lambda request: request.headers["authorization"] == is_new)

    asyncio.run(story())


def test_a_fault_of_the_relay_itself_ends_it(tmp_path: Path) -> None:
    async def divide() -> float:
        return 1 / 0

    async def story() -> None:
        async with playing(tmp_path, ScriptedApi(), recorder=Recorder(trouble=divide)) as scene:
            scene.api.change(GROUPS, "ADDED", group())
            await asyncio.wait([scene.ended], timeout=PATIENCE_S)
            assert isinstance(scene.ended.exception(), ZeroDivisionError)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(story())


def test_the_metrics_show_what_was_listed_and_what_was_watched(tmp_path: Path) -> None:
    def count(state: str, reason: str) -> float | None:
        labels = {"state": state, "reason": reason}
        return REGISTRY.get_sample_value("tpu_functions_slices", labels)

    async def story() -> None:
        api = ScriptedApi()
        api.put(GROUPS, settled_group(0))
        async with playing(tmp_path, api, now=stand_still) as scene:
            fresh = group(name="b", uid="uid-2", finalizers=(), resource_name="")
            api.change(GROUPS, "ADDED", fresh)
            assert await scene.recorder.next() == ("create_resources", "b", "")
            scene.relay.health.update_metrics()
            assert (count("Ready", "Ready"), count("NotReady", "NotReported")) == (1, 1)

    asyncio.run(story())
