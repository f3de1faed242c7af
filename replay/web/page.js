// Shows the sections that the server sends. Text from outside is set as text; only the timeline's chart
// and rows are HTML, which the tool has rendered and escaped.

const SILENT_MS = 15000; // the tool sends something every 5 seconds
const CHUNK = 100; // lines of a table: the browser lays out only the tables in sight
const SIGNS = { ready: "●", progress: "◐", trouble: "▲", deleting: "✕", waiting: "○" };
const NONE = { slices: "There are no slices.", waiting: "Nothing waits for a slice.", classes: "There are no classes." };
const LISTS = Object.keys(NONE);
const ROLES = { table: "table", tbody: "rowgroup", tr: "row", td: "cell" };
const find = (id) => document.getElementById(id);
let sections = {}, stream, view, heardAt, lostSince, lines = [];

function make(tag, attributes = {}, ...children) {
  const one = document.createElement(tag), role = ROLES[tag];
  if (role) one.setAttribute("role", role); // also where rows are grids
  for (const [name, value] of Object.entries(attributes)) if (value) one.setAttribute(name, value);
  one.append(...children);
  return one;
}

// What has not changed stays: focus, selection, and what a screen reader has read out.
function show(id, ...children) {
  const place = find(id), next = make("div", {}, ...children);
  if (place.innerHTML !== next.innerHTML) place.replaceChildren(...next.childNodes);
}

const notices = (texts) => texts.filter(Boolean).map((text) => make("p", { class: "notice" }, text));
const paragraphs = (texts) => texts.map((text) => make("p", {}, ...(text.startsWith("More: http")
  ? ["More: ", make("a", { href: text.slice(6), target: "_blank", rel: "noreferrer" }, text.slice(6))] : [text])));
const plural = (number, noun) => number === 1 ? noun : `${noun}s`;
const time = (text) => `${text.slice(11, 19)} UTC`;

function makeTable(head, rows) {
  const top = make("tr", {}, ...head.map((text) => make("th", { role: "columnheader" }, text)));
  return make("table", {}, make("thead", {}, top), ...rows);
}

// A row, and what it waits for below it.
function makeRow(row, head) {
  const cells = row.cells.map((text, at) => {
    const is = at === row.column;
    const content = is && row.link ? make("a", { href: `#/${row.link}` }, text) : text;
    const sign = head[at] === "READY" ? [make("span", { class: "sign", "aria-hidden": "true" }, SIGNS[row.state]), " "] : [];
    return make(is ? "th" : "td", { "data-label": head[at], role: is ? "rowheader" : "cell" }, ...sign, content);
  });
  const body = make("tbody", { "data-state": row.state }, make("tr", {}, ...cells));
  if (row.words) body.append(make("tr", { class: "words" }, make("td", { colspan: String(head.length) }, row.words)));
  return body;
}

// Rows that have not changed stay the same elements: focus and selection stay, too.
function updateList(id, { head, rows, error }) {
  const place = find(id);
  if (place.dataset.head !== head.join() || !rows.length) {
    place.dataset.head = rows.length ? head.join() : "";
    place.replaceChildren(rows.length ? makeTable(head, []) : make("p", { class: "soft" }, error || NONE[id]));
    place.rows = new Map();
  }
  const table = place.firstChild, focused = document.activeElement?.getAttribute("href");
  const old = place.rows, now = new Map();
  let last = table.firstChild;
  for (const row of rows) {
    const text = JSON.stringify(row), known = old.get(row.key);
    const one = known?.text === text ? known : { text, body: makeRow(row, head) };
    if (known && known !== one) known.body.remove();
    if (last.nextSibling !== one.body) last.after(one.body);
    last = one.body;
    now.set(row.key, one);
  }
  for (const [key, one] of old) if (!now.has(key)) one.body.remove();
  place.rows = now;
  if (focused?.startsWith("#/") && document.activeElement === document.body) place.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function makeButton(words, target) {
  const button = make("button", { type: "button" }, make("b"), ` ${words}`);
  button.onclick = () => find(target).scrollIntoView();
  return button;
}

function updateSummary({ slices, ready, waiting, chips, idle, cost }) {
  const items = [
    [`${ready}/${slices}`, `${plural(slices, "slice")} Ready`, "h-slices", ready < slices],
    [`${chips[0]}/${chips[1]}`, `${plural(chips[1], "chip")} running`, "h-slices"],
    [cost, "an hour", "h-slices"],
    [idle || null, `${plural(idle, "chip")} idle`, "h-slices", true],
    [waiting, "waiting", "h-waiting", waiting],
    ...[["deadLetters", "dead letter"], ["leaks", "leak"]].map(([id, noun]) => {
      const number = sections[id]?.length, at = sections[`${id}ReadAt`];
      return [number ?? "…", `${plural(number, noun)}${at ? ` at ${at.slice(11, 16)} UTC` : ""}`, `h-${id}`, number];
    }),
  ];
  items.forEach(([number, words, target, isOpen], at) => {
    const place = find("summary"), one = place.children[at] ?? place.appendChild(make("li", {}, makeButton(words, target)));
    one.hidden = number === null;
    one.firstChild.toggleAttribute("data-open", Boolean(isOpen));
    one.querySelector("b").textContent = number;
    one.firstChild.lastChild.textContent = ` ${words}`;
  });
  const open = slices - ready, name = view ? find("title").textContent : open ? `▲ ${open} not Ready` : "";
  document.title = [name, "TPU slices", sections.context].filter(Boolean).join(" · ");
}

function updateRest() {
  const { deadLetters, leaks, leaksUnseen } = sections;
  for (const id of ["deadLetters", "leaks"]) {
    const at = sections[`${id}ReadAt`], error = sections[`${id}Error`];
    find(`${id}ReadAt`).textContent = at ? `read at ${time(at)}, every 5 minutes` : "";
    show(`${id}Error`, ...notices([error && `Not read since ${time(error.since)}. ${error.words}`]));
  }
  const items = (deadLetters ?? []).map((one) => make("li", {},
    make("b", {}, `${one.step} `), `${one.about || one.id} ${one.cause} `, make("span", { class: "soft" }, one.reason)));
  const hint = make("p", { class: "soft" }, "kubectl tng dead-letters --help: replay or drop them.");
  show("deadLetters", ...(deadLetters ? items.length ? [make("ul", {}, ...items), hint] : paragraphs(["There are no dead letters."]) : []));
  const found = (leaks ?? []).flatMap((one) => [make("p", {}, one.message), make("pre", {}, one.commands.join("\n"))]);
  show("leaks", ...(leaks && !found.length && !leaksUnseen ? paragraphs(["No leaked slice was found."]) : found), ...notices([leaksUnseen]));
}

function updateErrors() {
  const { clusterError, viewError, lifeError, timelineError } = sections, shown = [];
  if (lostSince) shown.push(`No connection to the tool since ${lostSince}. The page connects again by itself; if the tool has ended, start it again and open the address that it prints.`);
  if (clusterError) shown.push(`The cluster has not been read since ${time(clusterError.since)}; what is shown is older. ${clusterError.words}`);
  const isShown = sections.life || sections.pod;
  if (viewError) shown.push(isShown ? `This has not been read since ${time(viewError.since)}. ${viewError.words}` : `It cannot be read: ${viewError.words}`);
  if (timelineError) shown.push(`The timeline cannot be read: ${timelineError}`);
  const ofLists = LISTS.map((id) => sections[id]?.rows.length && sections[id].error); // without rows, it is in their place
  show("errors", ...notices([...shown, lifeError, ...ofLists]));
}

// A table of cells under the summary of a view: conditions or candidates.
const makeCells = (head, rows) => rows.length
  ? [makeTable(head, rows.map((cells) => makeRow({ cells: cells.slice(0, -1), words: cells.at(-1), column: 0 }, head)))] : [];

function updateView() {
  const { life, pod, timeline, viewError, timelineError } = sections;
  if (life === null || (viewError && !life && !pod)) {
    const isEmpty = viewError || (timelineError && !timeline);
    show("summaryOf", ...(isEmpty ? [make("p", {}, "There is nothing to show at this address. ",
      make("a", { href: "#/" }, "The first page"), " lists all slices, and the Pods that wait (Esc).")] : []));
    show("table");
  } else if (life) {
    show("summaryOf", ...paragraphs(life.summary));
    show("table", ...makeCells(["CONDITION", "STATUS", "REASON", "FOR"], life.conditions));
  } else if (pod) {
    const { cause, steps } = pod, of = pod.class;
    show("summaryOf", ...paragraphs([cause, ...(of ? [of.summary] : []), ...steps.filter((one) => one.note && !cause.includes(one.note)).map((one) => `${one.step}: ${one.note}`)]));
    show("table", ...makeCells(["CANDIDATE", "STATE"], (of?.candidates ?? []).map((one) => [one.candidate, one.state, one.words])));
  }
  find("timeline").hidden = !timeline;
  if (timeline) {
    find("head").textContent = timeline.head;
    show("paragraphs", ...paragraphs(timeline.paragraphs));
  }
}

function updateLines({ from, lines: added }) {
  // A stream that was opened again begins anew: what is shown already stays.
  let same = 0;
  while (same < added.length && lines[from + same] === added[same]) same++;
  if (from + added.length < lines.length || same < added.length) replaceLines(from + same, added.slice(same));
}

function replaceLines(from, added) {
  const isAtEnd = innerHeight + scrollY >= document.body.scrollHeight - 40 && lines.length > 0;
  lines.splice(from, Infinity, ...added);
  find("number").textContent = `${lines.length} ${plural(lines.length, "line")}`;
  const place = find("lines"), first = Math.floor(from / CHUNK);
  while (place.children.length > first) place.lastChild.remove();
  const mine = view;
  // Some tables a frame, so that the page stays responsive while a long life comes.
  (function add(at) {
    if (view !== mine || place.children.length !== at) return;
    for (const end = at + 10; at < end && at * CHUNK < lines.length; at++) {
      const body = make("tbody"), table = make("table", {}, body);
      body.innerHTML = lines.slice(at * CHUNK, (at + 1) * CHUNK).join("");
      place.append(make("div", { class: "chunk" }, table));
    }
    if (isAtEnd) scrollTo(0, document.body.scrollHeight);
    if (at * CHUNK < lines.length) requestAnimationFrame(() => add(at));
  })(first);
}

function update(changes) {
  Object.assign(sections, changes);
  for (const id of LISTS) if (changes[id]) updateList(id, changes[id]);
  if (changes.slices || changes.waiting || changes.classes) filter();
  if (changes.context) find("context").textContent = changes.context;
  if (sections.summary) updateSummary(sections.summary);
  if (Object.keys(changes).some((key) => /^(deadLetters|leaks)/.test(key))) updateRest();
  if (["life", "pod", "timeline", "viewError", "timelineError"].some((key) => key in changes)) updateView();
  if (changes.legend) find("legend").innerHTML = changes.legend;
  if (changes.chart) {
    const place = find("chart"), isNew = !place.firstChild;
    place.innerHTML = changes.chart;
    if (isNew) place.scrollLeft = place.scrollWidth; // on a narrow screen, what is now
  }
  if (changes.lines) updateLines(changes.lines);
  updateErrors();
  updateLive();
}

function updateLive() {
  const is = lostSince ? "No connection" : sections.clusterError ? "Cluster not read" : sections.readAt ? "Live" : "Reading";
  const [status, at] = find("live").children;
  find("live").dataset.is = is;
  if (status.textContent !== is) status.textContent = is; // it is read out
  at.textContent = sections.readAt && is !== "Reading" ? `· read at ${time(sections.readAt)}` : "";
}

function lose() {
  lostSince ??= new Date(heardAt).toISOString().slice(11, 19) + " UTC";
  updateErrors();
  updateLive();
}

function open() {
  stream?.close();
  stream = undefined;
  if (document.hidden) return; // nothing is read while nobody looks
  heardAt = Date.now();
  stream = new EventSource(`events?view=${encodeURIComponent(view)}`);
  stream.onmessage = (event) => {
    heardAt = Date.now();
    lostSince = undefined;
    update(JSON.parse(event.data));
  };
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) setTimeout(open, 3000);
    lose();
  };
}

// A tool that has been stopped, or a tunnel that is stuck, closes nothing.
setInterval(() => {
  if (!stream || Date.now() - heardAt < SILENT_MS) return;
  lose();
  open();
}, 1000);

function navigate() {
  const before = view;
  view = location.hash.replace(/^#\/?/, "").replace(/^main$/, before ?? "");
  if (before === view) return;
  for (const name of ["life", "pod", "timeline", "viewError", "lifeError", "timelineError"]) delete sections[name];
  for (const id of ["summaryOf", "table", "lines", "chart"]) show(id);
  lines = [];
  find("overview").hidden = Boolean(view);
  find("view").hidden = !view;
  find("timeline").hidden = true;
  find("title").textContent = view.replace(/^slice\//, "").replace(/^pod\//, "Pod ");
  if (view) show("summaryOf", make("p", { class: "soft" }, "Reading"));
  updateErrors();
  open();
  if (view) find("title").focus();
  else if (before) document.querySelector(`a[href="#/${CSS.escape(before)}"]`)?.focus();
}

function filter() {
  const words = find("filter").value.toLowerCase().split(/\s+/);
  for (const body of document.querySelectorAll(".list tbody")) {
    const text = body.textContent.toLowerCase();
    body.hidden = !words.every((word) => text.includes(word));
  }
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = find("filter"), isTyping = event.target === field;
  if (event.key === "/" && !isTyping && !view) field.focus();
  else if (event.key === "Escape" && view) location.hash = "#/";
  else if (event.key === "Escape" && isTyping) { field.value = ""; filter(); }
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !view) {
    const links = [...document.querySelectorAll(".list tbody:not([hidden]) a")];
    const at = links.indexOf(document.activeElement), step = event.key === "ArrowDown" ? 1 : -1;
    if (at < 0 && !isTyping) return;
    links[at + step]?.focus();
  } else return;
  event.preventDefault();
});
find("filter").addEventListener("input", filter);
addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", open);
navigate();
