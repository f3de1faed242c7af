"""The policies and the match conditions of the webhooks count the chips of a Pod as the webhook does."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.base.pods import count_chips
from tests.support.admission import evaluate, refusal
from tests.unit.webhook.lws import mutate
from tests.unit.webhook.workloads import (
    Answered,
    Manifest,
    container,
    deployment,
    group_pod,
    job,
    jobset_labels,
    pod,
    pod_of,
    selector,
    stateful_set,
)

COMPONENTS = Path(__file__).parents[3] / "infra" / "chart" / "manifests"
POLICIES: dict[str, Manifest] = {
    one["metadata"]["name"]: one
    for one in yaml.safe_load_all((COMPONENTS / "inject-env" / "policy.yaml").read_text())
    if one["kind"] == "ValidatingAdmissionPolicy"
}
INJECTED, MARKED = POLICIES["tpu-functions-injected"], POLICIES["tpu-functions-marked"]
WEBHOOKS: list[Manifest] = [
    webhook
    for component in ("inject-env", "admit-jobs")
    for webhook in yaml.safe_load((COMPONENTS / component / "webhook.yaml").read_text())["webhooks"]
]
MARK = {"tpu-functions.dev/inject": "enabled"}
TWO_HOSTS: dict[str, Any] = {"nodeSelector": selector("tpu7x", "2x2x2")}


def with_resources(resources: Manifest) -> Manifest:
    return {"name": "side", "image": "train", "resources": resources}


QUANTITIES: list[Manifest] = [
    {},
    {"limits": {"google.com/tpu": "0"}},
    {"limits": {"google.com/tpu": 0}},
    {"limits": {"google.com/tpu": "4"}},
    {"limits": {"google.com/tpu": 4}},
    {"requests": {"google.com/tpu": "0"}},
    {"requests": {"google.com/tpu": "4"}},
    {"limits": {"google.com/tpu": "0"}, "requests": {"google.com/tpu": "0"}},
    {"limits": {"cpu": "1"}, "requests": {"google.com/tpu": "4"}},
]


@pytest.mark.parametrize("resources", QUANTITIES, ids=str)
@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_a_pod_is_rejected_only_for_a_container_that_the_webhook_injects(
    part: str, resources: Manifest
) -> None:
    spec: Any = {**TWO_HOSTS, "initContainers": []}
    made = pod_of(stateful_set(container(tpu=None), replicas=2, pod=spec), 0)
    made["spec"][part].append(with_resources(resources))
    made["metadata"]["labels"] |= MARK
    is_rejected = bool(refusal(INJECTED, "CREATE", made, namespace={"metadata": {}}))
    assert is_rejected is bool(count_chips(with_resources(resources)))
    injected = Answered(made).target
    assert refusal(INJECTED, "CREATE", injected, namespace={"metadata": {}}) == ""


@pytest.mark.parametrize("resources", QUANTITIES, ids=str)
def test_a_workload_is_reviewed_and_rejected_without_a_review_only_if_a_container_requests_chips(
    resources: Manifest,
) -> None:
    made = job(with_resources(resources), labels={**MARK, **jobset_labels(1, 0)}, pod=TWO_HOSTS)
    requests_chips = bool(count_chips(with_resources(resources)))
    assert bool(refusal(MARKED, "CREATE", made, namespace={"metadata": {}})) is requests_chips
    for webhook in WEBHOOKS:
        (condition,) = (one for one in webhook["matchConditions"] if one["name"] == "wants-tpus")
        assert evaluate(condition["expression"], {"object": made}) is requests_chips


def test_a_side_container_with_no_chips_does_not_block_its_pods() -> None:
    both = container(), container("side", tpu=0)
    template = Answered(stateful_set(*both, replicas=2, pod=TWO_HOSTS, labels=MARK)).target
    made = Answered(pod_of(template, 1)).target
    assert refusal(INJECTED, "CREATE", made, namespace={"metadata": {}}) == ""


def test_pods_of_a_leader_worker_set_are_not_rejected() -> None:
    both = container("a", 2), container("b", 2)
    made = group_pod(*both, name="test-0", index=0, subgroup=2, **TWO_HOSTS)
    made["metadata"]["labels"] |= MARK
    for one in (made, mutate(made)):
        assert refusal(INJECTED, "CREATE", one, namespace={"metadata": {}}) == ""


LISTED = [{"name": "TPU_WORKER_HOSTNAMES", "value": "a.s,b.s"}]
ALONE = [{"name": "TPU_WORKER_HOSTNAMES", "value": "localhost"}]


@pytest.mark.parametrize(
    "version, entries, index, is_rejected",
    [
        ("batch.volcano.sh/v1alpha1", [], "", False),
        ("batch/v1", [], "", True),
        ("batch/v1", LISTED, "", False),
        ("batch/v1", ALONE, "", True),
        ("batch/v1", LISTED, "1", True),  # the webhook would give it a number
    ],
)
def test_pods_of_a_job_that_numbers_them_itself_are_not_rejected(
    version: str, entries: list[Manifest], index: str, is_rejected: bool
) -> None:
    made = pod(
        container(env=entries),
        owners=[{"apiVersion": version, "kind": "Job", "name": "t", "controller": True}],
        labels={"batch.kubernetes.io/job-completion-index": index} if index else {},
        **TWO_HOSTS,
    )
    denied = refusal(INJECTED, "CREATE", made, namespace={"metadata": {"labels": MARK}})
    assert bool(denied) is is_rejected


@pytest.mark.parametrize(
    "mark, namespace, is_rejected",
    [
        ("enabled", {}, True),
        ("disabled", {}, False),
        ("disabled", MARK, True),  # its Pods would be injected later
    ],
)
def test_a_marked_deployment_is_rejected_without_a_review_of_the_webhook(
    mark: str, namespace: Manifest, is_rejected: bool
) -> None:
    made = deployment(pod={"nodeSelector": selector("tpu7x", "2x2x1")})
    made["metadata"]["labels"] = {"tpu-functions.dev/inject": mark}
    within = {"metadata": {"labels": namespace}}
    assert ("was unavailable" in refusal(MARKED, "CREATE", made, namespace=within)) is is_rejected
    assert refusal(MARKED, "CREATE", Answered(made).target, namespace=within) == ""
    made["metadata"]["labels"] = {"gke-tpu-env-injector.aaronbatilo.dev/inject": mark}
    assert bool(refusal(MARKED, "CREATE", made, namespace=within)) is (mark == "enabled")


@pytest.mark.parametrize(
    "path, value, is_rejected",
    [
        (("metadata", "finalizers"), ["example.com/f"], False),
        (("metadata", "labels", "app"), "train", False),
        (("spec", "template", "spec", "hostNetwork"), True, True),
        (("metadata", "labels", "tpu-functions.dev/inject"), "enabled", True),
        (("metadata", "annotations"), {"tpu-functions.dev/inject": "enabled"}, True),
    ],
)
def test_an_update_that_changes_no_pods_is_not_rejected(
    path: tuple[str, ...], value: Any, is_rejected: bool
) -> None:
    stored = stateful_set(labels={"tpu-functions.dev/inject": "disabled"})
    changed = deepcopy(stored)
    part = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    denied = refusal(
        MARKED, "UPDATE", changed, old=stored, namespace={"metadata": {"labels": MARK}}
    )
    assert bool(denied) is is_rejected


@pytest.mark.parametrize("mark, is_reviewed", [("enabled", True), ("disabled", True), ("", False)])
@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_a_workload_is_reviewed_by_its_mark_also_to_remove_what_was_injected(
    mark: str, is_reviewed: bool, kind: str
) -> None:
    [condition] = [one for one in WEBHOOKS[0]["matchConditions"] if one["name"] == "is-marked"]
    made = stateful_set()
    made["metadata"][kind] = {"tpu-functions.dev/inject": mark}
    expression, injected = condition["expression"], Answered(made).target
    assert evaluate(expression, {"object": made, "oldObject": None}) is is_reviewed
    has_variables = mark != "disabled"
    unmarked = {"object": stateful_set(), "oldObject": injected}
    assert evaluate(expression, unmarked) is has_variables
    # gke-tpu-env-injector knows no value but enabled.
    made["metadata"][kind] = {"gke-tpu-env-injector.aaronbatilo.dev/inject": mark}
    assert evaluate(expression, {"object": made, "oldObject": None}) is (mark == "enabled")


@pytest.mark.parametrize(
    "resource, policy, operations",
    [
        ("statefulsets", {"CREATE", "UPDATE"}, {"CREATE", "UPDATE"}),
        # The controller of Deployments updates them: this must not be blocked.
        ("deployments", {"CREATE"}, {"CREATE", "UPDATE"}),
        ("jobs", {"CREATE"}, {"CREATE"}),
    ],
)
def test_the_webhook_reviews_every_operation_of_the_policy(
    resource: str, policy: set[str], operations: set[str]
) -> None:
    rules = MARKED["spec"]["matchConstraints"]["resourceRules"]
    assert operations_of(resource, rules) == policy
    for webhook in WEBHOOKS[:2]:
        assert operations_of(resource, webhook["rules"]) == operations


def operations_of(resource: str, rules: list[Manifest]) -> set[str]:
    return {name for rule in rules if resource in rule["resources"] for name in rule["operations"]}
