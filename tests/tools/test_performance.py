"""docs/performance.md and its plots are the output of the benchmark."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tools.bench import ALL_STEPS, PEER, PEER_KUBERNETES, SIZES
from tools.performance import LEFT, PAGE, Bar, draw, draw_plots, read_page, split_output, write_page
from tools.waterfall import OWN, PARTS, measure

TIMES = """
waterfall: apply to Ready, in seconds
hosts                                            2
* policy and template inserted                0.50
  Compute Engine creates them                 4.00
* MIG inserted                                0.50
  Compute Engine creates MIG and VMs         40.00
* the VM's token written                      0.50
  the VM boots, and runs kubeadm              0.00
* its certificate approved                    0.50
  its Node joins, with network and chips      0.00
* Ready written                               0.00
apply to Ready                               46.00
* tpu-functions                               2.00
  of which waiting for messages               0.00
* share                                       4.3%
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
    assert list(read_page(again)) == ["waterfall", "warm reaction"]
    assert "6.0 ms" in again
    assert "5.0 ms" not in again
    assert write_page(again, {}) == again


def test_all_sections_of_the_page_are_of_one_run_of_a_commit() -> None:
    runs = {text.splitlines()[-1] for text in read_page(PAGE.read_text()).values()}
    (run,) = runs
    assert re.fullmatch(r"\(commit [0-9a-f]{10,}, 20\d\d-\d\d-\d\d\)", run), "run: make performance"


def test_each_step_starts_with_at_most_half_of_the_cpu_of_ordinary_imports() -> None:
    rows = [line.split() for line in read_page(PAGE.read_text())["cold start"].splitlines()]
    shares = {row[0]: int(row[3].rstrip("%")) for row in rows if row[0] in ALL_STEPS}
    assert [*shares] == [*ALL_STEPS]
    assert max(shares.values()) <= 50


def test_a_page_without_a_marker_for_the_output_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no marker for the output of make bench"):
        write_page("# Page\n", {})


def test_a_plot_has_a_bar_for_each_row_within_its_width() -> None:
    (plot,) = draw_plots(split_output(TIMES)).values()
    root = ElementTree.fromstring(plot)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    parts = ["tpu-functions", "resources", "VMs", "boot", "join"]
    assert texts == ["From apply to Ready, in seconds", *parts, "2 hosts", "46 s"]
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


def test_tpu_functions_takes_at_most_3_percent_from_apply_to_ready() -> None:
    """The CPU time is measured, and it is a hundredth of the time of the calls."""
    measure(*SIZES[0])  # imports
    parts = measure(*SIZES[0])
    assert list(parts) == list(PARTS)
    assert min(part.wait_s for part in parts.values()) >= 0
    assert all((part.calls_s > 0) == (name in OWN) for name, part in parts.items())
    own = sum(part.total_s for name, part in parts.items() if name in OWN)
    assert own <= 0.03 * sum(part.total_s for part in parts.values())
    assert parts["VMs"].wait_s + parts["boot"].wait_s + parts["join"].wait_s > 60
