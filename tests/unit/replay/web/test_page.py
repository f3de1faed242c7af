"""The page in headless Chromium: what a person does with it, and what others cannot do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from replay.errors import ReplayError
from replay.web import hub
from replay.web.hub import PageSubject
from replay.web.server import PageServer
from replay.web.state import Sections
from replay.web.subjects import ALWAYS, DEAD_LETTERS, LEAKS, OVERVIEW, PageSubjects
from tests.support.harness import Harness
from tests.unit.replay.tool import Tool, training
from tests.unit.replay.web.chromium import MISSING, Browser, Tab, find_chromium, open_browser
from tests.unit.replay.web.serving import Scripted, serve

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("chromium"),
    pytest.mark.skipif(find_chromium() is None, reason=MISSING),
]
LIVE = "document.querySelector('#live').dataset.is === 'Live'"
LOST = "A VM is lost"
FOCUSED = "document.activeElement.textContent"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server notices soon that a tab is gone."""
    monkeypatch.setattr(hub, "HEARTBEAT_S", 0.1)


@pytest.fixture(name="browser", scope="module")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(name="scripted")
def _scripted() -> Scripted:
    """Two slices, of which one has trouble."""
    scripted = Scripted()
    scripted.set_slices(("serve", "True", "Ready"), ("train", "False", "Preempted"), words=LOST)
    scripted.set_life("train", 3)
    return scripted


@pytest.fixture(name="server")
def _server(scripted: Scripted) -> Iterator[PageServer]:
    with serve(scripted.open) as server:
        yield server


@pytest.fixture(name="tab")
def _tab(browser: Browser, server: PageServer) -> Iterator[Tab]:
    """The page, live. It must say nothing on the console, and ask no other server."""
    tab = browser.open_tab(server.address)
    tab.wait_for(LIVE)
    yield tab
    assert {url for url in tab.requested if not url.startswith(server.address)} == set()
    assert tab.problems == []


def text_of(tab: Tab, selector: str) -> str:
    return str(tab.evaluate(f"document.querySelector({selector!r}).innerText"))


def wait_for_text(tab: Tab, text: str) -> None:
    tab.wait_for(f"document.body.innerText.includes({text!r})")


def test_trouble_comes_first_and_is_said_in_words_and_shape(tab: Tab) -> None:
    rows = tab.evaluate(
        "[...document.querySelectorAll('#slices tbody')].map((one) => one.innerText)"
    )
    assert [" ".join(row.split()) for row in rows] == [
        "default train ▲ False Preempted 0/2 0/8 - 1m A VM is lost",
        "default serve ● True Ready 0/2 0/8 - 1m A VM is lost",
    ]
    assert tab.evaluate("document.title") == "▲ 1 not Ready · TPU slices"
    summary = " ".join(text_of(tab, "#summary").split())
    assert summary == "1/2 slices Ready 0/16 chips running 0 waiting … dead letters … leaks"
    assert "Nothing waits for a slice." in tab.see()


def test_a_change_reaches_all_tabs_and_leaves_the_elements_of_what_is_unchanged(
    browser: Browser, server: PageServer, scripted: Scripted, tab: Tab
) -> None:
    tab.evaluate("document.querySelector('#slices tbody').kept = true")
    other = browser.open_tab(server.address)
    other.wait_for(LIVE)
    serve_ = ("serve", "False", "Provisioning")
    scripted.set_slices(serve_, ("train", "False", "Preempted"), words=LOST)
    for one in (other, tab):
        one.show()
        wait_for_text(one, "Provisioning")
        assert one.evaluate("document.title") == "▲ 2 not Ready · TPU slices"
    assert tab.evaluate("document.querySelector('#slices tbody').kept")


def test_a_slice_is_opened_and_left_by_the_keyboard(tab: Tab) -> None:
    tab.press("/", "t", "r", "a")
    shown = "[...document.querySelectorAll('#slices tbody')].filter((one) => !one.hidden).length"
    tab.wait_for(f"{shown} === 1")
    tab.press("Escape")
    tab.wait_for(f"{shown} === 2")
    tab.press("ArrowDown", "ArrowDown", "ArrowUp")
    assert tab.evaluate(FOCUSED) == "train"
    tab.press("Enter")
    wait_for_text(tab, "3 lines")
    assert tab.evaluate(FOCUSED) == "default/train"
    assert not tab.evaluate("document.querySelector('#overview').checkVisibility()")
    tab.press("Escape")
    tab.wait_for("document.querySelector('#overview').checkVisibility()")
    assert tab.evaluate(FOCUSED) == "train"


def test_focus_stays_when_the_row_changes(scripted: Scripted, tab: Tab) -> None:
    tab.press("/", "ArrowDown")
    assert tab.evaluate(FOCUSED) == "train"
    scripted.set_slices(("serve", "False", "QuotaExceeded"), ("train", "True", "Ready"))
    wait_for_text(tab, "QuotaExceeded")
    assert tab.evaluate(FOCUSED) == "train"


def test_a_life_grows_line_by_line_and_a_reader_at_its_end_stays_there(
    browser: Browser, server: PageServer, scripted: Scripted
) -> None:
    scripted.set_life("train", 250)
    tab = browser.open_tab(f"{server.address}#/slice/default/train")
    wait_for_text(tab, "250 lines")
    tab.wait_for("document.querySelectorAll('#lines .chunk').length === 3")
    tab.evaluate("document.querySelector('#lines .chunk').kept = true; scrollTo(0, 1e9)")
    scripted.set_life("train", 260)
    wait_for_text(tab, "said 259")
    tab.wait_for("innerHeight + scrollY >= document.body.scrollHeight - 2")
    assert tab.evaluate("document.querySelector('#lines .chunk').kept")
    tab.evaluate("scrollTo(0, 0)")
    scripted.set_life("train", 270)
    wait_for_text(tab, "270 lines")
    assert tab.evaluate("scrollY") == 0


def test_who_comes_back_to_a_life_is_where_he_was(
    browser: Browser, server: PageServer, scripted: Scripted
) -> None:
    scripted.set_life("train", 250)
    tab = browser.open_tab(f"{server.address}#/slice/default/train")
    tab.wait_for("document.querySelectorAll('#lines .chunk').length === 3")
    tab.evaluate("document.querySelectorAll('.chunk')[1].kept = true; scrollTo(0, 3000)")
    before = tab.evaluate("scrollY")
    browser.open_tab("about:blank").show()
    tab.wait_for("document.hidden")
    scripted.set_life("train", 251)
    tab.show()
    wait_for_text(tab, "251 lines")
    assert tab.evaluate("document.querySelectorAll('.chunk')[1].kept")
    assert (before, tab.evaluate("scrollY")) == (3000, 3000)
    scripted.set_life("train", 120)
    wait_for_text(tab, "120 lines")
    tab.wait_for("document.querySelectorAll('#lines tr').length === 120")


def test_ten_thousand_lines_come_in_parts_and_one_more_changes_one_part(
    browser: Browser, server: PageServer, scripted: Scripted
) -> None:
    scripted.set_life("train", 10_000)
    tab = browser.open_tab(f"{server.address}#/slice/default/train")
    tab.wait_for("document.querySelectorAll('#lines .chunk').length === 100")
    skipped = "getComputedStyle(document.querySelector('.chunk')).contentVisibility"
    assert tab.evaluate(skipped) == "auto"
    tab.evaluate(
        "window.added = 0; new MutationObserver((all) => { for (const one of all) added += "
        "one.addedNodes.length; }).observe(document.querySelector('#lines'), {childList: true})"
    )
    scripted.set_life("train", 10_001)
    wait_for_text(tab, "10001 lines")
    tab.wait_for("document.querySelectorAll('#lines tr').length === 10001")
    assert tab.evaluate("added") == 1


EVIL = "<img src=x onerror='document.title=1'><script>document.title=1</script>"


def test_text_of_others_is_text(scripted: Scripted, tab: Tab) -> None:
    scripted.set_slices((EVIL, "False", EVIL), ("train", "False", "-"), words=EVIL)
    scripted.set_life("train", 3, words=EVIL)
    letter = {"step": EVIL, "about": EVIL, "cause": EVIL, "reason": EVIL}
    leaks = [{"message": EVIL, "commands": [EVIL]}]
    scripted.sections[DEAD_LETTERS] = {"deadLetters": [letter]}
    scripted.sections[LEAKS] = {"leaks": leaks, "leaksUnseen": EVIL}
    tab.wait_for(f"document.querySelector('#slices').innerText.split({EVIL!r}).length === 5")
    tab.wait_for(f"document.querySelector('#leaks').innerText.split({EVIL!r}).length === 4")
    tab.evaluate("location.hash = '#/slice/default/train'")
    wait_for_text(tab, f"{EVIL} 2")
    tab.evaluate(f"location.hash = '#/' + {EVIL!r}")
    tab.wait_for("document.querySelector('h1').innerText.startsWith('%3Cimg')")
    assert tab.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert tab.evaluate("document.title") != "1"


def test_a_page_to_read_more_is_a_link_that_does_not_name_this_page(
    browser: Browser, server: PageServer, scripted: Scripted
) -> None:
    scripted.set_life("train", 3)
    life = scripted.sections["slice/default/train"]["life"]
    life["summary"] = ["More: https://docs.test/a#b", "More: javascript:alert(1)"]
    tab = browser.open_tab(f"{server.address}#/slice/default/train")
    wait_for_text(tab, "javascript:alert")
    links = "[...document.querySelectorAll('#summaryOf a')].map((one) => [one.href, one.rel])"
    assert tab.evaluate(links) == [["https://docs.test/a#b", "noreferrer"]]


def test_an_unread_cluster_is_said_with_its_time_until_it_is_read_again(
    scripted: Scripted, tab: Tab
) -> None:
    scripted.error = ReplayError("it does not answer")
    wait_for_text(tab, "The cluster has not been read since 10:00:00 UTC; what is shown is older.")
    assert text_of(tab, "#live").startswith("Cluster not read")
    assert "train" in tab.see()
    scripted.error = None
    tab.wait_for(LIVE)
    assert text_of(tab, "#errors") == ""


def test_a_lost_tool_is_said_with_its_time_and_the_page_connects_again_by_itself(
    browser: Browser, scripted: Scripted
) -> None:
    with serve(scripted.open) as first:
        port, secret = first.server_port, first.secret
        tab = browser.open_tab(first.address)
        tab.wait_for(LIVE)
    wait_for_text(tab, "No connection to the tool since ")
    scripted.set_slices(("later", "True", "Ready"))
    with serve(scripted.open, port, secret):
        tab.wait_for(LIVE)
        wait_for_text(tab, "later")
        assert "No connection" not in tab.see()


CLOCK = """
window.clock = 0;
Date.now = () => clock;
window.setInterval = (each) => {
  window.tick = () => (each(), document.querySelector('#live').dataset.is);
};
"""


def test_a_tool_that_is_silent_is_said_and_the_page_goes_on_when_it_answers(
    browser: Browser, server: PageServer, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "HEARTBEAT_S", 3600)
    tab = browser.open_tab("about:blank")
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=CLOCK)
    tab.call("Page.navigate", url=server.address)
    tab.wait_for(LIVE)
    tab.evaluate("clock = 20_000")
    scripted.set_slices(("sooner", "True", "Ready"))
    wait_for_text(tab, "sooner")
    assert tab.evaluate("clock = 34_999, tick()") == "Live"
    server.shutdown()  # connections stay open, and nobody answers
    assert tab.evaluate("clock = 35_000, tick()") == "No connection"
    wait_for_text(tab, "No connection to the tool since 00:00:20 UTC")
    monkeypatch.setattr(hub, "HEARTBEAT_S", 0.1)
    scripted.set_slices(("later", "True", "Ready"))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        wait_for_text(tab, "later")
        tab.wait_for(LIVE)
        assert text_of(tab, "#errors") == ""
    finally:
        server.shutdown()
        thread.join()


KEEP = """
document.querySelector('#summary button').focus();
document.activeElement.kept = true;
window.changed = [];
for (const one of document.querySelectorAll('[role=alert], [role=status]'))
  new MutationObserver(() => changed.push(one.id)).observe(one, {childList: true, subtree: true});
"""


def test_what_is_focused_or_read_out_stays_when_something_else_changes(
    scripted: Scripted, tab: Tab
) -> None:
    error = "Nodes may not be listed"
    scripted.set_slices(("serve", "True", "Ready"), error=error)
    wait_for_text(tab, error)
    tab.evaluate(KEEP)
    scripted.set_slices(("serve", "False", "Preempted"), error=error)
    scripted.sections[OVERVIEW]["readAt"] = "2026-01-01T10:00:03Z"
    wait_for_text(tab, "Preempted")
    wait_for_text(tab, "10:00:03")
    assert text_of(tab, "#summary li").split() == ["0/1", "slice", "Ready"]
    assert tab.evaluate("document.activeElement.kept")
    assert tab.evaluate("changed") == []


def test_a_view_that_cannot_be_read_is_not_said_to_be_read(scripted: Scripted, tab: Tab) -> None:
    scripted.error = ReplayError("'x' names nothing")
    tab.evaluate("location.hash = '#/x'")
    wait_for_text(tab, "It cannot be read: 'x' names nothing")
    assert "Reading" not in text_of(tab, "#view")
    assert text_of(tab, "#summaryOf") == (
        "There is nothing to show at this address. The first page lists all slices, and the Pods that "
        "wait (Esc)."
    )
    tab.evaluate("document.querySelector('#summaryOf a').click()")
    tab.wait_for("document.querySelector('#overview').checkVisibility()")


def test_each_of_dead_letters_and_leaks_has_its_time_and_its_error(
    scripted: Scripted, tab: Tab
) -> None:
    scripted.sections[DEAD_LETTERS] = {
        "deadLetters": [],
        "deadLettersReadAt": "2026-01-01T09:00:00Z",
    }
    scripted.sections[LEAKS] = {"leaks": [], "leaksUnseen": "1 slice more may be leaked."}
    wait_for_text(tab, "Dead letters read at 09:00:00 UTC, every 5 minutes")
    assert " ".join(text_of(tab, "#summary").split()).endswith(
        "0 dead letters at 09:00 UTC 0 leaks"
    )
    wait_for_text(tab, "There are no dead letters.")
    wait_for_text(tab, "1 slice more may be leaked.")
    assert "No leaked slice" not in tab.see()
    scripted.error = ReplayError("no permission")
    for name in ("deadLettersError", "leaksError"):
        tab.wait_for(f"document.querySelector('#{name}').innerText.includes('no permission')")
    words = "Not read since 10:00:00 UTC. no permission"
    assert text_of(tab, "#leaksError").endswith(words)
    assert "There are no dead letters." in tab.see()


def test_nothing_is_read_while_another_tab_is_shown(
    browser: Browser, scripted: Scripted, tab: Tab
) -> None:
    browser.open_tab("about:blank").show()
    tab.wait_for("document.hidden")
    for thread in threading.enumerate():
        if thread.name.startswith("read "):
            thread.join(60)
    scripted.read_from.clear()
    scripted.set_slices(("later", "True", "Ready"))
    tab.show()
    wait_for_text(tab, "later")
    assert set(scripted.read_from) == {*ALWAYS, ""}


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("view", ["", "#/slice/default/train"])
def test_nothing_is_wider_than_the_window(
    browser: Browser, server: PageServer, scripted: Scripted, width: int, view: str
) -> None:
    name = "a-name-of-sixty-three-characters-which-is-as-long-as-they-can-be"
    scripted.set_slices((name, "False", "InsufficientCapacity"), words="x" * 300)
    scripted.set_life("train", 20, words="y" * 300)
    tab = browser.open_tab(server.address + view, width)
    tab.wait_for(LIVE)
    wait_for_text(tab, "20 lines" if view else name)
    assert tab.evaluate("document.documentElement.scrollWidth") == width


def test_each_cell_stands_under_its_head(browser: Browser, server: PageServer) -> None:
    every = "[...document.querySelectorAll('#slices {}')]"
    lefts = f"{every}.map((one) => one.getBoundingClientRect().left)"
    tab = browser.open_tab(server.address, 1280)
    tab.wait_for(LIVE)
    wait_for_text(tab, LOST)
    heads = tab.evaluate(lefts.format("thead th"))
    cells = tab.evaluate(lefts.format("tbody:first-of-type tr:first-child > *"))
    assert (len(cells) > 4, heads) == (True, cells)
    narrow = browser.open_tab(server.address, 390)
    narrow.wait_for(LIVE)
    wait_for_text(narrow, LOST)
    assert set(narrow.evaluate(lefts.format("thead th"))) == {0}


def test_a_narrow_screen_shows_the_end_of_the_chart(browser: Browser, server: PageServer) -> None:
    """Its beginning alone may show a Ready slice that is lost now."""
    tab = browser.open_tab(f"{server.address}#/slice/default/train", 420)
    tab.wait_for("document.querySelector('#chart svg') !== null")
    left, seen, whole = tab.evaluate(
        "(({scrollLeft, clientWidth, scrollWidth}) => [scrollLeft, clientWidth, scrollWidth])"
        "(document.querySelector('#chart'))"
    )
    assert (left > 0, round(left + seen)) == (True, whole)


def test_what_a_condition_says_is_not_cut(browser: Browser, server: PageServer) -> None:
    words = "document.querySelector('#table .words td')"
    tab = browser.open_tab(f"{server.address}#/slice/default/train", 1280)
    tab.wait_for(LIVE)
    tab.wait_for(f"{words} !== null")
    assert tab.evaluate(f"getComputedStyle({words}).whiteSpace") == "normal"


@pytest.mark.parametrize("scheme, is_dark", [("light", False), ("dark", True)])
def test_the_page_is_as_light_or_dark_as_the_system(
    browser: Browser, server: PageServer, scheme: str, is_dark: bool
) -> None:
    tab = browser.open_tab(server.address, prefers_color_scheme=scheme)
    tab.wait_for(LIVE)
    colours = "['backgroundColor', 'color'].map((name) => getComputedStyle(document.body)[name])"
    ground, text = (sum(map(int, one[4:-1].split(","))) for one in tab.evaluate(colours))
    assert (ground < text) is is_dark
    assert abs(ground - text) > 600


@contextmanager
def serve_elsewhere() -> Iterator[str]:
    """The address of another page of another host, which this machine serves, too."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://elsewhere.test:{server.server_port}/"
        server.shutdown()
        thread.join()


READ = """
(async () => {
  const found = [];
  const read = await fetch(ADDRESS).then((one) => one.text()).catch(() => 'refused');
  const blind = await fetch(ADDRESS, {mode: 'no-cors'}).then((one) => one.text()).catch(() => 'refused');
  const stream = await new Promise((done) => {
    const one = new EventSource(ADDRESS + 'events?view=');
    one.onmessage = () => done('message');
    one.onerror = () => { one.close(); done('refused'); };
  });
  const script = await new Promise((done) => {
    const one = document.createElement('script');
    one.src = ADDRESS + 'page.js';
    one.onload = () => done('loaded');
    one.onerror = () => done('refused');
    document.head.append(one);
  });
  const frame = await new Promise((done) => {
    const one = document.createElement('iframe');
    one.src = ADDRESS;
    one.onload = () => done(one.contentDocument ? 'seen' : 'refused');
    document.body.append(one);
  });
  return [read, blind, stream, script, frame];
})()
"""


def test_a_page_elsewhere_sees_nothing_even_with_the_address(
    browser: Browser, server: PageServer
) -> None:
    with serve_elsewhere() as elsewhere:
        tab = browser.open_tab(elsewhere)
        tab.wait_for("document.title === 'elsewhere'")
        found = tab.evaluate(READ.replace("ADDRESS", repr(server.address)))
    assert found == ["refused"] * 5


def test_a_name_that_resolves_to_this_machine_does_not_help(
    browser: Browser, server: PageServer
) -> None:
    rebound = server.address.replace("127.0.0.1", "rebound.test")
    tab = browser.open_tab(rebound)
    wait_for_text(tab, "This page is served to 127.0.0.1 or localhost only.")


def test_a_slice_of_a_simulation_is_watched_from_the_first_message_to_ready(
    browser: Browser,
) -> None:
    tool, lock = Tool(Harness()), threading.Lock()
    subjects = PageSubjects(tool.dependencies, price=2.0)

    def open_subject(name: str) -> PageSubject | None:
        """The simulation is in this process: it runs and is read in turn."""
        found = subjects.open(name)
        if found is None or name in (DEAD_LETTERS, LEAKS):
            return None

        def read() -> Iterator[Sections]:
            with lock:
                yield from list(found.read())

        return PageSubject(read, 0.1, found.error)

    with serve(open_subject) as server:
        tab = browser.open_tab(server.address)
        wait_for_text(tab, "There are no slices.")
        with lock:
            tool.harness.apply(training())
            tool.harness.run_for(timedelta(seconds=20))
        tab.wait_for("document.querySelector('#slices a') !== null")
        tab.evaluate("document.querySelector('#slices a').click()")
        tab.wait_for("location.hash === '#/slice/default/training'")
        wait_for_text(tab, "insert begins")
        bars = tab.evaluate("document.querySelectorAll('#chart rect').length")
        with lock:
            tool.harness.run_for(timedelta(minutes=10))
        wait_for_text(tab, "default/training has been Ready for")
        wait_for_text(tab, "AllJoined")
        assert tab.evaluate("document.querySelectorAll('#chart rect').length") > bars
        tab.press("Escape")
        wait_for_text(tab, "16.00\nan hour")
