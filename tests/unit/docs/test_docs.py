"""The documentation: links have a target, the index names each page, commands and options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from replay.app import app
from tests.unit.docs.pages import PAGES, ROOT, list_anchors

INDEX = ROOT / "docs" / "README.md"
MAX_TERMS = 20
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]+`|^ *```\w*\n.*?^ *```", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
_MAKE = re.compile(r"(?:^|[`;&]) *make ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", re.MULTILINE)
_TOOL = re.compile(r"(?<!Usage: )(?:kubectl tng|python -m replay)((?: (?![ |&;#>\[])\S+)*)")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_link_refers_to_an_existing_file_and_heading(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in list_anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_index_names_each_page_once() -> None:
    linked = [link for link in _LINK.findall(INDEX.read_text()) if "://" not in link]
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"}
    expected = pages - {INDEX} | {ROOT / "docs" / "decisions" / "README.md"}
    expected |= {ROOT / "infra" / "terraform" / "README.md", ROOT / "local" / "README.md"}
    assert sorted(map(str, ((INDEX.parent / link).resolve() for link in linked))) == sorted(
        map(str, expected)
    )


def test_the_glossary_is_short_and_each_term_is_explained_once() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+\. \|$", (INDEX.parent / "glossary.md").read_text(), re.M
    )
    assert 0 < len(rows) <= MAX_TERMS
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_make_target_in_a_command_exists(page: Path) -> None:
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    named: set[str] = set()
    for code in _CODE.findall(page.read_text()):
        for words in _MAKE.findall(code):
            named |= set(words.split())
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_command_of_the_operators_tool_exists_with_its_options(page: Path) -> None:
    wrong = []
    for code in _CODE.findall(page.read_text()):
        for arguments in _TOOL.findall(re.sub(r"\s*\\\n\s*", " ", code)):
            wrong += [error for error in [_find_error(arguments)] if error]
    assert wrong == []


def _find_error(arguments: str) -> str:
    """Return why the tool would reject a command line, or "". It checks no values and PLACEHOLDERS."""
    command = get_command(app)
    try:
        words = shlex.split(arguments.split("`")[0])
    except ValueError:
        return f"cannot be read: {arguments}"
    for word in words:
        commands = getattr(command, "commands", {})
        if commands and not word.startswith("-") and not word.isupper():
            if word not in commands:
                return f"no command {word}: {arguments}"
            command = commands[word]
        elif word.startswith("--"):
            known = {name for one in command.params for name in one.opts} | {"--help"}
            if word.partition("=")[0] not in known:
                return f"no option {word}: {arguments}"
    return ""
