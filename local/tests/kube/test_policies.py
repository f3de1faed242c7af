# ruff: noqa: E501  (a table reads best with a row on a line)
"""The writes that a ValidatingAdmissionPolicy denies, and the answers."""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.contract.kubernetes.embedded import Embedded

GROUP = "/apis/admissionregistration.k8s.io/v1"
NODES = "/api/v1/nodes"
STATUS = f"{NODES}/worker-1/status"
MERGE = "application/merge-patch+json"
RULE = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["nodes"],
    "operations": ["CREATE", "UPDATE"],
}


def bind(server: Embedded, binding: dict[str, Any] | None = None, **spec: Any) -> None:
    """Apply a policy, by default one that denies every Node without the label ``team``."""
    policy = {
        "matchConstraints": {"resourceRules": [RULE]},
        "variables": [{"name": "labels", "expression": "object.metadata.?labels.orValue({})"}],
        "validations": [{"expression": "'team' in variables.labels", "message": "no team"}],
        **spec,
    }
    made = {"metadata": {"name": "teams"}, "spec": policy}
    server.ask("POST", f"{GROUP}/validatingadmissionpolicies", made)
    bound = {"policyName": "teams", "validationActions": ["Deny"], **(binding or {})}
    made = {"metadata": {"name": "all-teams"}, "spec": bound}
    server.ask("POST", f"{GROUP}/validatingadmissionpolicybindings", made)


def make_node(server: Embedded, **labels: str) -> dict[str, Any]:
    body = {"metadata": {"name": "worker-1", "labels": labels}}
    answer: dict[str, Any] = server.send("POST", NODES, body).document
    return answer


DENIED = "ValidatingAdmissionPolicy 'teams' with binding 'all-teams' denied request: "


@pytest.mark.parametrize(
    "validation, code, reason, why",
    [
        pytest.param({"message": "no team"}, 422, "Invalid", "no team", id="by-default"),
        pytest.param({"message": "no", "reason": "Forbidden"}, 403, "Forbidden", "no", id="forbidden"),
        pytest.param(
            {"messageExpression": "object.metadata.name + ' has no team'", "message": "no"},
            422,
            "Invalid",
            "worker-1 has no team",
            id="with-its-own-message",
        ),
        pytest.param({}, 422, "Invalid", "failed expression: 'team' in variables.labels", id="without-a-message"),
    ],
)  # fmt: skip
def test_a_denied_write_has_the_policys_message(
    validation: dict[str, Any], code: int, reason: str, why: str
) -> None:
    server = Embedded()
    bind(server, validations=[{"expression": "'team' in variables.labels", **validation}])
    answer = make_node(server)
    assert (answer["code"], answer["reason"]) == (code, reason)
    assert answer["message"] == f'nodes "worker-1" is forbidden: {DENIED}{why}'
    assert answer["details"]["causes"] == [{"message": f"{DENIED}{why}"}]
    assert make_node(server, team="a")["kind"] == "Node"


@pytest.mark.parametrize(
    "spec, binding",
    [
        pytest.param({"matchConditions": [{"name": "x", "expression": "object.metadata.name != 'worker-1'"}]}, {}, id="about-others"),
        pytest.param({"matchConstraints": {"resourceRules": [{**RULE, "operations": ["DELETE"]}]}}, {}, id="about-deletions"),
        pytest.param({"matchConstraints": {"resourceRules": [{**RULE, "resources": ["nodes/status"]}]}}, {}, id="about-a-subresource"),
        pytest.param({"matchConstraints": {"resourceRules": [{**RULE, "resourceNames": ["worker-2"]}]}}, {}, id="about-another-name"),
        pytest.param({"matchConstraints": {"resourceRules": [{**RULE, "scope": "Namespaced"}]}}, {}, id="about-namespaced-objects"),
        pytest.param({}, {"validationActions": ["Audit"]}, id="bound-to-audit"),
        pytest.param({}, {"policyName": "another"}, id="not-bound"),
        pytest.param({"validations": [{"expression": "variables.none"}], "failurePolicy": "Ignore"}, {}, id="that-fails-and-is-ignored"),
        pytest.param({"validations": [{"expression": "authorizer.group('').check('x').allowed()"}]}, {}, id="that-needs-unsupported-functions"),
        pytest.param({}, {"paramRef": {"name": "x"}}, id="with-parameters"),
    ],
)  # fmt: skip
def test_a_policy_denies_nothing(spec: dict[str, Any], binding: dict[str, Any]) -> None:
    server = Embedded()
    bind(server, binding, **spec)
    assert make_node(server)["kind"] == "Node"


@pytest.mark.parametrize("labels, warned", [({}, True), ({"team": "a"}, False)])
def test_a_policy_that_is_bound_to_warn_adds_a_warning(
    labels: dict[str, str], warned: bool
) -> None:
    server = Embedded()
    bind(server, {"validationActions": ["Warn"]})
    answer = server.send("POST", NODES, {"metadata": {"name": "worker-1", "labels": labels}})
    warning = "299 - \"Validation failed for ValidatingAdmissionPolicy 'teams' with binding 'all-teams': no team\""
    assert (answer.status, answer.headers.get("warning", "")) == (201, warning if warned else "")


def test_a_policy_that_fails_denies() -> None:
    server = Embedded()
    bind(server, validations=[{"expression": "object.spec.absent == 'x'"}])
    assert "expression resulted in error: " in make_node(server)["message"]


def test_a_changed_policy_denies_with_its_new_message() -> None:
    server = Embedded()
    bind(server)
    assert make_node(server)["code"] == 422
    change = {"spec": {"validations": [{"expression": "true"}]}}
    path = f"{GROUP}/validatingadmissionpolicies/teams"
    server.ask("PATCH", path, change, content_type=MERGE)
    assert make_node(server)["kind"] == "Node"


def test_a_policy_about_a_subresource_denies_its_writes() -> None:
    server = Embedded()
    rules = [{**RULE, "resources": ["nodes/status"]}]
    bind(server, matchConstraints={"resourceRules": rules})
    make_node(server)
    body = {"status": {"capacity": {"cpu": "1"}}}
    assert server.send("PATCH", STATUS, body, content_type=MERGE).status == 422
