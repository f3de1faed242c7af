# ruff: noqa: E501  (a table reads best with a row on a line)
"""A kubelet joins: bootstrap tokens and certificate signing requests."""

from __future__ import annotations

from typing import Any

from local.tests.contract.kubernetes.cases.objects import CSRS, TABLE, TOKENS, invalid
from local.tests.contract.kubernetes.dialogue import (
    ABSENT,
    ANYTHING,
    Step,
    case,
    containing,
    delete,
    get,
    patch,
    post,
)

REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
SIGNATURE = containing("..")
SECRET = "0123456789abcdef"
BEARER = f"token:{{id}}.{SECRET}"
JOINERS = "system:bootstrappers:kubeadm:default-node-token"


def create_token(**data: Any) -> Step:
    """Create the case's bootstrap token. `ABSENT` removes a field."""
    content = {
        "token-id": "{id}",
        "token-secret": SECRET,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": JOINERS,
        "expiration": "{hour_ahead}",
        **{name.replace("_", "-"): value for name, value in data.items()},
    }
    return post(
        TOKENS,
        {
            "metadata": {"name": "bootstrap-token-{id}"},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {name: value for name, value in content.items() if value is not ABSENT},
        },
    )


def whoami(bearer: str = BEARER) -> Step:
    return post(REVIEW, {}).by(bearer)


def unauthorized(bearer: str = BEARER) -> Step:
    return whoami(bearer).gives(401, reason="Unauthorized", message="Unauthorized", details=ABSENT)


TOKEN = f"{TOKENS}/bootstrap-token-{{id}}"

BOOTSTRAP_TOKENS = (
    case(
        "a bootstrap token authenticates as a user in its groups",
        create_token(),
        whoami()
        .has(
            {
                "status.userInfo": {
                    "username": "system:bootstrap:{id}",
                    "groups": ["system:bootstrappers", JOINERS, "system:authenticated"],
                }
            }
        )
        .eventually(),
        get("/api/v1/nodes")
        .by(BEARER)
        .gives(
            403,
            message='nodes is forbidden: User "system:bootstrap:{id}" cannot list resource "nodes" '
            'in API group "" at the cluster scope',
        ),
        get("/api/v1/nodes/node-{ns}").by(BEARER).gives(404, reason="NotFound"),
    ),
    case("a bootstrap token without its secret is Unauthorized", create_token(), whoami().eventually(), unauthorized("token:{id}.fedcba9876543210"), unauthorized("token:{id}")),
    case("an expired bootstrap token is Unauthorized and deleted", create_token(expiration="{hour_ago}"), get(TOKEN).gives(404).eventually(), unauthorized()),
    case(
        "a bootstrap token without the usage authentication is Unauthorized",
        create_token(usage_bootstrap_authentication=ABSENT),
        get(CLUSTER_INFO).has({"data.jws-kubeconfig-{id}": ANYTHING}).eventually(),
        unauthorized(),
    ),
    case("a deleted bootstrap token is Unauthorized", create_token(), whoami().eventually(), delete(TOKEN), unauthorized().eventually()),
    case(
        "cluster-info has a bootstrap token's signature until the token is deleted",
        create_token(),
        get(CLUSTER_INFO).has({"data.jws-kubeconfig-{id}": SIGNATURE}).by("anonymous").eventually(),
        delete(TOKEN),
        get(CLUSTER_INFO).has({"data.jws-kubeconfig-{id}": ABSENT}).eventually(),
    ),
    case(
        "a bootstrap token without the usage signing does not sign cluster-info",
        create_token(usage_bootstrap_signing="false"),
        whoami().eventually(),
        get(CLUSTER_INFO).has({"data.jws-kubeconfig-{id}": ABSENT}),
    ),
)  # fmt: skip

KUBELET = "kubernetes.io/kube-apiserver-client-kubelet"
NODE_REQUEST = (
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIeE1JR1lBZ0VBTURZeEZUQVRCZ05WQkFvTURITjVj"
    "M1JsYlRwdWIyUmxjekVkTUJzR0ExVUVBd3dVYzNsegpkR1Z0T201dlpHVTZZMjl1ZEhKaFkzUXdXVEFUQmdjcWhrak9Q"
    "UUlCQmdncWhrak9QUU1CQndOQ0FBUURtVVdRCml1QXhGR1BIUHUybDN4V1dKbEJxckxYNi9OQUI3OUt4ZE85WDhOK3BB"
    "VWJQZnhJeEp0c3cvdjJOSXBnUEdFcm0KWDBxRFN5ZFJPQWhMMk1aTm9BQXdDZ1lJS29aSXpqMEVBd0lEU0FBd1JRSWhB"
    "TUR1RlJ4a1g1SCtMTU5GRFJkWQpqejBKczcrTi9rWjBvSkZGSGtyWmtPMXFBaUJYREI3RnVWQUxxTWFueENmeFgyT1Fu"
    "MTZ5SHlHeU5zSVRjNDdmCmorK29yQT09Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo="
)
"""A CSR in PEM of CN=system:node:contract, O=system:nodes. Its key was not stored."""
OTHER_REQUEST = (
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIZU1JR0dBZ0VBTUNReER6QU5CZ05WQkFvTUJuQmxi"
    "M0JzWlRFUk1BOEdBMVVFQXd3SWMyOXRaV0p2WkhrdwpXVEFUQmdjcWhrak9QUUlCQmdncWhrak9QUU1CQndOQ0FBVHc5"
    "T3ZUK29GOER0OXozMTFlalFBakhPSllMdkhECkd1QjhNTUFyZk1yR1J5VHJoM0dPSXl3ak95ckFMcDBudm5BRmoxZlEr"
    "TGlWU044ajdXYUw5akE4b0FBd0NnWUkKS29aSXpqMEVBd0lEUndBd1JBSWdCRnllNGJRbklQN0JSWjN0QXFIVDB6dlZM"
    "RmFROEg0NG1jdkJ5ZGJVdlg4QwpJQkMrMnhhSGNtWmNTT0JIbGRQVHlIWmc3RnNHMUVKdWE2QmRoL25rcGgwWgotLS0t"
    "LUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K"
)
"""A CSR in PEM of CN=somebody, O=people."""
CSR = f"{CSRS}/{{ns}}"
APPROVED = {
    "type": "Approved",
    "status": "True",
    "reason": "Manual",
    "message": "An administrator approved it.",
}


def csr(request: str = NODE_REQUEST, **spec: Any) -> dict[str, Any]:
    """Build a CertificateSigningRequest. ``None`` removes a field."""
    content = {
        "request": request,
        "signerName": KUBELET,
        "usages": ["digital signature", "client auth"],
        **spec,
    }
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "{ns}"},
        "spec": {name: value for name, value in content.items() if value is not None},
    }


def permit_requests(*more: dict[str, Any]) -> tuple[Step, ...]:
    """Permit the reader to create CertificateSigningRequests, but not to approve them."""
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    rules = [
        {
            "verbs": ["create", "get"],
            "apiGroups": ["certificates.k8s.io"],
            "resources": ["certificatesigningrequests"],
        },
        *more,
    ]
    return (
        post(roles, {"metadata": {"name": "{ns}"}, "rules": rules}),
        post(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                "metadata": {"name": "{ns}"},
                "roleRef": {"kind": "ClusterRole", "name": "{ns}"},
                "subjects": [{"kind": "Group", "name": "case-readers"}],
            },
        ),
    )


ISSUED = {"status.certificate": ANYTHING}
MAY_WRITE_APPROVALS = {
    "verbs": ["patch"],
    "apiGroups": ["certificates.k8s.io"],
    "resources": ["certificatesigningrequests/approval"],
}
MAY_APPROVE = {
    "verbs": ["approve"],
    "apiGroups": ["certificates.k8s.io"],
    "resources": ["signers"],
    "resourceNames": [KUBELET],
}
NOT_THIS_SIGNER = (
    'certificatesigningrequests.certificates.k8s.io "{ns}" is forbidden: user not permitted to approve '
    f'requests with signerName "{KUBELET}"'
)

SIGNING_REQUESTS = (
    case(
        "a kubelet's CSR by a bootstrap token is approved and signed automatically",
        create_token(),
        post(CSRS, csr()).by(BEARER).eventually(),
        get(CSR)
        .by(BEARER)
        .has(
            {
                **ISSUED,
                "spec.username": "system:bootstrap:{id}",
                "spec.groups": ["system:bootstrappers", JOINERS, "system:authenticated"],
                "status.conditions.0.type": "Approved",
                "status.conditions.0.reason": "AutoApproved",
                "status.conditions.0.message": "Auto approving kubelet client certificate after "
                "SubjectAccessReview.",
            }
        )
        .eventually(),
        get(CSR, accept=TABLE).has(
            {
                "rows.0.cells.2": KUBELET,
                "rows.0.cells.3": "system:bootstrap:{id}",
                "rows.0.cells.4": "<none>",
                "rows.0.cells.5": "Approved,Issued",
            }
        ),
        delete(CSR),
    ),
    case(
        "another user's CSR is signed only after a manual approval",
        *permit_requests(),
        post(CSRS, csr(expirationSeconds=3600)).by("reader").has({"spec.username": "reader", "status": {}}).eventually(),
        get(CSR, accept=TABLE).has({"rows.0.cells.4": "60m", "rows.0.cells.5": "Pending"}),
        patch(f"{CSR}/approval", {"status": {"conditions": [APPROVED]}}).by("reader").gives(403),
        patch(f"{CSR}/approval", {"status": {"conditions": [APPROVED]}}),
        get(CSR).has({**ISSUED, "status.conditions.0.reason": "Manual"}).eventually(),
        delete(CSR),
    ),
    case(
        "an approval without the permission to approve for the signer is Forbidden",
        *permit_requests(MAY_WRITE_APPROVALS),
        post(CSRS, csr()).by("reader").eventually(),
        patch(f"{CSR}/approval", {"status": {"conditions": [APPROVED]}}).by("reader").gives(403, reason="Forbidden", message=NOT_THIS_SIGNER),
        patch(f"{CSR}/approval", {"status": {"conditions": [{**APPROVED, "type": "Denied"}]}})
        .by("reader")
        .gives(403, reason="Forbidden", message=NOT_THIS_SIGNER),
        delete(CSR),
    ),
    case(
        "a user with the permission to approve for the signer can approve",
        *permit_requests(MAY_WRITE_APPROVALS, MAY_APPROVE),
        post(CSRS, csr()).by("reader").eventually(),
        patch(
            f"{CSR}/approval",
            {"status": {"conditions": [{**APPROVED, "lastUpdateTime": "{hour_ago}"}]}},
        )
        .by("reader")
        .has(
            {
                "status.conditions.0.lastUpdateTime": "{hour_ago}",
                "status.conditions.0.lastTransitionTime": ANYTHING,
            }
        ),
        get(CSR).has(ISSUED).eventually(),
        delete(CSR),
    ),
    case(
        "an approved CSR whose subject is no node's fails",
        *permit_requests(),
        post(CSRS, csr(OTHER_REQUEST)).by("reader").eventually(),
        patch(f"{CSR}/approval", {"status": {"conditions": [APPROVED]}}),
        get(CSR)
        .has(
            {
                "status.conditions.1.type": "Failed",
                "status.conditions.1.reason": "SignerValidationFailure",
                "status.conditions.1.message": "subject organization is not system:nodes",
                "status.certificate": ABSENT,
            }
        )
        .eventually(),
        delete(CSR),
    ),
    case(
        "a denied CSR gets no certificate and cannot be approved",
        *permit_requests(),
        post(CSRS, csr()).by("reader").eventually(),
        patch(f"{CSR}/approval", {"status": {"conditions": [{**APPROVED, "type": "Denied"}]}}),
        get(CSR, accept=TABLE).has({"rows.0.cells.5": "Denied"}),
        patch(
            f"{CSR}/approval", {"status": {"conditions": [{**APPROVED, "type": "Approved"}]}}
        ).gives(
            422,
            reason="Invalid",
            message='CertificateSigningRequest.certificates.k8s.io "{ns}" is invalid: '
            'status.conditions: Forbidden: updates may not remove a condition of type "Denied"',
        ),
        delete(CSR),
    ),
    case(
        "the spec of a CSR cannot be changed",
        *permit_requests(),
        post(CSRS, csr()).by("reader").eventually(),
        patch(CSR, {"spec": {"username": "somebody else", "usages": ["server auth"]}}).has(
            {"spec.username": "reader", "spec.usages": ["digital signature", "client auth"]}
        ),
        delete(CSR),
    ),
    case(
        "a CSR for another signer is not signed",
        *permit_requests(),
        post(CSRS, csr(signerName="example.com/signer")).by("reader").has({"status": {}}).eventually(),
        get(f"{CSRS}?fieldSelector=spec.signerName%3Dexample.com/signer").has({"items.0.metadata.name": "{ns}", "items.1": ABSENT}),
        delete(CSR),
    ),
    case(
        "an invalid CSR is rejected",
        post(CSRS, csr("Z2FyYmFnZQ==")).gives(422).has(invalid(("FieldValueInvalid", "spec.request"))),
        post(CSRS, csr(usages=None)).gives(422).has(invalid(("FieldValueRequired", "spec.usages"))),
        post(CSRS, csr(signerName=None)).gives(422).has(invalid(("FieldValueRequired", "spec.signerName"))),
        post(CSRS, csr(signerName="nonsense")).gives(422).has(invalid(("FieldValueInvalid", "spec.signerName"))),
        post(CSRS, csr(expirationSeconds=1)).gives(422).has(invalid(("FieldValueInvalid", "spec.expirationSeconds"))),
    ),
)  # fmt: skip
