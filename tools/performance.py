"""``make performance``: runs the benchmark and writes its figures and plots into `docs/performance.md`.

The page has the output of the benchmark between two comments, each section with the commit and the day
of its run; the plots are drawn from it. ``python -m tools.performance SECTION...`` runs some sections
and keeps the output of the others.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.scale.figures import describe_run
from tools.waterfall import OWN, OWN_TOTAL, PARTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
_OUTPUT = re.compile(r"(?<=<!-- output of make bench -->\n).*?(?=<!-- end -->)", re.DOTALL)
_FENCED = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WIDTH, _BAR, _GAP, LEFT = 720, 26, 14, 170
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#9c6b4e")


@dataclass(frozen=True)
class Bar:
    """A bar of a plot, of one part or of several."""

    label: str
    parts: tuple[float, ...]


def split_output(text: str) -> dict[str, str]:
    """The sections of the benchmark's output, by the first words of their titles."""
    sections = [part.strip("\n") for part in re.split(r"\n\s*\n", text) if part.strip()]
    return {re.split(r"[:,(]", section)[0].strip(): section for section in sections}


def read_page(page: str) -> dict[str, str]:
    """The sections of the page."""
    found = _OUTPUT.search(page)
    if found is None:
        raise ValueError(f"{PAGE.name} has no marker for the output of make bench")
    return split_output("\n\n".join(_FENCED.findall(found[0])))


def write_page(page: str, sections: Mapping[str, str]) -> str:
    """The page with these sections replaced; its other sections are kept."""
    every = {**read_page(page), **sections}
    text = "\n".join(f"```text\n{section}\n```\n" for section in every.values())
    return _OUTPUT.sub(lambda _: text, page, count=1)


def draw(title: str, unit: str, names: Sequence[str], bars: Sequence[Bar]) -> str:
    """A plot of horizontal bars as SVG, for light and dark pages."""
    longest = max(sum(bar.parts) for bar in bars)
    scale = (_WIDTH - LEFT - 70) / longest
    top = 64 if len(names) > 1 else 40
    height = top + len(bars) * (_BAR + _GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{title}</title>",
        "<style>text{font:13px sans-serif;fill:#1f2328}"
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}}</style>",
        f'<text x="0" y="18" style="font-weight:bold">{title}</text>',
    ]
    if len(names) > 1:
        for number, name in enumerate(names):
            left = LEFT + number * (_WIDTH - LEFT) // len(names)
            colour = _COLOURS[number % len(_COLOURS)]
            lines += [
                f'<rect x="{left}" y="34" width="12" height="12" fill="{colour}"/>',
                f'<text x="{left + 17}" y="45">{name}</text>',
            ]
    for row, bar in enumerate(bars):
        y, x = top + row * (_BAR + _GAP), float(LEFT)
        lines.append(f'<text x="{LEFT - 10}" y="{y + 18}" text-anchor="end">{bar.label}</text>')
        for number, part in enumerate(bar.parts):
            width = part * scale
            colour = _COLOURS[number % len(_COLOURS)]
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
            )
            x += width
        total = f"{sum(bar.parts):,.0f}{unit}"
        lines.append(f'<text x="{x + 6:.1f}" y="{y + 18}">{total}</text>')
    return "\n".join([*lines, "</svg>", ""])


def draw_plots(sections: Mapping[str, str]) -> dict[str, str]:
    """The plots that the sections have figures for, by file name."""
    plots = {}
    if times := sections.get("waterfall"):
        head, *rows = (re.split(r"  +", line.strip()) for line in times.splitlines()[1:])
        seconds = {
            row[0]: [float(cell) for cell in row[1:]] for row in rows if row[-1][-1].isdigit()
        }
        parts = {"tpu-functions": seconds[OWN_TOTAL]}
        parts |= {name: seconds[PARTS[name]] for name in PARTS if name not in OWN}
        bars = [
            Bar(f"{hosts} hosts", tuple(part[column] for part in parts.values()))
            for column, hosts in enumerate(head[1:])
        ]
        title = "From apply to Ready, in seconds"
        plots["performance-slice-times.svg"] = draw(title, " s", [*parts], bars)
    if calls := sections.get("calls of a slice's lifecycle"):
        rows = [line.split() for line in calls.splitlines()[3:] if not line.startswith("(")]
        bars = [
            Bar(f"{row[0]} hosts, {whose}", (float(row[column]),))
            for row in rows
            for whose, column in (("ours", 1), ("tpu-operator", 3))
        ]
        title = "Calls to Compute Engine for the lifecycle of a slice"
        plots["performance-calls.svg"] = draw(title, "", (), bars)
    return plots


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and write its output into the page. Returns the benchmark's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help="all by default; `make bench` has the names"
    )
    chosen = parser.parse_args(arguments).sections
    command = [sys.executable, "-m", "tools.bench", *chosen]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode:
        return done.returncode
    run = describe_run()
    sections = {name: f"{text}\n({run})" for name, text in split_output(done.stdout).items()}
    page = PAGE.read_text() if chosen else _OUTPUT.sub("", PAGE.read_text(), count=1)
    page = write_page(page, sections)
    PAGE.write_text(page)
    for name, plot in draw_plots(read_page(page)).items():
        (PAGE.parent / name).write_text(plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
