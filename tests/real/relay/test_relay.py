"""The relay as a process with a real API server, and their restarts and failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.real.relay.conftest import NODES, RelaySetup
from tests.real.relay.process import request_token
from tests.real.relay.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("relay")]

SECRETS = "/api/v1/namespaces/tpu-functions/secrets"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tpu-functions-relay"


def test_the_relay_publishes_groups_and_their_nodes_but_no_heartbeats(setup: RelaySetup) -> None:
    uid = setup.add_group("train")["metadata"]["uid"]
    added = setup.subscriptions.wait_for_message("create_resources", "train", "Added")
    cluster = setup.ask("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"]
    assert (added.document["uid"], added.cluster) == (uid, cluster)
    setup.add_group("serve", has_resources=True)
    node = setup.add_node("serve", "ab12")
    message = setup.subscriptions.wait_for_message("label_node", "serve", "NodesChanged")
    assert message.nodes == [node]
    events = setup.relay.metric("watch_events_total", kind="Node", event="MODIFIED")
    for minute in range(20):
        heartbeat = {"type": "MemoryPressure", "status": "False"}
        moment = f"2026-01-01T00:{minute:02}:00Z"
        setup.patch_node_status(node, {"conditions": [{**heartbeat, "lastHeartbeatTime": moment}]})
    until(
        lambda: (
            setup.relay.metric("watch_events_total", kind="Node", event="MODIFIED") >= events + 20
        ),
        "the relay has received all heartbeats",
    )
    until(lambda: setup.relay.metric("pending_triggers") == 0, "no message is pending")
    setup.add_group("last")
    setup.subscriptions.wait_for_message("create_resources", "last", "Added")
    assert [one for one in setup.subscriptions.received if one.step == "label_node"] == [message]


def test_the_relay_publishes_changes_after_it_is_reconnected(setup: RelaySetup) -> None:
    setup.add_group("old", has_resources=True)
    setup.subscriptions.wait_for_message("create_resources", "old", "Added")
    setup.proxy.disconnect()
    setup.add_group("new")
    setup.delete_group("old")
    setup.add_group("serve", has_resources=True)
    joined = setup.add_node("serve", "cd34")
    setup.proxy.reconnect()
    setup.subscriptions.wait_for_message("create_resources", "new", "Added")
    setup.subscriptions.wait_for_message("tear_down", "old", "Deleting")
    assert setup.subscriptions.wait_for_message("label_node", "serve", "NodesChanged").nodes == [
        joined
    ]
    assert setup.relay.metric("lists_total") == 3, (
        "it has continued its watches without listing again"
    )
    until(lambda: setup.relay.get("/readyz") == (200, "ok\n"), "the relay is ready")


def test_the_relay_continues_after_a_restart_of_the_api_server(setup: RelaySetup) -> None:
    setup.add_group("train", has_resources=True)
    setup.plane.restart_api_server()
    setup.add_group("new")
    node = setup.add_node("train", "ab12")
    setup.subscriptions.wait_for_message("create_resources", "new", "Added")
    assert setup.subscriptions.wait_for_message("label_node", "train", "NodesChanged").nodes == [
        node
    ]
    until(lambda: setup.relay.get("/readyz") == (200, "ok\n"), "the relay is ready")
    assert setup.relay.process.poll() is None


def test_the_relay_lists_again_and_publishes_the_differences_after_an_expired_version(
    setup: RelaySetup,
) -> None:
    """The relay is suspended during a compaction and a restart of the API server: a real 410."""
    setup.add_group("old", has_resources=True)
    deleted = setup.add_node("old", "ab12")
    first = setup.subscriptions.wait_for_message("label_node", "old", "NodesChanged")
    setup.relay.suspend()
    setup.proxy.disconnect()
    setup.add_group("new")
    setup.ask("DELETE", f"{NODES}/{deleted}")
    setup.plane.compact()
    setup.plane.restart_api_server()
    setup.proxy.reconnect()
    setup.relay.resume()
    setup.subscriptions.wait_for_message("create_resources", "new", "Added")
    setup.subscriptions.wait_for(
        lambda one: (one.step, one.nodes) == ("label_node", [deleted]) and one != first,
        "the deletion",
    )
    for kind in ("TPUNodeGroup", "Node"):
        assert setup.relay.metric("watch_ends_total", kind=kind, end="expired") == 1
        assert setup.relay.metric("lists_total", kind=kind) == 2
    expired = setup.relay.wait_for_line(lambda line: line.get("end") == "expired", "expired")
    assert "too old resource version" in expired["detail"]
    assert expired["severity"] == "INFO"


def test_the_relay_reads_a_rejected_token_again_from_its_file(setup: RelaySetup) -> None:
    """Like an expired token: the API server no longer accepts it, and the next watch is rejected."""
    secret = setup.ask("POST", SECRETS, {"metadata": {"name": "token-of-relay"}})
    short = request_token(setup.plane, bound_to=secret)
    with setup.another_relay(short) as relay:
        relay.wait_until_listed()
        (setup.folder / "another" / "token").write_text(request_token(setup.plane))
        setup.ask("DELETE", f"{SECRETS}/token-of-relay")
        until(lambda: not setup.is_authenticated(short), "the token is no longer valid")
        setup.proxy.disconnect()
        setup.proxy.reconnect()
        rejected = relay.wait_for_line(lambda line: line.get("end") == "refused", "refused")
        assert rejected["detail"] == "401 Unauthorized"
        setup.add_group("train")
        until(lambda: relay.metric("published_messages_total") == 1, "it publishes the group")


def test_the_relay_logs_missing_permissions_and_continues_once_they_are_granted(
    setup: RelaySetup,
) -> None:
    role = setup.ask("GET", ROLE)
    setup.ask("DELETE", ROLE)
    with setup.another_relay() as relay:
        for kind, resource in (("Node", "nodes"), ("TPUNodeGroup", "tpunodegroups")):
            words = f'relay" cannot list resource "{resource}"'
            line = relay.wait_for_line(
                _has_detail(kind, words), f"no permission to list {resource}"
            )
            assert (line["severity"], line["end"]) == ("WARNING", "refused")
        relay.wait_for_line(
            _has_detail(None, 'cannot get resource "namespaces"'), "no permission to get"
        )
        not_listed = (
            "Namespace kube-system: its uid, the cluster's id, not read yet: nothing is published\n"
            "TPUNodeGroup: not listed yet\nNode: not listed yet\n"
            "CertificateSigningRequest: not listed yet\n"
        )
        assert relay.get("/readyz") == (503, not_listed)
        assert relay.get("/healthz") == (200, "ok\n")
        setup.add_group("train")
        del role["metadata"]["resourceVersion"]
        setup.ask("POST", ROLE.rpartition("/")[0], role)
        relay.wait_until_listed()
        until(lambda: relay.get("/readyz") == (200, "ok\n"), "the relay is ready")
        until(lambda: relay.metric("published_messages_total") == 1, "it publishes the group")


def _has_detail(kind: str | None, words: str) -> Callable[[dict[str, Any]], bool]:
    """Match lines of the log about a kind with these words."""
    return lambda line: line.get("kind") == kind and words in line.get("detail", "")
