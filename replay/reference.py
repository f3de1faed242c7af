"""The help texts in `docs/reference/replay.md`, from the code: ``python -m replay.reference <file>``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from replay.app import HELP_OPTIONS, app

_BEGIN, _END = "<!-- commands from the code -->\n", "<!-- end -->"
_WIDTH = 100
_NAME = "kubectl tng"


def render_commands() -> str:
    """What ``--help`` says, of the tool and of each of its commands, as Markdown."""
    return "\n".join(_sections(typer.main.get_command(app), _NAME))


def _sections(command: Any, name: str) -> Iterator[str]:
    """A command, and those below it."""
    yield _section(command, name)
    for word, below in getattr(command, "commands", {}).items():
        yield from _sections(below, f"{name} {word}")


def refresh(text: str) -> str:
    """The document with its help texts as they are now. Raises `ValueError` without a place."""
    start = text.index(_BEGIN) + len(_BEGIN)
    return text[:start] + "\n" + render_commands() + "\n" + text[text.index(_END, start) :]


def _section(command: Any, name: str) -> str:
    context = typer.Context(
        command, info_name=name, terminal_width=_WIDTH, help_option_names=HELP_OPTIONS
    )
    return f"### `{name}`\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(refresh(document.read_text()))
