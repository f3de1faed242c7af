"""Names, options and lists as kubectl has them, and what the tool needs to explain."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local.base.http import Request, Response
from local.cloud.simulation import PROJECT
from replay import __main__, dependencies, output, text
from replay.commands import get_dependencies
from replay.dependencies import Choice, open_dependencies
from replay.publications import describe_absent
from shared.ports.kubernetes.cluster import Cluster
from shared.settings import GKE
from tests.faults.jobsets import FULL, SETTINGS, post, prepare
from tests.stories import helpers
from tests.stories.jobsets import MERGE, phases, pods, until
from tests.support.class_specs import CLASSES
from tests.support.harness import Harness
from tests.unit.replay.tool import Tool, make_tool_with_class, training
from version import VERSION

EVENTS = "/api/v1/namespaces/default/events"
LOG_IN = "there are no Google credentials here; run `gcloud auth application-default login`"


def apply(tool: Tool, name: str, namespace: str) -> None:
    """Create a group in a namespace, which is created, too."""
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    tool.harness.simulation.admin("POST", "/api/v1/namespaces", named)
    tool.harness.apply({**training(), "metadata": {"name": name, "namespace": namespace}})


@pytest.mark.parametrize(
    "words",
    [
        ("training", "-n", "research"),
        ("-n", "research", "training"),
        ("research/training",),
        ("tng/training", "--namespace", "research"),
        ("tpunodegroup/training", "--namespace=research"),
        ("tpunodegroup.tpu.google.com/training", "-n", "research"),
        ("research/training", "-n", "research"),
    ],
    ids=" ".join,
)
def test_a_group_is_named_as_kubectl_names_it(tool: Tool, words: tuple[str, ...]) -> None:
    for namespace in ("research", "tng", "default"):
        apply(tool, "training", namespace)
    [shown] = tool.json("resync", *words)
    assert shown["about"] == "research/training"


def test_an_option_before_the_verb_counts_and_one_after_it_wins(tool: Tool) -> None:
    apply(tool, "training", "research")
    for before in ("research", "other"):
        result = tool.run("-n", before, "resync", "training", "-n", "research", "--dry-run")
        assert "research/training" in result.stdout
    assert "research/training" in tool.run("-n", "research", "resync", "training").stdout


GROUPS = [
    {"namespace": namespace, "name": name}
    for namespace, name in (("default", "training"), ("default", "serve"), ("research", "other"))
]


@pytest.mark.parametrize(
    "name, near",
    [
        ("trainig", "did you mean training? "),
        ("other", "did you mean -n research other? "),
        ("xyz", ""),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_near_ones(name: str, near: str) -> None:
    assert describe_absent("TPUNodeGroup", "default", name, GROUPS) == (
        f"there is no TPUNodeGroup default/{name}; {near}`kubectl tng get -A` lists them"
    )


def test_all_of_a_namespace_are_resynced_only_with_a_yes_where_nobody_can_be_asked(
    tool: Tool,
) -> None:
    tool.harness.apply(training())
    apply(tool, "training", "research")
    asked = tool.run("resync", "--all", "-n", "research")
    assert (asked.exit_code, asked.stdout, tool.published) == (1, "", [])
    assert asked.stderr == (
        "Error: Publish 1 resync of 1 group? Without a terminal this needs --yes; nothing was "
        "published\n"
    )
    assert tool.run("resync", "--all", "-n", "research", "--yes").exit_code == 0
    assert [message["namespace"] for _, message, _ in tool.published] == ["research"]


def test_get_lists_slices_what_waits_and_classes_with_what_each_waits_for(busy_tool: Tool) -> None:
    busy_tool.harness.apply(training())
    apply(busy_tool, "big", "research")
    busy_tool.harness.run_for(timedelta(minutes=1))
    head, row, wait = busy_tool.run("get").stdout.splitlines()
    assert head.split() == [
        "NAMESPACE",
        "SLICE",
        "READY",
        "REASON",
        "NODES",
        "CHIPS",
        "WORKLOAD",
        "AGE",
    ]
    assert row.split() == ["default", "training", "False", "Provisioning", "0/2", "0/8", "-", "1m"]
    assert wait.startswith("    ")
    listed = busy_tool.json("get", "-A")
    assert [(one["namespace"], one["slice"]) for one in listed["slices"]] == [
        ("default", "training"),
        ("research", "big"),
    ]
    assert (listed["waiting"], listed["classes"]) == ([], [])
    assert "container" not in "".join(busy_tool.calls)


def test_get_says_since_when_no_pod_uses_a_ready_slice(
    busy_tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_tool.harness.apply(training())
    busy_tool.harness.run_for(timedelta(minutes=10))
    [raw] = busy_tool.dependencies().open_cluster().list_groups("")
    idle = {**raw, "status": {**raw["status"], "idleSince": "2026-01-01T00:05:00Z"}}
    monkeypatch.setattr(Cluster, "list_groups", lambda *_: [idle])
    [one] = busy_tool.json("get")["slices"]
    assert (one["ready"], one["message"]) == ("True", "Idle for 5m: no Pod uses its chips")


@pytest.mark.parametrize(
    "end, message",
    [
        ("2026-01-02T00:09:00Z", "Compute Engine ends it at 2026-01-02T00:09:00Z"),
        ("2026-01-02T00:20:00Z", None),
        ("2026-01-01T00:09:00Z", None),
    ],
    ids=["within a day", "later", "over"],
)
def test_get_says_when_compute_engine_ends_a_ready_slice(
    busy_tool: Tool, monkeypatch: pytest.MonkeyPatch, end: str, message: str | None
) -> None:
    busy_tool.harness.apply(training())
    busy_tool.harness.run_for(timedelta(minutes=10))
    [raw] = busy_tool.dependencies().open_cluster().list_groups("")
    ending = {**raw, "status": {**raw["status"], "runEndsAt": end}}
    monkeypatch.setattr(Cluster, "list_groups", lambda *_: [ending])
    [one] = busy_tool.json("get")["slices"]
    assert (one["ready"], one.get("message") or None) == ("True", message)


def make_event(uid: str, component: str, minute: int, message: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"e{minute}", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "uid": uid},
        "source": {"component": component},
        "lastTimestamp": f"2026-01-01T00:0{minute}:00Z",
        "message": message,
    }


def test_get_lists_waiting_pods_and_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = make_tool_with_class()
    admin = tool.harness.simulation.admin
    (pod,) = pods(tool.harness)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    listed = tool.json("get")
    workload = "Job train-workers-0 of JobSet train"
    row = {"namespace": "default", "pod": name, "workload": workload, "waits": "10s"}
    hint = f"`kubectl tng explain pod/{name} -n default` says why"
    assert listed["waiting"] == [{**row, "message": hint}]
    of_class = {"class": "v6e", "default": "yes", "slices": "-", "chips": "-", "wait": "-"}
    assert listed["classes"] == [{**of_class, "message": ""}]

    step = "tpu-functions-provision-slice"
    said = [(step, 2, "The zone is full"), (step, 1, "Creating it")]
    for component, minute, words in (*said, ("kube-scheduler", 3, "0/1 nodes")):
        admin("POST", EVENTS, make_event(uid, component, minute, words))
    at = {"candidate": f"{PROJECT}:{FULL}/STANDARD", "machineType": "ct6e-standard-4t"}
    at |= {"topology": "2x2", "reason": "QuotaExceeded", "since": "2026-01-01T00:00:00Z"}
    refusals = [
        {**at, "message": "no quota", "until": "2026-01-01T00:05:00Z"},
        {**at, "topology": "4x4", "message": "no quota", "until": "2026-01-01T00:00:01Z"},
    ]
    usage, waits = {"slices": 3, "chips": 12}, {"median": "4m", "p90": "9m"}
    status = {"status": {"usage": usage, "waits": waits, "refusals": refusals}}
    admin("PATCH", f"{CLASSES}/v6e/status", status, **MERGE)
    listed = tool.json("get")
    assert listed["waiting"] == [{**row, "message": "The zone is full"}]
    tool.calls.clear()
    assert tool.json("get", "-A")["waiting"] == listed["waiting"]
    assert [call for call in tool.calls if "events" in call] == [f"GET {EVENTS}"]
    of_class |= {"slices": "3", "chips": "12", "wait": "4m"}
    refused = f"{at['candidate']} is not asked for 2x2 until 00:05 UTC (QuotaExceeded)"
    assert listed["classes"] == [{**of_class, "message": refused}]
    claimed = [{**one, "askedBy": "research/train"} for one in refusals]
    admin("PATCH", f"{CLASSES}/v6e/status", {"status": {"refusals": claimed}}, **MERGE)
    words = f"research/train asks {at['candidate']} again, others may at 00:05 UTC (QuotaExceeded)"
    assert [one["message"] for one in tool.json("get")["classes"]] == [words]
    admin("PATCH", f"{CLASSES}/v6e/status", status, **MERGE)
    monkeypatch.setenv("COLUMNS", "80")
    lines = tool.run("get", "-A").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines] == [
        ["NAMESPACE", "POD"],
        ["WAITS"],
        ["default", name],
        ["10s"],
        ["The", "zone"],
        [],
        ["CLASS", "DEFAULT"],
        ["v6e", "yes"],
        refused.split()[:2],
        ["(QuotaExceeded)"],
    ]
    assert tool.json("get", "-n", "research")["waiting"] == []


def test_get_lists_node_pools_by_their_nodes() -> None:
    tool = Tool(Harness(slices=SETTINGS[GKE]))
    prepare(tool.harness)
    post(tool.harness)
    until(tool.harness, lambda: phases(tool.harness) == ["Running"])
    (row,) = tool.json("get")["slices"]
    (name,) = {
        node["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
        for node in helpers.nodes(tool.harness).values()
    }
    shown = {key: row[key] for key in row if key != "age"}
    workload = "Job train-workers-0 of JobSet train"
    assert shown == {
        "namespace": "default",
        "slice": name,
        "ready": "True",
        "reason": "NodePool",
        "nodes": "1/1",
        "chips": "4/4",
        "workload": workload,
        "message": "",
    }
    assert tool.json("get", "-n", "research")["slices"] == []
    assert not [call for call in tool.calls if "nodePools" in call]
    tool.harness.settings["admin"] = replace(tool.harness.settings["admin"], slice_provider="")
    assert tool.json("get")["slices"] == [row]


def make_pool_of_two() -> tuple[Tool, list[str]]:
    """A node pool of two hosts, and the names of their Nodes; a Node beside it."""
    tool = Tool(Harness(slices=SETTINGS[GKE]))
    prepare(tool.harness)
    post(tool.harness, "2x4")
    until(tool.harness, lambda: phases(tool.harness) == ["Running"] * 2)
    names = sorted(helpers.nodes(tool.harness))
    beside = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "beside"}}
    tool.harness.simulation.admin("POST", "/api/v1/nodes", beside)
    return tool, names


def test_a_node_pool_is_not_ready_until_all_hosts_have_a_ready_node() -> None:
    tool, names = make_pool_of_two()
    fields = ("ready", "reason", "nodes", "chips", "message")
    (row,) = tool.json("get")["slices"]
    assert [row[key] for key in fields] == ["True", "NodePool", "2/2", "8/8", ""]
    tool.harness.simulation.admin("DELETE", f"/api/v1/nodes/{names[0]}")
    (row,) = tool.json("get")["slices"]
    lost = "1 host of 2 without a Node"
    assert [row[key] for key in fields] == ["False", "NodesNotReady", "1/2", "4/8", lost]


@pytest.mark.parametrize("topology, nodes", [("", "1/1"), ("4", "1/1"), ("1x1", "1/1")])
def test_without_a_topology_the_hosts_of_a_node_pool_are_its_nodes(
    topology: str, nodes: str
) -> None:
    tool, names = make_pool_of_two()
    admin = tool.harness.simulation.admin
    admin("DELETE", f"/api/v1/nodes/{names[0]}")
    labels = {"cloud.google.com/gke-tpu-topology": topology}
    admin("PATCH", f"/api/v1/nodes/{names[1]}", {"metadata": {"labels": labels}}, **MERGE)
    assert [row["nodes"] for row in tool.json("get")["slices"]] == [nodes]


def test_only_the_nodes_of_node_pools_of_workloads_are_read() -> None:
    tool, names = make_pool_of_two()
    read: list[str] = []

    def note(_step: str, request: Request, server: Callable[[Request], Response]) -> Response:
        answer = server(request)
        if request.path == "/api/v1/nodes":
            read.extend(one["metadata"]["name"] for one in json.loads(answer.body)["items"])
        return answer

    tool.harness.hooks.around = note
    tool.run("get", "-A")
    assert read == names


@pytest.mark.parametrize(
    "is_checkout, owner, shown",
    [
        (True, "Acme", "docs/a.md#b"),
        (False, "OWNER", "docs/a.md#b"),
        (False, "Acme", f"https://github.com/Acme/tpu-functions/blob/v{VERSION}/docs/a.md#b"),
    ],
    ids=["checkout", "built from a checkout", "of a release"],
)
def test_a_page_is_an_address_where_there_are_no_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checkout: bool, owner: str, shown: str
) -> None:
    monkeypatch.setattr(text, "REPOSITORY", f"https://github.com/{owner}/tpu-functions")
    monkeypatch.setattr(text, "__file__", str(tmp_path / "replay" / "text.py"))
    if is_checkout:
        (tmp_path / "docs").mkdir()
    assert text.link("docs/a.md#b") == shown


def forbid(tool: Tool, *paths: str) -> None:
    denied = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "may not"}
    tool.harness.hooks.instead = lambda _, call: (
        Response.of_json(denied, 403) if call.startswith(tuple(f"GET {p}" for p in paths)) else None
    )


@pytest.mark.parametrize(
    "path, slices",
    [
        ("/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups", None),
        ("/api/v1/nodes", ["training"]),
    ],
)
def test_get_lists_what_waits_if_slices_may_not_be_listed(
    path: str, slices: list[str] | None
) -> None:
    tool = make_tool_with_class()
    tool.harness.settings["admin"] = replace(tool.harness.settings["admin"], slice_provider="")
    tool.harness.apply(training())
    forbid(tool, path)
    result = tool.run("get", "-o", "json")
    listed = json.loads(result.stdout)
    assert listed["slices"] == slices or [one["slice"] for one in listed["slices"]] == slices
    assert (len(listed["waiting"]), len(listed["classes"])) == (1, 1)
    assert f"slices: the call `GET {path}` to the cluster failed: 403" in result.stderr
    assert result.exit_code == 1


def test_get_lists_what_the_user_may_list() -> None:
    tool = make_tool_with_class()
    tool.harness.apply(training())
    paths = ("/api/v1/namespaces/default/pods", "/apis/tpu-functions.dev/v1alpha1/tpusliceclasses")
    forbid(tool, *paths)
    result = tool.run("get")
    assert (result.exit_code, result.stdout.split()[8:10]) == (1, ["default", "training"])
    more = "docs/reference/replay.md#what-it-needs lists the permissions of each verb."
    assert result.stderr.splitlines() == [
        *(
            f"{name}: the call `GET {path}` to the cluster failed: 403 Forbidden: may not. {more}"
            for name, path in zip(("waiting", "classes"), paths, strict=True)
        ),
        "Error: your permissions do not suffice to list: waiting, classes",
    ]
    result = tool.run("get", "-o", "json")
    listed = json.loads(result.stdout)
    assert (len(listed["slices"]), listed["waiting"], listed["classes"]) == (1, None, None)


@pytest.mark.parametrize(
    "words, place",
    [((), " in namespace default"), (("-n", "ml"), " in namespace ml"), (("-A",), "")],
)
def test_an_empty_list_says_so(tool: Tool, words: tuple[str, ...], place: str) -> None:
    result = tool.run("get", *words)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"There are no slices{place}, and nothing waits for one.\n"


@pytest.mark.parametrize("verb", [("get",), ("resync", "--all", "--dry-run")])
@pytest.mark.parametrize("name", ["..", ".", "a/b", "Research"])
def test_a_word_that_names_no_namespace_is_rejected(
    tool: Tool, verb: tuple[str, ...], name: str
) -> None:
    """`..` would be all namespaces: clients shorten the path of a call."""
    result = tool.run(*verb, "-n", name)
    assert (result.exit_code, result.stdout, tool.calls) == (2, "", [])
    assert f"{name!r} must be the name of a namespace" in result.stderr


def test_where_messages_go_is_shown_if_the_cluster_chose_it(tool: Tool) -> None:
    tool.harness.apply(training())
    tool.found_in = dependencies.TOOL_SETTINGS
    said = (
        "Publishing to the topics tpu-functions-* of project my-gcp-project, which ConfigMap "
        "tpu-functions/kubectl-tng names; --project selects another.\n"
    )
    project = tool.harness.settings["sweep"].pubsub_project
    said = said.replace("my-gcp-project", project)
    assert tool.run("resync", "training", "--dry-run").stderr == ""
    assert tool.run("resync", "training").stderr == said


def test_without_google_the_status_is_explained(busy_tool: Tool) -> None:
    busy_tool.harness.apply(training())
    busy_tool.harness.run_for(timedelta(minutes=1))
    busy_tool.unread = LOG_IN
    busy_tool.calls.clear()
    result = busy_tool.run("explain", "training")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("default/training has not been Ready for ")
    assert f"Whether the steps still run is not known: {LOG_IN}" in result.stdout
    assert "The steps would change nothing" not in result.stdout
    assert all(call.startswith("GET /") for call in busy_tool.calls), busy_tool.calls


CLUSTER = {
    "PUBSUB_PROJECT": "from-cluster",
    "TOPIC_PREFIX": "mine-",
    "PROJECTS": "a,b",
    "COMPUTE_ENDPOINT": "https://evil.example",
}


@pytest.mark.parametrize(
    "found, environment, choice, project, prefix, found_in, unknown",
    [
        (CLUSTER, {}, Choice(), "from-cluster", "mine-", dependencies.TOOL_SETTINGS, ""),
        (CLUSTER, {"PUBSUB_PROJECT": "own"}, Choice(), "own", "tpu-functions-", "", ""),
        (CLUSTER, {}, Choice(project="other"), "other", "tpu-functions-", "", ""),
        (
            CLUSTER,
            {"PUBSUB_PROJECT": "own"},
            Choice(project="from-cluster"),
            "from-cluster",
            "mine-",
            dependencies.TOOL_SETTINGS,
            "",
        ),
        (
            {},
            {},
            Choice(),
            "unknown",
            "tpu-functions-",
            "",
            "PUBSUB_PROJECT is not set, and there is no ConfigMap tpu-functions/kubectl-tng, which "
            "deploy.sh writes",
        ),
    ],
    ids=["in the cluster", "environment", "--project", "--project of the cluster", "nowhere"],
)
def test_settings_are_found_in_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    found: Mapping[str, str],
    environment: Mapping[str, str],
    choice: Choice,
    project: str,
    prefix: str,
    found_in: str,
    unknown: str,
) -> None:
    for name in (*CLUSTER, "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Cluster, "find_tool_settings", lambda _: found)
    deps = open_dependencies(choice)
    assert (deps.settings.pubsub_project, deps.settings.topic_prefix) == (project, prefix)
    assert (deps.found_in, deps.unknown, deps.settings.compute_endpoint) == (found_in, unknown, "")
    assert deps.settings.projects == ({"a", "b"} if found_in else {project})


@pytest.mark.parametrize(
    "found, why",
    [
        ({}, "there is no ConfigMap tpu-functions/kubectl-tng, which deploy.sh writes"),
        (CLUSTER, "ConfigMap tpu-functions/kubectl-tng is of project from-cluster"),
    ],
    ids=["nowhere", "of another project"],
)
def test_a_project_that_the_cluster_does_not_name_has_the_default_settings_and_the_tool_says_so(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: Mapping[str, str],
    why: str,
) -> None:
    monkeypatch.setattr(Cluster, "find_tool_settings", lambda _: found)
    context: Any = SimpleNamespace(obj=open_dependencies, meta={"project": "other"})
    get_dependencies(context)
    assert capsys.readouterr().err == (
        "With --project, TOPIC_PREFIX, PROJECTS and all other settings that are not environment "
        f"variables here are the defaults: {why}. Set those that differ.\n"
    )
    monkeypatch.setattr(Cluster, "find_tool_settings", lambda _: CLUSTER)
    context.meta["project"] = "from-cluster"
    get_dependencies(context)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "name, unread",
    [
        ("NOTHING", LOG_IN),
        ("GOOGLE_APPLICATION_CREDENTIALS", ""),
        ("GCE_METADATA_HOST", ""),
        ("COMPUTE_ENDPOINT", ""),
    ],
)
def test_where_there_may_be_credentials_google_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, unread: str
) -> None:
    for one in ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "COMPUTE_ENDPOINT"):
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert open_dependencies(Choice(project="p")).unread == unread


def test_context_and_namespace_are_those_of_the_kubeconfig(tmp_path: Path) -> None:
    config = tmp_path / "config"
    contexts: list[dict[str, Any]] = [
        {"name": name, "context": {"cluster": "c", "user": "u", **more}}
        for name, more in (("one", {"namespace": "research"}), ("two", {}))
    ]
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": contexts,
                "current-context": "one",
            }
        )
    )
    rows = [({}, "research"), ({"context": "two"}, "default"), ({"namespace": "x"}, "x")]
    for more, expected in rows:
        choice = Choice(kubeconfig=str(config), project="p", **more)
        assert open_dependencies(choice).namespace == expected
    absent = open_dependencies(Choice(kubeconfig=str(config), project="p", context="three"))
    with pytest.raises(Exception, match="name three"):
        absent.open_cluster().get_cluster_id()


SHORT, OTHER = ("a", "True", "-"), ("bc", "False", "Job d")
LONG = ("a-very-long-name-of-a-slice", "False", "Pod 0 of b")
TABLES: dict[str, tuple[list[tuple[str, ...]], str]] = {
    "all fit": (
        [SHORT, OTHER],
        """
NAME   READY   FOR
a      True    -
bc     False   Job d
""",
    ),
    "a wide row among others": (
        [SHORT, LONG, OTHER],
        """
NAME   READY   FOR
a      True    -
a-very-long-name-of-a-slice   False
               Pod 0 of b
bc     False   Job d
""",
    ),
    "most are wide": (
        [LONG, SHORT, LONG],
        """
NAME                          READY
    FOR
a-very-long-name-of-a-slice   False
    Pod 0 of b
a                             True
    -
a-very-long-name-of-a-slice   False
    Pod 0 of b
""",
    ),
    "a cell is wider than the terminal": (
        [("y" * 50, "True", "-")],
        f"""
NAME
    READY   FOR
{"y" * 50}
    True    -
""",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_row_that_is_too_wide_leaves_the_others_a_table(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, expected = TABLES[case]
    monkeypatch.setenv("COLUMNS", "40")
    output.print_rows(("NAME", "READY", "FOR"), [(row, ()) for row in rows])
    assert f"\n{capsys.readouterr().out}" == expected


def test_what_reads_for_long_says_so_on_stderr_in_the_place_of_its_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    __main__._announce_late()
    assert capsys.readouterr() == ("", f"{__main__.LATE}\n")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    __main__._announce_late()
    assert capsys.readouterr() == ("", f"\r\x1b[K{__main__.LATE}\n")


@pytest.mark.parametrize("words", [("-n", "a", "explain", "b"), ("resync", "--all")], ids=" ".join)
def test_only_a_verb_that_prints_nothing_before_it_has_read_is_late(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()
    monkeypatch.setattr(__main__, "LATE_S", 0.0)
    monkeypatch.setattr(__main__, "_announce_late", said.set)
    monkeypatch.setattr("replay.app.app", lambda **_: "explain" in words and said.wait(60))
    monkeypatch.setattr("sys.argv", ["kubectl-tng", *words])
    __main__._run("kubectl tng")
    assert said.is_set() == ("explain" in words)
