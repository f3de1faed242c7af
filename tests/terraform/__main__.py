"""Find the providers that Terraform needs for the module (``make terraform-validate``).

Where the registry cannot be reached, build a stand-in with the providers' schemas, once. This needs no
cloud.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.terraform import workspace


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    argparse.ArgumentParser(prog="python -m tests.terraform", description=__doc__).parse_args(
        arguments
    )
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
