"""The page on rights says what is granted."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_on_rights_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "infra/terraform/render_reference.py"))
    page = (ROOT / "docs/reference/permissions.md").read_text()
    assert page == script["render"](), "run: python infra/terraform/render_reference.py"
