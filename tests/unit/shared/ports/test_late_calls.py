"""No call is sent later than 30 seconds after the observation, even if credentials take longer, and each
page of a list is a call."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import urllib3
from google.auth.exceptions import RefreshError

from local.base.clock import VirtualClock
from local.base.http import Application, Request, Response
from local.gce import Principal, Timings, listing
from local.gce.inprocess import mount
from local.tests.gce.small_cloud import PROJECT, REGION, ZONE, Cloud
from shared.ports.errors import CallError, OutOfTimeError
from shared.ports.gce import calls as gce_calls
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.gce.values import TemplateRef
from shared.ports.gke import GkeClient
from shared.ports.google_credentials import GoogleCredentials
from shared.ports.kubernetes import access
from shared.ports.kubernetes.access_settings import GoogleToken, TokenKind
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.connection import Connection
from tests.support.late import SlowApplication, SlowCredentials, time_left

SERVER = GoogleToken("https://10.0.0.2:6443", "", TokenKind.ACCESS, "")


class Recorder:
    """An API that answers with empty lists and records the requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def handle(self, request: Request) -> Response:
        self.requests.append(f"{request.method} {request.path}")
        return Response.of_json({"kind": "List", "name": "x", "items": [], "metadata": {}})


class Pool:
    """A urllib3 pool manager in front of an application."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def request(self, method: str, url: str, **_: Any) -> Any:
        return _Answer(self._application.handle(Request.of(method, url)))


class _Answer:
    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.reason = ""
        self.headers = response.headers
        self.data = response.body


def gce(credentials: GoogleCredentials, api: Application, remaining_s: Callable[[], float]) -> Gce:
    clients = Clients(
        "http://compute.test", credentials=credentials, prepare=lambda session: mount(session, api)
    )
    return Gce(clients, remaining_s)


def insert_policy(slow: SlowCredentials, api: Application, left: Callable[[], float]) -> None:
    port = gce(GoogleCredentials(lambda: slow), api, left)
    port.insert_policy(PROJECT, REGION, {"name": "slice"}, "")


def insert_pool(slow: SlowCredentials, api: Application, left: Callable[[], float]) -> None:
    client = GkeClient(
        "http://container.test",
        credentials=GoogleCredentials(lambda: slow),
        prepare=lambda session: mount(session, api),
    )
    client.call("create_node_pool", {"parent": "projects/p/locations/l/clusters/c"}, left)


def delete_node(slow: SlowCredentials, api: Application, left: Callable[[], float]) -> None:
    def connect(client: Any) -> None:
        client.rest_client.pool_manager = Pool(api)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "_credentials", lambda _: slow)
        Cluster(Connection(SERVER, prepare=connect), "tear_down", left).delete_node("n", "u")


PORTS = {"Compute Engine": insert_policy, "GKE": insert_pool, "the cluster": delete_node}


@pytest.mark.parametrize("name", PORTS)
@pytest.mark.parametrize("seconds, sent", [(29, 1), (30, 0), (170, 0)])
def test_a_call_is_not_sent_if_its_token_arrives_too_late(
    name: str, seconds: int, sent: int
) -> None:
    clock, api = VirtualClock(), Recorder()

    def fetch() -> str:
        clock.run_for(seconds)
        return "token"

    call, left = PORTS[name], time_left(clock)
    if sent:
        call(SlowCredentials(fetch), api, left)
    else:
        with pytest.raises(OutOfTimeError):
            call(SlowCredentials(fetch), api, left)
    assert len(api.requests) == sent


def tokens(*given: str) -> SlowCredentials:
    """Return credentials that fetch these tokens, one after the other."""
    left = list(given)
    return SlowCredentials(lambda: left.pop(0))


@pytest.fixture
def guarded() -> Cloud:
    """Compute Engine, which accepts one token."""
    return Cloud(principals={"good": Principal("me@example.com")})


def test_a_rejected_token_is_fetched_again_once_and_both_calls_are_counted(guarded: Cloud) -> None:
    credentials = GoogleCredentials(lambda: tokens("bad", "good"))
    port = gce(credentials, guarded.simulator, lambda: 30.0)
    assert port.find_mig(PROJECT, ZONE, "slice") is None
    assert port.calls == len(guarded.simulator.calls.records) == 2
    assert port.find_mig(PROJECT, ZONE, "slice") is None
    assert port.calls == 3


def test_a_second_rejected_token_raises_an_error_with_the_clouds_message(guarded: Cloud) -> None:
    port = gce(GoogleCredentials(lambda: tokens("bad", "worse")), guarded.simulator, lambda: 30.0)
    with pytest.raises(
        CallError, match=r"instance_group_managers\.get: 401 .* credential"
    ) as raised:
        port.find_mig(PROJECT, ZONE, "slice")
    assert raised.value.http == 401
    assert len(guarded.simulator.calls.records) == 2


def test_a_rejected_token_that_is_fetched_again_unchanged_is_not_sent_again(guarded: Cloud) -> None:
    port = gce(GoogleCredentials(lambda: tokens("bad", "bad")), guarded.simulator, lambda: 30.0)
    with pytest.raises(CallError, match="401"):
        port.find_mig(PROJECT, ZONE, "slice")
    assert len(guarded.simulator.calls.records) == 1


def test_the_retry_after_a_401_is_not_sent_after_the_time_limit(guarded: Cloud) -> None:
    def fetch() -> str:
        guarded.clock.run_for(20)
        return f"bad since {guarded.clock.now()}"

    slow = GoogleCredentials(lambda: SlowCredentials(fetch))
    with pytest.raises(OutOfTimeError):
        gce(slow, guarded.simulator, time_left(guarded.clock)).insert_policy(
            PROJECT, REGION, {"name": "slice"}, ""
        )
    assert len(guarded.simulator.calls.records) == 1


def test_credentials_that_cannot_be_fetched_raise_an_error_without_a_token(guarded: Cloud) -> None:
    def fetch() -> str:
        raise RefreshError("secret")

    slow = GoogleCredentials(lambda: SlowCredentials(fetch))
    with pytest.raises(CallError) as failed:
        gce(slow, guarded.simulator, lambda: 30.0).find_mig(PROJECT, ZONE, "slice")
    assert str(failed.value) == "instance_group_managers.get: 0 unreachable: RefreshError"


def slow_lists(seconds: float) -> tuple[Gce, Cloud]:
    """Return the port to a zone with a MIG of seven VMs; each answer takes some seconds."""
    cloud = Cloud(Timings(list_lag_s=(0, 0)))
    cloud.make_parts()
    cloud.make_group(size=7, bulk=False, listManagedInstancesResults="PAGINATED")
    cloud.run_until_running(7)
    slow = SlowApplication(cloud.simulator, cloud.clock, seconds)
    cloud.simulator.calls.clear()
    credentials = GoogleCredentials.of_process("http://compute.test")
    return gce(credentials, slow, time_left(cloud.clock)), cloud


LISTS: dict[str, Callable[[Gce], tuple[Any, ...]]] = {
    "VMs": lambda port: port.list_instances(PROJECT, ZONE, "slice", 2),
    "managed instances": lambda port: port.list_managed_instances(PROJECT, ZONE, "slice"),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("seconds, calls", [(7, 4), (12, 3)])
def test_each_page_is_a_call_within_the_remaining_time(
    name: str, seconds: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, cloud = slow_lists(seconds)
    monkeypatch.setattr(gce_calls, "PAGE_SIZE", 2)
    monkeypatch.setattr(listing, "_MAX_PAGE", 2)
    if calls == 4:
        assert len(LISTS[name](port)) == 7
    else:
        with pytest.raises(OutOfTimeError):
            LISTS[name](port)
    assert port.calls == len(cloud.simulator.calls.records) == calls


def test_a_mig_that_does_not_exist_has_no_managed_instances() -> None:
    port, _ = slow_lists(0)
    assert port.list_managed_instances(PROJECT, ZONE, "other") == ()


def test_a_list_of_members_proves_membership_for_a_minute_and_never_its_absence() -> None:
    port, cloud = slow_lists(0)
    members = [member["id"] for member in cloud.managed()]

    def find(*ids: str, after: int = 0, port: Gce = port) -> tuple[frozenset[str], int]:
        cloud.simulator.calls.clear()
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=after)
        found = port.find_member_ids(PROJECT, ZONE, "slice", ids, now)
        return found, len(cloud.simulator.calls.records)

    next_invocation = Gce(port._clients, lambda: 30.0)
    assert find(*members) == (frozenset(members), 1)
    assert find(*members, "1") == (frozenset(members), 0), "an invocation lists once"
    assert find(members[0], after=59, port=next_invocation) == (frozenset(members[:1]), 0)
    assert find("1", after=59, port=next_invocation) == (frozenset(), 1)
    assert find(members[0], after=119, port=Gce(port._clients, lambda: 30.0))[1] == 1


class Pages:
    """A list without a last page; each page has one group."""

    def __init__(self) -> None:
        self.continue_tokens: list[str] = []

    def handle(self, request: Request) -> Response:
        self.continue_tokens.append(request.argument("continue"))
        page: dict[str, Any] = {
            "kind": "TPUNodeGroupList",
            "items": [{"metadata": {"name": "a"}}],
            "metadata": {"continue": str(len(self.continue_tokens))},
        }
        return Response(200, {}, json.dumps(page).encode())


def test_each_page_of_a_list_of_groups_is_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pages = VirtualClock(), Pages()

    def connect(client: Any) -> None:
        client.rest_client.pool_manager = Pool(SlowApplication(pages, clock, 8))

    monkeypatch.setattr(access, "_credentials", lambda _: tokens("good"))
    cluster = Cluster(Connection(SERVER, prepare=connect), "sweep", time_left(clock))
    with pytest.raises(OutOfTimeError):
        list(cluster.list_groups())
    assert pages.continue_tokens == ["", "1", "2", "3"]
    assert cluster.calls == 4


def test_a_connection_that_times_out_is_not_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[object] = []

    def time_out(address: object, *_: object, **__: object) -> None:
        attempts.append(address)
        raise TimeoutError

    monkeypatch.setattr(urllib3.util.connection, "create_connection", time_out)
    monkeypatch.setattr(access, "_credentials", lambda _: tokens("good"))
    cluster = Cluster(Connection(SERVER), "tear_down", lambda: 1.0)
    with pytest.raises(CallError, match=r"0 unreachable: .* no answer in time"):
        cluster.delete_node("n", "u")
    assert attempts == [("10.0.0.2", 6443)]


class Page:
    """A server other than the API: it answers each path with a 404 that is not JSON."""

    def handle(self, _request: Request) -> Response:
        return Response(404, {"Content-Type": "text/html"}, b"<title>Not Found</title>" * 20)


def find_template(api: Application) -> Any:
    port = gce(GoogleCredentials(lambda: SlowCredentials(str)), api, lambda: 30.0)
    return port.find_template(TemplateRef(PROJECT, "slice"))


POOL = "projects/p/locations/l/clusters/c/nodePools/n"


def get_pool(api: Application) -> Any:
    client = GkeClient(
        "http://container.test",
        credentials=GoogleCredentials(lambda: SlowCredentials(str)),
        prepare=lambda session: mount(session, api),
    )
    return client.call("get_node_pool", {"name": POOL}, lambda: 30.0)


@pytest.mark.parametrize("read", [find_template, get_pool])
def test_a_404_of_another_server_is_not_an_absence(read: Callable[[Any], Any]) -> None:
    with pytest.raises(CallError) as caught:
        read(Page())
    assert (caught.value.http, caught.value.code) == (0, "unreachable")
    begin = "another server answers in place of the API (404); check its address, DNS and proxies: "
    assert caught.value.message.startswith(f"{begin}GET http://")
    assert len(caught.value.message) == len(begin) + 200
