"""The calls about the Secrets of bootstrap tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.base.names import RESOURCE_NAME_LABEL, TOKEN_VM_LABEL
from shared.ports.errors import CallError
from shared.ports.kubernetes.transport import Target, Transport

_SECRETS = Target("Secret", "/api/v1", "secrets", "kube-system")


class TokenCalls(Transport):
    def create_token_secret(self, manifest: Mapping[str, Any]) -> None:
        """Create a bootstrap token's Secret. If its name exists, it is the same token."""
        try:
            self._call("POST", _SECRETS, manifest)
        except CallError as error:
            if error.code != "AlreadyExists":
                raise

    def delete_token_secret(self, token_id: str) -> None:
        """Revoke a bootstrap token. It is not an error if it is gone."""
        self._delete(_SECRETS.one(f"bootstrap-token-{token_id}"))

    def delete_token_secrets(self, resource_name: str, vms: Sequence[str] = ()) -> None:
        """Revoke all bootstrap tokens of a group, or those of these VMs. The answer contains them, so it
        is dropped. An error may leave some of them."""
        of_vms = f",{TOKEN_VM_LABEL} in ({','.join(vms)})" if vms else ""
        selectors = {
            "labelSelector": f"{RESOURCE_NAME_LABEL}={resource_name}{of_vms}",
            "fieldSelector": "type=bootstrap.kubernetes.io/token",
        }
        self._call("DELETE", _SECRETS.select(selectors), {})
