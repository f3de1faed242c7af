"""A project of Google Cloud as the questions use it: calls, what they made, and its removal.

Each resource is recorded before the call that makes it, has a name that begins with ``tngtest-RUN-``,
and a mark: its description, or a label if it is a VM. Only what has both is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from replay.cloud_logging import Logs, read_pages

PREFIX = "tngtest"
LABEL = "tngtest"
_CALL_S = 60.0
_OPERATION_S = 900.0
_POLL_S = 1.0
_UNKNOWN_S = 30.0
"""How long after a call without an answer its resource may still appear. A guess."""
_VISIBLE_S = 60.0
"""How long an insert may be refused because of what has just been made. A guess."""
_CLOCKS_DIFFER_BY = timedelta(hours=1)
_REMOVE_S = 1200.0
_QUIET_S = 5.0
"""Two lists without a resource, so far apart, mean that nothing is left: lists lag by seconds."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """How a kind of resource is called: the client's service, and the fields of its requests."""

    service: str
    noun: str
    scope: str

    @property
    def request_field(self) -> str:
        """The field of an insert's request that holds the resource."""
        return f"{self.noun}_resource"


MIG, VM, TEMPLATE, REGIONAL_TEMPLATE, POLICY = (
    Kind("instance_group_managers", "instance_group_manager", "zone"),
    Kind("instances", "instance", "zone"),
    Kind("instance_templates", "instance_template", ""),
    Kind("region_instance_templates", "instance_template", "region"),
    Kind("resource_policies", "resource_policy", "region"),
)
_LISTED = {MIG: MIG, VM: VM, TEMPLATE: REGIONAL_TEMPLATE, POLICY: POLICY}
"""Kinds that have a list of all zones and regions, and what is in such a list outside of ``global``."""


@dataclass(frozen=True)
class Resource:
    """One resource; ``location`` is its zone or region, or empty."""

    kind: Kind
    location: str
    name: str

    def __str__(self) -> str:
        """As a person looks for it."""
        where = f" in {self.location}" if self.location else ""
        return f"{self.kind.noun.replace('_', ' ')} {self.name}{where}"


class CallError(Exception):
    """A call was refused; ``document`` is the answer's body."""

    def __init__(self, call: str, http: int, document: Document) -> None:
        error = document.get("error") or {}
        details = error.get("errors") or [{}]
        self.http = http
        self.reason = str(details[0].get("reason") or error.get("status") or "")
        self.message = str(error.get("message") or "")
        self.document = document
        super().__init__(f"{call}: {http} {self.reason}: {self.message}")


class Unanswered(Exception):
    """A question cannot be answered; the message says why."""


@dataclass(frozen=True)
class Time:
    """Time as an argument."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass
class _Made:
    """A resource that a call may have made: when, by which operation, and whether it was answered."""

    at: float = 0.0
    operation: Any = None
    is_answered: bool = False


@dataclass
class Project:
    """One project, zone and run. ``evidence`` holds the documents that answers are drawn from."""

    id: str
    zone: str
    run: str
    client: Callable[[str], Any]
    logs: Logs
    time: Time
    subnetwork: str = ""
    foreign_account: str = ""
    evidence: list[Document] = field(default_factory=list)
    _made: dict[Resource, _Made] = field(default_factory=dict)

    @property
    def region(self) -> str:
        """The zone's region."""
        return self.zone.rpartition("-")[0]

    @property
    def mark(self) -> str:
        """The description of all that this run makes."""
        return _mark(self.run)

    def resource(self, kind: Kind, part: str) -> Resource:
        """The resource of this run that has ``part`` in its name."""
        return Resource(kind, self._location(kind), f"{PREFIX}-{self.run}-{part}")

    def path(self, resource: Resource) -> str:
        """The partial URL of a resource."""
        words = resource.kind.service.removeprefix("region_").split("_")
        collection = words[0] + "".join(word.capitalize() for word in words[1:])
        scope = f"{resource.kind.scope}s/{resource.location}" if resource.location else "global"
        return f"projects/{self.id}/{scope}/{collection}/{resource.name}"

    # calls

    def call(self, service: str, method: str, **request: Any) -> Any:
        """One HTTP request. Raises `CallError`, or what the client library raises without an answer."""
        from google.api_core.exceptions import GoogleAPICallError

        try:
            return getattr(self.client(service), method)(
                request={"project": self.id, **request}, retry=None, timeout=_CALL_S
            )
        except GoogleAPICallError as error:
            name = f"{service}.{method.removesuffix('_unary')}"
            raise CallError(name, int(error.code or 0), _body(error)) from error

    def keep(self, document: Document) -> None:
        """Add a document to the evidence, once."""
        if document not in self.evidence:
            self.evidence.append(document)

    def insert(self, kind: Kind, part: str, body: Mapping[str, Any], request_id: str = "") -> Any:
        """Begin to make a resource; its operation. Raises `CallError`."""
        resource = self.resource(kind, part)
        made = self._made.setdefault(resource, _Made())
        made.at, made.is_answered = self.time.monotonic(), False
        document = {**body, "name": resource.name, "description": self.mark}
        if kind is VM:
            document["labels"] = {LABEL: self.run}
        request = {**self._place(kind), kind.request_field: document}
        if request_id:
            request["request_id"] = request_id
        try:
            made.operation = self.call(kind.service, "insert_unary", **request)
        except CallError as error:
            made.is_answered = error.http < 500
            raise
        finally:
            # An insert that was not answered may still be executed from here on.
            made.at = self.time.monotonic()
        made.is_answered = True
        return made.operation

    def delete(self, kind: Kind, part: str) -> Any:
        """Begin to delete a resource of this run; the operation. Raises `CallError`."""
        return self.delete_resource(self.resource(kind, part))

    def find(self, resource: Resource) -> Any:
        """The resource, or ``None``. Raises `CallError`."""
        scope = {resource.kind.scope: resource.location} if resource.kind.scope else {}
        try:
            return self.call(
                resource.kind.service, "get", **scope, **{resource.kind.noun: resource.name}
            )
        except CallError as error:
            if error.http == 404:
                return None
            raise

    def get(self, kind: Kind, part: str) -> Any:
        """A resource of this run. Raises `Unanswered` if it is absent."""
        resource = self.resource(kind, part)
        found = self.find(resource)
        if found is None:
            raise Unanswered(f"{resource} is not there any more")
        return found

    def find_vm(self, name: str) -> Any:
        """A VM of this zone, or ``None``."""
        return self.find(Resource(VM, self.zone, name))

    def list_named(self, kind: Kind, expression: str) -> list[Resource]:
        """What a list of all zones and regions has. Raises `CallError`."""
        return [resource for resource, _ in self._list(kind, expression)]

    def read_operation(self, operation: Any) -> Any:
        """An operation as it is now."""
        for scope in ("zone", "region"):
            if url := getattr(operation, scope):
                place = {scope: url.rsplit("/", 1)[-1]}
                return self.call(f"{scope}_operations", "get", operation=operation.name, **place)
        return self.call("global_operations", "get", operation=operation.name)

    def finish(self, operation: Any) -> Document:
        """Wait for an operation's end; its ``error``, empty if there is none."""
        began = self.time.monotonic()
        while not _is_done(operation):
            if self.time.monotonic() - began > _OPERATION_S:
                raise Unanswered(f"{operation.name} has not ended in {_OPERATION_S:.0f} s")
            self.time.sleep(_POLL_S)
            operation = self.read_operation(operation)
        document = to_document(operation)
        error: Document = document.get("error") or {}
        if error:
            self.keep({"operation": document})
        return error

    def attempt(self, begin: Callable[[], Any], keeps: Collection[int] = ()) -> str:
        """What a change comes to, in words: accepted, or refused where and how.

        A refusal that says nothing about the question (rights, rates, an internal error) is raised,
        but for those HTTP codes that the question is about.
        """
        try:
            operation = begin()
        except CallError as error:
            if error.http not in keeps and (error.http in (401, 403, 429) or error.http >= 500):
                raise
            self.keep(error.document)
            return f"refused at once: {error.http} {error.reason}".rstrip()
        failure = self.finish(operation)
        if not failure:
            return "accepted"
        codes = [one.get("code", "") for one in failure.get("errors") or ()]
        return f"refused in its operation: {', '.join(codes)}"

    def attempt_insert(self, kind: Kind, part: str, body: Mapping[str, Any]) -> str:
        """What an insert comes to, tried again while what it refers to is not visible to it yet."""
        outcome = ""

        def is_clear() -> bool:
            nonlocal outcome
            outcome = self.attempt(lambda: self.insert(kind, part, body))
            return not re.search(r"notFound|resourceNotReady", outcome)

        self.measure(is_clear, _VISIBLE_S)
        return outcome

    def make(self, kind: Kind, part: str, body: Mapping[str, Any]) -> str:
        """Make a resource and wait for it; its partial URL. Raises `Unanswered` if it is refused."""
        outcome = self.attempt_insert(kind, part, body)
        if outcome != "accepted":
            raise Unanswered(f"the insert of {self.resource(kind, part)} was {outcome}")
        return self.path(self.resource(kind, part))

    def wait(self, condition: Callable[[], Any], within_s: float) -> float:
        """Wait until something is so; after how many seconds. Raises `Unanswered` if it never is."""
        seconds = self.measure(condition, within_s)
        if seconds is None:
            raise Unanswered(f"waited for {within_s:.0f} s without effect")
        return seconds

    def measure(self, condition: Callable[[], Any], within_s: float) -> float | None:
        """After how many seconds something is so; ``None`` if it is not within that time."""
        began = self.time.monotonic()
        while not condition():
            if self.time.monotonic() - began > within_s:
                return None
            self.time.sleep(_POLL_S)
        return self.time.monotonic() - began

    def read_log(self, name: str) -> list[Document]:
        """The audit log's entries about resources whose names begin so, in their order."""
        query = (
            'protoPayload.serviceName="compute.googleapis.com"'
            f' AND protoPayload.resourceName:"/{name}"'
            f' AND timestamp>="{self._began:%Y-%m-%dT%H:%M:%SZ}"'
        )
        pages = read_pages(self.logs, [self.id], query, self.time.sleep, self.time.monotonic)
        return [entry for page in pages for entry in page.entries]

    def __post_init__(self) -> None:
        """Entries of the log are read from here on."""
        self._began = self.time.now() - _CLOCKS_DIFFER_BY

    # removal

    def list_names(self) -> list[Resource]:
        """What has a name of this run, whoever has made it. Raises `CallError`."""
        expression = f'name eq "{PREFIX}-{self.run}-.*"'
        return [resource for kind in _LISTED for resource in self.list_named(kind, expression)]

    def list_marked(self, run: str = "") -> list[Resource]:
        """What has the name and the mark of a run, or of any. Raises `CallError`."""
        expression = f'name eq "{PREFIX}-{run or "[a-z0-9]+"}-.*"'
        return [
            resource
            for kind in _LISTED
            for resource, found in self._list(kind, expression)
            if _has_mark(resource, found)
        ]

    def remove_made(self, print_figure: Callable[[str], None]) -> list[Resource]:
        """Delete all that this run has recorded; what could not be deleted."""
        left = self.remove(self._made, print_figure)
        self._made = {resource: self._made[resource] for resource in left}
        return left

    def remove_listed(self, run: str, print_figure: Callable[[str], None]) -> list[Resource]:
        """Delete what lists show of a run (or of any), until they show nothing; what is left."""
        quiet, began = 0, self.time.monotonic()
        while quiet < 2:
            found = self.list_marked(run)
            quiet = 0 if found else quiet + 1
            left = self.remove(found, print_figure)
            if left or (found and self.time.monotonic() - began > _REMOVE_S):
                return left or found
            self.time.sleep(_QUIET_S)
        return []

    def remove(
        self, resources: Iterable[Resource], print_figure: Callable[[str], None]
    ) -> list[Resource]:
        """Delete resources, users before what they use, again and again; what could not be deleted."""
        removal = _Removal(self, sorted(resources, key=lambda one: (_is_used(one.kind), one.name)))
        began = self.time.monotonic()
        while removal.proceed() and self.time.monotonic() - began < _REMOVE_S:
            self.time.sleep(_POLL_S)
        for one in removal.left:
            print_figure(
                f"{one} could not be deleted: {removal.errors.get(one, 'it is still there')}"
            )
        return removal.left

    def may_appear(self, resource: Resource) -> bool:
        """Whether an insert of this run is still under way, or may be for all that is known."""
        made = self._made.get(resource)
        if made is None:
            return False
        if not made.is_answered:
            is_recent = self.time.monotonic() - made.at < _UNKNOWN_S
            return is_recent and self.find(resource) is None
        return made.operation is not None and not _is_done(self.read_operation(made.operation))

    def delete_resource(self, resource: Resource) -> Any:
        """Begin to delete any resource; the operation. Raises `CallError`."""
        scope = {resource.kind.scope: resource.location} if resource.kind.scope else {}
        return self.call(
            resource.kind.service, "delete_unary", **scope, **{resource.kind.noun: resource.name}
        )

    def _list(self, kind: Kind, expression: str) -> Iterator[tuple[Resource, Any]]:
        pager = self.call(kind.service, "aggregated_list", filter=expression)
        for scope, listed in pager:
            found_kind = kind if scope == "global" else _LISTED[kind]
            location = "" if scope == "global" else scope.rpartition("/")[2]
            for found in getattr(listed, kind.service):
                yield Resource(found_kind, location, found.name), found

    def _location(self, kind: Kind) -> str:
        return {"zone": self.zone, "region": self.region}.get(kind.scope, "")

    def _place(self, kind: Kind) -> dict[str, str]:
        return {kind.scope: self._location(kind)} if kind.scope else {}


class _Removal:
    """Resources that are being deleted. ``errors`` holds the last error of each."""

    def __init__(self, project: Project, resources: list[Resource]) -> None:
        self._project = project
        self.left = resources
        self.errors: dict[Resource, str] = {}
        self._operations: dict[Resource, Any] = {}
        self._denied: set[Resource] = set()

    def proceed(self) -> bool:
        """Ask for each what can be asked for now; whether there is more to do."""
        has_users = any(not _is_used(one.kind) for one in self.left if one not in self._denied)
        self.left = [
            one
            for one in self.left
            if one in self._denied or (has_users and _is_used(one.kind)) or not self._try(one)
        ]
        return not self._denied.issuperset(self.left)

    def _try(self, resource: Resource) -> bool:
        """Whether it is gone, or has no mark of ours; else its delete has been asked for."""
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        project, operation = self._project, self._operations.get(resource)
        try:
            if project.may_appear(resource):
                return False
            if operation is not None and not _is_done(project.read_operation(operation)):
                return False
            found = project.find(resource)
            if found is None or not _has_mark(resource, found):
                return True
            self._operations[resource] = project.delete_resource(resource)
        except CallError as error:
            # In use, not ready, being deleted, too many calls: all of them end.
            self.errors[resource] = str(error)
            if error.http in (401, 403) and error.reason != "rateLimitExceeded":
                self._denied.add(resource)
        except (RequestException, GoogleAuthError) as error:
            self.errors[resource] = f"no answer: {type(error).__name__}"
        return False


def _is_used(kind: Kind) -> bool:
    """Whether others use it, and it can be deleted only after them."""
    return kind not in (MIG, VM)


def to_document(message: Any) -> Document:
    """A message of the client library in JSON form."""
    document: Document = type(message).to_dict(
        message,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
    )
    return document


def find_runs(resources: Sequence[Resource]) -> list[str]:
    """The runs that resources are of."""
    return sorted({resource.name.split("-")[1] for resource in resources})


def _mark(run: str) -> str:
    return f"Made by make test-cloud of tpu-functions, run {run}. It can be deleted."


def _has_mark(resource: Resource, found: Any) -> bool:
    named = re.fullmatch(rf"{PREFIX}-([a-z0-9]+)-.+", resource.name)
    if named is None:
        return False
    if resource.kind is VM:
        return bool(found.labels.get(LABEL) == named[1])
    return bool(found.description == _mark(named[1]))


def _is_done(operation: Any) -> bool:
    return bool(operation.status.name == "DONE")


def _body(error: Any) -> Document:
    """The body of a refusal; what the library makes of it where there is no JSON."""
    try:
        document = error.response.json()
    except (AttributeError, ValueError):
        document = None
    if isinstance(document, dict):
        return document
    return {"error": {"code": int(error.code or 0), "message": str(error.message)}}
