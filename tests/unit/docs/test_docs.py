"""The documentation: links have a target, the index names each page, commands and options exist."""

from __future__ import annotations

import re
import shlex
import tomllib
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
    """Links to headings may be added."""
    linked = [link for link in _LINK.findall(INDEX.read_text()) if not re.search("://|#", link)]
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


def test_each_package_that_a_requirements_file_names_has_a_row_in_the_page_on_dependencies() -> (
    None
):
    table = (ROOT / "docs" / "dependencies.md").read_text()
    rows = {
        name.lower().replace("_", "-")
        for names in re.findall(r"^\| ([^|`(]+)", table, re.M)
        for name in names.strip().split(", ")
    }
    files = [
        ROOT / "requirements.in",
        ROOT / "requirements-dev.in",
        *(ROOT / top / "requirements.in" for top in ("local", "relay", "replay", "webhook")),
        ROOT / "tests" / "readers" / "requirements.in",
    ]
    named = {
        name.lower().replace("_", "-")
        for file in files
        for name in re.findall(r"^[\w-]+", re.sub(r"^-.*$", "", file.read_text(), flags=re.M), re.M)
    } | {
        module.replace("google.auth", "google-auth")
        for top in ("shared", "relay", "replay")
        for file in (ROOT / top).rglob("*.py")
        for module in re.findall(
            r"^ *(?:import|from) (google\.auth|requests|urllib3)\b", file.read_text(), re.M
        )
    }
    assert {"google-auth", "requests", "urllib3", "numpy"} < named
    assert named - rows == set()


def test_each_exception_to_an_import_contract_is_explained() -> None:
    """The left side of an ignored import, as a folder, is on the page that has the contract's rule."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    excepted = {
        ignored.split(" -> ")[0].removesuffix(".**").replace(".", "/")
        for contract in contracts["contracts"]
        for ignored in contract.get("ignore_imports", ())
    }
    assert excepted
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    assert [path for path in sorted(excepted) if f"`{path}/`" not in page] == []


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
