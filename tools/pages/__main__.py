"""Render the reference pages, or the tables in a page, from the code.

With ``--check`` nothing is written: the pages that are out of date are printed, and the exit code is
1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from tools.pages import (
    crd,
    permissions,
    questions,
    reasons,
    relay,
    replay,
    resource_lifecycle,
    slice_lifecycle,
    sliceclass,
    terraform,
    tpunodegroup,
    triggers,
)
from tools.pages.markdown import ROOT, replace_parts
from tools.scale import figures

PAGES: Mapping[str, Callable[[], str | Mapping[str, str]]] = {
    "docs/how-it-works.md": triggers.render,
    "docs/reference/metrics.md": relay.render_metrics,
    "docs/reference/permissions.md": permissions.render,
    "docs/reference/reasons.md": reasons.render,
    "docs/reference/relay.md": relay.render_settings,
    "docs/reference/replay.md": replay.render,
    "docs/reference/resource-lifecycle.md": resource_lifecycle.render,
    "docs/reference/slice-lifecycle.md": slice_lifecycle.render,
    "docs/reference/tpunodegroup.md": tpunodegroup.render,
    "docs/reference/tpusliceclass.md": sliceclass.render_page,
    "docs/scale.md": figures.render_parts,
    "docs/test-cloud.md": questions.render,
    "infra/chart/manifests/base/crd.yaml": crd.render,
    "infra/chart/manifests/jobsets/class-crd.yaml": sliceclass.render,
    "infra/terraform/README.md": terraform.render,
}
"""What renders each page: the whole page, or its parts by name."""


def render(page: str) -> str:
    """Render a page of `PAGES`; a page with parts keeps the text around them."""
    rendered = PAGES[page]()
    if isinstance(rendered, str):
        return rendered
    return replace_parts((ROOT / page).read_text(), rendered)


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or check them. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a page differs"
    )
    is_check = parser.parse_args(arguments).check
    texts = {page: render(page) for page in PAGES}
    changed = [page for page, text in texts.items() if (ROOT / page).read_text() != text]
    for page in changed:
        if is_check:
            print(f"{page} is out of date: run make pages", file=sys.stderr)
        else:
            (ROOT / page).write_text(texts[page])
            print(page)
    return 1 if is_check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
