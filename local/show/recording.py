"""Run the demo and draw its output as docs/demo.svg (``make recording``).

It takes as long as the demo, about a minute. If the demo fails, the picture stays as it is.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "demo.svg"
COLUMNS = 110
_FORM = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
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
    ran = subprocess.run(
        [sys.executable, "-m", "local.show.demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode:
        print(ran.stdout, end="")
        return ran.returncode
    PICTURE.write_text(draw(ran.stdout))
    print(f"{PICTURE.relative_to(ROOT)}: {len(ran.stdout.splitlines())} lines")
    return 0


def draw(output: str) -> str:
    """An SVG of what a terminal showed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ make demo"))
    console.print(Text.from_ansi(output.rstrip()))
    picture = console.export_svg(title="tpu-functions", code_format=_FORM, unique_id="demo")
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
