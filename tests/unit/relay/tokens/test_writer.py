# ruff: noqa: E501  (a table reads best with a row on a line)
"""The token-writer against the embedded API server and Secret Manager, on a virtual clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.auth import identity_pool

from local.base.http import Request, Response
from local.base.ports import LOOPBACK, find_free_ports
from local.kube import CertificateAuthority
from relay.tokens.writer import SecretManager, Written, is_due, list_retired
from shared.ports.google_credentials import GoogleCredentials
from shared.triggers.routes import ROUTES
from tests.support.admission import evaluate
from tests.support.loopback import Loopback, open_loopback
from tests.unit.relay.tokens.cluster import (
    DENIED,
    HOUR,
    MANIFESTS,
    MINUTE,
    NOW,
    PLACEHOLDER,
    POLICY,
    STEPS,
    Function,
    World,
    open_world,
)


@dataclass
class Application:
    """A server with one answer."""

    handle: Callable[[Request], Response]


@pytest.fixture(scope="module")
def parts() -> Iterator[tuple[Loopback, CertificateAuthority]]:
    with open_loopback() as loopback:
        yield loopback, CertificateAuthority.create(datetime.now(UTC))


@pytest.fixture
def world(parts: tuple[Loopback, CertificateAuthority], tmp_path: Path) -> World:
    """Return a new cluster with its token-writer."""
    return open_world(parts[0], tmp_path, parts[1])


WRITTEN = Written(5, NOW, NOW + 12 * HOUR)
SHORT = Written(5, NOW, NOW + 2 * HOUR)
DUE: dict[str, tuple[int, Written, timedelta, bool]] = {
    "its own is the newest": (5, WRITTEN, 59 * MINUTE, False),
    "an hour later": (5, WRITTEN, HOUR, True),
    "a quarter of a short life later": (5, SHORT, 30 * MINUTE, True),
    "before that": (5, SHORT, 29 * MINUTE, False),
    "another version is the newest": (6, WRITTEN, MINUTE, True),
    "the newest version cannot be read": (0, WRITTEN, MINUTE, True),
}


@pytest.mark.parametrize("case", DUE)
def test_a_token_is_due_after_an_hour_or_if_functions_read_another(case: str) -> None:
    latest, written, age, due = DUE[case]
    assert is_due(latest, written, NOW + age) is due


@pytest.mark.parametrize(
    "enabled, retired",
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 3, 4], [2]),
        ([9, 1, 5, 7, 8], [5, 7]),
        ([2, 3], []),
    ],
)
def test_all_but_the_two_newest_versions_and_the_placeholder_are_retired(
    enabled: list[int], retired: list[int]
) -> None:
    assert list_retired(enabled) == retired


def test_each_step_gets_a_token_with_which_its_function_works(world: World) -> None:
    functions = [Function(world, step) for step in STEPS]
    assert [one.call() for one in functions] == ["no token", "no token"]
    assert world.run_round() == dict.fromkeys(STEPS, "stored")
    assert [one.call() for one in functions] == ["ok", "ok"]
    assert world.run_round() == {}
    payloads = {versions[-1].payload for versions in world.secrets.secrets.values()}
    assert len(payloads) == 2, "each step has its own"
    assert b"." in payloads.pop()


def test_tokens_are_renewed_each_hour_and_old_ones_are_destroyed(world: World) -> None:
    function = Function(world)
    world.run_round()
    for _ in range(8):
        world.run_for(HOUR)
        assert function.call() == "ok"
    assert world.states() == {
        1: "ENABLED",
        **dict.fromkeys(range(2, 9), "DESTROYED"),
        9: "ENABLED",
        10: "ENABLED",
    }
    adds = [call for call in world.secrets.calls if call == ("versions.add", "tokens-sweep")]
    assert len(adds) == 9


def test_functions_work_for_eleven_hours_without_the_token_writer_and_heal_with_its_first_round(
    world: World,
) -> None:
    function, ends = Function(world), list[float]()
    world.run_round()
    world.run_for(HOUR)
    for minutes in range(0, 13 * 60, 10):
        if function.call() != "ok":
            ends.append(minutes / 60)
        world.wait(10 * MINUTE)
    assert ends[0] == pytest.approx(12, abs=0.3)
    assert len(ends) >= 4, "until it is renewed"
    world.restart()
    assert world.run_round() == dict.fromkeys(STEPS, "stored")
    assert function.call() == "ok"


HEALED = (
    "a foreign version",
    "a destroyed version",
    "a disabled version",
    "a disabled foreign version",
)


@pytest.mark.parametrize("case", HEALED)
def test_a_version_that_functions_cannot_use_is_replaced_by_the_next_round(
    world: World, case: str
) -> None:
    world.run_round()
    newest = world.secrets.secrets["tokens-sweep"][-1]
    if "foreign" in case:
        newest = world.secrets.add("tokens-sweep", PLACEHOLDER)
    if "destroyed" in case or "disabled" in case:
        newest.state = "DESTROYED" if "destroyed" in case else "DISABLED"
    assert Function(world).call() == "no token"
    world.wait(5 * MINUTE)
    assert world.run_round() == {"sweep": "stored"}
    assert Function(world).call() == "ok"


def test_a_recreated_service_account_gets_a_token_in_the_next_round(world: World) -> None:
    function = Function(world)
    world.run_round()
    assert function.call() == "ok"
    path = "/api/v1/namespaces/tpu-functions/serviceaccounts"
    world.ask("DELETE", f"{path}/sweep")
    assert function.call() == "401", "tokens are revoked with their account"
    world.ask("POST", path, {"metadata": {"name": "sweep"}})
    world.run_for(5 * MINUTE)
    assert function.call() == "ok"


def test_two_token_writers_only_add_versions(world: World) -> None:
    first = world.writer
    world.restart()
    for _ in range(3):
        outcomes = (*first.run_round(), *world.writer.run_round())
        assert all(one.written and not one.error for one in outcomes)
        assert Function(world).call() == "ok"


def test_a_cluster_that_shortens_tokens_gets_them_more_often(
    parts: tuple[Loopback, CertificateAuthority], tmp_path: Path
) -> None:
    world = open_world(parts[0], tmp_path, parts[1], max_token_s=3600)
    world.run_round()
    world.run_for(HOUR)
    assert len(world.states()) == 2 + 4


def test_a_new_ca_in_the_pod_is_used_by_the_next_round(world: World) -> None:
    world.write_kubeconfig(CertificateAuthority.create(NOW).certificate_pem)
    errors = world.run_round()
    assert list(errors) == list(STEPS)
    assert "is signed by another CA than that of KUBECONFIG" in errors["sweep"]
    world.write_kubeconfig(world.ca.certificate_pem)
    assert world.run_round() == dict.fromkeys(STEPS, "stored")


# Failures


def fail(world: World, case: str) -> dict[str, Any]:
    """Make something wrong; return changed settings."""
    accounts = "/api/v1/namespaces/tpu-functions/serviceaccounts"
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/tpu-functions/roles"
    if case == "an API server that nobody serves":
        return {"server": f"https://{LOOPBACK}:{find_free_ports(1)[0]}"}
    if case == "the CA of another cluster":
        return {"ca_pem": CertificateAuthority.create(datetime.now(UTC)).certificate_pem}
    if case == "no service account":
        world.ask("DELETE", f"{accounts}/sweep")
    elif case == "no role":
        world.ask("DELETE", f"{roles}/tpu-functions-token-writer")
    elif case == "no secret":
        del world.secrets.secrets["tokens-sweep"]
    elif case == "no permission to add":
        world.secrets.grants["writer"]["tokens-sweep"].remove("versions.add")
    elif case == "no permission to read":
        world.secrets.grants["writer"]["tokens-sweep"].remove("versions.list")
    elif case == "unknown to Google":
        world.secrets.grants.clear()
    return {}


FAILURES: dict[str, str] = {
    "an API server that nobody serves": "GET /api/v1/namespaces/kube-system: 0 unreachable: https://127.0.0.1:",
    "the CA of another cluster": "its certificate is signed by another CA than that of CLUSTER_CA",
    "no service account": 'POST /api/v1/namespaces/tpu-functions/serviceaccounts/sweep/token: 404 NotFound: serviceaccounts "sweep" not found',
    "no role": '403 Forbidden: serviceaccounts "sweep" is forbidden: User "system:serviceaccount:tpu-functions:token-writer" cannot create resource "serviceaccounts/token"',
    "no secret": "versions.list: 404 NOT_FOUND: Secret [projects/225994000000/secrets/tokens-sweep] not found.",
    "no permission to add": "secrets.addVersion: 403 PERMISSION_DENIED: Permission 'secretmanager.versions.add' denied for resource 'projects/p/secrets/tokens-sweep' (or it may not exist).",
    "no permission to read": "versions.list: 403 PERMISSION_DENIED: Permission 'secretmanager.versions.list' denied for resource 'projects/p/secrets/tokens-sweep' (or it may not exist).",
    "unknown to Google": "versions.list: 401 UNAUTHENTICATED: Request had invalid authentication credentials.",
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_has_the_words_of_the_api_and_stores_nothing(world: World, case: str) -> None:
    world.restart(**fail(world, case))
    outcome = {one.step: one for one in world.writer.run_round()}["sweep"]
    assert (outcome.has_failed, outcome.written) == (True, None)
    assert FAILURES[case] in outcome.error
    assert "eyJ" not in outcome.error, "no token"
    assert [call for call in world.secrets.calls if call == ("versions.add", "tokens-sweep")] == []


def test_the_failure_of_one_step_stops_no_other_and_is_retried(world: World) -> None:
    fail(world, "no secret")
    results = world.run_round()
    assert (results["label-node"], "404 NOT_FOUND" in results["sweep"]) == ("stored", True)
    world.secrets.add("tokens-sweep", PLACEHOLDER)
    assert world.run_round() == {"sweep": "stored"}


def test_a_copied_clusters_tokens_are_not_stored(
    world: World, parts: tuple[Loopback, CertificateAuthority], tmp_path: Path
) -> None:
    """A copy has other keys; it writes for the original's API server."""
    copy = open_world(parts[0], tmp_path, parts[1])
    copy.restart(server=world.server)
    outcome = copy.writer.run_round()[0]
    assert outcome.error == (
        "GET /api/v1/namespaces/kube-system: 401 Unauthorized: Unauthorized (the API server does not accept the "
        "token: is it that of another cluster?)"
    )
    assert copy.states() == {1: "ENABLED"}


def test_versions_that_cannot_be_destroyed_are_reported_and_destroyed_later(world: World) -> None:
    world.restart()
    world.secrets.grants["writer"]["tokens-sweep"].remove("versions.destroy")
    world.run_round()
    world.run_for(2 * HOUR)
    world.wait(HOUR)
    (outcome,) = (one for one in world.writer.run_round() if one.step == "sweep")
    assert outcome.written
    assert not outcome.has_failed
    assert outcome.error.startswith(
        "old versions are kept: versions.destroy: 403 PERMISSION_DENIED: "
    )
    world.secrets.grant("writer", "tokens-sweep", "versions.destroy")
    world.run_for(HOUR)
    assert [number for number, state in world.states().items() if state == "ENABLED"] == [1, 5, 6]


REFUSED = json.dumps(
    {"error": "invalid_grant", "error_description": "The audience does not match."}
)


@pytest.mark.parametrize(
    "status, result",
    [(400, "401 refused"), (403, "401 refused"), (429, "429 refused"), (502, "502 refused")],
)
def test_googles_refusal_of_the_pods_token_is_reported_in_its_words(
    world: World, status: int, result: str
) -> None:
    def refuse(_request: Request) -> Response:
        return Response(status, {"Content-Type": "application/json"}, REFUSED.encode())

    port = world.loopback.serve(Application(refuse))
    (world.folder / "pod-token").write_text("header.claims.signature")
    federated = identity_pool.Credentials.from_info(
        {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/providers/cluster",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"http://{LOOPBACK}:{port}/v1/token",
            "credential_source": {"file": str(world.folder / "pod-token")},
        }
    )
    manager = SecretManager(world.endpoint, GoogleCredentials(lambda: federated))
    world.restart(manager=manager)
    assert set(world.run_round().values()) == {
        f"token for Google's APIs: {result}: {'' if status > 403 else LOOPBACK + ': '}{REFUSED}"
    }


# The policy


@pytest.mark.parametrize("case", POLICY)
def test_the_policy_limits_the_tokens_of_the_token_writer(world: World, case: str) -> None:
    account, spec, why = POLICY[case]
    own = world.mint("token-writer")
    message = world.mint(account, own, **spec)
    assert (
        (message == f'serviceaccounts "{account}" is forbidden: {DENIED}{why}')
        if why
        else message.startswith("eyJ")
    )
    world.ask("POST", "/api/v1/namespaces/tpu-functions/secrets", {"metadata": {"name": "s"}})
    assert world.mint(account, **spec).startswith("eyJ"), "others are not limited"


@pytest.mark.parametrize(
    "namespace, account",
    [
        ("tpu-functions", "relay"),
        ("tpu-functions", "token-writer"),
        ("tpu-functions", "default"),
        ("kube-system", "sweep"),
    ],
)
def test_the_token_writer_cannot_mint_tokens_of_others_even_with_a_role(
    world: World, namespace: str, account: str
) -> None:
    own, other = world.mint("token-writer"), {"metadata": {"name": "sweep"}}
    world.ask("POST", "/api/v1/namespaces/kube-system/serviceaccounts", other)
    assert "cannot create resource" in world.mint(account, own, namespace)
    grant = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"},
        "metadata": {"name": "all"},
    }
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    roles = "/apis/rbac.authorization.k8s.io/v1/"
    world.ask("POST", f"{roles}clusterroles", {"metadata": {"name": "all"}, "rules": rules})
    subjects = [{"kind": "ServiceAccount", "name": "token-writer", "namespace": "tpu-functions"}]
    world.ask("POST", f"{roles}clusterrolebindings", {**grant, "subjects": subjects})
    why = "the token-writer may only mint tokens of the steps' ServiceAccounts in tpu-functions"
    message = world.mint(account, own, namespace)
    assert message == f'serviceaccounts "{account}" is forbidden: {DENIED}{why}'


def test_the_role_and_the_policy_name_the_account_of_each_step() -> None:
    accounts = sorted(step.replace("_", "-") for step in ROUTES)
    (role,) = (
        one
        for one in MANIFESTS
        if one["kind"] == "Role" and one["metadata"]["name"] == "tpu-functions-token-writer"
    )
    (policy,) = (
        one
        for one in MANIFESTS
        if one["metadata"]["name"] == "tpu-functions-account-tokens"
        and "validations" in one["spec"]
    )
    assert [sorted(rule["resourceNames"]) for rule in role["rules"]] == [accounts]
    (named,) = (
        one["expression"] for one in policy["spec"]["variables"] if one["name"] == "accounts"
    )
    assert sorted(evaluate(named, {})) == accounts
