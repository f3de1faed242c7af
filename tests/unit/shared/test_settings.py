"""The functions' settings: all violations are reported together, each with the valid values."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from local.kube import CertificateAuthority
from shared.base.environment import SettingsError
from shared.ports.kubernetes.access_settings import (
    AccountToken,
    GoogleToken,
    Kubeconfig,
    TokenKind,
)
from shared.settings import JoinApproval, Settings, from_environment
from shared.triggers.push import GOOGLES_CERTIFICATES, Pusher, PushVerification

CA = CertificateAuthority.create(datetime(2026, 1, 1, tzinfo=UTC))
PEM = CA.certificate_pem
ENCODED = base64.b64encode(PEM.encode()).decode()
MINIMAL = {"PUBSUB_PROJECT": "my-project", "KUBECONFIG": "/secrets/kubeconfig"}
MINIMAL_SETTINGS = Settings(
    pubsub_project="my-project",
    topic_prefix="tpu-functions-",
    projects=frozenset({"my-project"}),
    access=Kubeconfig("/secrets/kubeconfig"),
    compute_endpoint="",
    join_timeout=timedelta(minutes=15),
)
SERVER = "https://10.128.0.2:6443"
BY_TOKEN = {
    "PUBSUB_PROJECT": "my-project",
    "CLUSTER_SERVER": SERVER,
    "CLUSTER_CA": ENCODED,
    "CLUSTER_TOKEN": "google-id-token",
}
BY_ACCOUNT = BY_TOKEN | {"CLUSTER_TOKEN": "service-account-token"}
PUSHER = "pusher@my-project.iam.gserviceaccount.com"
PUSHED = {"PUSH_SERVICE_ACCOUNT": PUSHER, "PUSH_AUDIENCE": "https://label-node.example"}

VALID: dict[str, tuple[dict[str, str], Settings]] = {
    "the required variables": (MINIMAL, MINIMAL_SETTINGS),
    "an empty variable is not set": (
        dict.fromkeys(
            [
                *("TOPIC_PREFIX", "PROJECTS", "COMPUTE_ENDPOINT", "NODE_JOIN_TIMEOUT_SECONDS"),
                *("CLUSTER_SERVER", "CLUSTER_CA", "CLUSTER_TOKEN", "CLUSTER_AUDIENCE"),
                "CLUSTER_TOKEN_FILE",
                *("PUSH_SERVICE_ACCOUNT", "PUSH_AUDIENCE", "PUSH_CERTIFICATES_URL"),
                *("PUSH_VERIFICATION", "JOIN_APPROVAL"),
            ],
            "",
        )
        | MINIMAL,
        MINIMAL_SETTINGS,
    ),
    "all other variables": (
        MINIMAL
        | {
            "INSTALLATION_ID": "e0667078-cc99-f002-70bf-9b9815643fe6",
            "TOPIC_PREFIX": "tpu-",
            "PROJECTS": "one, two",
            "COMPUTE_ENDPOINT": "http://127.0.0.1:8080",
            "NODE_JOIN_TIMEOUT_SECONDS": "60",
            "JOIN_APPROVAL": "external",
        },
        replace(
            MINIMAL_SETTINGS,
            topic_prefix="tpu-",
            projects=frozenset({"one", "two"}),
            compute_endpoint="http://127.0.0.1:8080",
            join_timeout=timedelta(minutes=1),
            installation_id="e0667078-cc99-f002-70bf-9b9815643fe6",
            join_approval=JoinApproval.EXTERNAL,
        ),
    ),
    "an ID token has the server as its audience": (
        BY_TOKEN,
        replace(MINIMAL_SETTINGS, access=GoogleToken(SERVER, PEM, TokenKind.ID, SERVER)),
    ),
    "an ID token has the configured audience": (
        BY_TOKEN | {"CLUSTER_AUDIENCE": "my-cluster", "CLUSTER_SERVER": f"{SERVER}/"},
        replace(MINIMAL_SETTINGS, access=GoogleToken(SERVER, PEM, TokenKind.ID, "my-cluster")),
    ),
    "a token of a ServiceAccount is in a file": (
        BY_ACCOUNT | {"CLUSTER_TOKEN_FILE": "/secrets/token/token"},
        replace(MINIMAL_SETTINGS, access=AccountToken(SERVER, PEM, "/secrets/token/token")),
    ),
    "an access token has no audience": (
        BY_TOKEN | {"CLUSTER_TOKEN": "google-access-token"},
        replace(MINIMAL_SETTINGS, access=GoogleToken(SERVER, PEM, TokenKind.ACCESS, "")),
    ),
    "pushes are verified": (
        MINIMAL | PUSHED,
        replace(
            MINIMAL_SETTINGS,
            pusher=Pusher(PUSHER, "https://label-node.example", GOOGLES_CERTIFICATES),
        ),
    ),
    "the platform verifies the signatures of pushes": (
        MINIMAL | PUSHED | {"PUSH_VERIFICATION": "platform"},
        replace(
            MINIMAL_SETTINGS,
            pusher=Pusher(
                PUSHER,
                "https://label-node.example",
                GOOGLES_CERTIFICATES,
                PushVerification.PLATFORM,
            ),
        ),
    ),
    "JobSets get TPUNodeGroups": (
        MINIMAL
        | {
            "JOBSET_PROVIDER": "tpu-node-group",
            "JOBSET_SUSPENDED_RELEASE_MINUTES": "90",
            "JOBSET_LOST_REBUILD_MINUTES": "10",
        },
        replace(
            MINIMAL_SETTINGS,
            slice_provider="tpu-node-group",
            suspended_release=timedelta(minutes=90),
            lost_rebuild=timedelta(minutes=10),
        ),
    ),
    "a lost slice is never replaced": (
        MINIMAL | {"JOBSET_LOST_REBUILD_MINUTES": "0"},
        replace(MINIMAL_SETTINGS, lost_rebuild=None),
    ),
    "another URL of the keys": (
        MINIMAL | PUSHED | {"PUSH_CERTIFICATES_URL": "http://localhost:8080/certs"},
        replace(
            MINIMAL_SETTINGS,
            pusher=Pusher(PUSHER, "https://label-node.example", "http://localhost:8080/certs"),
        ),
    ),
}


@pytest.mark.parametrize("case", VALID)
def test_valid_variables_are_read(case: str) -> None:
    environment, settings = VALID[case]
    assert from_environment(environment) == settings


NO_CA = (
    "CLUSTER_CA is wrong: it must be the base64 of the CA's certificate in PEM form, as a kubeconfig "
    "has it in certificate-authority-data"
)
NO_SERVER = "it must be an https URL such as https://10.128.0.2:6443"
KINDS = "it must be google-id-token or google-access-token or service-account-token"
HTTPS_OR_LOCAL = "it must be an https URL (http on this machine)"
KEY = CA.export().key_pem

INVALID: dict[str, tuple[dict[str, str], str]] = {
    "no variable": (
        {},
        "PUBSUB_PROJECT is not set: it must be the id of the project with the topics; "
        "neither KUBECONFIG nor CLUSTER_SERVER is set: one of them must be, KUBECONFIG the path of a "
        "kubeconfig file, or CLUSTER_SERVER the API server's https URL",
    ),
    "two kinds of access": (
        MINIMAL | BY_TOKEN,
        "KUBECONFIG and CLUSTER_SERVER are both set: one of them must be, KUBECONFIG for access by a "
        "kubeconfig file, CLUSTER_SERVER for access by a token",
    ),
    "an audience with a kubeconfig": (
        MINIMAL | {"CLUSTER_AUDIENCE": "x"},
        "CLUSTER_AUDIENCE is set without CLUSTER_SERVER: that must be the API server's https URL",
    ),
    "a CA and a token without a server": (
        BY_TOKEN | {"CLUSTER_SERVER": ""},
        "CLUSTER_CA and CLUSTER_TOKEN are set without CLUSTER_SERVER: that must be the API server's "
        "https URL",
    ),
    "a server alone": (
        {"PUBSUB_PROJECT": "p", "CLUSTER_SERVER": "10.0.0.2"},
        f"CLUSTER_SERVER='10.0.0.2' is wrong: {NO_SERVER}; CLUSTER_TOKEN is not set: {KINDS}; "
        + NO_CA.replace("is wrong", "is not set"),
    ),
    "plain HTTP": (
        BY_TOKEN | {"CLUSTER_SERVER": "http://10.0.0.2"},
        f"CLUSTER_SERVER='http://10.0.0.2' is wrong: {NO_SERVER}",
    ),
    "a password, which the error omits": (
        BY_TOKEN | {"CLUSTER_SERVER": "https://me:secret@10.0.0.2"},
        "CLUSTER_SERVER is wrong: there must be no user in the URL",
    ),
    "an unknown kind of token": (
        BY_TOKEN | {"CLUSTER_TOKEN": "token"},
        f"CLUSTER_TOKEN='token' is wrong: {KINDS}",
    ),
    "an audience for an access token": (
        BY_TOKEN | {"CLUSTER_TOKEN": "google-access-token", "CLUSTER_AUDIENCE": "x"},
        "CLUSTER_AUDIENCE is set, but only CLUSTER_TOKEN=google-id-token uses it: it must not be set",
    ),
    "an audience for a ServiceAccount's token, and no file": (
        BY_ACCOUNT | {"CLUSTER_AUDIENCE": "x"},
        "CLUSTER_AUDIENCE is set, but only CLUSTER_TOKEN=google-id-token uses it: it must not be set; "
        "CLUSTER_TOKEN_FILE is not set: it must be the path of a file with the token",
    ),
    "a token file for an ID token": (
        BY_TOKEN | {"CLUSTER_TOKEN_FILE": "/secrets/token/token"},
        "CLUSTER_TOKEN_FILE is set, but only CLUSTER_TOKEN=service-account-token uses it: it must not "
        "be set",
    ),
    "a CA without base64": (BY_TOKEN | {"CLUSTER_CA": PEM}, NO_CA),
    "an invalid CA": (BY_TOKEN | {"CLUSTER_CA": base64.b64encode(b"CA").decode()}, NO_CA),
    "a truncated CA": (BY_TOKEN | {"CLUSTER_CA": ENCODED[: len(ENCODED) // 8 * 4]}, NO_CA),
    "a CA's key, which the error omits": (
        BY_TOKEN | {"CLUSTER_CA": base64.b64encode((PEM + KEY).encode()).decode()},
        "CLUSTER_CA holds a private key: it must be the certificate alone",
    ),
    "an account without audience": (
        MINIMAL | {"PUSH_SERVICE_ACCOUNT": PUSHER},
        "PUSH_AUDIENCE is not set: it must be the audience of the push subscriptions",
    ),
    "a URL of the keys without an account": (
        MINIMAL | {"PUSH_CERTIFICATES_URL": "https://keys.example"},
        "PUSH_SERVICE_ACCOUNT is not set: it must be the e-mail of the push subscriptions' service "
        "account; PUSH_AUDIENCE is not set: it must be the audience of the push subscriptions",
    ),
    "an unknown verification": (
        MINIMAL | PUSHED | {"PUSH_VERIFICATION": "iam"},
        "PUSH_VERIFICATION='iam' is wrong: it must be platform or signature",
    ),
    "a URL of the keys that the platform does not need": (
        MINIMAL
        | PUSHED
        | {"PUSH_VERIFICATION": "platform", "PUSH_CERTIFICATES_URL": "https://keys.example"},
        "PUSH_CERTIFICATES_URL is set, but with PUSH_VERIFICATION=platform no signature is "
        "verified: it must not be set",
    ),
    "an account that is no e-mail": (
        MINIMAL | PUSHED | {"PUSH_SERVICE_ACCOUNT": "pusher"},
        "PUSH_SERVICE_ACCOUNT='pusher' is wrong: it must be the e-mail of the push subscriptions' "
        "service account",
    ),
    "Compute Engine over plain HTTP": (
        MINIMAL | {"COMPUTE_ENDPOINT": "http://compute.example"},
        f"COMPUTE_ENDPOINT='http://compute.example' is wrong: {HTTPS_OR_LOCAL}",
    ),
    "no project": (
        MINIMAL | {"PROJECTS": " , "},
        "PROJECTS=',' is wrong: it must be the ids of the projects with the TPUs, separated by commas",
    ),
    "a timeout of zero": (
        MINIMAL | {"NODE_JOIN_TIMEOUT_SECONDS": "0"},
        "NODE_JOIN_TIMEOUT_SECONDS='0' is wrong: it must be a whole number of seconds above 0",
    ),
    "an unknown approver": (
        MINIMAL | {"JOIN_APPROVAL": "kubeadm"},
        "JOIN_APPROVAL='kubeadm' is wrong: it must be approve_join or external",
    ),
    "an unknown provider": (
        MINIMAL | {"JOBSET_PROVIDER": "eks"},
        "JOBSET_PROVIDER='eks' is wrong: it must be gke or tpu-node-group, or empty: no slices "
        "are created then",
    ),
    "minutes of two years": (
        MINIMAL | {"JOBSET_SUSPENDED_RELEASE_MINUTES": "1000000"},
        "JOBSET_SUSPENDED_RELEASE_MINUTES='1000000' is wrong: it must be a whole number of minutes of "
        "at most six digits, or 0 for never",
    ),
    "a fraction of a minute": (
        MINIMAL | {"JOBSET_SUSPENDED_RELEASE_MINUTES": "0.5"},
        "JOBSET_SUSPENDED_RELEASE_MINUTES='0.5' is wrong: it must be a whole number of minutes of "
        "at most six digits, or 0 for never",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_variables_raise_an_error_that_names_all_of_them(case: str) -> None:
    environment, message = INVALID[case]
    with pytest.raises(SettingsError) as raised:
        from_environment(environment)
    assert str(raised.value) == message
