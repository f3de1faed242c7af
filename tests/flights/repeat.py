"""Repeat a flight with the product's port and with the simulated Compute Engine; return differences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from google.cloud import compute_v1

from local.base.clock import VirtualClock
from local.base.http import Request, Response
from local.cloud.logging import CloudLogging
from local.gce import Inventory, Timings
from local.tests.recordings import GENERATED, OF_VMS, TIME, compare, flatten
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import About, CallError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.gce.values import Instance, TemplateRef
from shared.triggers.audit_log import parse_entry
from tests.support.loopback import open_loopback
from tests.support.small_project import (
    FOREIGN_ACCOUNT,
    IMAGE,
    NUMBER,
    PROJECT,
    TOKEN,
    build_simulator,
)
from tools.cloud.answers import redact
from tools.cloud.flight import LOG_PATH, is_read
from tools.cloud.questions import SMALL, TPU

Document = dict[str, Any]

NOT_SIMULATED: Mapping[str, str] = {
    "*/aggregated/machineTypes": "a test says which machine types the simulation has",
}
"""Requests that are not repeated with the simulation, by path, each with the reason."""
DIFFERENCES: Mapping[tuple[str, str], str] = {
    **{("*/instances/*", f"body.{key}"): reason for key, reason in OF_VMS.items()},
}
"""Known differences of the simulated answers: path, field, reason."""
OF_LOG = ("methodName", "resourceName", "serviceName")
"""Fields of an audit log entry's payload that the steps read; only these are compared."""
LAGS = frozenset({"notFound", "resourceNotReady", "resourceInUseByAnotherResource"})
"""Reasons of rejections that end by themselves soon after another change."""
TRANSIENT = frozenset({401, 403, 429, *range(500, 600)})
"""Errors that no request causes; 403 is simulated only for the account of ``act-as``."""
KINDS: Mapping[tuple[int, str], ErrorKind] = {
    (400, "invalid"): ErrorKind.ENVIRONMENT,
    (400, "resourceInUseByAnotherResource"): ErrorKind.IN_USE,
    (400, "resourceNotReady"): ErrorKind.NOT_READY,
    (403, "forbidden"): ErrorKind.ENVIRONMENT,
    (404, "notFound"): ErrorKind.ABSENT,
    (409, "alreadyExists"): ErrorKind.CONFLICT,
    (412, "conditionNotMet"): ErrorKind.CONFLICT,
}
"""What the product takes each error for. A recorded error that is not here needs a decision."""
STEPS_S = (2,) * 30 + (10,) * 54
"""The pauses between repeats of a read, or of a change that is rejected: ten minutes in all."""
_VM_NAME = re.compile(r"tngtest-[a-z0-9]+-[a-z0-9]+-[a-z0-9]{4}")
_SAME_EVERYWHERE = re.compile(rf"{GENERATED}|{_VM_NAME.pattern}")
_OF_FORM = re.compile(rf"{TIME}|[\w-]{{11}}=|VALUE-\d+|ADDRESS|NETWORK|EMAIL")
_REQUEST_ID = "11111111-1111-4111-8111-111111111111"


def describe(flight: Document, number: int) -> str:
    """Describe a request of a flight in messages; ``number`` counts from 1, as do lines of entries."""
    request = flight["entries"][number - 1]["request"]
    return f"flight {flight['run']}, request {number} ({request['method']} {request['path']})"


# The simulation


def repeat_with_simulation(flight: Document) -> list[str]:
    """Return what the simulated Compute Engine answers differently.

    Each question gets a new project. A question ends with a change that is not answered as recorded:
    later requests depend on it. The cleanup is not repeated.
    """
    found = []
    for question in dict.fromkeys(entry["question"] for entry in flight["entries"]):
        simulation = _Simulation(flight)
        for number, entry in fold(flight["entries"]) if question else ():
            if entry["question"] != question:
                continue
            differences = simulation.repeat(entry)
            found += [f"{describe(flight, number)}: {one}" for one in differences]
            if differences and not is_read(entry["request"]):
                break
    return found


def fold(entries: Sequence[Document]) -> list[tuple[int, Document]]:
    """Return the entries to repeat, with their numbers.

    Between two accepted changes, only the last of equal reads counts, and of a change that was rejected
    for a lag and sent again, only the last attempt. Later pages are joined with the first one.
    """
    kept: list[tuple[int, Document]] = []
    since = 0
    for number, entry in enumerate(entries, 1):
        request, response = entry["request"], entry["response"]
        if any(fnmatchcase(request["path"], path) for path in NOT_SIMULATED):
            continue
        if "pageToken" in request.get("query", {}) or "pageToken" in request.get("body", {}):
            _join(kept[-1][1]["response"]["body"], response["body"])
            continue
        if response["status"] in TRANSIENT and entry["question"] != "act-as":
            continue
        kept[since:] = [
            one
            for one in kept[since:]
            if one[1]["request"] != request or not (is_read(request) or _is_lag(one[1]))
        ]
        kept.append((number, json.loads(json.dumps(entry))))
        if not is_read(request) and response["status"] == 200:
            since = len(kept)
    return kept


def _is_lag(entry: Document) -> bool:
    return _read_reason(entry["response"]["body"]) in LAGS


def _read_reason(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    errors = (error or {}).get("errors") or [{}]
    return str(errors[0].get("reason") or "")


def _join(first: Document, page: Document) -> None:
    """Add a later page of a list to its first page."""
    first.pop("nextPageToken", None)
    for key, value in page.items():
        if isinstance(value, list):
            first[key] = [*first.get(key, []), *value]
        elif key == "items":
            for scope, part in value.items():
                _join(first["items"].setdefault(scope, {}), part)


class _Simulation:
    """The simulated project, from the begin of the flight on. ``names`` maps recorded generated names to
    the simulated ones."""

    def __init__(self, flight: Document) -> None:
        self._clock = VirtualClock(datetime.fromisoformat(flight["began"]))
        self._logging = CloudLogging(self._clock, PROJECT)
        self._simulator = build_simulator(self._clock, self._logging.write, Timings())
        network = f"projects/{PROJECT}/global/networks/default"
        parts = {"images": [IMAGE], "networks": [network]}
        types = {"diskTypes": ["pd-standard", "hyperdisk-balanced"]}
        self._simulator.restrict(Inventory({flight["zone"]: [SMALL, TPU]}, {**parts, **types}))
        if "RESOURCE_POOL_EXHAUSTED" in json.dumps(flight["entries"]):
            self._simulator.faults.set_capacity(flight["zone"], "ct6e", 0)
        self._sent = {
            "PROJECT": PROJECT, "NUMBER": NUMBER, "NETWORK": "default", "EMAIL": FOREIGN_ACCOUNT
        }  # fmt: skip
        self._names: dict[str, str] = {}

    def repeat(self, entry: Document) -> list[str]:
        """Send the request of an entry, and return the differences of the answer.

        A read, or a change that is rejected here, is sent again while time passes.
        """
        request, recorded = entry["request"], _project(entry, entry["response"])
        tries = []
        for step_s in (*STEPS_S, 0):
            answer = self._send(request)
            names = self._learn(recorded, answer)
            differences = self._compare(request["path"], _replace(recorded, names), answer)
            tries.append((differences, names))
            if not differences or (not is_read(request) and answer["status"] == 200):
                break
            self._clock.run_for(step_s)
        # The nearest answer, or the only one of a change that was accepted.
        differences, self._names = min(tries, key=lambda one: len(one[0]))
        return differences

    def _send(self, request: Document) -> Document:
        sent = _replace(request, {**self._sent, **self._names})
        if request["path"] == LOG_PATH:
            found = [dict(one) for one in self._logging.find(sent["body"]["filter"])]
            answer: Document = {"status": 200, "body": {"entries": found}}
        else:
            body = json.dumps(sent["body"]).encode() if "body" in sent else b""
            query = {name: [value] for name, value in sent.get("query", {}).items()}
            headers = {"authorization": f"Bearer {TOKEN}"}
            response = self._simulator.handle(
                Request(sent["method"], sent["path"], query, headers, body)
            )
            answer = {"status": response.status, "body": response.json()}
        return _project({"request": request}, redact(answer, PROJECT))

    def _learn(self, recorded: Any, answer: Any) -> dict[str, str]:
        """Return the known names, and the new ones of a recorded answer and a simulated one."""
        names = dict(self._names)
        for old, new in _pairs(recorded, answer):
            both = isinstance(old, str) and isinstance(new, str)
            if both and _SAME_EVERYWHERE.fullmatch(old) and _SAME_EVERYWHERE.fullmatch(new):
                is_fingerprint = old.endswith("=")
                if is_fingerprint or (old not in names and new not in names.values()):
                    names[old] = new
        return names

    def _compare(self, path: str, recorded: Document, answer: Document) -> list[str]:
        if recorded["status"] != answer["status"]:
            both = [f"{one['status']} {_read_reason(one['body'])}" for one in (recorded, answer)]
            return [f"status: {both[0].rstrip()} recorded, {both[1].rstrip()} simulated"]

        def is_known(key: str) -> bool:
            return any(fnmatchcase(path, at) and fnmatchcase(key, keys) for at, keys in DIFFERENCES)

        return compare(recorded, answer, is_known, _is_same)


def _is_same(_key: str, recorded: Any, simulated: Any) -> bool:
    texts = isinstance(recorded, str) and isinstance(simulated, str)
    if texts and _OF_FORM.fullmatch(recorded) and _OF_FORM.fullmatch(simulated):
        return True
    return type(recorded) is type(simulated) and bool(recorded == simulated)


def _project(entry: Document, answer: Document) -> Document:
    """Return an answer without what is not compared: most fields of log entries, empty scopes."""
    path, body = entry["request"]["path"], answer["body"]
    if answer["status"] != 200:
        return answer
    if path == LOG_PATH:
        found = [
            {
                **{name: one["protoPayload"].get(name) for name in OF_LOG},
                "status": one["protoPayload"].get("status", {}),
                "operation": one["operation"],
                "resource": one.get("resource", {}).get("type"),
            }
            for one in body["entries"]
            if "operation" in one  # without one, a change was rejected: no step reads that
        ]
        # Entries of the same moment have no order.
        found.sort(
            key=lambda one: (one["methodName"], "last" in one["operation"], str(one["status"]))
        )
        return {**answer, "body": {"entries": found}}
    if "/aggregated/" in path:
        items = {
            scope: part for scope, part in body.get("items", {}).items() if [*part] != ["warning"]
        }
        return {**answer, "body": {**body, "items": items}}
    return answer


def _pairs(recorded: Any, answer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the values at the same place in two documents."""
    if isinstance(recorded, dict) and isinstance(answer, dict):
        for key in recorded.keys() & answer.keys():
            yield from _pairs(recorded[key], answer[key])
    elif isinstance(recorded, list) and isinstance(answer, list):
        for old, new in zip(recorded, answer, strict=False):
            yield from _pairs(old, new)
    else:
        yield recorded, answer


def _replace(document: Any, names: Mapping[str, str]) -> Any:
    """Return a document with other names."""
    if not names:
        return document
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    text = json.dumps(document)
    return json.loads(re.sub(rf"(?<![\w-])(?:{known})(?![\w-])", lambda one: names[one[0]], text))


# The product's port


def repeat_with_product(flight: Document) -> list[str]:
    """Return what the product's port sends or reads differently. It is served over HTTP on loopback."""
    found = []
    with open_loopback() as loopback:
        server = _Recorded()
        clients = Clients(f"http://127.0.0.1:{loopback.serve(server)}")
        for number, entry in enumerate(flight["entries"], 1):
            server.entry = entry
            server.sent = None
            found += [
                f"{describe(flight, number)}: {difference}"
                for difference in _repeat_call(Gce(clients, lambda: 60.0), server, entry)
            ]
    return found


class _Recorded:
    """An API that gives the recorded answer, and keeps what it was asked."""

    entry: Document
    sent: Document | None = None

    def handle(self, request: Request) -> Response:
        self.sent = {"method": request.method, "path": request.path}
        if request.query:
            self.sent["query"] = {name: values[0] for name, values in request.query.items()}
        if request.body:
            self.sent["body"] = json.loads(request.body)
        body, status = self.entry["response"]["body"], self.entry["response"]["status"]
        # Each page is served as if it were the only one.
        pages = {name: one for name, one in body.items() if name != "nextPageToken"}
        return Response.of_json(pages, status)


def _repeat_call(gce: Gce, server: _Recorded, entry: Document) -> list[str]:
    request, response = dict(entry["request"]), entry["response"]
    if request["path"] == LOG_PATH:
        return _read_log(response)
    call = _find_call(gce, request)
    if (
        call is None
        or not isinstance(response["body"], dict)
        or "pageToken" in request.get("query", {})
    ):
        return []
    try:
        read = call()
    except CallError as error:
        read = error
    differences = compare(*_expect(request, response, read), lambda _: False, _is_equal)
    sent = server.sent or {}
    # The product gives each change an id, and each list a page size.
    ignored = {"requestId", "maxResults"} - request.get("query", {}).keys()
    query = {name: one for name, one in sent.pop("query", {}).items() if name not in ignored}
    sent |= {"query": query} if query else {}
    for one in (request, sent):
        if "items" in one.get("body", {}):
            items = sorted(one["body"]["items"], key=lambda one: str(one["key"]))
            one["body"] = {**one["body"], "items": items}
    differences += compare(
        request,
        sent,
        # An absent fingerprint is sent as an empty one.
        lambda key: key == "body.fingerprint" and not sent["body"].get("fingerprint"),
        _is_equal,
    )
    return [one.replace("simulated", "by the product") for one in differences]


def _is_equal(_key: str, recorded: Any, read: Any) -> bool:
    return bool(recorded == read)


def _find_call(gce: Gce, request: Document) -> Callable[[], Any] | None:
    """Return the product's call that sends such a request, or ``None``: it has no such call."""
    _, _, _, _, project, *rest = request["path"].split("/")
    scope = rest.pop(0)
    place = rest.pop(0) if scope in ("zones", "regions") else ""
    collection, name, verb = [*rest, "", "", ""][:3]
    body, query = request.get("body", {}), request.get("query", {})
    id_ = query.get("requestId", _REQUEST_ID)
    instance = Instance(name, "", "", None, None, body.get("fingerprint", ""))
    items = {one["key"]: one["value"] for one in body.get("items", ())}
    prefix = re.fullmatch(r'name eq "(.*)\.\*"', query.get("filter", ""))
    service = re.sub("([A-Z])", lambda one: f"_{one[0].lower()}", collection)
    now = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    calls: dict[tuple[str, str, bool, str], Callable[[], Any]] = {
        ("GET", "resourcePolicies", True, ""): lambda: gce.find_policy(project, place, name),
        ("POST", "resourcePolicies", False, ""): lambda: gce.insert_policy(
            project, place, _read(compute_v1.ResourcePolicy, body), id_
        ),
        ("DELETE", "resourcePolicies", True, ""): lambda: gce.delete_policy(project, place, name),
        ("GET", "instanceTemplates", True, ""): lambda: gce.find_template(
            TemplateRef(project, name, place)
        ),
        ("GET", "instanceGroupManagers", True, ""): lambda: gce.find_mig(project, place, name),
        ("POST", "instanceGroupManagers", False, ""): lambda: gce.insert_mig(
            project, place, _read(compute_v1.InstanceGroupManager, body), id_
        ),
        ("DELETE", "instanceGroupManagers", True, ""): lambda: gce.delete_mig(project, place, name),
        ("POST", "instanceGroupManagers", True, "listManagedInstances"): lambda: (
            gce.list_managed_instances(project, place, name)
        ),
        ("GET", "instances", True, ""): lambda: gce.find_instance(project, place, name),
        ("POST", "instances", True, "setMetadata"): lambda: gce.set_metadata(
            project, place, instance, items, now
        ),
        ("GET", "operations", True, ""): lambda: gce.find_operation(project, place, name, About()),
    }
    if scope == "global":
        calls["POST", "instanceTemplates", False, ""] = lambda: gce.insert_template(
            project, _read(compute_v1.InstanceTemplate, body), id_
        )
        calls["DELETE", "instanceTemplates", True, ""] = lambda: gce.delete_template(project, name)
    if (
        scope == "aggregated"
        and prefix
        and service in ("instance_group_managers", "resource_policies")
    ):
        return lambda: gce.list_named(project, service, prefix[1])
    return calls.get((request["method"], collection, bool(name), verb))


def _read(message: Any, body: Document) -> Document:
    """Return the body of a request as the product has it, with the library's names."""
    found: Document = message.to_dict(
        message.from_json(json.dumps(body)), always_print_fields_with_no_presence=False
    )
    return found


FIELDS: Mapping[str, Mapping[str, str]] = {
    "compute#operation": {"name": "name"},
    "compute#resourcePolicy": {"uri": "selfLink", "description": "description"},
    "compute#instanceTemplate": {"uri": "selfLink", "description": "description"},
    "compute#instanceGroupManager": {
        "uri": "selfLink",
        "description": "description",
        "target_size": "targetSize",
        "is_stable": "status.isStable",
    },
    "compute#instance": {
        "name": "name",
        "id": "id",
        "status": "status",
        "fingerprint": "metadata.fingerprint",
    },
}
"""The fields of the product's values that are compared, by kind of the recorded document."""


def _expect(request: Document, response: Document, read: Any) -> tuple[Any, Any]:
    """Return what the product must read, from the recorded JSON alone, and the same of what it read."""
    status, body = response["status"], response["body"]
    is_list = request["path"].endswith("/listManagedInstances")
    if status == 404 and (request["method"] != "POST" or is_list):
        return {}, _only(read, {})
    if status != 200:
        kind = KINDS.get((status, reason := _read_reason(body)))
        expected = {"http": status, "code": reason, "kind": kind or "decide: no row in KINDS"}
        return expected, _only(read, expected)
    if request["path"].endswith("/setMetadata"):
        return {}, _only(read, {})
    if is_list:
        members = body.get("managedInstances", ())
        return [
            [one["instance"].rpartition("/")[2], one.get("instanceStatus", ""), one.get("id", "")]
            for one in members
        ], [[one.name, one.status, one.id] for one in read]
    if "/aggregated/" in request["path"]:
        collection = request["path"].rpartition("/")[2]
        parts = [part.get(collection, ()) for part in body.get("items", {}).values()]
        return [one["name"] for part in parts for one in part], [one.name for one in read[0]]
    known = FIELDS[body["kind"]]
    found = dict(flatten(body))
    expected = {field: found.get(key, "") for field, key in known.items()}
    if "uri" in expected:
        expected["uri"] = expected["uri"].partition("/v1/")[2]
    if body["kind"] == "compute#operation":
        expected["is_done"] = body["status"] == "DONE"
        if codes := [one["code"] for one in body.get("error", {}).get("errors", ())]:
            return {**expected, "code": True}, {
                **_only(read, expected),
                "code": read.error is not None and read.error.code in codes,
            }
        expected["error"] = None
    return expected, _only(read, expected)


def _only(read: Any, fields: Mapping[str, Any]) -> Document:
    """Return these fields of what the product has read."""
    if not fields:
        return {} if not read else {"read": str(read)}
    return {field: getattr(read, field, "absent") for field in fields}


def _read_log(response: Document) -> list[str]:
    """Return the entries at the end of an operation that the product does not read as such."""
    found = []
    for index, entry in enumerate(response["body"].get("entries", ())):
        payload = entry["protoPayload"]
        event, why = parse_entry(_replace(entry, {"PROJECT": PROJECT}))
        is_last = bool(entry.get("operation", {}).get("last"))
        name = payload["resourceName"].rpartition("/")[2]
        code = payload.get("status", {}).get("code", 0)
        if (event is not None) != is_last:
            found.append(f"entries.{index}: last: {is_last} recorded, {why!r} by the product")
        elif event is not None and (event.name, event.has_failed) != (name, bool(code)):
            found.append(
                f"entries.{index}: {name}, code {code} recorded, {event.name},"
                f" {event.words!r} by the product"
            )
    return found
