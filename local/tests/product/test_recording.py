"""The picture of the demo shows the output of the terminal, and loads no resources."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from local.show.recording import PICTURE, draw

OUTPUT = "\x1b[32mcreate_resources\x1b[0m inserts <the MIG>\n\nDone in 40 seconds."


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
