"""The outputs of the module after an apply, for both kinds of access to the cluster.

`test_outputs` compares them with Terraform's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from shared.triggers.routes import SLICE_STEPS, STEPS

PROJECT = "my-gcp-project"
AUDIENCE = "my-cluster"
REPOSITORY = f"us-central1-docker.pkg.dev/{PROJECT}/tpu-functions"
BUILDER = (
    f"projects/{PROJECT}/serviceAccounts/tpu-functions-builder@{PROJECT}.iam.gserviceaccount.com"
)
ACCOUNTS = [step.replace("_", "-") for step in STEPS]
ACCOUNTS_WITH_JOBSETS = [*ACCOUNTS, *(step.replace("_", "-") for step in SLICE_STEPS)]
EMAILS = {
    name: f"tpu-functions-{name}@{PROJECT}.iam.gserviceaccount.com"
    for name in ACCOUNTS_WITH_JOBSETS
}
UNIQUE_IDS = {
    name: f"11700000000000000000{number}" for number, name in enumerate(ACCOUNTS_WITH_JOBSETS)
}
USERS = {name: f"gcp:{EMAILS[name]}" for name in sorted(ACCOUNTS)}
"""The API server's users for Google's ID tokens, by account."""
USERS_WITH_JOBSETS = {name: f"gcp:{EMAILS[name]}" for name in sorted(ACCOUNTS_WITH_JOBSETS)}


@dataclass(frozen=True)
class Outputs:
    """Each field is an output, as ``terraform output -raw`` prints it."""

    component: str
    overlay: str
    inject_token_user: str
    authentication_configuration: str = ""
    """Empty if there is none."""
    image_repository: str = REPOSITORY
    image_builder: str = BUILDER
    image_sources: str = f"gs://{PROJECT}-tpu-functions-source/images"
    tool_environment: str = f"export PROJECTS='{PROJECT}'\nexport PUBSUB_PROJECT='{PROJECT}'\n"


def _component(installation: Mapping[str, str], **more: Any) -> str:
    """Return ``infra/kubernetes/overlays/CLUSTER/deployed`` without the images."""
    settings = {
        "name": "relay",
        "namespace": "tpu-functions",
        "behavior": "merge",
        "literals": [f"PUBSUB_PROJECT={PROJECT}", "TOPIC_PREFIX=tpu-functions-"],
    }
    names = {
        "name": "installation",
        "literals": [f"{name}={value}" for name, value in installation.items()],
        "options": {
            "disableNameSuffixHash": True,
            "annotations": {"config.kubernetes.io/local-config": "true"},
        },
    }
    return _kustomization("Component", configMapGenerator=[names, settings], **more)


def _overlay(components: Sequence[str]) -> str:
    return _kustomization("Kustomization", resources=["../../base"], components=list(components))


def _kustomization(kind: str, **fields: Any) -> str:
    version = "v1alpha1" if kind == "Component" else "v1beta1"
    api_version = f"kustomize.config.k8s.io/{version}"
    return yaml.safe_dump({"apiVersion": api_version, "kind": kind, **fields})


_ALLOWED = json.dumps(sorted(UNIQUE_IDS[name] for name in ACCOUNTS), separators=(",", ":"))

KUBECONFIGS = Outputs(
    component=_component({}),
    overlay=_overlay(["deployed"]),
    inject_token_user="system:serviceaccount:tpu-functions:inject-token",
)
"""Each function has a kubeconfig of a ServiceAccount of the cluster."""

ID_TOKENS = Outputs(
    component=_component(USERS),
    overlay=_overlay(["deployed", "../../components/google-identities"]),
    inject_token_user=USERS["inject-token"],
    authentication_configuration=yaml.safe_dump(
        {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "jwt": [
                {
                    "issuer": {"url": "https://accounts.google.com", "audiences": [AUDIENCE]},
                    "claimMappings": {"username": {"claim": "email", "prefix": "gcp:"}},
                    "claimValidationRules": [
                        {
                            "expression": "claims.email_verified == true",
                            "message": "the e-mail must be verified",
                        },
                        {
                            "expression": f"claims.sub in {_ALLOWED}",
                            "message": "not an account of tpu-functions",
                        },
                    ],
                }
            ],
        }
    ),
)
"""Functions use Google's ID tokens, and the API server trusts Google."""

JOBSETS = Outputs(
    component=_component(
        USERS_WITH_JOBSETS,
        components=[
            f"../../../components/{name}"
            for name in ("jobsets", "jobsets-node-groups", "jobsets-google-identities")
        ],
    ),
    overlay=ID_TOKENS.overlay,
    inject_token_user=USERS["inject-token"],
)
"""Like `ID_TOKENS`, with TPUNodeGroups as the slices of JobSets."""

POOLS = Outputs(
    component=_component(
        USERS_WITH_JOBSETS,
        components=[
            f"../../../components/{name}"
            for name in ("jobsets", "without-device-plugin", "jobsets-google-identities")
        ],
    ),
    overlay=ID_TOKENS.overlay,
    inject_token_user=USERS["inject-token"],
)
"""Like `ID_TOKENS`, with node pools of GKE for JobSets."""
