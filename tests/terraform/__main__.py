"""Get the providers that Terraform needs for the module (``make terraform-validate``).

If the registry is not reachable, a stand-in with the providers' schemas is built once. No cloud is
needed.
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
    """Run the command; return its exit code."""
    argparse.ArgumentParser(prog="python -m tests.terraform", description=__doc__).parse_args(
        arguments
    )
    try:
        try:
            providers = _find_providers()
        except workspace.Unavailable:
            print("building the stand-in for the providers ...", flush=True)
            workspace.build_stand_in(os.environ)
            providers = _find_providers()
    except workspace.Unavailable as error:
        print(f"make terraform-validate: {error}", file=sys.stderr)
        return 1
    print(f"terraform uses {providers}")
    return 0


def _find_providers() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return workspace.make(Path(folder)).providers


if __name__ == "__main__":
    sys.exit(main())
