"""The settings of an example of the module, as a user copies and edits them."""

from __future__ import annotations

import re

from tests.support.harness import ROOT

EXAMPLES = ROOT / "infra" / "terraform" / "examples"
PEM = re.compile(r"(-----BEGIN CERTIFICATE-----\n).*?(\n *-----END)", re.DOTALL)


def read_settings(example: str) -> str:
    """Return the example's ``cluster.tfvars`` with a CA and keys in the place of its placeholders."""
    text = (EXAMPLES / example / "cluster.tfvars").read_text()
    return PEM.sub(r"\1MIIB\2", text).replace('{"keys": []}', '{"keys": [{"kid": "a"}]}')
