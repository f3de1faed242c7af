"""The help texts in `docs/reference/replay.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from replay.app import HELP_OPTIONS, app

_WIDTH = 100
_NAME = "kubectl tng"


def render() -> dict[str, str]:
    """What ``--help`` says, of the tool and of each of its commands, as Markdown."""
    sections = _sections(typer.main.get_command(app), _NAME)
    return {"commands": "\n".join(["", *sections, ""])}


def _sections(command: Any, name: str) -> Iterator[str]:
    """A command, and those below it."""
    yield _section(command, name)
    for word, below in getattr(command, "commands", {}).items():
        yield from _sections(below, f"{name} {word}")


def _section(command: Any, name: str) -> str:
    context = typer.Context(
        command, info_name=name, terminal_width=_WIDTH, help_option_names=HELP_OPTIONS
    )
    return f"### `{name}`\n\n```text\n{command.get_help(context)}\n```\n"
