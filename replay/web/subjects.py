"""What the page reads: the queries of `get`, `explain`, `timeline`, `dead-letters list` and `leaks`."""

from collections.abc import Callable, Iterator, Sequence, Set
from datetime import datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any

from functions.report_leaks.decide import render_unseen
from replay import dead_letters, explain, explain_unit, leaks, timeline_html
from replay.cloud_logging import read_pages
from replay.dead_letters import leased
from replay.dependencies import Dependencies
from replay.errors import FORESEEN, ReplayError, in_plain_words
from replay.listing import list_tables
from replay.output import list_conditions
from replay.recording import ReplayRules
from replay.timeline_sources import TimelineRequest, build_timeline
from replay.timeline_text import render_summary
from replay.web.hub import PageSubject
from replay.web.state import Lines, Sections, build_overview
from shared.base.fields import count
from shared.base.names import is_dns_label, is_dns_subdomain
from shared.base.timestamps import render_time

ALWAYS = (OVERVIEW, DEAD_LETTERS, LEAKS) = "overview", "dead-letters", "leaks"
"""The subjects that each tab shows."""
OVERVIEW_S, LIFE_S, POD_S, EXPLAIN_S = 3.0, 5.0, 10.0, 30.0
REST_S = 300.0
"""A list of dead letters leases them, so that no other client receives them meanwhile."""
OPENED_FOR = timedelta(minutes=1)
"""The dependencies are opened again after this time: credentials and settings may have come."""
LATE = timedelta(minutes=2)
"""Cloud Logging may show an entry so long after its time."""


class PageSubjects:
    """The subjects of an installation. ``namespace``: of the slices and Pods in the overview, or empty.
    ``price``: of a chip-hour. ``context``: the cluster's name."""

    def __init__(
        self,
        open_dependencies: Callable[[], Dependencies],
        namespace: str = "",
        price: float | None = None,
        context: str = "",
    ) -> None:
        self._open_dependencies = open_dependencies
        self._namespace = namespace
        self._price = price
        self._context = " · ".join(filter(None, (context, namespace)))
        self._lock = Lock()
        self._deps = open_dependencies()
        self._opened = self._deps.now()

    def open(self, name: str) -> PageSubject | None:
        """The subject of a name: one of `ALWAYS`, slice/NAMESPACE/NAME, also without slice/, or
        pod/NAMESPACE/NAME. Of another name it has an error; of an empty one, there is none."""
        if name == OVERVIEW:
            return PageSubject(self._read_overview, OVERVIEW_S, "clusterError")
        if name == DEAD_LETTERS:
            return PageSubject(self._read_dead_letters, REST_S, "deadLettersError")
        if name == LEAKS:
            return PageSubject(self._read_leaks, REST_S, "leaksError")
        kind, _, key = name.partition("/")
        if kind not in ("slice", "pod") and "/" not in key:  # as in kubectl tng explain
            kind, key = "slice", name
        namespace, _, own = key.partition("/")
        is_valid = is_dns_label(namespace) and is_dns_subdomain(own)
        if kind == "slice" and is_valid:
            life = Life(self._get_dependencies, namespace, own, self._price)
            return PageSubject(life.read, LIFE_S, "viewError")
        if kind == "pod" and is_valid:
            return PageSubject(partial(self._read_pod, namespace, own), POD_S, "viewError")
        return PageSubject(partial(_refuse, name), REST_S, "viewError") if name else None

    def _get_dependencies(self) -> Dependencies:
        with self._lock:
            now = self._deps.now()
            if now - self._opened >= OPENED_FOR:
                self._deps, self._opened = self._open_dependencies(), now
            return self._deps

    def _get_google(self) -> Dependencies:
        """The dependencies with Google's APIs. Raises `ReplayError`."""
        deps = self._get_dependencies()
        if deps.unread:
            raise ReplayError(deps.unread)
        return deps

    def _read_overview(self) -> Iterator[Sections]:
        yield {"context": self._context}
        deps = self._get_dependencies()
        yield build_overview(list(list_tables(deps, self._namespace)), self._price, deps.now())

    def _read_dead_letters(self) -> Iterator[Sections]:
        deps = self._get_google()
        rules = ReplayRules(None, deps.settings.topic_prefix, deps.now())
        with leased(deps.subscriptions, rules, lambda _: None) as found:
            letters = [dead_letters.to_document(one) for one in found.letters]
        yield {"deadLetters": letters, "deadLettersReadAt": render_time(deps.now())}

    def _read_leaks(self) -> Iterator[Sections]:
        """Leaked slices and Nodes, and in ``leaksUnseen`` what may be leaked."""
        deps = self._get_google()
        observed = leaks.observe_leaks(deps)
        described = leaks.describe_leaks(observed, deps.settings.gke)
        unseen = [f"{count(observed.left, 'slice')} more may be leaked."] if observed.left else []
        if observed.unseen:
            unseen.append(render_unseen(observed, map(in_plain_words, observed.failures)))
        yield {
            "leaks": [{"message": words, "commands": lines} for words, lines in described],
            "leaksUnseen": " ".join(unseen),
            "leaksReadAt": render_time(deps.now()),
        }

    def _read_pod(self, namespace: str, name: str) -> Iterator[Sections]:
        explanation = explain_unit.explain_pod(self._get_dependencies(), namespace, name)
        yield {"pod": explain_unit.to_document(explanation)}


def _refuse(name: str) -> Iterator[Sections]:
    raise ReplayError(f"{name!r} names neither a slice nor a Pod; the first page lists them")


class Life:
    """The life of one slice. Entries of its log are kept, and only later ones are read."""

    def __init__(
        self,
        get_dependencies: Callable[[], Dependencies],
        namespace: str,
        name: str,
        price: float | None,
    ) -> None:
        self._get_dependencies, self._namespace, self._name = get_dependencies, namespace, name
        self._price = price
        self._version = ""
        self._explained_at: datetime | None = None
        self._entries: dict[tuple[str, str], dict[str, Any]] = {}
        self._query, self._read_until = "", datetime.min

    def read(self) -> Iterator[Sections]:
        """Why it is not Ready, then its timeline. Either may fail, and the other is shown."""
        deps = self._get_dependencies()
        now = deps.now()
        raw = deps.open_cluster().find_group(self._namespace, self._name) or {"metadata": {}}
        version = raw["metadata"].get("resourceVersion", "")
        is_old = self._explained_at is None or now - self._explained_at >= timedelta(
            seconds=EXPLAIN_S
        )
        if is_old or version != self._version:
            self._version, self._explained_at = version, now
            try:
                yield {"life": self._explain(deps), "lifeError": ""}
            except FORESEEN as error:
                yield {"life": None, "lifeError": in_plain_words(error)}
        if deps.unread:
            yield {"timelineError": deps.unread}
            return
        notes: list[str] = []
        request = TimelineRequest(self._namespace, self._name, since=None, until=now)
        try:
            timeline = build_timeline(deps, request, self._read_entries, notes.append)
        except FORESEEN as error:
            yield {"timelineError": in_plain_words(error)}
            return
        head, *paragraphs = render_summary(timeline, self._price)
        yield {
            "timelineError": "",
            "timeline": {"head": head, "paragraphs": [*paragraphs, *notes]},
            "legend": timeline_html.render_legend(),
            "chart": timeline_html.render_chart(timeline),
            "lines": Lines(timeline_html.render_rows(timeline)),
        }

    def _explain(self, deps: Dependencies) -> dict[str, Any]:
        found = explain.explain(deps, self._namespace, self._name)
        summary = [text for text in explain.summarize(found) if text]
        rows = list_conditions(found, " ".join(summary))
        return {"summary": summary, "conditions": [[*cells, *words] for cells, words in rows]}

    def _read_entries(
        self, deps: Dependencies, projects: Set[str], since: datetime, until: datetime, query: str
    ) -> Sequence[dict[str, Any]]:
        """A `replay.timeline_sources.Read`."""
        if query != self._query:  # another group of this name
            self._query, self._read_until = query, since
            self._entries.clear()
        begin = max(since, self._read_until - LATE)
        times = f'timestamp>="{render_time(begin)}"\ntimestamp<="{until.isoformat()}"'
        asked = f"{times}\n{query}"
        for page in read_pages(deps.logs, projects, asked, deps.sleep, deps.monotonic):
            for entry in page.entries:
                # Without the Z, a time is before those with more digits: some have no fraction.
                timestamp = str(entry.get("timestamp")).rstrip("Z")
                self._entries[timestamp, str(entry.get("insertId"))] = entry
        self._read_until = until
        return [self._entries[key] for key in sorted(self._entries)]
