"""The alerts use only metrics of the relay, the dashboard also log-based metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import yaml

from relay.metrics import DESCRIPTIONS, LABELS, SLICE_SERIES, Description, GroupState
from relay.tokens.__main__ import METRICS as TOKEN_METRICS
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.unit.docs.pages import list_anchors
from tests.unit.infra.terraform.terraform_module import ROOT

DASHBOARD = json.loads((ROOT / "infra" / "monitoring" / "dashboard.json").read_text())
RULES = yaml.safe_load((ROOT / "infra/chart/manifests/monitoring/rules.yaml").read_text())
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in RULES["spec"]["groups"] for rule in group["rules"]
}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = {
    **{name: rule["expr"] for name, rule in ALERTS.items()},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in PANELS
        for target in panel["targets"]
    },
}
LOG_BASED = "logging_googleapis_com:user_"
"""What a log-based metric's name begins with in Managed Service for Prometheus."""


def to_promql(name: str) -> str:
    """The name in PromQL of a metric of Cloud Monitoring, by Google's rules."""
    domain, _, path = name.partition("/")
    return ":".join(re.sub(r"\W", "_", part) for part in (domain, path))


def read_log_based() -> Iterator[tuple[str, Description]]:
    """The log-based metrics of Terraform by their names in PromQL, from the text."""
    text = (ROOT / "infra" / "terraform" / "metrics.tf").read_text()
    for block in text.split('resource "google_logging_metric" ')[1:]:
        (name,) = re.findall(r'name += "\$\{var.name_prefix\}-([a-z-]+)"', block)
        kind = "histogram" if '"DISTRIBUTION"' in block else "counter"
        labels = tuple(re.findall(r'(\w+) += "EXTRACT', block.partition("label_extractors")[2]))
        found = to_promql(f"logging.googleapis.com/user/tpu-functions-{name}")
        yield found, Description(found, kind, labels, "")


(TOKEN_WRITTEN,) = TOKEN_METRICS.collect()
METRICS = {
    **{one.name: one for one in DESCRIPTIONS},
    **dict(read_log_based()),
    TOKEN_WRITTEN.name: Description(
        TOKEN_WRITTEN.name, TOKEN_WRITTEN.type, ("step",), TOKEN_WRITTEN.documentation
    ),
}
OF_THE_CLIENT = {"process_resident_memory_bytes"}
OF_THE_SCRAPE = ("cluster", "$cluster")
"""A label that the scraping system adds, with the dashboard's variable: ``.*`` matches its absence."""
OF_A_NAMESPACE = ("group", "$namespace/.*")
"""The groups of the dashboard's variable: metrics of the relay have no names of objects."""
OF_THE_FUNCTIONS = ("monitored_resource", "cloud_run_revision")
"""Without it, a log-based metric has no series: it may be one of several resources."""
SELECTOR = re.compile(rf"((?:{LOG_BASED})?tpu_functions_\w+|process_\w+)(?:\{{([^}}]*)\}})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
GROUPING = re.compile(r"\b(?:sum|max) by \(([^)]*)\) \(")
SUFFIXES = ("_bucket", "_sum", "_count")


def metric_of(series: str) -> str:
    """Return the metric of a series; a histogram has several series."""
    base = next((series.removesuffix(end) for end in SUFFIXES if series.endswith(end)), series)
    return base if base in METRICS and METRICS[base].type == "histogram" else series


def selectors(query: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the metrics that a query names, each with its matchers."""
    for series, matchers in SELECTOR.findall(query):
        yield metric_of(series), MATCHER.findall(matchers)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_a_query_names_existing_metrics_and_labels(query: str) -> None:
    found = list(selectors(query))
    assert found
    for metric, matchers in found:
        assert metric in METRICS.keys() | OF_THE_CLIENT
        for label, _, values in matchers:
            if (label, values) not in (OF_THE_SCRAPE, OF_THE_FUNCTIONS, OF_A_NAMESPACE):
                assert label in METRICS[metric].labels
                if metric not in dict(read_log_based()):
                    assert set(values.split("|")) <= set(LABELS[label])
    for labels in GROUPING.findall(query):
        named = {label.strip() for label in labels.split(",")} - {"le"}
        assert named <= set(METRICS[found[0][0]].labels)
    assert [query.count(mark) for mark in "([{"] == [query.count(mark) for mark in ")]}"]


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_a_query_uses_rates_of_counters_and_the_series_of_histograms(query: str) -> None:
    for series, _ in SELECTOR.findall(query):
        kind = METRICS[metric_of(series)].type if metric_of(series) in METRICS else "gauge"
        is_ranged = re.search(rf"(rate|increase)\({series}(\{{[^}}]*\}})?\[", query) is not None
        assert is_ranged == (kind in ("counter", "histogram"))
        assert series.endswith(SUFFIXES) == (kind == "histogram")


def test_the_dashboard_shows_every_metric_of_slices() -> None:
    shown = {metric for query in QUERIES.values() for metric, _ in selectors(query)}
    others = {f"{LOG_BASED}tpu_functions_{one}" for one in ("invocations", "invocation_duration")}
    assert {one for one in METRICS if "_relay_" not in one} - shown == others


def test_the_names_in_promql_are_those_of_googles_rules() -> None:
    """With two of Google's examples, read in 2026."""
    assert to_promql("kubernetes.io/container/cpu/limit_cores") == (
        "kubernetes_io:container_cpu_limit_cores"
    )
    assert to_promql("custom.googleapis.com/opencensus/opencensus.io/http/server/a") == (
        "custom_googleapis_com:opencensus_opencensus_io_http_server_a"
    )
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    named = {metric_of(one) for one in re.findall(rf"`({LOG_BASED}\w+)`", page)}
    of_classes = {f"{LOG_BASED}tpu_functions_slice_{it}" for it in ("candidates", "class_waits")}
    assert named == of_classes <= METRICS.keys()


def test_the_dashboard_shows_the_clusters_that_are_selected() -> None:
    datasource, cluster, _ = DASHBOARD["templating"]["list"]
    assert (datasource["name"], cluster["name"], cluster["allValue"]) == (
        "datasource", "cluster", ".*",
    )  # fmt: skip
    for panel in PANELS:
        for target in panel["targets"]:
            found = list(selectors(target["expr"]))
            for metric, matchers in found:
                label, value = OF_THE_FUNCTIONS if metric.startswith(LOG_BASED) else OF_THE_SCRAPE
                assert (label, "=" if label != "cluster" else "=~", value) in matchers


def test_the_dashboard_shows_the_namespaces_that_are_selected_where_a_metric_names_a_group() -> (
    None
):
    *_, namespace = DASHBOARD["templating"]["list"]
    assert (namespace["name"], namespace["allValue"]) == ("namespace", ".*")
    asked = re.fullmatch(r"label_values\((.*), (\w+)\)", namespace["query"])
    assert asked is not None
    ((metric, matchers),) = selectors(asked[1])
    assert asked[2] in METRICS[metric].labels
    assert matchers == [(OF_THE_FUNCTIONS[0], "=", OF_THE_FUNCTIONS[1])]
    found = re.search(namespace["regex"][1:-1], "default/train")
    assert found is not None
    assert found[1] == "default"
    for metric, matchers in [one for query in QUERIES.values() for one in selectors(query)]:
        is_limited = (OF_A_NAMESPACE[0], "=~", OF_A_NAMESPACE[1]) in matchers
        assert is_limited is (metric in METRICS and "group" in METRICS[metric].labels)


def read_terraform_alerts() -> dict[str, tuple[str, str]]:
    """The alerts of Terraform by title, each with its severity and its runbook, from the text."""
    text = (ROOT / "infra" / "terraform" / "alerts.tf").read_text()
    shared = re.findall(
        r'      title += "([^"]+)"\n      severity += "(\w+)"\n.*?\n      runbook += "([\w-]+)"',
        text,
        re.DOTALL,
    )
    own = re.findall(
        r'display_name += "\$\{var.name_prefix\}: ([^"$]+)"\n  severity += "(\w+)"\n'
        r".*?Runbook: \$\{local.runbooks\}#([\w-]+)\"",
        text,
        re.DOTALL,
    )
    return {title: (severity, anchor) for title, severity, anchor in (*shared, *own)}


def test_an_alert_of_terraform_links_to_a_heading_of_the_runbooks_at_this_version() -> None:
    text = (ROOT / "infra" / "terraform" / "alerts.tf").read_text()
    alerts = read_terraform_alerts()
    assert len(alerts) == text.count("    title ") + text.count("${var.name_prefix}: ") - 1
    runbooks = '"${local.chart.sources[0]}/blob/v${local.chart.version}/docs/operate.md"'
    assert f"  runbooks = {runbooks}\n" in text
    anchors = {anchor for _, anchor in alerts.values()}
    assert anchors - list_anchors(ROOT / "docs" / "operate.md") == set()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_links_to_a_heading_for_every_reason_that_it_may_have(name: str) -> None:
    rule = ALERTS[name]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    reasons = {reason for state, reason in SLICE_SERIES if state is GroupState.NOT_READY}
    for matcher in MATCHER.findall(rule["expr"]):
        listed = set(matcher[2].split("|"))
        if matcher[:2] == ("reason", "=~"):
            reasons &= listed
        elif matcher[:2] == ("reason", "!~"):
            reasons -= listed
    expected = {
        anchor.replace("{{ $labels.reason | toLower }}", reason.lower())
        for reason in reasons - {"Ready"}
    }
    assert expected
    assert expected - list_anchors(ROOT / page) == set()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_described_in_sentences(name: str) -> None:
    rule = ALERTS[name]
    for key in ("summary", "description"):
        assert re.fullmatch(r"\S.*\.", rule["annotations"][key])
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    kept = {one.strip() for labels in GROUPING.findall(rule["expr"]) for one in labels.split(",")}
    assert used <= kept


SEVERITIES = ("critical", "warning", "info")


def test_the_page_has_each_alert_with_its_severity_and_what_it_costs() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    rows = re.findall(
        r"^\| `?([^`|]+?)`? \| (critical|warning|info) \| (.+) \|$", page, re.MULTILINE
    )
    ours = {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}
    ours |= {title: severity.lower() for title, (severity, _) in read_terraform_alerts().items()}
    assert {name: severity for name, severity, _ in rows} == ours
    assert set(ours.values()) == set(SEVERITIES)


WAKES = {
    "VMs are billed, and nobody can use them": {
        "a slice is leaked", "TPUSliceDeletionStuck", "TPUChipsNotReady", "TPUSliceLost",
    },
    "steps create, repair and delete nothing": {
        "TPUSliceNotServed", "a step fails", "messages are waiting", "the sweep does not run",
        "the cluster is another installation's",
    },
}  # fmt: skip


def test_an_alert_is_critical_if_it_costs_money_or_training_and_only_then() -> None:
    critical = {name for name, rule in ALERTS.items() if rule["labels"]["severity"] == "critical"}
    critical |= {
        name for name, (level, _) in read_terraform_alerts().items() if level == "CRITICAL"
    }
    assert critical == set().union(*WAKES.values())


def test_the_log_based_metrics_use_fields_that_every_invocation_logs() -> None:
    text = (ROOT / "infra" / "terraform" / "metrics.tf").read_text()
    read = set(re.findall(r"jsonPayload\.(\w+)", text))
    of_tries = {"class", "candidate", "refusal", "waited_s"}
    of_chips = {"cause", "group", "workload", "chip_hours"}
    assert read == {"step", "decision", "milliseconds", *of_tries, *of_chips}
    harness = Harness()
    harness.apply(manifest("bench"))
    harness.run_for(timedelta(minutes=2))
    unusable = [line for line in harness.log.lines if line["decision"] == "Unusable"]
    assert [line for line in unusable if not of_chips <= line.keys()] == []
    lines = [line for line in harness.log.lines if line not in unusable]
    assert unusable
    assert {line["step"] for line in lines} >= {"create_resources", "inject_token", "sweep"}
    assert [line for line in lines if not read - of_tries - of_chips <= line.keys()] == []
