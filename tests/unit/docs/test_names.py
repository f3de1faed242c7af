"""Files and names of the code in the pages exist."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.unit.docs.pages import PAGES, ROOT

CREATED = re.compile(
    r"CLUSTER|RUN|research|backend\.tf|tpu-functions\.yaml|tng\.yaml|\.terraform\.lock\.hcl"
)
"""What a user or a command creates."""
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_WORD = re.compile(r"[\w./-]+")
_FILE = re.compile(r"\w[\w.-]*\.(?:py|sh|tf|toml|yaml|json|svg|txt|in)")
_NAME = re.compile(r"(?:functions|shared|relay|replay|webhook|local|tools)(?:\.\w+)+")
_SKIPPED = {".git", ".venv", "build", "node_modules"}


@cache
def list_files() -> tuple[Path, ...]:
    tops = [path for path in ROOT.iterdir() if path.name not in _SKIPPED]
    below = (path for top in tops if top.is_dir() for path in top.rglob("*"))
    return (*tops, *below)


def exists(word: str, page: Path) -> bool:
    """Whether a path exists in the repository or beside the page, or a file of this name anywhere."""
    if "/" in word:
        return any((folder / word).exists() for folder in (ROOT, page.parent))
    return any(path.name == word for path in list_files())


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or what a module defines."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        if path.is_dir() or path.with_suffix(".py").exists():
            found = import_module(".".join(parts[:count]))
            for attribute in parts[count:]:
                if not hasattr(found, attribute):
                    return False
                found = getattr(found, attribute)
            return True
    return False


def find_missing(page: Path, text: str) -> list[str]:
    """The paths, files and dotted names in the code of a page that do not exist."""
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()} - _SKIPPED
    missing = []
    for code in _CODE.findall(_FENCE.sub("", text)):
        for word in (found.rstrip(".") for found in _WORD.findall(code)):
            is_path = "/" in word and word.split("/")[0] in tops
            if CREATED.search(word):
                continue
            if is_path or _FILE.fullmatch(word):
                missing += [] if exists(word, page) else [word]
            elif _NAME.fullmatch(word):
                missing += [] if resolves(word) else [word]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_file_and_name_of_the_code_in_a_page_exists(page: Path) -> None:
    assert find_missing(page, page.read_text()) == []


def test_a_missing_file_or_name_is_found() -> None:
    text = (
        "`shared/frame/plan.py`, `shared.frame.plan.Plan`: `shared/a.py`, `a.py`, `shared.frame.A`"
    )
    assert find_missing(ROOT / "README.md", text) == ["shared/a.py", "a.py", "shared.frame.A"]
