"""The rule for the snapshots in log lines: the metadata of a VM shows its token without the secret."""

from collections.abc import Mapping
from dataclasses import replace

from shared.base.names import TOKEN_EXPIRY_KEY, TOKEN_KEY
from shared.frame.snapshot import Rules
from shared.node_groups.bootstrap import parse_token
from shared.ports.gce.values import Instance

_NO_SECRET = "0" * 16


def _hide_token(metadata: Mapping[str, str]) -> dict[str, str]:
    """The token's id and expiry, without its secret.

    A text that is not a token may contain most of a secret: it becomes empty, which is not a token
    either.
    """
    if TOKEN_KEY not in metadata:
        return {}
    try:
        token = parse_token(metadata[TOKEN_KEY], metadata.get(TOKEN_EXPIRY_KEY, ""))
    except ValueError:
        return {TOKEN_KEY: ""}
    shown = replace(token, secret=_NO_SECRET)
    return {TOKEN_KEY: shown.text, TOKEN_EXPIRY_KEY: shown.expiry_text}


RULES: Rules = {(Instance, "metadata"): _hide_token}
