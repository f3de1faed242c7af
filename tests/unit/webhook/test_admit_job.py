# ruff: noqa: E501  (a table reads best with a row on a line)
"""The admission of a JobSet's Job: the node selectors that its Pods get and lose."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from shared.base.environment import SettingsError
from shared.base.slice_names import job_key
from tests.support.admission import evaluate
from tests.unit.webhook.workloads import Manifest, as_review, container, job, selector
from webhook.admit_job import AdmissionSettings, admit
from webhook.settings import read_admission, read_settings
from webhook.tpu_env.admission import review

ROOT = Path(__file__).parents[3]
ROWS: dict[str, dict[str, Any]] = {
    row["id"]: row
    for row in yaml.safe_load((ROOT / "tests/data/tpu_provisioner.yaml").read_text())["rows"]
    if row["area"] == "admission"
}
OPT_OUT = "tpu-provisioner.cloud.google.com/disable-autoprovisioning"
RESERVED = {
    "cloud.google.com/reservation-name": "my-reservation",
    "cloud.google.com/reservation-project": "other-project",
}
SPOT = {"cloud.google.com/gke-spot": "true"}
HINT = "cloud.google.com/gke-location-hint"
PLAIN = AdmissionSettings()
V6E = selector("tpu-v6e-slice", "4x4")
KEY = "410e1982e93873aec58e7f743e6ad7ca3e10f494"


SIDECAR = {**container("s"), "restartPolicy": "Always"}


def child(
    *containers: Manifest,
    more: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] | None = None,
) -> Manifest:
    """Return a JobSet's Job ``default/test-job``."""
    created = job(
        *containers,
        name="test-job",
        pod={"nodeSelector": {**V6E, **(more or {})}, **(pod or {})},
        labels={"jobset.sigs.k8s.io/job-key": job_key("default", "test-job")},
    )
    created["metadata"]["namespace"] = "default"
    return created


def without(target: Manifest, *path: str) -> Manifest:
    *parents, last = path
    holder = target
    for key in parents:
        holder = holder[key]
    del holder[last]
    return target


def opt_out(target: Manifest, where: str, value: str) -> Manifest:
    target["metadata"].setdefault(where, {})[OPT_OUT] = value
    return target


def opt_out_in_template(target: Manifest, where: str, value: str) -> Manifest:
    opt_out(target["spec"]["template"], where, value)
    return target


def patch_of(
    target: Manifest, settings: AdmissionSettings = PLAIN, **request: Any
) -> list[Manifest]:
    body = json.dumps(as_review(target, **request)).encode()
    response = review(body, partial(admit, settings=settings)).document["response"]
    assert response["allowed"] is True
    found: list[Manifest] = json.loads(base64.b64decode(response.get("patch", "W10=")))
    return found


def selector_of(target: Manifest, settings: AdmissionSettings = PLAIN) -> dict[str, str]:
    patched = jsonpatch.apply_patch(deepcopy(target), patch_of(target, settings))
    found: dict[str, str] = patched["spec"]["template"]["spec"]["nodeSelector"]
    return found


PATCHED: list[tuple[str, Manifest, dict[str, str]]] = [
    ("admission-existing-selector", child(), {}),
    ("admission-location-hint", child(more={"cloud.google.com/reservation-name": "my-reservation"}),
     {"RESERVATION_LOCATION_HINT": "cell"}),
]  # fmt: skip


@pytest.mark.conformance(cases={row: row for row in ROWS})
@pytest.mark.parametrize("row, target, environment", PATCHED, ids=[row[0] for row in PATCHED])
def test_a_job_gets_the_patch_of_tpu_provisioner(
    row: str, target: Manifest, environment: dict[str, str]
) -> None:
    assert patch_of(target, read_admission(environment)) == ROWS[row]["expect"]["patch"]


@pytest.mark.conformance("admission-job-key-length")
def test_a_job_key_has_40_characters() -> None:
    assert selector_of(child())["job-key"] == KEY
    assert len(KEY) == 40


SELECTORS: list[tuple[str, dict[str, str], Manifest, dict[str, str]]] = [
    ("admission-location-hint-without-reservation", {"RESERVATION_LOCATION_HINT": "cell"}, child(), {HINT: "cell"}),
    ("a hint that the Job already has", {"RESERVATION_LOCATION_HINT": "cell"}, child(more={HINT: "other"}), {HINT: "cell"}),
    ("no hint is set", {}, child(more={HINT: "other"}), {HINT: "other"}),
    ("reserved", {}, child(more=RESERVED), RESERVED),
    ("reserved, on demand", {"FORCE_ON_DEMAND": "true"}, child(more=RESERVED), {}),
    ("Spot", {}, child(more=SPOT), SPOT),
    ("Spot, on demand", {"FORCE_ON_DEMAND": "true"}, child(more=SPOT), {}),
    ("other selectors remain", {"FORCE_ON_DEMAND": "true"}, child(more={"team": "a"}), {"team": "a"}),
    ("reservation, Spot and hint", {"FORCE_ON_DEMAND": "true", "RESERVATION_LOCATION_HINT": "cell"},
     child(more={**RESERVED, **SPOT}), {HINT: "cell"}),
    ("the key of another Job", {}, child(more={"job-key": "other"}), {}),
    ("chips of a sidecar only", {}, child(container(tpu=None), pod={"initContainers": [SIDECAR]}), {}),
    ("chips of an init container only", {}, child(container(tpu=None), pod={"initContainers": [container("i")]}), {}),
]  # fmt: skip


@pytest.mark.conformance(cases={row: row for row in ROWS})
@pytest.mark.parametrize(
    "environment, target, more", [row[1:] for row in SELECTORS], ids=[row[0] for row in SELECTORS]
)
def test_the_pods_of_an_admitted_job_have_these_node_selectors(
    environment: dict[str, str], target: Manifest, more: dict[str, str]
) -> None:
    expected = {**V6E, "job-key": KEY, **more}
    assert selector_of(target, read_admission(environment)) == expected


@pytest.mark.conformance("admission-generate-name")
def test_a_job_with_a_generated_name_gets_the_key_that_jobset_computed() -> None:
    target = without(child(), "metadata", "name")
    target["metadata"]["generateName"] = "test-"
    assert selector_of(target)["job-key"] == KEY


NOT_PATCHED: list[tuple[str, Manifest]] = [
    ("admission-disabled", opt_out(child(), "labels", "true")),
    ("opted out by annotation", opt_out(child(), "annotations", "true")),
    ("opted out in another spelling", opt_out(child(), "labels", "True")),
    ("opted out in the Pod template", opt_out_in_template(child(), "labels", "true")),
    ("opted out in the template's annotations", opt_out_in_template(child(), "annotations", "yes")),
    ("admission-not-jobset", without(child(), "metadata", "labels", "jobset.sigs.k8s.io/job-key")),
    ("admission-every-jobset-job", child(container(tpu=None))),
    ("no chips", child(container(tpu=0))),
    ("no topology", without(child(), "spec", "template", "spec", "nodeSelector", "cloud.google.com/gke-tpu-topology")),
    ("no selector", without(child(), "spec", "template", "spec", "nodeSelector")),
    ("no Job", {**child(), "kind": "CronJob"}),
]  # fmt: skip


@pytest.mark.conformance(
    cases={**{row: row for row in ROWS}, "no topology": "admission-no-selector"}
)
@pytest.mark.parametrize(
    "target", [row[1] for row in NOT_PATCHED], ids=[row[0] for row in NOT_PATCHED]
)
def test_a_job_that_needs_no_slice_or_has_opted_out_is_not_patched(target: Manifest) -> None:
    everything = AdmissionSettings(is_on_demand_forced=True, location_hint="cell")
    assert patch_of(target, everything) == []


@pytest.mark.parametrize("request_", [{"operation": "UPDATE"}, {"subResource": "status"}])
def test_an_update_or_a_subresource_of_a_job_is_not_patched(request_: dict[str, str]) -> None:
    assert patch_of(child(), PLAIN, **request_) == []


@pytest.mark.parametrize("settings", [PLAIN, AdmissionSettings(True, "cell")])
def test_a_second_admission_of_a_job_changes_nothing(settings: AdmissionSettings) -> None:
    target = child(more={**RESERVED, **SPOT})
    once = jsonpatch.apply_patch(deepcopy(target), patch_of(target, settings))
    assert once != target
    assert patch_of(once, settings) == []


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"FORCE_ON_DEMAND": "yes"}, "FORCE_ON_DEMAND='yes' is wrong: it must be true or false"),
        (
            {"RESERVATION_LOCATION_HINT": "a/b"},
            "RESERVATION_LOCATION_HINT='a/b' is wrong: it must be the value of a label: at most 63 letters, "
            "digits, dashes, dots and underscores",
        ),
    ],
)
def test_an_invalid_setting_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_admission(environment)
    assert str(raised.value) == message


def test_the_webhook_reads_the_admission_settings_from_its_environment() -> None:
    environment = {"FORCE_ON_DEMAND": "true", "RESERVATION_LOCATION_HINT": "cell"}
    assert read_settings([], environment).admission == AdmissionSettings(True, "cell")


# The component


def read_webhook() -> Manifest:
    path = ROOT / "infra/chart/manifests/admit-jobs/webhook.yaml"
    (found,) = yaml.safe_load(path.read_text())["webhooks"]
    webhook: Manifest = found
    return webhook


@pytest.mark.conformance("admission-webhook-settings")
def test_the_webhook_is_configured_like_that_of_tpu_provisioner() -> None:
    """But with a timeout of 10 seconds and a path on the server of inject_env."""
    webhook = read_webhook()
    expected = ROWS["admission-webhook-settings"]["expect"]
    (rule,) = webhook["rules"]
    assert rule["operations"] == expected["operations"]
    assert [
        f"{group}/{version}" for group in rule["apiGroups"] for version in rule["apiVersions"]
    ] + [*rule["resources"]] == expected["resource"].split()
    for name in ("scope", "failurePolicy", "sideEffects"):
        assert {**webhook, **rule}[name] == str(expected[name])
    assert webhook["clientConfig"]["service"]["path"] == "/mutate-jobs"
    assert webhook["timeoutSeconds"] == 10
    assert webhook["objectSelector"] == {
        "matchExpressions": [{"key": "jobset.sigs.k8s.io/job-key", "operator": "Exists"}]
    }


NOT_MATCHED = [row for row in NOT_PATCHED if row[0] != "no chips"]


@pytest.mark.parametrize(
    "target", [row[1] for row in NOT_MATCHED], ids=[row[0] for row in NOT_MATCHED]
)
def test_the_match_conditions_exclude_jobs_that_are_not_patched(target: Manifest) -> None:
    assert not is_matched(target)


@pytest.mark.parametrize("target", [row[2] for row in SELECTORS], ids=[row[0] for row in SELECTORS])
def test_the_match_conditions_include_jobs_that_are_patched(target: Manifest) -> None:
    assert is_matched(target)


def is_matched(target: Manifest) -> bool:
    """Evaluate the match conditions as the API server does."""
    has_key = "jobset.sigs.k8s.io/job-key" in target["metadata"]["labels"]
    return (has_key and target["kind"] == "Job") and all(
        evaluate(condition["expression"], {"object": target})
        for condition in read_webhook()["matchConditions"]
    )
