"""Run the demo and draw its output as docs/demo.svg (``make recording``), as a terminal that scrolls.

It takes as long as the demo, about a minute. If the demo fails, the picture stays as it is.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "demo.svg"
COLUMNS = 110
ROWS = 30
_LINE = 24.4
"""The height of a row in Rich's picture."""
_LONGEST_PAUSE_S = 1.5
_LAST_S = 6.0
_FORM = """<svg viewBox="0 0 {width} HEIGHT" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
{styles}
MOVES
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<rect width="100%" height="100%" fill="#292929"/>
<g class="{unique_id}-matrix" transform="translate(9, END)">
<g class="{unique_id}-moves">
{backgrounds}
{matrix}
</g>
</g>
</svg>
"""
"""Unlike Rich's own template, it loads no fonts from the network."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and write the picture. Returns the demo's exit code; a failed run writes nothing."""
    argparse.ArgumentParser(prog="python -m local.show.recording", description=__doc__).parse_args(
        arguments
    )
    environment = os.environ | {
        "FORCE_COLOR": "1",
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
    }
    environment.pop("NO_COLOR", None)
    lines: list[tuple[float, str]] = []
    with subprocess.Popen(
        [sys.executable, "-m", "local.show.demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as ran:
        assert ran.stdout is not None
        for line in ran.stdout:
            lines.append((time.monotonic(), line.rstrip("\n")))
    if ran.returncode:
        print("\n".join(line for _, line in lines))
        return ran.returncode
    PICTURE.write_text(draw(lines))
    print(f"{PICTURE.relative_to(ROOT)}: {len(lines)} lines")
    return 0


def draw(lines: Sequence[tuple[float, str]]) -> str:
    """An SVG of what a terminal showed: lines, each with the time in seconds at which it was printed.

    It is as high as `ROWS`, and scrolls. Viewers without animations show the end.
    """
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    frames: list[tuple[float, int]] = []
    at, rows, before = 0.0, 0, lines[0][0] if lines else 0.0
    for printed, line in [(before, "$ make demo"), *lines]:
        text = Text.from_ansi(line)
        console.print(text)
        rows += len(text.wrap(console, COLUMNS)) or 1
        at += min(printed - before, _LONGEST_PAUSE_S)
        before = printed
        frames.append((at, rows))
    picture = console.export_svg(title="tpu-functions", code_format=_FORM, unique_id="demo")
    height = _LINE * ROWS
    moves = render_moves(frames, at + _LAST_S)
    end = f"{height - _LINE * rows:.1f}"
    picture = picture.replace("MOVES", moves).replace("END", end).replace("HEIGHT", f"{height:.0f}")
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


def render_moves(frames: Sequence[tuple[float, int]], seconds: float) -> str:
    """The animation: how far the picture of the end is moved down while it has fewer rows."""
    most = frames[-1][1]
    steps = {f"{100 * at / seconds:.2f}%": rows for at, rows in frames}  # the last at a time counts
    keys = "".join(
        f"{key}{{transform:translateY({_LINE * (most - rows):.1f}px)}}\n"
        for key, rows in steps.items()
    )
    return (
        f"@keyframes demo-scroll {{\n{keys}100%{{transform:none}}\n}}\n"
        f".demo-moves {{ animation: demo-scroll {seconds:.1f}s step-end infinite; }}\n"
        "@media (prefers-reduced-motion: reduce) { .demo-moves { animation: none; } }"
    )


if __name__ == "__main__":
    sys.exit(main())
