# ruff: noqa: E501  (a table reads best with a row on a line)
"""The columns of ``kubectl get``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from local.kube.cells import render_age
from local.kube.jsonpath import compile_path, render_results
from local.tests.contract.kubernetes.cases.objects import TABLE
from local.tests.contract.kubernetes.embedded import Embedded

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"


def row(server: Embedded, path: str) -> dict[str, Any]:
    """Return the cells of the last row by column."""
    table = server.ask("GET", path, accept=TABLE)
    columns = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(columns, table["rows"][-1]["cells"], strict=True))


AGES = [
    (0, "0s"),
    (119, "119s"),
    (120, "2m"),
    (150, "2m30s"),
    (599, "9m59s"),
    (600, "10m"),
    (3 * 3600 - 1, "179m"),
    (3 * 3600, "3h"),
    (3 * 3600 + 1200, "3h20m"),
    (8 * 3600, "8h"),
    (47 * 3600, "47h"),
    (48 * 3600, "2d"),
    (50 * 3600, "2d2h"),
    (8 * 86400, "8d"),
    (400 * 86400, "400d"),
    (2 * 365 * 86400 + 86400, "2y1d"),
    (9 * 365 * 86400, "9y"),
    (-1, "0s"),
    (-5, "<invalid>"),
]


@pytest.mark.parametrize("seconds, text", AGES)
def test_ages_are_rounded_as_kubectl_rounds_them(seconds: int, text: str) -> None:
    assert render_age(timedelta(seconds=seconds)) == text


DOCUMENT = {
    "a": {"b": [1, 2, 3], "c.d": "dotted", "e": {"x": 1, "y": 2}},
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False", "count": 2}],
}  # fmt: skip
PATHS = [
    (".a.b", [[1, 2, 3]]),
    ("{.a.b}", [[1, 2, 3]]),
    (".a.b[0]", [1]),
    (".a.b[7]", []),
    (".a.b[*]", [1, 2, 3]),
    (r".a.c\.d", ["dotted"]),
    ('.conditions[?(@.type=="Ready")].status', ["True"]),
    (".conditions[?(@.type=='Ready')].status", ["True"]),
    (".nothing.here", []),
]


@pytest.mark.parametrize("path, found", PATHS, ids=[path for path, _ in PATHS])
def test_a_path_finds(path: str, found: list[Any]) -> None:
    assert compile_path(path)(DOCUMENT) == found


@pytest.mark.parametrize("path", ["a.b", ".a[", ".a[?(@.x ~ 1)]", ".a..b"])
def test_an_invalid_path_is_an_error(path: str) -> None:
    with pytest.raises(ValueError, match="unrecognized JSONPath"):
        compile_path(path)


def test_several_results_are_printed_side_by_side() -> None:
    assert render_results(["a", 1, True, {"b": 2}]) == 'a 1 true {"b": 2}'


def test_the_table_of_nodes_has_status_roles_age_and_version() -> None:
    server = Embedded()
    server.ask(
        "POST",
        NODES,
        {
            "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": ""}},
            "spec": {"unschedulable": True},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.32.4", "osImage": "Debian"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            },
        },
    )
    server.clock.run_for(150)
    assert row(server, NODES) == {
        "Name": "n",
        "Status": "NotReady,SchedulingDisabled",
        "Roles": "worker",
        "Age": "2m30s",
        "Version": "v1.32.4",
        "Internal-IP": "10.0.0.1",
    }


def test_the_table_of_pods_has_the_state_of_containers() -> None:
    server = Embedded()
    body = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c"}]}}
    server.ask("POST", PODS, body)
    status = {"phase": "Running", "containerStatuses": [{"ready": True, "restartCount": 2}]}
    server.ask(
        "PATCH", f"{PODS}/p/status", {"status": status}, content_type="application/merge-patch+json"
    )
    shown = row(server, PODS)
    assert (shown["Ready"], shown["Status"], shown["Restarts"]) == ("1/1", "Running", "2")
    assert (shown["Node"], shown["IP"]) == ("n", "<none>")


def test_the_table_of_events_has_the_involved_object() -> None:
    server = Embedded()
    server.ask(
        "POST",
        EVENTS,
        {
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Widget", "name": "w"},
            "reason": "Grown",
            "message": "It has grown.",
            "type": "Normal",
            "count": 3,
            "source": {"component": "gardener"},
            "firstTimestamp": "2026-01-01T00:00:01Z",
            "lastTimestamp": "2026-01-01T00:00:31Z",
        },
    )
    server.clock.run_for(60)
    shown = row(server, EVENTS)
    assert shown["Last Seen"] == "30s"
    assert (shown["Object"], shown["Source"], shown["Count"]) == ("widget/w", "gardener", 3)
    assert shown["Name"] == "e"


def test_tables_of_other_kinds_have_their_columns() -> None:
    server = Embedded()
    secret = {"metadata": {"name": "s"}, "stringData": {"a": "b", "c": "d"}, "type": "t/x"}
    server.ask("POST", "/api/v1/namespaces/default/secrets", secret)
    assert row(server, "/api/v1/namespaces/default/secrets") == {
        "Name": "s",
        "Type": "t/x",
        "Data": 2,
        "Age": "0s",
    }
    bindings = row(server, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings")
    assert bindings["Role"].startswith("ClusterRole/")
