"""The relay as a process before a real API server, whatever becomes of either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relay.watching.watch import Timing
from tests.real.relay.conftest import GROUPS, INSTALLATION, NODES, Scene
from tests.real.relay.patience import until
from tests.real.relay.process import request_token

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("relay")]

SECRETS = "/api/v1/namespaces/tpu-functions/secrets"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tpu-functions-relay"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tpunodegroups.tpu.google.com"


def test_it_tells_of_groups_and_their_nodes_and_not_of_heartbeats(scene: Scene) -> None:
    uid = scene.add_group("train")["metadata"]["uid"]
    added = scene.mailbox.wait_for_news("create_resources", "train", "Added")
    cluster = scene.ask("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"]
    assert (added.document["uid"], added.cluster) == (uid, cluster)
    scene.add_group("serve", is_ours=True)
    node = scene.add_node("serve", "ab12")
    news = scene.mailbox.wait_for_news("label_node", "serve", "NodesChanged")
    assert news.nodes == [node]
    published = scene.relay.metric("published_messages_total")
    events = scene.relay.metric("watch_events_total", kind="Node", event="MODIFIED")
    for minute in range(20):
        heartbeat = {"type": "MemoryPressure", "status": "False"}
        moment = f"2026-01-01T00:{minute:02}:00Z"
        scene.patch_node_status(node, {"conditions": [{**heartbeat, "lastHeartbeatTime": moment}]})
    until(
        lambda: (
            scene.relay.metric("watch_events_total", kind="Node", event="MODIFIED") >= events + 20
        ),
        "the relay has seen every heartbeat",
    )
    assert scene.relay.metric("published_messages_total") == published
    assert scene.relay.metric("pending_triggers") == 0


def test_what_happened_while_it_was_cut_off_is_told_when_it_is_back(scene: Scene) -> None:
    scene.add_group("old", is_ours=True)
    scene.mailbox.wait_for_news("create_resources", "old", "Added")
    scene.wire.cut()
    scene.add_group("new")
    scene.delete_group("old")
    scene.add_group("serve", is_ours=True)
    joined = scene.add_node("serve", "cd34")
    scene.wire.mend()
    scene.mailbox.wait_for_news("create_resources", "new", "Added")
    scene.mailbox.wait_for_news("tear_down", "old", "Deleting")
    assert scene.mailbox.wait_for_news("label_node", "serve", "NodesChanged").nodes == [joined]
    assert scene.relay.metric("lists_total") == 3, "it has gone on from the last version seen"
    assert scene.relay.get("/readyz") == (200, "ok\n")


def test_it_survives_a_restart_of_the_api_server(scene: Scene) -> None:
    scene.add_group("train", is_ours=True)
    scene.plane.restart_api_server()
    scene.add_group("new")
    node = scene.add_node("train", "ab12")
    scene.mailbox.wait_for_news("create_resources", "new", "Added")
    assert scene.mailbox.wait_for_news("label_node", "train", "NodesChanged").nodes == [node]
    assert scene.relay.get("/readyz") == (200, "ok\n")
    assert scene.relay.process.poll() is None


def test_a_version_that_is_too_old_makes_it_list_again_and_tell_what_differs(scene: Scene) -> None:
    """Frozen while the history is dropped and the API server begins anew: a real 410."""
    scene.add_group("old", is_ours=True)
    gone = scene.add_node("old", "ab12")
    first = scene.mailbox.wait_for_news("label_node", "old", "NodesChanged")
    scene.relay.freeze()
    scene.wire.cut()
    scene.add_group("new")
    scene.ask("DELETE", f"{NODES}/{gone}")
    scene.plane.compact()
    scene.plane.restart_api_server()
    scene.wire.mend()
    scene.relay.thaw()
    scene.mailbox.wait_for_news("create_resources", "new", "Added")
    scene.mailbox.wait_for(
        lambda one: (one.step, one.nodes) == ("label_node", [gone]) and one != first, "gone"
    )
    for kind in ("TPUNodeGroup", "Node"):
        assert scene.relay.metric("watch_ends_total", kind=kind, end="expired") == 1
        assert scene.relay.metric("lists_total", kind=kind) == 2
    expired = scene.relay.wait_for_line(lambda line: line.get("end") == "expired", "expired")
    assert "too old resource version" in expired["detail"]
    assert expired["severity"] == "INFO"


def test_a_token_that_has_ended_is_replaced_by_what_stands_in_its_file(scene: Scene) -> None:
    """As when a token expires: the API server accepts it no longer, and the next watch is refused."""
    secret = scene.ask("POST", SECRETS, {"metadata": {"name": "token-of-relay"}})
    short = request_token(scene.plane, bound_to=secret)
    with scene.another_relay(short) as relay:
        relay.wait_until_listed()
        (scene.folder / "another" / "token").write_text(request_token(scene.plane))
        scene.ask("DELETE", f"{SECRETS}/token-of-relay")
        until(lambda: not scene.is_accepted(short), "the token has ended")
        scene.wire.cut()
        scene.wire.mend()
        refused = relay.wait_for_line(lambda line: line.get("end") == "refused", "refused")
        assert refused["detail"] == "401 Unauthorized"
        scene.add_group("train")
        until(lambda: relay.metric("published_messages_total") == 1, "it tells of the group")


def test_without_its_rights_it_says_which_are_missing_and_goes_on_when_they_are_back(
    scene: Scene,
) -> None:
    role = scene.ask("GET", ROLE)
    scene.ask("DELETE", ROLE)
    with scene.another_relay() as relay:
        for kind, resource in (("Node", "nodes"), ("TPUNodeGroup", "tpunodegroups")):
            words = f'relay" cannot list resource "{resource}"'
            line = relay.wait_for_line(_tells(kind, words), f"no right to list {resource}")
            assert (line["severity"], line["end"]) == ("WARNING", "refused")
        relay.wait_for_line(_tells(None, 'cannot get resource "namespaces"'), "no right to get")
        not_listed = (
            "TPUNodeGroup: not listed yet\nNode: not listed yet\n"
            "CertificateSigningRequest: not listed yet\n"
        )
        assert relay.get("/readyz") == (503, not_listed)
        assert relay.get("/healthz") == (200, "ok\n")
        scene.add_group("train")
        del role["metadata"]["resourceVersion"]
        scene.ask("POST", ROLE.rpartition("/")[0], role)
        relay.wait_until_listed()
        assert relay.get("/readyz") == (200, "ok\n")
        until(lambda: relay.metric("published_messages_total") == 1, "it tells of the group")


def test_it_waits_for_a_definition_that_is_deleted_and_applied_again(scene: Scene) -> None:
    scene.add_group("old")
    scene.mailbox.wait_for_news("create_resources", "old", "Added")
    scene.ask("DELETE", DEFINITION)
    scene.relay.wait_for_line(_tells("TPUNodeGroup", "404"), "there is no such kind")
    assert scene.relay.metric("groups") == 0
    scene.plane.run_kubectl("apply", "-k", INSTALLATION)
    until(lambda: scene.plane.request("GET", GROUPS)[0] == 200, "groups are served")
    scene.add_group("new", is_ours=True)
    scene.mailbox.wait_for_news("create_resources", "new", "Added")
    node = scene.add_node("new", "ab12")
    assert scene.mailbox.wait_for_news("label_node", "new", "NodesChanged").nodes == [node]


def test_started_before_the_api_server_it_gets_ready_when_that_comes(scene: Scene) -> None:
    scene.add_group("train")
    scene.wire.cut()
    with scene.another_relay() as relay:
        relay.wait_for_line(_tells("Node", "Cannot connect"), "the API server is away")
        assert relay.get("/readyz")[0] == 503
        assert relay.get("/healthz") == (200, "ok\n")
        scene.wire.mend()
        relay.wait_until_listed()
        assert relay.get("/readyz") == (200, "ok\n")


@pytest.mark.slow
def test_it_is_not_ready_while_the_api_server_has_been_away_for_long(scene: Scene) -> None:
    silent_s = Timing().silent_s
    scene.wire.cut()
    until(lambda: scene.relay.get("/readyz")[0] == 503, "it gets unready", silent_s + 60)
    words = scene.relay.get("/readyz")[1]
    assert words.startswith("TPUNodeGroup: no contact with the API server for 25")
    assert scene.relay.metric("watch_without_contact_seconds", kind="Node") > silent_s
    assert scene.relay.get("/healthz") == (200, "ok\n")
    scene.add_group("train")
    scene.wire.mend()
    scene.mailbox.wait_for_news("create_resources", "train", "Added")
    until(lambda: scene.relay.get("/readyz") == (200, "ok\n"), "it gets ready again")


def _tells(kind: str | None, words: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a line of the log is about a kind, and holds these words."""
    return lambda line: line.get("kind") == kind and words in line.get("detail", "")
