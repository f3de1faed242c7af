"""The calls about the Secrets of bootstrap tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.base.errors import CallError
from shared.ports.kubernetes.transport import Transport

_SECRETS = "/api/v1/namespaces/kube-system/secrets"


class TokenCalls(Transport):
    """The calls about the Secrets of bootstrap tokens."""

    def create_token_secret(self, manifest: Mapping[str, Any]) -> None:
        """Make a bootstrap token's Secret; one of its name that is there already is it."""
        try:
            self._call("POST", _SECRETS, manifest)
        except CallError as error:
            if error.reason != "AlreadyExists":
                raise

    def delete_token_secret(self, token_id: str) -> None:
        """Revoke a bootstrap token; one that is gone is no error."""
        self._delete(f"{_SECRETS}/bootstrap-token-{token_id}", {})
