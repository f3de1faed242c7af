"""The lifecycle of a slice on a cluster that deploy.sh installed, with the identities that it binds.

Only deploy.sh and the steps of docs/install.md before it install the product. Steps and relay run in
the test (`tests.support.harness`), on a virtual clock and the simulated Compute Engine; they
authenticate at the API server with real credentials: the kubeconfigs of the page, or ID tokens of
an issuer that replaces Google in Terraform's AuthenticationConfiguration. The bridge adds its own
resource to test which objects are in effect.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.base.http import Request
from local.base.ports import LOOPBACK
from local.kube import CertificateAuthority
from local.tests.real_parts import open_own_control_plane
from shared.base.names import INSTALLATION_ANNOTATION
from tests.real.bridge.administrator import MERGE_PATCH
from tests.real.bridge.clusters import on_installation
from tests.real.bridge.connections import Caller, trusting
from tests.real.bridge.heartbeats import CONTROLLER_FLAGS
from tests.real.bridge.installation import Installation, service_accounts
from tests.real.deploy.installer import ROOT, Installer, installer, simulated_kubelet
from tests.real.deploy.outputs import (
    ACCOUNTS,
    AUDIENCE,
    EMAILS,
    ID_TOKENS,
    KUBECONFIGS,
    UNIQUE_IDS,
    USERS,
)
from tests.real.inventory import list_everything
from tests.stories import helpers
from tests.support import signing_requests
from tests.support.harness import Harness
from tests.support.loopback import Google, Issuer, open_loopback
from tests.support.manifests import manifest

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("deploy life")]

Steps = Mapping[str, Caller]
"""The steps' credentials for the API server, by name with hyphens."""


@contextmanager
def with_kubeconfigs(folder: Path) -> Iterator[tuple[Installer, Steps]]:
    """Create a cluster, and the functions' kubeconfigs by the page's commands."""
    with (
        open_own_control_plane(controller_flags=CONTROLLER_FLAGS) as plane,
        installer(folder, plane, KUBECONFIGS) as deploy,
    ):
        page = (ROOT / "docs" / "install.md").read_text()
        (commands,) = (it for it in re.findall(r"```sh\n(.*?)```", page, re.S) if "8760h" in it)
        deploy.gcloud = [("secrets describe", "NOT_FOUND", 1)]
        made = deploy.run_shell(commands.replace("use-context research", "use-context tests"))
        assert made.code == 0, made.output
        names = [f"tpu-functions-{name}" for name in ACCOUNTS]
        deploy.settings.secrets = names
        deploy.gcloud = [("secrets versions list", "1", 0)]
        yield (
            deploy,
            {name: _caller(name, deploy.secret(f"tpu-functions-{name}")) for name in ACCOUNTS},
        )


def _caller(name: str, kubeconfig: str) -> Caller:
    content = yaml.safe_load(kubeconfig)
    (cluster,), (user,) = content["clusters"], content["users"]
    ca_pem = base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    account = f"system:serviceaccount:tpu-functions:{name}"
    return Caller(account, trusting(ca_pem), user["user"]["token"])


@contextmanager
def with_id_tokens(folder: Path) -> Iterator[tuple[Installer, Steps]]:
    """Create a cluster with Terraform's AuthenticationConfiguration, and tokens of the steps."""
    google = Google("")
    issuer = Issuer(google, "https://accounts.google.com")
    now = datetime.now(UTC)
    ca = CertificateAuthority.create(now)
    with open_loopback() as loopback:
        port = loopback.serve(issuer, ca.server_context((LOOPBACK,), now))
        issuer.url = f"https://{LOOPBACK}:{port}"
        configuration = yaml.safe_load(ID_TOKENS.authentication_configuration)
        configuration["jwt"][0]["issuer"] |= {
            "discoveryURL": f"{issuer.url}/.well-known/openid-configuration",
            "certificateAuthority": ca.certificate_pem,
        }
        path = folder / "authentication.yaml"
        path.write_text(yaml.safe_dump(configuration))
        flags = [f"--authentication-config={path}"]
        with (
            open_own_control_plane(flags, CONTROLLER_FLAGS) as plane,
            installer(folder, plane, ID_TOKENS) as deploy,
        ):
            tls = trusting(plane.ca_pem)
            yield deploy, {name: Caller(USERS[name], tls, _mint(google, name)) for name in ACCOUNTS}


def _mint(google: Google, name: str) -> str:
    google.email, google.claims = EMAILS[name], {"sub": UNIQUE_IDS[name]}
    return google.mint(AUDIENCE)


Credentials = Callable[[Path], AbstractContextManager[tuple[Installer, Steps]]]
CREDENTIALS: dict[str, Credentials] = {"kubeconfigs": with_kubeconfigs, "ID tokens": with_id_tokens}

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
STRAY = signing_requests.manifest(
    signing_requests.pem(signing_requests.kubelets("control-plane-1")), name="stray"
)
"""A request by a user without a bootstrap token of this system."""


@dataclass(frozen=True)
class DeniedCall:
    """A call that a step's Role allows, and a policy denies."""

    step: str
    method: str
    path: str
    body: dict[str, Any]
    message: str


DENIED_CALLS = {
    "tpu-functions-bootstrap-tokens": DeniedCall(
        "inject-token",
        "POST",
        "/api/v1/namespaces/kube-system/secrets",
        {"metadata": {"name": "mine"}, "type": "Opaque"},
        "tpu-functions may only create and delete bootstrap tokens in kube-system",
    ),
    "tpu-functions-nodes": DeniedCall(
        "label-node",
        "PATCH",
        "/api/v1/nodes/worker-1",
        {"metadata": {"labels": {"team": "a"}}},
        "tpu-functions may only change and delete Nodes of its own VMs, whose names begin with tng-",
    ),
    "tpu-functions-join-approvals": DeniedCall(
        "approve-join",
        "PUT",
        f"{REQUESTS}/stray/approval",
        STRAY
        | {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Mine"}]}},
        "tpu-functions may only approve and deny requests for kubelets' certificates by holders of its "
        "own bootstrap tokens",
    ),
}
"""The denied calls by the name of the policy."""

DELETED_BY_CLUSTER = {"events", "certificatesigningrequests", "leases", "pods"}
"""Objects that the cluster's controllers delete later: requests and Events after an hour, Leases and the
device plugin's Pods of deleted Nodes."""


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_a_slice_becomes_ready_and_is_deleted_on_a_cluster_of_deploy_sh(
    kind: str, tmp_path: Path
) -> None:
    with CREDENTIALS[kind](tmp_path) as (deploy, steps):
        with simulated_kubelet(deploy.plane):
            ran = deploy.run("--yes", "prod")
        assert ran.code == 0, ran.output
        accounts = {**steps, **service_accounts(deploy.plane, ["relay"])}
        with (
            closing(Installation(deploy.plane, accounts)) as installed,
            on_installation(installed),
        ):
            assert {name: user_of(installed, name) for name in accounts} == {
                name: caller.user for name, caller in accounts.items()
            }
            before = list_everything(deploy.plane)
            harness = Harness()
            namespace = installed.admin.demand("GET", "/api/v1/namespaces/kube-system")
            harness.configure(
                installation_id=namespace["metadata"]["annotations"][INSTALLATION_ANNOTATION]
            )
            helpers.ready_slice(harness, manifest())
            assert {tuple(labels(node)) for node in helpers.nodes(harness).values()} == {
                ("default-my-slice", "tpu7x", "2x2x2")
            }
            assert helpers.summary(harness)["ready"] == 2
            assert_policies_in_effect(installed, harness)
            harness.run_for(helpers.HOUR)  # for the step that runs once an hour
            helpers.assert_deleted_completely(harness)
            left = {each.partition(" ")[0] for each in list_everything(deploy.plane) - before}
            assert left <= DELETED_BY_CLUSTER
        calls = harness.simulation.kube.calls
        assert calls.count(verb="create", resource="secrets", code=201) == 2
        users = {caller.user for caller in accounts.values()}
        assert users <= set(calls.by_user)
        assert [call for call in calls if call.user in users and call.code in (401, 403)] == []


def user_of(installed: Installation, name: str) -> str:
    """Return the API server's user for a step or the relay."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = ask(installed, name, "POST", path, review)
    user: str = answer["status"]["userInfo"]["username"]
    return user


def ask(
    installed: Installation, name: str, method: str, path: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the API server's answer to a step."""
    kind = MERGE_PATCH if method == "PATCH" else "application/json"
    request = Request.of(method, path, headers={"content-type": kind}, body=json.dumps(body))
    answer: dict[str, Any] = installed.connections.send(installed.accounts[name], request).json()
    return answer


def labels(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the labels of a Node: its group, accelerator and topology."""
    for key in ("tpu-node-group", "gke-tpu-accelerator", "gke-tpu-topology"):
        yield node["metadata"]["labels"][f"cloud.google.com/{key}"]


def assert_policies_in_effect(installed: Installation, harness: Harness) -> None:
    """Assert that each policy of deploy.sh denies a step a call that its Role allows."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    found = installed.admin.items(f"{path}?labelSelector=app.kubernetes.io/part-of=tpu-functions")
    other_policies = {
        "tpu-device-plugin-own-node",
        "tpu-functions-default-version",
        "tpu-functions-join-requests",
        "tpu-functions-node-registrations",
    }
    step_policies = {policy["metadata"]["name"] for policy in found} - other_policies
    assert step_policies == set(DENIED_CALLS)
    harness.simulation.admin("POST", "/api/v1/nodes", {"metadata": {"name": "worker-1"}})
    harness.simulation.admin("POST", REQUESTS, STRAY)
    for policy, denied in DENIED_CALLS.items():
        answer = ask(installed, denied.step, denied.method, denied.path, denied.body)
        assert answer["code"] == 403
        assert answer["message"].partition("is forbidden: ")[2] == (
            f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: "
            f"{denied.message}"
        )
    harness.simulation.admin("DELETE", f"{REQUESTS}/stray")
    harness.simulation.admin("DELETE", "/api/v1/nodes/worker-1")
