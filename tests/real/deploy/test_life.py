"""A slice's whole life on the cluster as deploy.sh leaves it, with the identities that it binds.

Of the product nothing is applied but by deploy.sh, and by what docs/install.md says to do before it.
Steps and relay run in the test (`tests.harness`), on a virtual clock and the simulated Compute Engine;
at the API server they show real credentials: the kubeconfigs that the page makes, or ID tokens of an
issuer that stands for Google by Terraform's AuthenticationConfiguration. The bridge adds a resource of
its own, by which it sees what is in force.
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
from tests import signing_requests
from tests.harness import Harness
from tests.loopback import Google, Issuer, open_loopback
from tests.manifests import manifest
from tests.real.bridge.administrator import MERGE_PATCH
from tests.real.bridge.connections import Caller, trusting
from tests.real.bridge.ground import standing_on_real
from tests.real.bridge.hearts import CONTROLLER_FLAGS
from tests.real.bridge.installation import Installation, service_accounts
from tests.real.deploy.installer import ROOT, Installer, installer, playing_kubelet
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
from tests.real_parts import open_own_control_plane
from tests.stories import life

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("deploy life")]

Steps = Mapping[str, Caller]
"""How the steps come to the API server, by name with dashes."""


@contextmanager
def by_kubeconfigs(folder: Path) -> Iterator[tuple[Installer, Steps]]:
    """A cluster and what the functions' secrets hold, by the page's own commands."""
    with (
        open_own_control_plane(controller_flags=CONTROLLER_FLAGS) as plane,
        installer(folder, plane, KUBECONFIGS) as deploy,
    ):
        page = (ROOT / "docs" / "install.md").read_text()
        (commands,) = (it for it in re.findall(r"```sh\n(.*?)```", page, re.S) if "8760h" in it)
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
def by_id_tokens(folder: Path) -> Iterator[tuple[Installer, Steps]]:
    """A cluster that trusts Google as Terraform says it must, and tokens of the steps' accounts."""
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


Way = Callable[[Path], AbstractContextManager[tuple[Installer, Steps]]]
WAYS: dict[str, Way] = {"kubeconfigs": by_kubeconfigs, "ID tokens": by_id_tokens}

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
STRAY = signing_requests.manifest(
    signing_requests.pem(signing_requests.kubelets("control-plane-1")), name="stray"
)
"""A request by a person, not by the holder of a token of ours."""


@dataclass(frozen=True)
class Wrong:
    """What a step may do by its Role, and a policy refuses."""

    step: str
    method: str
    path: str
    body: dict[str, Any]
    told: str


WRONG = {
    "tpu-functions-bootstrap-tokens": Wrong(
        "inject-token",
        "POST",
        "/api/v1/namespaces/kube-system/secrets",
        {"metadata": {"name": "mine"}, "type": "Opaque"},
        "tpu-functions may only create and delete bootstrap tokens in kube-system",
    ),
    "tpu-functions-nodes": Wrong(
        "label-node",
        "PATCH",
        "/api/v1/nodes/worker-1",
        {"metadata": {"labels": {"team": "a"}}},
        "tpu-functions may only change and delete Nodes of its own VMs, whose names begin with tng-",
    ),
    "tpu-functions-join-approvals": Wrong(
        "approve-join",
        "PUT",
        f"{REQUESTS}/stray/approval",
        STRAY
        | {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Mine"}]}},
        "tpu-functions may only approve and deny requests for kubelets' certificates by holders of its "
        "own bootstrap tokens",
    ),
}
"""By the name of the policy."""

ENDS_BY_ITSELF = {"events", "certificatesigningrequests", "leases", "pods"}
"""What the cluster's own controllers clear away in their time: requests and Events after an hour, Leases
and the device plugin's Pods of Nodes that are gone."""


@pytest.mark.parametrize("way", WAYS)
def test_a_slice_lives_and_goes_as_deploy_sh_leaves_the_cluster(way: str, tmp_path: Path) -> None:
    with WAYS[way](tmp_path) as (deploy, steps):
        with playing_kubelet(deploy.plane):
            ran = deploy.run("--yes", "prod")
        assert ran.code == 0, ran.output
        accounts = {**steps, **service_accounts(deploy.plane, ["relay"])}
        with (
            closing(Installation(deploy.plane, accounts)) as installed,
            standing_on_real(installed),
        ):
            assert {name: user_of(installed, name) for name in accounts} == {
                name: caller.user for name, caller in accounts.items()
            }
            before = list_everything(deploy.plane)
            harness = Harness()
            life.ready_slice(harness, manifest())
            assert {tuple(labels(node)) for node in life.nodes(harness).values()} == {
                ("default-my-slice", "tpu7x", "2x2x2")
            }
            assert life.summary(harness)["ready"] == 2
            policies_are_in_force(installed, harness)
            harness.run_for(life.HOUR)  # for the step that runs once an hour
            life.assert_deleted_completely(harness)
            left = {each.partition(" ")[0] for each in list_everything(deploy.plane) - before}
            assert left <= ENDS_BY_ITSELF
        calls = harness.simulation.kube.calls
        assert calls.count(verb="create", resource="secrets", code=201) == 2
        ours = {caller.user for caller in accounts.values()}
        assert ours <= set(calls.by_user)
        assert [call for call in calls if call.user in ours and call.code in (401, 403)] == []


def user_of(installed: Installation, name: str) -> str:
    """Whom the API server takes a step or the relay for."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = ask(installed, name, "POST", path, review)
    user: str = answer["status"]["userInfo"]["username"]
    return user


def ask(
    installed: Installation, name: str, method: str, path: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """What the API server answers a step."""
    kind = MERGE_PATCH if method == "PATCH" else "application/json"
    request = Request.of(method, path, headers={"content-type": kind}, body=json.dumps(body))
    answer: dict[str, Any] = installed.connections.send(installed.accounts[name], request).json()
    return answer


def labels(node: Mapping[str, Any]) -> Iterator[str]:
    """Whose a Node is, and what it has."""
    for key in ("tpu-node-group", "gke-tpu-accelerator", "gke-tpu-topology"):
        yield node["metadata"]["labels"][f"cloud.google.com/{key}"]


def policies_are_in_force(installed: Installation, harness: Harness) -> None:
    """Each that deploy.sh has installed refuses a step what its Role allows."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    found = installed.admin.items(f"{path}?labelSelector=app.kubernetes.io/part-of=tpu-functions")
    of_others = {
        "tpu-device-plugin-own-node",
        "tpu-functions-join-requests",
        "tpu-functions-node-registrations",
    }
    of_steps = {policy["metadata"]["name"] for policy in found} - of_others
    assert of_steps == set(WRONG)
    harness.simulation.admin("POST", "/api/v1/nodes", {"metadata": {"name": "worker-1"}})
    harness.simulation.admin("POST", REQUESTS, STRAY)
    for policy, wrong in WRONG.items():
        answer = ask(installed, wrong.step, wrong.method, wrong.path, wrong.body)
        assert answer["code"] == 403
        assert answer["message"].partition("is forbidden: ")[2] == (
            f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {wrong.told}"
        )
    harness.simulation.admin("DELETE", f"{REQUESTS}/stray")
    harness.simulation.admin("DELETE", "/api/v1/nodes/worker-1")
