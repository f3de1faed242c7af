"""The picture of the demo: a terminal that scrolls as lines were printed, and loads no resources."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from local.show import recording
from local.show.recording import PICTURE, ROWS, draw

OUTPUT = [
    (1.0, "\x1b[32mcreate_resources\x1b[0m inserts <the MIG>"),
    (2.0, ""),
    (2.0, "Done in 40 seconds."),
]
KEY = re.compile(r"([\d.]+)%\{transform:translateY\(([\d.]+)px\)\}")


def text_of(svg: str) -> str:
    texts = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return " ".join("".join(one.itertext()).replace("\xa0", " ") for one in texts)


def test_a_picture_shows_the_command_and_its_complete_output() -> None:
    shown = text_of(draw(OUTPUT))
    for words in ("$ make demo", "create_resources", "inserts <the MIG>", "Done in 40 seconds."):
        assert words in shown


def test_a_picture_keeps_colours() -> None:
    assert len(set(re.findall(r"fill: (#\w+)", draw(OUTPUT)))) > 1


def test_the_picture_in_the_docs_shows_a_successful_run_and_loads_nothing() -> None:
    svg = Path(PICTURE).read_text()
    assert re.search(r"Done in \d+ seconds", text_of(svg))
    assert re.findall(r"url\((?!#)|href=|@import|src:", svg) == []
    (height,) = re.findall(r'viewBox="0 0 \d+ (\d+)"', svg)
    assert int(height) <= 60 * 24.4
    assert len(KEY.findall(svg)) > 10


def test_the_picture_has_the_height_of_a_terminal_and_scrolls_line_by_line() -> None:
    lines = [(10.0 + number, f"line {number}") for number in range(40)]
    picture = draw([*lines, (1000.0, "word " * 40)])
    assert f'viewBox="0 0 1360 {24.4 * ROWS:.0f}"' in picture
    frames = [(float(at), float(down)) for at, down in KEY.findall(picture)]
    moved = [round(down / 24.4) for _, down in frames]
    # The command and the first line; a line a second; then one that is folded into two rows.
    assert moved == [*range(41, 1, -1), 0]
    assert [at for at, _ in frames] == sorted(at for at, _ in frames)
    seconds = 39 + recording._LONGEST_PAUSE_S + recording._LAST_S  # a long pause is shortened
    assert f"demo-scroll {seconds:.1f}s step-end infinite" in picture
    assert "prefers-reduced-motion" in picture
