"""A timeline on a terminal: time, actor, action, cause. Plain lines if there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from local.run.supervisor import SLICE_STEPS, STEPS

_TIME_WIDTH = 9
_ACTOR_WIDTH = 16
_STYLES = {
    "person": "bold magenta",
    "relay": "cyan",
    "scheduler": "cyan",
    "demo": "magenta",
    **dict.fromkeys((*STEPS, *SLICE_STEPS), "green"),
    "compute engine": "blue",
    "GKE": "blue",
    "kubernetes": "yellow",
    "supervisor": "red",
}
_VM_STYLE = "bright_blue"


@dataclass(frozen=True)
class Line:
    """A line of the timeline; ``is_bad`` for failures."""

    actor: str
    what: str
    why: str = ""
    is_bad: bool = False


class Timeline:
    """Prints lines with the seconds since its creation.

    On a terminal, lines are coloured by actor (unless ``NO_COLOR`` is set) and folded within their
    column. The time's column is wide enough for ten days.
    """

    def __init__(
        self, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(highlight=False)
        self._now = now
        self._began = self._printed = now()

    @property
    def quiet_s(self) -> float:
        """The seconds since the last line."""
        return self._now() - self._printed

    def print(self, line: Line) -> None:
        """Print a line."""
        self._printed = self._now()
        elapsed = f"{self._printed - self._began:.1f}s".rjust(_TIME_WIDTH)
        line = replace(line, what=_printable(line.what), why=_printable(line.why))
        if self._console.is_terminal:
            self._print_row(elapsed, line)
        else:
            why = f"  [{line.why}]" if line.why else ""
            self.print_text(f"{elapsed}  {line.actor:<{_ACTOR_WIDTH}}  {line.what}{why}")

    def print_heading(self, title: str) -> None:
        """Print a heading."""
        self.print_text("")
        self.print_text(title, style="bold")

    def print_text(self, text: str, style: str = "") -> None:
        """Print text; on a terminal, folded between words."""
        self._console.print(Text(text, style), soft_wrap=not self._console.is_terminal)

    def print_verbatim(self, text: str) -> None:
        """Print text without folding, so that commands can be copied."""
        self._console.print(Text(text), soft_wrap=True)

    def print_row(self, text: str, indent: int = 4) -> None:
        """Print a row of a table; on a terminal too narrow for it, folded and indented further."""
        if not self._console.is_terminal or len(text) <= self._console.width:
            self.print_text(text)
            return
        first, *rest = Text(text).wrap(self._console, self._console.width)
        self._console.print(first, soft_wrap=True)
        width = self._console.width - indent
        for piece in Text(" ".join(one.plain.strip() for one in rest)).wrap(self._console, width):
            self._console.print(Text(" " * indent) + piece, soft_wrap=True)

    def _print_row(self, elapsed: str, line: Line) -> None:
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(width=_TIME_WIDTH, no_wrap=True, justify="right", style="dim")
        row.add_column(width=_ACTOR_WIDTH, no_wrap=True, style=_STYLES.get(line.actor, _VM_STYLE))
        row.add_column(overflow="fold")
        what = Text(line.what, "bold red" if line.is_bad else "")
        if line.why:
            what.append(f"  {line.why}", "dim")
        row.add_row(elapsed, line.actor, what)
        self._console.print(row)


def _printable(text: str) -> str:
    """Text without control characters but line ends: a VM or an API may have written it."""
    return "".join(
        char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text
    )
