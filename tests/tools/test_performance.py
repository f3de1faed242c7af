"""docs/performance.md and its plots are the output of the benchmark."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tools.bench import PARTS, PEER, PEER_KUBERNETES, SIZES, slice_times
from tools.performance import LEFT, PAGE, Bar, draw, draw_plots, read_page, split_output, write_page

TIMES = """
where the time of a slice goes: seconds
 hosts  resources  VMs  total
     2        4.0 40.0   44.0
"""
EMPTY = "# Page\n<!-- output of make bench -->\n<!-- end -->\n"


def test_the_plots_are_drawn_from_the_page() -> None:
    plots = draw_plots(read_page(PAGE.read_text()))
    assert sorted(plots) == sorted(path.name for path in PAGE.parent.glob("performance-*.svg"))
    for name, plot in plots.items():
        assert (PAGE.parent / name).read_text() == plot, "run: make performance"
        assert f"({name})" in PAGE.read_text()


def test_the_page_keeps_the_sections_that_were_not_run_again() -> None:
    page = write_page(
        EMPTY, split_output(TIMES + "\nwarm reaction: over loopback\nsweep  5.0 ms\n")
    )
    again = write_page(page, split_output("\nwarm reaction: over loopback\nsweep  6.0 ms\n"))
    assert list(read_page(again)) == ["where the time of a slice goes", "warm reaction"]
    assert "6.0 ms" in again
    assert "5.0 ms" not in again
    assert write_page(again, {}) == again


def test_a_page_without_a_marker_for_the_output_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no marker for the output of make bench"):
        write_page("# Page\n", {})


def test_a_plot_has_a_bar_for_each_row_within_its_width() -> None:
    (plot,) = draw_plots(split_output(TIMES)).values()
    root = ElementTree.fromstring(plot)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["From apply to Ready, in seconds", "resources", "VMs", "2 hosts", "44 s"]
    bars = [Bar("a", (1.0,)), Bar("b", (3.0, 6.0))]
    rows = ElementTree.fromstring(draw("t", "", ("x", "y"), bars)).iter(
        "{http://www.w3.org/2000/svg}rect"
    )
    ends = [float(one.attrib["x"]) + float(one.attrib["width"]) for one in rows]
    assert max(ends) <= 720
    assert ends[-1] - LEFT == pytest.approx(9 * (ends[2] - LEFT), rel=0.01)


def test_the_page_has_the_measured_figures_of_tpu_operator() -> None:
    text = PAGE.read_text()

    def row(title: str) -> list[int]:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {title} |")]
        return [int(cell.replace(",", "")) for cell in line.split("|")[2:-1]]

    for peers, api in ((PEER, "Compute Engine"), (PEER_KUBERNETES, "Kubernetes")):
        ready = row(f"{api} calls to Ready")[1::2]
        gone = row(f"{api} calls, from delete to gone")[1::2]
        assert [sum(pair) for pair in zip(ready, gone, strict=True)] == list(peers.values())


def test_no_phase_of_a_slices_creation_is_negative_and_the_joins_take_longest() -> None:
    hosts, topology = SIZES[0]
    spans = dict(zip(PARTS, slice_times(hosts, topology), strict=True))
    assert min(spans.values()) >= 0
    assert spans["tokens"] < 3
    assert spans["Ready"] < 3
    assert spans["VMs"] + spans["join"] + spans["chips"] > 60
