# ruff: noqa: E501  (a table reads best with a row on a line)
"""Tokens of ServiceAccounts: their requests, the users that they authenticate, and their ends."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import (
    ACCOUNTS,
    MAPS,
    SECRETS,
    invalid,
)
from local.tests.contract.kubernetes.cases.permissions import allow, rule
from local.tests.contract.kubernetes.dialogue import ANYTHING, Step, case, delete, get, post

TOKEN = f"{ACCOUNTS}/a/token"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ACCOUNT = post(ACCOUNTS, {"metadata": {"name": "a"}}).saves(account="metadata.uid")
TOO_SHORT = "may not specify a duration less than 10 minutes"
TOO_LONG = "may not specify a duration larger than 2^32 seconds"


def request(**spec: Any) -> Step:
    """Request a token of the account ``a``, and save it."""
    return post(TOKEN, {"spec": spec}).saves(token="status.token")


def ask_who(status: int = 201) -> Step:
    """Ask as the owner of the last token who it is, which everybody may do."""
    return post(WHO, {}).by("token:{token}").gives(status)


def refuse(status: int, message: str, reason: str, **body: Any) -> Step:
    """Request a token, which is rejected."""
    return post(TOKEN, body).gives(status, message=message, reason=reason)


ACCOUNT_TOKENS = (
    case(
        "a token request is completed and answered",
        ACCOUNT,
        post(TOKEN, {}).has({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata.name": "a", "metadata.namespace": "{ns}",
            "metadata.uid": "{account}", "spec.expirationSeconds": 3600, "spec.audiences": ANYTHING, "spec.boundObjectRef": None,
            "status.token": ANYTHING, "status.expirationTimestamp": ANYTHING,
        }),
        request(expirationSeconds=None, audiences=[]).has({"spec.expirationSeconds": 3600, "spec.audiences": ANYTHING}),
        request(expirationSeconds=43200).has({"spec.expirationSeconds": 43200}),
    ),
    case(
        "a token authenticates its service account",
        ACCOUNT,
        request(),
        ask_who().has({
            "status.userInfo.username": "system:serviceaccount:{ns}:a",
            "status.userInfo.groups": ["system:serviceaccounts", "system:serviceaccounts:{ns}", "system:authenticated"],
            "status.userInfo.uid": "{account}",
        }),
        get(MAPS).by("token:{token}").gives(403),
        get(MAPS).by("token:{token}x").gives(401),
    ),
    case(
        "a dry run of a token request returns a valid token",
        ACCOUNT,
        post(f"{TOKEN}?dryRun=All", {}).saves(token="status.token"),
        ask_who(),
    ),
    case("a token for another audience is Unauthorized", ACCOUNT, request(audiences=["vault"]).has({"spec.audiences": ["vault"]}), ask_who(401)),
    case(
        "a token ends with its service account, whose successor has another uid",
        ACCOUNT,
        request(),
        ask_who(),
        delete(f"{ACCOUNTS}/a"),
        ask_who(401).eventually(),
        ACCOUNT,
        ask_who(401),
        request(),
        ask_who().eventually(),
    ),
    case("a token of an absent service account is NotFound", refuse(404, 'serviceaccounts "a" not found', "NotFound")),
    case(
        "a token has a life of ten minutes to 136 years",
        ACCOUNT,
        request(expirationSeconds=600),
        refuse(422, f'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: {TOO_SHORT}', "Invalid", spec={"expirationSeconds": 599})
        .has(invalid(("FieldValueInvalid", "spec.expirationSeconds"))),
        request(expirationSeconds=2**32),
        refuse(422, f'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 4294967297: {TOO_LONG}', "Invalid", spec={"expirationSeconds": 2**32 + 1}),
    ),
    case(
        "a token request cannot name another service account",
        ACCOUNT,
        refuse(422, 'TokenRequest.authentication.k8s.io "a" is invalid: metadata.name: Invalid value: "b": must match the service account name if specified', "Invalid", metadata={"name": "b"}),
        refuse(
            409, 'Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "a": the UID in the token request (other) does not match the UID of the service account ({account})',
            "Conflict", metadata={"uid": "other"},
        ),
        post(TOKEN, {"metadata": {"name": "a", "namespace": "{ns}", "uid": "{account}"}}),
    ),
    case(
        "a token that is bound to a secret ends with it",
        ACCOUNT,
        post(SECRETS, {"metadata": {"name": "s"}}),
        request(boundObjectRef={"apiVersion": "v1", "kind": "Secret", "name": "s"}),
        ask_who(),
        delete(f"{SECRETS}/s"),
        ask_who(401).eventually(),
        refuse(404, 'secrets "s" not found', "NotFound", spec={"boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": "s"}}),
        refuse(400, "cannot bind token to object of type /v1, Kind=ConfigMap", "BadRequest", spec={"boundObjectRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "s"}}),
    ),
    case(
        "a role may allow tokens of named service accounts",
        ACCOUNT,
        post(ACCOUNTS, {"metadata": {"name": "b"}}),
        *allow(rule("create", "serviceaccounts/token", resourceNames=["a"])),
        post(TOKEN, {}).by("reader"),
        post(f"{ACCOUNTS}/b/token", {})
        .by("reader")
        .gives(403, message='serviceaccounts "b" is forbidden: User "reader" cannot create resource "serviceaccounts/token" in API group "" in the namespace "{ns}"'),
    ),
    case("a token cannot be read", ACCOUNT, get(TOKEN).gives(405, reason="MethodNotAllowed")),
    case(
        "discovery lists the kind of a token request",
        get("/api/v1").has({"resources": lambda found: {"name": "serviceaccounts/token", "singularName": "", "namespaced": True, "group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest", "verbs": ["create"]} in found}),
    ),
)  # fmt: skip
