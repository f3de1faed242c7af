"""The Google Cloud project of a run: calls, the resources that they create, and the cleanup.

Each resource is recorded before the call that creates it. Its name begins with ``tngtest-RUN-``, and it
has an ownership mark: its description, or a label if it is a VM. Only resources with both are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from replay.cloud_logging import Logs, read_pages
from shared.ports.gce.values import find_unseen

PREFIX = "tngtest"
LABEL = "tngtest"
_CALL_S = 60.0
_OPERATION_S = 900.0
_POLL_S = 1.0
_UNKNOWN_S = 30.0
"""For this long after an insert without an answer, its resource may still appear. A guess."""
_VISIBLE_S = 60.0
"""For this long, inserts may fail because they refer to a resource that was just created. A guess."""
_CLOCKS_DIFFER_BY = timedelta(hours=1)
_REMOVE_S = 1200.0
_QUIET_S = 5.0
"""No resource is left if two lists at this distance have none. Lists lag by seconds."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of resource: the service of its client, and the fields of its requests."""

    service: str
    noun: str
    scope: str

    @property
    def request_field(self) -> str:
        """The field of an insert request that has the resource."""
        return f"{self.noun}_resource"


MIG, VM, TEMPLATE, REGIONAL_TEMPLATE, POLICY = (
    Kind("instance_group_managers", "instance_group_manager", "zone"),
    Kind("instances", "instance", "zone"),
    Kind("instance_templates", "instance_template", ""),
    Kind("region_instance_templates", "instance_template", "region"),
    Kind("resource_policies", "resource_policy", "region"),
)
_LISTED = {MIG: MIG, VM: VM, TEMPLATE: REGIONAL_TEMPLATE, POLICY: POLICY}
"""Kinds with an aggregated list, and the kind of its resources that are not ``global``."""


@dataclass(frozen=True)
class Resource:
    """One resource; ``location`` is its zone or region, or empty."""

    kind: Kind
    location: str
    name: str

    def __str__(self) -> str:
        """Return the resource as messages name it."""
        where = f" in {self.location}" if self.location else ""
        return f"{self.kind.noun.replace('_', ' ')} {self.name}{where}"


class CallError(Exception):
    """A call returned an error; ``document`` is the body of the answer."""

    def __init__(self, call: str, http: int, document: Document) -> None:
        error = document.get("error") or {}
        details = error.get("errors") or [{}]
        self.http = http
        self.reason = str(details[0].get("reason") or error.get("status") or "")
        self.message = str(error.get("message") or "")
        self.document = document
        super().__init__(f"{call}: {http} {self.reason}: {self.message}")


class Unanswered(Exception):
    """A question cannot be answered; the message is the reason."""


@dataclass(frozen=True)
class Time:
    """The clock and the sleep function, which tests replace."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass
class _Insert:
    """An insert that may have created a resource."""

    at: float = 0.0
    operation: Any = None
    is_answered: bool = False


@dataclass
class Project:
    """One project, zone and run. ``evidence`` has the documents on which answers are based."""

    id: str
    zone: str
    run: str
    client: Callable[[str], Any]
    logs: Logs
    time: Time
    subnetwork: str = ""
    foreign_account: str = ""
    evidence: list[Document] = field(default_factory=list)
    _inserts: dict[Resource, _Insert] = field(default_factory=dict)

    @property
    def region(self) -> str:
        """The region of the zone."""
        return self.zone.rpartition("-")[0]

    @property
    def mark(self) -> str:
        """The description of all resources of this run."""
        return _mark(self.run)

    def resource(self, kind: Kind, part: str) -> Resource:
        """Return the resource of this run whose name ends with ``part``."""
        return Resource(kind, self._location(kind), f"{PREFIX}-{self.run}-{part}")

    def path(self, resource: Resource) -> str:
        """Return the partial URL of a resource."""
        words = resource.kind.service.removeprefix("region_").split("_")
        collection = words[0] + "".join(word.capitalize() for word in words[1:])
        scope = f"{resource.kind.scope}s/{resource.location}" if resource.location else "global"
        return f"projects/{self.id}/{scope}/{collection}/{resource.name}"

    # calls

    def call(self, service: str, method: str, **request: Any) -> Any:
        """Send one HTTP request.

        Raises `CallError`, or the exception of the client library if there is no answer.
        """
        from google.api_core.exceptions import GoogleAPICallError

        try:
            return getattr(self.client(service), method)(
                request={"project": self.id, **request}, retry=None, timeout=_CALL_S
            )
        except GoogleAPICallError as error:
            name = f"{service}.{method.removesuffix('_unary')}"
            raise CallError(name, int(error.code or 0), _body(error)) from error

    def record(self, document: Document) -> None:
        """Add a document to the evidence, once."""
        if document not in self.evidence:
            self.evidence.append(document)

    def insert(self, kind: Kind, part: str, body: Mapping[str, Any], request_id: str = "") -> Any:
        """Start to create a resource; return the operation. Raises `CallError`."""
        resource = self.resource(kind, part)
        insert = self._inserts.setdefault(resource, _Insert())
        insert.at, insert.is_answered = self.time.monotonic(), False
        document = {**body, "name": resource.name, "description": self.mark}
        if kind is VM:
            document["labels"] = {LABEL: self.run}
        request = {**self._place(kind), kind.request_field: document}
        if request_id:
            request["request_id"] = request_id
        try:
            insert.operation = self.call(kind.service, "insert_unary", **request)
        except CallError as error:
            insert.is_answered = error.http < 500
            raise
        finally:
            # An insert without an answer may be executed after this time.
            insert.at = self.time.monotonic()
        insert.is_answered = True
        return insert.operation

    def delete(self, kind: Kind, part: str) -> Any:
        """Start to delete a resource of this run; return the operation. Raises `CallError`."""
        return self.delete_resource(self.resource(kind, part))

    def find(self, resource: Resource) -> Any:
        """Return the resource, or ``None``. Raises `CallError`."""
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
        """Return a resource of this run. Raises `Unanswered` if it is absent."""
        resource = self.resource(kind, part)
        found = self.find(resource)
        if found is None:
            raise Unanswered(f"{resource} no longer exists")
        return found

    def find_vm(self, name: str) -> Any:
        """Return a VM of this zone, or ``None``."""
        return self.find(Resource(VM, self.zone, name))

    def list_named(self, kind: Kind, expression: str) -> list[Resource]:
        """Return the resources of an aggregated list. Raises `CallError`."""
        return [resource for resource, _ in self._list(kind, expression)]

    def read_operation(self, operation: Any) -> Any:
        """Read the current state of an operation."""
        for scope in ("zone", "region"):
            if url := getattr(operation, scope):
                place = {scope: url.rsplit("/", 1)[-1]}
                return self.call(f"{scope}_operations", "get", operation=operation.name, **place)
        return self.call("global_operations", "get", operation=operation.name)

    def wait_for(self, operation: Any) -> Document:
        """Wait for the end of an operation; return its ``error``, empty if there is none."""
        started_at = self.time.monotonic()
        while not _is_done(operation):
            if self.time.monotonic() - started_at > _OPERATION_S:
                raise Unanswered(f"{operation.name} has not ended in {_OPERATION_S:.0f} s")
            self.time.sleep(_POLL_S)
            operation = self.read_operation(operation)
        document = to_document(operation)
        error: Document = document.get("error") or {}
        if error:
            self.record({"operation": document})
        return error

    def attempt(self, begin: Callable[[], Any], keeps: Collection[int] = ()) -> str:
        """Return the outcome of a change: accepted, rejected or failed, with the code of the error.

        Raises `CallError` for errors that do not answer a question (permissions, rate limits, internal
        errors), except for the HTTP codes in ``keeps``.
        """
        try:
            operation = begin()
        except CallError as error:
            if error.http not in keeps and (error.http in (401, 403, 429) or error.http >= 500):
                raise
            self.record(error.document)
            return f"rejected: {error.http} {error.reason}".rstrip()
        failure = self.wait_for(operation)
        if not failure:
            return "accepted"
        codes = [one.get("code", "") for one in failure.get("errors") or ()]
        return f"operation failed: {', '.join(codes)}"

    def attempt_insert(self, kind: Kind, part: str, body: Mapping[str, Any]) -> str:
        """Return the outcome of an insert, retried while a resource that it uses is not visible yet."""
        outcome = ""

        def is_final() -> bool:
            nonlocal outcome
            outcome = self.attempt(lambda: self.insert(kind, part, body))
            return not re.search(r"notFound|resourceNotReady", outcome)

        self.measure(is_final, _VISIBLE_S)
        return outcome

    def create(self, kind: Kind, part: str, body: Mapping[str, Any]) -> str:
        """Create a resource; return its partial URL. Raises `Unanswered` if the insert fails."""
        outcome = self.attempt_insert(kind, part, body)
        if outcome != "accepted":
            raise Unanswered(f"the insert of {self.resource(kind, part)}: {outcome}")
        return self.path(self.resource(kind, part))

    def wait_until(self, condition: Callable[[], Any], within_s: float) -> float:
        """Wait until a condition is true; return the seconds. Raises `Unanswered` after ``within_s``."""
        seconds = self.measure(condition, within_s)
        if seconds is None:
            raise Unanswered(f"the condition was not true within {within_s:.0f} s")
        return seconds

    def measure(self, condition: Callable[[], Any], within_s: float) -> float | None:
        """Return the seconds until a condition is true, or ``None`` after ``within_s``."""
        started_at = self.time.monotonic()
        while not condition():
            if self.time.monotonic() - started_at > within_s:
                return None
            self.time.sleep(_POLL_S)
        return self.time.monotonic() - started_at

    def read_log(self, name: str) -> list[Document]:
        """Return the audit log entries about resources whose names begin with ``name``, in order."""
        query = (
            'protoPayload.serviceName="compute.googleapis.com"'
            f' AND protoPayload.resourceName:"/{name}"'
            f' AND timestamp>="{self._began:%Y-%m-%dT%H:%M:%SZ}"'
        )
        pages = read_pages(self.logs, [self.id], query, self.time.sleep, self.time.monotonic)
        return [entry for page in pages for entry in page.entries]

    def __post_init__(self) -> None:
        """Log entries are read from this time on."""
        self._began = self.time.now() - _CLOCKS_DIFFER_BY

    # cleanup

    def list_names(self) -> list[Resource]:
        """Return all resources with a name of this run, with or without its mark. Raises `CallError`."""
        expression = f'name eq "{PREFIX}-{self.run}-.*"'
        return [resource for kind in _LISTED for resource in self.list_named(kind, expression)]

    def list_marked(self, run: str = "") -> list[Resource]:
        """Return the resources with name and mark of a run, or of any run. Raises `CallError`."""
        expression = f'name eq "{PREFIX}-{run or "[a-z0-9]+"}-.*"'
        return [
            resource
            for kind in _LISTED
            for resource, found in self._list(kind, expression)
            if _has_mark(resource, found)
        ]

    def remove_created(self, report: Callable[[str], None]) -> list[Resource]:
        """Delete all resources that this run recorded; return those that are left."""
        left = self.remove(self._inserts, report)
        self._inserts = {resource: self._inserts[resource] for resource in left}
        return left

    def remove_listed(self, run: str, report: Callable[[str], None]) -> list[Resource]:
        """Delete the listed resources of a run, or of any run, until the lists are empty.

        Returns the resources that are left.
        """
        quiet, started_at = 0, self.time.monotonic()
        while quiet < 2:
            found = self.list_marked(run)
            quiet = 0 if found else quiet + 1
            left = self.remove(found, report)
            if left or (found and self.time.monotonic() - started_at > _REMOVE_S):
                return left or found
            self.time.sleep(_QUIET_S)
        return []

    def remove(
        self, resources: Iterable[Resource], report: Callable[[str], None]
    ) -> list[Resource]:
        """Delete resources, dependencies last, with retries; return those that are left."""
        removal = _Removal(
            self, sorted(resources, key=lambda one: (_is_dependency(one.kind), one.name))
        )
        started_at = self.time.monotonic()
        while removal.proceed() and self.time.monotonic() - started_at < _REMOVE_S:
            self.time.sleep(_POLL_S)
        for one in removal.left:
            report(f"{one} could not be deleted: {removal.errors.get(one, 'it still exists')}")
        return removal.left

    def may_appear(self, resource: Resource) -> bool:
        """Whether an insert of this run is in progress, or may be because it was not answered."""
        insert = self._inserts.get(resource)
        if insert is None:
            return False
        if not insert.is_answered:
            is_recent = self.time.monotonic() - insert.at < _UNKNOWN_S
            return is_recent and self.find(resource) is None
        return insert.operation is not None and not _is_done(self.read_operation(insert.operation))

    def delete_resource(self, resource: Resource) -> Any:
        """Start to delete a resource; return the operation. Raises `CallError`."""
        scope = {resource.kind.scope: resource.location} if resource.kind.scope else {}
        return self.call(
            resource.kind.service, "delete_unary", **scope, **{resource.kind.noun: resource.name}
        )

    def _list(self, kind: Kind, expression: str) -> Iterator[tuple[Resource, Any]]:
        pager = self.call(kind.service, "aggregated_list", filter=expression)
        for page in pager.pages:
            if unseen := ", ".join(find_unseen(page)):
                error = {"status": "UNREACHABLE", "message": f"the list lacks {unseen}"}
                raise CallError(f"{kind.service}.aggregated_list", 200, {"error": error})
            for scope, listed in page.items.items():
                found_kind = kind if scope == "global" else _LISTED[kind]
                location = "" if scope == "global" else scope.rpartition("/")[2]
                for found in getattr(listed, kind.service):
                    yield Resource(found_kind, location, found.name), found

    def _location(self, kind: Kind) -> str:
        return {"zone": self.zone, "region": self.region}.get(kind.scope, "")

    def _place(self, kind: Kind) -> dict[str, str]:
        return {kind.scope: self._location(kind)} if kind.scope else {}


class _Removal:
    """Resources that are being deleted. ``errors`` has the last error of each."""

    def __init__(self, project: Project, resources: list[Resource]) -> None:
        self._project = project
        self.left = resources
        self.errors: dict[Resource, str] = {}
        self._operations: dict[Resource, Any] = {}
        self._denied: set[Resource] = set()

    def proceed(self) -> bool:
        """Send the calls that are possible now; return False if no further call can help."""
        has_dependents = any(
            not _is_dependency(one.kind) for one in self.left if one not in self._denied
        )
        self.left = [
            one
            for one in self.left
            if one in self._denied
            or (has_dependents and _is_dependency(one.kind))
            or not self._try(one)
        ]
        return not self._denied.issuperset(self.left)

    def _try(self, resource: Resource) -> bool:
        """Return True if the resource is absent or has no mark; otherwise delete it if possible."""
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
            # In use, not ready, being deleted, rate limit: these errors are temporary.
            self.errors[resource] = str(error)
            if error.http in (401, 403) and error.reason != "rateLimitExceeded":
                self._denied.add(resource)
        except (RequestException, GoogleAuthError) as error:
            self.errors[resource] = f"no answer: {type(error).__name__}"
        return False


def _is_dependency(kind: Kind) -> bool:
    """Whether MIGs and VMs use this kind, so that it is deleted after them."""
    return kind not in (MIG, VM)


def to_document(message: Any) -> Document:
    """Return a message of the client library in JSON form."""
    document: Document = type(message).to_dict(
        message,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
    )
    return document


def list_runs(resources: Sequence[Resource]) -> list[str]:
    """Return the runs of these resources."""
    return sorted({resource.name.split("-")[1] for resource in resources})


def _mark(run: str) -> str:
    return f"Created by make test-cloud of tpu-functions, run {run}. It can be deleted."


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
    """Return the body of an error, or one built from the library's message if it is not JSON."""
    try:
        document = error.response.json()
    except (AttributeError, ValueError):
        document = None
    if isinstance(document, dict):
        return document
    return {"error": {"code": int(error.code or 0), "message": str(error.message)}}
