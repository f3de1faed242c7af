"""The pictures render in every viewer: not all know variables, HTML in a picture, or the network."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.docs.pages import ROOT

PICTURES = sorted((ROOT / "docs").glob("*.svg"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_needs_no_variables_html_scripts_or_network(path: Path) -> None:
    text = path.read_text()
    ElementTree.fromstring(text)
    for word in ("var(", "foreignObject", "<script", "@import", "font-face", "url(http", "<image"):
        assert word not in text
