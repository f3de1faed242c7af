"""The dashboard and the alerts use only metrics of the relay."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import yaml

from relay.metrics import DESCRIPTIONS, LABELS, SLICE_SERIES, GroupState
from tests.support.harness import Harness
from tests.support.manifests import manifest
from tests.unit.docs.pages import list_anchors
from tests.unit.infra.terraform.terraform_module import ROOT

DASHBOARD = json.loads((ROOT / "infra" / "monitoring" / "dashboard.json").read_text())
COMPONENTS = ROOT / "infra" / "kubernetes" / "components"
RULES = {
    name: yaml.safe_load((COMPONENTS / name / "rules.yaml").read_text())
    for name in ("monitoring-google", "monitoring-prometheus")
}
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in RULES["monitoring-prometheus"]["spec"]["groups"]
    for rule in group["rules"]
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
METRICS = {one.name: one for one in DESCRIPTIONS}
OF_THE_CLIENT = {"process_resident_memory_bytes"}
SELECTOR = re.compile(r"(tpu_functions_\w+|process_\w+)(?:\{([^}]*)\})?")
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
            assert label in METRICS[metric].labels
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
    assert {one for one in METRICS if "_relay_" not in one} - shown == set()


def test_both_components_have_the_same_alerts() -> None:
    google, prometheus = RULES.values()
    assert google["spec"] == prometheus["spec"]
    assert (google["kind"], google["apiVersion"]) == ("Rules", "monitoring.googleapis.com/v1")
    kind, version = prometheus["kind"], prometheus["apiVersion"]
    assert (kind, version) == ("PrometheusRule", "monitoring.coreos.com/v1")


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_runbook_for_every_reason_that_it_may_have(name: str) -> None:
    rule = ALERTS[name]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    reasons = {reason for state, reason in SLICE_SERIES if state is GroupState.NOT_READY}
    for matcher in MATCHER.findall(rule["expr"]):
        listed = set(matcher[2].split("|"))
        if matcher[:2] == ("reason", "=~"):
            reasons &= listed
        elif matcher[:2] == ("reason", "!~"):
            reasons -= listed
    reasons -= {"Ready", "Other"}
    if name == "TPUSliceLost":
        reasons -= {"NotReported"}
    expected = {
        anchor.replace("{{ $labels.reason | toLower }}", reason.lower()) for reason in reasons
    }
    assert expected
    assert expected - list_anchors(ROOT / page) == set()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_severity_and_is_described_in_sentences(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    for key in ("summary", "description"):
        assert re.fullmatch(r"\S.*\.", rule["annotations"][key])
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    kept = {one.strip() for labels in GROUPING.findall(rule["expr"]) for one in labels.split(",")}
    assert used <= kept


def test_each_alert_of_terraform_has_a_runbook() -> None:
    text = (ROOT / "infra" / "terraform" / "alerts.tf").read_text()
    named = re.findall(r'runbook += "([\w-]+)"', text)
    named += re.findall(r"Runbook: docs/operate.md#([\w-]+)\.", text)
    own = text.count('content   = "') - 1  # one is shared by the alerts with an advice
    assert len(named) == text.count("      advice ") + own
    assert set(named) - list_anchors(ROOT / "docs" / "operate.md") == set()


def test_the_log_based_metrics_use_fields_that_every_invocation_logs() -> None:
    text = (ROOT / "infra" / "terraform" / "metrics.tf").read_text()
    read = set(re.findall(r"jsonPayload\.(\w+)", text))
    assert read == {"step", "decision", "milliseconds"}
    harness = Harness()
    harness.apply(manifest("bench"))
    harness.run_for(timedelta(minutes=2))
    lines = harness.log.lines
    assert {line["step"] for line in lines} >= {"create_resources", "inject_token", "sweep"}
    assert [line for line in lines if not read <= line.keys()] == []
