"""The outputs of the module after an apply, for both kinds of access to the cluster.

`test_outputs` compares them with Terraform's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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


_NO_SLICES = {"workloads": "none", "provider": "tpu-node-group"}


@dataclass(frozen=True)
class Outputs:
    """Each field is an output, as ``terraform output -raw`` prints it."""

    values: str
    inject_token_user: str
    authentication_configuration: str = ""
    """Empty if there is none."""
    image_repository: str = REPOSITORY
    image_builder: str = BUILDER
    image_sources: str = f"gs://{PROJECT}-tpu-functions-source/images"
    tool_environment: str = f"export PROJECTS='{PROJECT}'\nexport PUBSUB_PROJECT='{PROJECT}'\n"


def _values(users: Mapping[str, str], slices: Mapping[str, str] = _NO_SLICES, **more: Any) -> str:
    """Return ``DIR/CLUSTER.deployed.yaml`` without the images."""
    values = {
        "project": PROJECT,
        "topicPrefix": "tpu-functions-",
        "joinApproval": "approve_join",
        "slices": dict(slices),
        "identity": {
            "users": dict(users),
            "google": {"audience": "", "serviceAccount": "", "keySecret": ""},
        },
        "tokenWriter": {"enabled": False, "server": "", "ca": "", "steps": [], "audience": ""},
    }
    return yaml.safe_dump({**values, **more})


_ALLOWED = json.dumps(sorted(UNIQUE_IDS[name] for name in ACCOUNTS), separators=(",", ":"))

KUBECONFIGS = Outputs(
    values=_values({}),
    inject_token_user="system:serviceaccount:tpu-functions:inject-token",
)
"""Each function has a kubeconfig of a ServiceAccount of the cluster."""

ID_TOKENS = Outputs(
    values=_values(USERS),
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
    values=_values(USERS_WITH_JOBSETS, {"workloads": "jobsets", "provider": "tpu-node-group"}),
    inject_token_user=USERS["inject-token"],
)
"""Like `ID_TOKENS`, with TPUNodeGroups as the slices of JobSets."""

POOLS = Outputs(
    values=_values(
        USERS_WITH_JOBSETS,
        {"workloads": "jobsets", "provider": "gke"},
        devicePlugin={"enabled": False},
    ),
    inject_token_user=USERS["inject-token"],
)
"""Like `ID_TOKENS`, with node pools of GKE for JobSets."""
