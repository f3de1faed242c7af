"""Watches: their events, and how they end."""

from __future__ import annotations

import pytest

from local.tests.contract.kubernetes.cases.objects import TABLE, config_map, widget
from local.tests.contract.kubernetes.definitions import ALL
from local.tests.contract.kubernetes.embedded import Embedded, Listener

MAPS = "/api/v1/namespaces/default/configmaps"
WIDGETS = "/apis/cases.example.com/v1/namespaces/default/widgets"


@pytest.fixture
def server() -> Embedded:
    server = Embedded(history=20)
    server.api.apply_manifests(ALL)
    server.run_controllers()
    return server


def test_a_watch_shows_a_change_before_the_call_returns(server: Embedded) -> None:
    watch = server.watch(WIDGETS)
    server.ask("POST", WIDGETS, widget())
    assert watch.event_names() == [("ADDED", "a")]


def test_a_watch_of_one_namespace_does_not_show_others(server: Embedded) -> None:
    watch = server.watch(WIDGETS)
    everywhere = server.watch("/apis/cases.example.com/v1/widgets")
    server.ask("POST", WIDGETS.replace("default", "kube-public"), widget())
    assert watch.event_names() == []
    assert everywhere.event_names() == [("ADDED", "a")]


def test_a_cancelled_watch_shows_no_more_events(server: Embedded) -> None:
    watch = server.watch(WIDGETS)
    assert server.api.watches == 1
    watch.cancel()
    server.ask("POST", WIDGETS, widget())
    assert (watch.event_names(), server.api.watches) == ([], 0)


def test_changes_made_by_a_watch_callback_are_shown_to_all_in_order(server: Embedded) -> None:
    def answer(_: bytes) -> None:
        if server.send("GET", f"{WIDGETS}/b").status == 404:
            server.ask("POST", WIDGETS, widget("b"))

    server.watch(WIDGETS, on_chunk=answer)
    second = server.watch(WIDGETS)
    server.ask("POST", WIDGETS, widget("a"))
    assert second.event_names() == [("ADDED", "a"), ("ADDED", "b")]


def test_a_watch_started_by_a_callback_shows_each_change_once(server: Embedded) -> None:
    begun: list[Listener] = []

    def answer(_: bytes) -> None:
        if not begun:
            server.ask("POST", WIDGETS, widget("b"))
            begun.append(server.watch(WIDGETS))

    server.watch(WIDGETS, on_chunk=answer)
    server.ask("POST", WIDGETS, widget("a"))
    assert begun[0].event_names() == [("ADDED", "a"), ("ADDED", "b")]


def test_bookmarks_are_sent_every_minute_and_before_the_end(server: Embedded) -> None:
    watch = server.watch(WIDGETS, "allowWatchBookmarks=true&timeoutSeconds=150&resourceVersion=1")
    server.ask("POST", MAPS, config_map())
    server.clock.run_for(147)
    assert watch.event_names() == [("BOOKMARK", ""), ("BOOKMARK", "")]
    server.clock.run_for(2)
    assert (len(watch.event_names()), watch.ended) == (3, False)
    last = watch.events()[-1]["object"]
    assert last == {
        "kind": "Widget",
        "apiVersion": "cases.example.com/v1",
        "metadata": {"resourceVersion": server.ask("GET", MAPS)["metadata"]["resourceVersion"]},
    }
    server.clock.run_for(2)
    assert (len(watch.event_names()), watch.ended) == (3, True)


def test_a_bookmark_without_a_new_version_is_not_sent(server: Embedded) -> None:
    watch = server.watch(WIDGETS, "allowWatchBookmarks=true&timeoutSeconds=150")
    server.clock.run_for(149)
    assert watch.event_names() == [("BOOKMARK", "")]
    assert "k8s.io/initial-events-end" in watch.events()[0]["object"]["metadata"]["annotations"]


def test_a_watch_without_a_timeout_ends_within_the_hour(server: Embedded) -> None:
    watch = server.watch(WIDGETS)
    server.clock.run_for(1799)
    assert not watch.ended
    server.clock.run_for(1801)
    assert watch.ended


def test_a_streaming_list_marks_its_end(server: Embedded) -> None:
    server.ask("POST", WIDGETS, widget())
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    watch = server.watch(WIDGETS, query)
    mark = watch.events()[1]
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    server.ask("DELETE", f"{WIDGETS}/a")
    assert watch.event_names()[-1] == ("DELETED", "a")


def test_only_the_first_table_of_a_watch_names_the_columns(server: Embedded) -> None:
    watch = server.watch(WIDGETS, accept=TABLE)
    server.ask("POST", WIDGETS, widget("a"))
    server.ask("POST", WIDGETS, widget("b"))
    first, second = (event["object"] for event in watch.events())
    assert [column["name"] for column in first["columnDefinitions"]][:2] == ["Name", "Size"]
    assert second["columnDefinitions"] is None
    assert [row["cells"][0] for row in second["rows"]] == ["b"]


def test_the_last_event_of_an_object_that_stops_to_match_has_its_old_fields_and_the_new_version(
    server: Embedded,
) -> None:
    server.ask("POST", WIDGETS, widget(metadata={"labels": {"x": "y"}}))
    watch = server.watch(WIDGETS, "labelSelector=x%3Dy")
    patched = server.ask(
        "PATCH",
        f"{WIDGETS}/a",
        {"metadata": {"labels": {"x": "z"}}},
        content_type="application/merge-patch+json",
    )
    last = watch.events()[-1]
    assert last["type"] == "DELETED"
    assert last["object"]["metadata"]["labels"] == {"x": "y"}
    assert last["object"]["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"]


def test_a_watch_from_an_expired_version_has_one_error(server: Embedded) -> None:
    created = server.ask("POST", WIDGETS, widget())
    version = created["metadata"]["resourceVersion"]
    server.ask("DELETE", f"{WIDGETS}/a")
    server.api.compact()
    watch = server.watch(WIDGETS, f"resourceVersion={version}")
    assert watch.ended
    (event,) = watch.events()
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith(f"too old resource version: {version} (")


def test_history_is_bounded(server: Embedded) -> None:
    first = server.ask("POST", WIDGETS, widget())["metadata"]["resourceVersion"]
    for size in range(4, 40):
        server.ask(
            "PATCH",
            f"{WIDGETS}/a",
            {"spec": {"size": size}},
            content_type="application/merge-patch+json",
        )
    (event,) = server.watch(WIDGETS, f"resourceVersion={first}").events()
    assert event["object"]["code"] == 410


def test_a_page_of_an_expired_version_is_an_error(server: Embedded) -> None:
    for name in ("a", "b"):
        server.ask("POST", WIDGETS, widget(name))
    token = server.ask("GET", f"{WIDGETS}?limit=1")["metadata"]["continue"]
    server.ask("DELETE", f"{WIDGETS}/a")
    server.api.compact()
    answer = server.send("GET", f"{WIDGETS}?limit=1&continue={token}")
    assert (answer.status, answer.document["reason"]) == (410, "Expired")


def test_a_restart_ends_watches_drops_history_and_keeps_data(server: Embedded) -> None:
    created = server.ask("POST", WIDGETS, widget())
    watch = server.watch(WIDGETS)
    server.ask("POST", WIDGETS, widget("b"))
    server.api.restart()
    assert watch.ended
    assert server.ask("GET", f"{WIDGETS}/a") == created
    (event,) = server.watch(
        WIDGETS, f"resourceVersion={created['metadata']['resourceVersion']}"
    ).events()
    assert event["object"]["code"] == 410


def test_a_watch_from_the_current_version_works_after_a_restart(server: Embedded) -> None:
    server.ask("POST", WIDGETS, widget())
    server.api.restart()
    version = server.ask("GET", WIDGETS)["metadata"]["resourceVersion"]
    watch = server.watch(WIDGETS, f"resourceVersion={version}")
    server.ask("DELETE", f"{WIDGETS}/a")
    assert watch.event_names() == [("DELETED", "a")]
