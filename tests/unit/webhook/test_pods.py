# ruff: noqa: E501  (a table reads best with a row on a line)
"""A template and its Pods have equal variables; a Pod gets all of them, or none and a warning."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.admission import refusal
from tests.unit.webhook.workloads import (
    Answered,
    Manifest,
    container,
    job,
    jobset_labels,
    pod_of,
    selector,
    stateful_set,
)

COMPONENT = Path(__file__).parents[3] / "infra" / "chart" / "manifests" / "inject-env"
(INJECTED,) = (
    one
    for one in yaml.safe_load_all((COMPONENT / "policy.yaml").read_text())
    if one["kind"] == "ValidatingAdmissionPolicy"
    and one["metadata"]["name"] == "tpu-functions-injected"
)
FOUR_HOSTS = {"nodeSelector": selector("tpu-v6e-slice", "4x4")}
ONE_HOST = {"nodeSelector": selector("tpu7x", "2x2x1")}
WITHOUT_SERVICE = (
    "StatefulSet web has no spec.serviceName, so its Pods have no stable names; "
    "name a headless Service"
)
PARTIAL_PARALLELISM = (
    "Job tpu-job: parallelism 4 differs from completions 8: the workers of one slice would not run "
    "together; set both to the number of hosts"
)
TWO_SLICES = (
    "topology 4x4 needs 4 Pods, and there are 8; set their number to 4, and create a workload for each "
    "of 2 slices"
)
WITHOUT_DNS = "Job ms-slice-0: the JobSet's Pods have no DNS names; set network.enableDNSHostnames"


def of_jobset(**more: Any) -> Manifest:
    return job(name="ms-slice-0", subdomain="", labels=jobset_labels(2, 0), **more)


def is_rejected(pod: Manifest) -> bool:
    """Return True if the policy rejects a Pod whose template the webhook has marked."""
    namespace = {"metadata": {"labels": {"tpu-functions.dev/inject": "enabled"}}}
    return "has no TPU_WORKER_ID" in refusal(INJECTED, "CREATE", pod, namespace=namespace)


CONTRADICTORY: list[tuple[str, Manifest, int, str]] = [
    ("no service", stateful_set(service="", replicas=4, pod=FOUR_HOSTS), 0, WITHOUT_SERVICE),
    ("no DNS names", of_jobset(pod=FOUR_HOSTS), 0, WITHOUT_DNS),
    ("partial parallelism, a later Pod", job(count=8, parallelism=4, pod=FOUR_HOSTS), 5, PARTIAL_PARALLELISM),
    (
        "no subdomain",
        job(subdomain="", pod=FOUR_HOSTS),
        1,
        "topology 4x4 needs 4 Pods with names, and Job tpu-job has no subdomain; set "
        "spec.template.spec.subdomain to a headless Service",
    ),
    (
        "names too long",
        stateful_set(name="n" * 60, service="s" * 20, replicas=1728),
        7,
        "a list of all workers is longer than 131000 bytes; choose shorter names",
    ),
    ("too many", stateful_set(replicas=9217), 9000, "StatefulSet web has 9217 replicas, but a slice has at most 9216"),
    ("no service, no topology", stateful_set(service=""), 0, WITHOUT_SERVICE),
    ("partial parallelism, no topology", job(count=8, parallelism=4), 0, PARTIAL_PARALLELISM),
]  # fmt: skip


@pytest.mark.parametrize(
    "workload, number, reason",
    [row[1:] for row in CONTRADICTORY],
    ids=[row[0] for row in CONTRADICTORY],
)
def test_the_pod_of_a_contradictory_template_is_not_injected_and_has_the_same_warning(
    workload: Manifest, number: int, reason: str
) -> None:
    template = Answered(workload)
    assert (template.env(), template.warnings) == ({}, [reason])
    made = pod_of(template.target, number)
    answered = Answered(made)
    assert (answered.patch, answered.warnings) == ([], [reason])
    assert Answered(made, is_strict=True).response["status"]["message"] == reason
    assert is_rejected(answered.target) is ("nodeSelector" in made["spec"])


WITHOUT_TEMPLATE: list[tuple[str, Manifest, int, str]] = [
    (
        "no service",
        stateful_set(service="", replicas=4, pod=FOUR_HOSTS),
        0,
        f"topology 4x4 needs 4 Pods with names, and {WITHOUT_SERVICE}",
    ),
    (
        "no DNS names",
        of_jobset(pod=FOUR_HOSTS),
        0,
        "topology 4x4 needs 4 Pods with names, and the JobSet's Pods have no DNS names; set "
        "network.enableDNSHostnames",
    ),
    (
        "one too many",
        stateful_set(replicas=8, pod=FOUR_HOSTS),
        6,
        "topology 4x4 needs 4 Pods, and this one has number 6 and no TPU_WORKER_HOSTNAMES; create a "
        "workload for each slice, or create it again if its ordinals do not start at 0",
    ),
    (
        "no topology",
        stateful_set(pod={"nodeSelector": selector("tpu7x", "2x2x")}),
        0,
        "the node selector cloud.google.com/gke-tpu-topology=2x2x is not a topology, as in 2x2x2",
    ),
]


@pytest.mark.parametrize(
    "workload, number, reason",
    [row[1:] for row in WITHOUT_TEMPLATE],
    ids=[row[0] for row in WITHOUT_TEMPLATE],
)
def test_a_contradictory_pod_whose_template_was_not_reviewed_gets_a_warning(
    workload: Manifest, number: int, reason: str
) -> None:
    made = pod_of(workload, number)
    answered = Answered(made)
    assert (answered.patch, answered.warnings) == ([], [reason])
    assert Answered(made, is_strict=True).response["status"]["message"] == reason
    assert is_rejected(answered.target)


def test_a_pod_without_names_and_topology_is_not_changed_like_its_template() -> None:
    target = job(subdomain="")
    notice = (
        "no TPU variables are injected: select a topology (gke-tpu-topology), or give the workers "
        "names: Job tpu-job has no subdomain; set spec.template.spec.subdomain to a headless Service"
    )
    assert Answered(target).warnings == [notice]
    answered = Answered(pod_of(target, 1))
    assert (answered.patch, answered.warnings) == ([], [notice])


def test_a_pod_with_its_own_list_of_hosts_gets_a_worker_id() -> None:
    own_list = {"name": "TPU_WORKER_HOSTNAMES", "value": "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4"}
    default = {"name": "TPU_WORKER_HOSTNAMES", "value": "localhost"}
    one, other = container("a", env=[own_list]), container("b", env=[default])
    four_hosts = {**FOUR_HOSTS, "initContainers": [other]}
    made = pod_of(stateful_set(one, service="", replicas=4, pod=four_hosts), 3)
    answered = Answered(made)
    assert answered.env("a")["TPU_WORKER_ID"] == "3"
    assert answered.entries("b") == [default]
    assert answered.warnings == [f"topology 4x4 needs 4 Pods with names, and {WITHOUT_SERVICE}"]
    del made["spec"]["initContainers"][0]["resources"]
    assert Answered(made).warnings == []


@pytest.mark.parametrize(
    "workload",
    [
        stateful_set(service="", replicas=4, pod=ONE_HOST),
        stateful_set(replicas=9217, pod=ONE_HOST),
        job(count=8, parallelism=4, pod=ONE_HOST),
        job(subdomain="", pod=ONE_HOST),
        of_jobset(pod=ONE_HOST),
    ],
)
def test_a_contradiction_does_not_matter_if_each_pod_is_a_slice(workload: Manifest) -> None:
    template = Answered(workload, is_strict=True)
    assert template.warnings == []
    for answered in (template, Answered(pod_of(template.target, 3)), Answered(pod_of(workload, 3))):
        variables = answered.env()
        assert (variables["TPU_WORKER_ID"], variables["TPU_WORKER_HOSTNAMES"]) == ("0", "localhost")
        assert answered.warnings == []


def test_a_template_is_injected_when_its_contradiction_is_removed() -> None:
    stored = Answered(stateful_set(replicas=9217, pod=FOUR_HOSTS)).target
    assert Answered(stored, operation="UPDATE").patch == []
    stored["spec"]["replicas"] = 4
    again = Answered(stored, operation="UPDATE")
    fresh = Answered(stateful_set(replicas=4, pod=FOUR_HOSTS))
    assert again.target["spec"]["template"] == fresh.target["spec"]["template"]


# The number of Pods


def hosts_of(name: str, service: str, *numbers: int) -> str:
    return ",".join(f"{name}-{number}.{service}" for number in numbers)


def needs(there_are: str) -> list[str]:
    return [f"topology 4x4 needs 4 Pods, and {there_are}; set their number to 4"]


SCALED: list[tuple[str, Manifest, list[int], str, list[str]]] = [
    ("1 replica", stateful_set(replicas=1, pod=FOUR_HOSTS), [0, 1, 2, 3],
     hosts_of("web", "nginx", 0, 1, 2, 3), needs("there is 1")),
    ("3 replicas", stateful_set(replicas=3, pod=FOUR_HOSTS), [0, 1, 2, 3],
     hosts_of("web", "nginx", 0, 1, 2, 3), needs("there are 3")),
    ("from 5 on", stateful_set(replicas=2, start=5, pod=FOUR_HOSTS), [5, 6, 7, 8],
     hosts_of("web", "nginx", 5, 6, 7, 8), needs("there are 2")),
    ("from none", stateful_set(replicas=0, pod=FOUR_HOSTS), [0, 1, 2, 3],
     hosts_of("web", "nginx", 0, 1, 2, 3), []),
    ("a Job of 1", job(count=1, pod=FOUR_HOSTS), [0, 1, 2, 3],
     hosts_of("tpu-job", "headless-svc", 0, 1, 2, 3), needs("there is 1")),
    ("a Job of 2", job(count=2, pod=FOUR_HOSTS), [0, 1, 2, 3],
     hosts_of("tpu-job", "headless-svc", 0, 1, 2, 3), needs("there are 2")),
    ("a JobSet's Job of 2",
     job(name="ms-slice-0", count=2, subdomain="ms", labels=jobset_labels(1, 0), pod=FOUR_HOSTS),
     [0, 1, 2, 3],
     hosts_of("ms-slice-0", "ms", 0, 1, 2, 3), needs("there are 2")),
]  # fmt: skip


@pytest.mark.parametrize(
    "workload, numbers, hosts, warnings",
    [row[1:] for row in SCALED],
    ids=[row[0] for row in SCALED],
)
def test_all_pods_have_the_same_hosts_with_any_number_of_replicas(
    workload: Manifest, numbers: list[int], hosts: str, warnings: list[str]
) -> None:
    template = Answered(workload)
    assert template.warnings == warnings
    if template.env():
        assert template.env()["TPU_WORKER_HOSTNAMES"] == hosts
    for position, number in enumerate(numbers):
        variables = Answered(pod_of(template.target, number)).env()
        assert variables["TPU_WORKER_HOSTNAMES"] == hosts
        assert variables["JAX_PROCESS_COUNT"] == str(len(numbers))
        assert variables["TPU_WORKER_ID"] == variables["JAX_PROCESS_ID"] == str(position)


BEYOND: list[tuple[str, Manifest, str]] = [
    ("6 replicas", stateful_set(replicas=6, pod=FOUR_HOSTS), needs("there are 6")[0]),
    ("two slices", stateful_set(replicas=8, pod=FOUR_HOSTS), TWO_SLICES),
    ("two slices of a Job", job(count=8, pod=FOUR_HOSTS), TWO_SLICES),
]


@pytest.mark.parametrize(
    "workload, warning", [row[1:] for row in BEYOND], ids=[row[0] for row in BEYOND]
)
def test_only_pods_of_the_slice_are_injected_if_there_are_more_pods_than_hosts(
    workload: Manifest, warning: str
) -> None:
    """A Pod of the slice may be one of fewer by now."""
    template = Answered(workload)
    for answered in (template, *(Answered(pod_of(template.target, one)) for one in (4, 5))):
        assert (answered.warnings, answered.env()) == ([warning], {})
    own = Answered(pod_of(template.target, 3))
    assert (own.warnings, own.env()["TPU_WORKER_ID"], own.env()["JAX_PROCESS_COUNT"]) == (
        [],
        "3",
        "4",
    )


OUTDATED: list[tuple[str, Manifest, Manifest]] = [
    ("kubectl scale", stateful_set(replicas=8, pod=FOUR_HOSTS), stateful_set(replicas=4, pod=FOUR_HOSTS)),
    ("parallelism", job(parallelism=2, pod=FOUR_HOSTS), job(pod=FOUR_HOSTS)),
    ("completions", job(count=8, pod=FOUR_HOSTS), job(pod=FOUR_HOSTS)),
]  # fmt: skip


@pytest.mark.parametrize(
    "former, now", [row[1:] for row in OUTDATED], ids=[row[0] for row in OUTDATED]
)
def test_pods_do_not_believe_a_reason_of_the_template_that_no_webhook_has_corrected(
    former: Manifest, now: Manifest
) -> None:
    """Neither a scaling nor an update of a Job is reviewed."""
    template = Answered(former)
    assert template.warnings
    fresh = Answered(now).target
    for number in range(4):
        answered = Answered(pod_of(template.target, number), is_strict=True)
        assert (answered.warnings, is_rejected(answered.target)) == ([], False)
        assert answered.env() == Answered(pod_of(fresh, number)).env()


def test_a_pod_that_was_created_with_the_reason_of_its_template_stays_as_it_was() -> None:
    """It has its own number, so that nothing rejects it."""
    field = {"fieldRef": {"fieldPath": "metadata.labels['n']"}}
    one = container(env=[{"name": "TPU_WORKER_ID", "valueFrom": field}])
    template = Answered(stateful_set(one, replicas=8, pod=FOUR_HOSTS))
    answered = Answered(pod_of(template.target, 1))
    assert (answered.patch, answered.warnings) == ([], [TWO_SLICES])
    assert not is_rejected(answered.target)


@pytest.mark.parametrize("pod", [FOUR_HOSTS, {}], ids=["topology", "none"])
def test_a_pod_that_is_not_in_the_list_of_hosts_is_a_warning(pod: Any) -> None:
    template = Answered(stateful_set(replicas=4, pod=pod))
    made = pod_of(template.target, 6)
    assert Answered(made).warnings == [
        "web-6.nginx is not among the 4 in TPU_WORKER_HOSTNAMES; apply the manifest with the number of "
        "Pods that there are, or create a workload for each slice"
    ]
    assert not Answered(made, is_strict=True).response["allowed"]


GENERATED: list[tuple[Manifest, str]] = [
    (stateful_set(name="", replicas=4), "StatefulSet"),
    (job(name="", count=4, subdomain="nginx"), "Job"),
]


@pytest.mark.parametrize("workload, kind", GENERATED, ids=[kind for _, kind in GENERATED])
def test_pods_of_a_workload_with_a_generated_name_are_injected_only_with_a_topology(
    workload: Manifest, kind: str
) -> None:
    target = deepcopy(workload)
    target["metadata"] |= {"name": "", "generateName": "train-"}
    reason = [f"{kind} train-* has no name yet: give it metadata.name"]
    for nodes, warnings in ((FOUR_HOSTS, []), ({"nodeSelector": {}}, reason)):
        target["spec"]["template"]["spec"] |= nodes
        template = Answered(target)
        assert (template.env(), template.warnings) == ({}, warnings)
        template.target["metadata"]["name"] = "train-x"
        answered = Answered(pod_of(template.target, 2))
        assert answered.warnings == warnings
        hosts = answered.env().get("TPU_WORKER_HOSTNAMES", "")
        assert hosts == ("" if warnings else hosts_of("train-x", "nginx", 0, 1, 2, 3))


def of_slice(**more: Any) -> Manifest:
    return job(name="ms-slice-1", count=2, subdomain="ms", labels=jobset_labels(2, 1), **more)


LATE: list[tuple[str, Callable[..., Manifest], Manifest]] = [
    ("a Job of one host", partial(job, count=2), selector("tpu-v6e-slice", "2x2")),
    ("a JobSet of one host", of_slice, selector("tpu-v6e-slice", "2x2")),
    ("a JobSet of two", of_slice, selector("tpu7x", "2x2x2")),
    ("a StatefulSet of one host", partial(stateful_set, replicas=2), selector("tpu7x", "2x2x1")),
    ("a StatefulSet of two", partial(stateful_set, replicas=2), selector("tpu-v6e-slice", "2x4")),
]


@pytest.mark.parametrize("make, nodes", [row[1:] for row in LATE], ids=[row[0] for row in LATE])
def test_a_topology_that_is_selected_after_the_review_of_the_template_gives_the_same_variables(
    make: Callable[..., Manifest], nodes: Manifest
) -> None:
    """A queue selects it when it admits a Job, and an admission plugin in each Pod."""
    late, early = Answered(make()).target, Answered(make(pod={"nodeSelector": nodes})).target
    late["spec"]["template"]["spec"]["nodeSelector"] = nodes
    for number in (0, 1):
        answered = Answered(pod_of(late, number))
        assert answered.warnings == []
        assert answered.env() == Answered(pod_of(early, number)).env()


def test_a_pod_without_a_topology_keeps_the_variables_of_its_template() -> None:
    made = pod_of(Answered(of_slice()).target, 1)
    del made["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]
    assert Answered(made).env()["MEGASCALE_SLICE_ID"] == "1"


def test_a_pod_that_is_not_in_the_list_of_its_slice_keeps_the_variables_of_its_template() -> None:
    template = Answered(stateful_set(replicas=4, pod=FOUR_HOSTS))
    assert Answered(pod_of(template.target, 6)).patch == []


@pytest.mark.parametrize("former", [{}, FOUR_HOSTS], ids=["none", "a former topology"])
def test_pods_get_all_or_nothing_if_their_template_was_reviewed_without_pods(former: Any) -> None:
    """``kubectl scale`` calls no webhook, and a number without a list would wait for ever."""
    stored = Answered(stateful_set(replicas=4, pod=former)).target if former else {}
    target = stateful_set(replicas=0)
    if former:
        target["spec"]["template"] = deepcopy(stored["spec"]["template"])
        target["spec"]["template"]["spec"]["nodeSelector"] = {}
    template = Answered(target, operation="UPDATE", oldObject=stored or None)
    assert template.env() == {}
    answered = Answered(pod_of(template.target, 1), is_strict=True)
    assert (answered.env(), answered.warnings) == (
        {},
        [
            "no TPU variables are injected: select a topology (gke-tpu-topology), or apply the manifest "
            "with the number of Pods, which was 0"
        ],
    )
    template.target["spec"]["replicas"] = 2
    again = Answered(template.target, operation="UPDATE", oldObject=template.target)
    assert again.env() == Answered(stateful_set(replicas=2)).env()


@pytest.mark.parametrize("topology", ["2x2", "2x4"])
def test_a_second_call_for_a_pod_knows_what_the_first_has_injected(topology: str) -> None:
    """The API server calls again when another webhook, such as one that selects Nodes, changes a Pod."""
    made = pod_of(stateful_set(replicas=2), 1)
    once = Answered(made)
    assert once.env() == {"TPU_NAME": "web", "TPU_WORKER_ID": "1"}
    for one in (made, once.target):
        one["spec"]["nodeSelector"] = selector("tpu-v6e-slice", topology)
    again = Answered(once.target, is_strict=True)
    assert again.warnings == []
    assert again.env() == Answered(made).env()
    assert Answered(again.target).patch == []
