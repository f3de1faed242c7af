"""The calls about CertificateSigningRequests of kubelets."""

from collections.abc import Iterator, Mapping
from typing import Any

from shared.base.documents import read_list, read_mapping
from shared.base.names import KUBELET_SIGNER, SIGNING_REQUEST_KIND
from shared.ports.kubernetes.transport import Target, Transport

_REQUESTS = Target(
    SIGNING_REQUEST_KIND, "/apis/certificates.k8s.io/v1", "certificatesigningrequests"
)


class SigningRequestCalls(Transport):
    def list_signing_requests(self) -> Iterator[dict[str, Any]]:
        """The requests to the signer of kubelets' client certificates, page by page."""
        return self._list(_REQUESTS, fields=f"spec.signerName={KUBELET_SIGNER}")

    def find_signing_request(self, name: str) -> dict[str, Any] | None:
        """The request of that name, or ``None``."""
        return self._find(_REQUESTS.one(name))

    def decide_signing_request(
        self, request: Mapping[str, Any], condition: Mapping[str, str]
    ) -> None:
        """Approve or deny a request, if it is unchanged since it was read (409 if not)."""
        status = read_mapping(request, "status")
        decided = {**status, "conditions": [*read_list(status, "conditions"), condition]}
        name = request["metadata"]["name"]
        self._call("PUT", _REQUESTS.one(name, "approval"), {**request, "status": decided})
