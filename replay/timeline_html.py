"""A timeline as one HTML page: no script, nothing from elsewhere, light and dark."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from html import escape
from pathlib import Path
from string import Template

from replay.decisions import render as render_decision
from replay.text import printable
from replay.timeline import COMPUTE, READY, RUNNING, STEP, VM, Span, Timeline
from replay.timeline_text import join_moments, render_summary

MAX_VMS = 48
"""Lanes of VMs in the chart; the table below it names all."""
_WIDTH, _LEFT, _LANE, _TOP = 960, 150, 20, 26
_LETTER = 7
"""No letter of the chart is wider."""
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
_MAX_TICKS = 9
_KINDS = {READY: "ready", COMPUTE: "gce", VM: "gce", STEP: "step"}
_LEGEND = (
    ("ok", "Ready"),
    ("wait", "not Ready"),
    ("gce", "operation of Compute Engine"),
    ("run", "VM exists"),
    ("step", "function"),
    ("bad", "failed or lost"),
)
_PAGE = Template((Path(__file__).parent / "timeline.html").read_text())
STYLE = (Path(__file__).parent / "timeline.css").read_text()


def render_html(timeline: Timeline, price: float | None) -> str:
    """The page."""
    head, *paragraphs = render_summary(timeline, price)
    columns = "<thead><tr><th>UTC</th><th>Source</th><th>What and why</th></tr></thead>"
    return _PAGE.substitute(
        style=STYLE,
        title=_text(f"{timeline.group}: timeline"),
        head=_text(head),
        paragraphs="\n".join(f"<p>{_text(paragraph)}</p>" for paragraph in paragraphs),
        legend=render_legend(),
        chart=render_chart(timeline),
        details=f"<table>{columns}<tbody>{''.join(render_rows(timeline))}</tbody></table>",
    )


def render_legend() -> str:
    """What the colours of the chart mean, as HTML."""
    box = '<svg viewBox="0 0 10 10"><rect class="{}" width="10" height="10"/></svg>'
    return "".join(f"<span>{box.format(kind)} {_text(words)}</span>" for kind, words in _LEGEND)


def _text(text: str) -> str:
    return escape(printable(text))


def render_chart(timeline: Timeline) -> str:
    """The chart as SVG. Its size is bounded: of bars that look the same, one is drawn."""
    vms = [lane for lane in timeline.lanes if lane[0] == VM]
    hidden = frozenset(vms[MAX_VMS:])
    lanes = [lane for lane in timeline.lanes if lane not in hidden]
    # The chart of a Ready slice ends soon after the last moment: it may stay Ready for days.
    last = max((moment.at for moment in timeline.moments), default=timeline.until)
    if any(span.end is None and span.what != READY for span in timeline.list_spans(READY)):
        last = timeline.until
    margin = max(timedelta(seconds=1), (last - timeline.since) * 0.04)
    begin = timeline.since
    end = max(begin + timedelta(seconds=1), min(timeline.until, last + margin))
    height = _TOP + _LANE * (len(lanes) + bool(hidden)) + 6
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="What ran when, in UTC">',
        *_ticks(begin, end, height),
    ]
    by_lane: dict[tuple[str, str], list[Span]] = {}
    for span in timeline.spans:
        by_lane.setdefault((span.kind, span.lane), []).append(span)
    for row, lane in enumerate(lanes):
        top = _TOP + row * _LANE
        parts.append(f'<text x="0" y="{top + 13}">{_text(lane[1])}</text>')
        # The bar of a running VM lies under the operations on it.
        spans = sorted(by_lane[lane], key=lambda span: span.what != RUNNING)
        drawn = {_look(span, begin, end): span for span in spans}
        parts += (_bar(span, top, begin, end, timeline.time_form) for span in drawn.values())
    if hidden:
        bottom = _TOP + len(lanes) * _LANE + 13
        parts.append(f'<text class="soft" x="0" y="{bottom}">and {len(hidden)} more VMs</text>')
    return "\n".join((*parts, "</svg>"))


def _ticks(begin: datetime, end: datetime, height: int) -> Iterator[str]:
    seconds = (end - begin).total_seconds()
    step = next((one for one in _TICKS_S if seconds / one <= _MAX_TICKS), seconds / _MAX_TICKS)
    first = -(-begin.timestamp() // step) * step
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m-%d"
    while first <= end.timestamp():
        moment = datetime.fromtimestamp(first, begin.tzinfo)
        x = _x(moment, begin, end)
        yield f'<line class="tick" x1="{x}" x2="{x}" y1="18" y2="{height}"/>'
        yield f'<text class="soft" x="{x}" y="12" text-anchor="middle">{moment:{form}}</text>'
        first += step


def _x(moment: datetime, begin: datetime, end: datetime) -> float:
    share = (min(max(moment, begin), end) - begin) / (end - begin)
    return round(_LEFT + share * (_WIDTH - _LEFT - 24), 1)


def _style(span: Span) -> str:
    if span.kind == READY:
        return "ok" if span.what == READY else "wait"
    if span.is_bad or span.what in ("preempted", "hostError"):
        return "bad"
    return "run" if span.what == RUNNING else _KINDS[span.kind]


def _look(span: Span, begin: datetime, end: datetime) -> tuple[str, int, int]:
    """What a bar looks like in its lane, to the pixel."""
    return _style(span), round(_x(span.begin, begin, end)), round(_x(span.until(end), begin, end))


def _bar(span: Span, top: int, begin: datetime, end: datetime, form: str) -> str:
    left, right = _x(span.begin, begin, end), _x(span.until(end), begin, end)
    took = (span.until(end) - span.begin).total_seconds()
    why = f": {span.why}" if span.why else ""
    lasts = "" if span.end else ", in progress"
    title = f"{span.lane}, {span.what}, {span.begin:{form}}, {took:.1f} s{lasts}{why}"
    bar = (
        f'<rect class="{_style(span)}" x="{left}" y="{top + 3}" width="{max(2.0, right - left):.1f}" '
        f'height="{_LANE - 6}" rx="2"><title>{_text(title)}</title></rect>'
    )
    if span.kind == READY and right - left >= len(span.what) * _LETTER + 8:  # room for the reason
        bar += f'<text class="in" x="{left + 4}" y="{top + 14}">{_text(span.what)}</text>'
    return bar


def render_rows(timeline: Timeline) -> Iterator[str]:
    """The rows of the table below the chart, as HTML."""
    for moment in join_moments(timeline.moments):
        why = [moment.why] if moment.why else []
        why += render_decision(moment.decision) if moment.decision else ()
        lines = "".join(f"<br><span class=soft>{_text(words)}</span>" for words in why)
        yield (
            f"<tr{' class=loss' if moment.is_bad else ''}><td>{moment.at:{timeline.time_form}}</td>"
            f"<td>{_text(moment.who)}</td><td>{_text(moment.what)}{lines}</td></tr>"
        )
