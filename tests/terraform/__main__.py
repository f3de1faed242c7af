"""Get ready what Terraform needs to work on the module without a cloud (``make terraform-validate``)."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.terraform import workspace


def main() -> int:
    """The exit code."""
    try:
        try:
            providers = _try()
        except workspace.Unavailable:
            print("building a stand-in for the providers, once ...", flush=True)
            workspace.build_stand_in(os.environ)
            providers = _try()
    except workspace.Unavailable as error:
        print(f"make terraform-validate: {error}", file=sys.stderr)
        return 1
    print(f"terraform works with {providers}")
    return 0


def _try() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return workspace.make(Path(folder)).providers


if __name__ == "__main__":
    sys.exit(main())
