"""The values that the port to Compute Engine reads, and their parsers.

A field that is not set reads as empty. A parser raises `TypeError` or `AttributeError` for a field of
another type.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from shared.base.documents import Document
from shared.base.reasons import Reason
from shared.base.timestamps import find_time
from shared.ports.error_reasons import ErrorKind, Verdict, classify, rank

FieldT = TypeVar("FieldT", str, int, bool, dict[str, Any], list[Any])

UP = frozenset({"PROVISIONING", "STAGING", "RUNNING"})
"""The statuses of a VM that runs or is being started."""


@dataclass(frozen=True)
class GceError:
    """An error of an operation, a managed instance group or a managed instance."""

    code: str
    message: str
    http: int = 0

    @property
    def verdict(self) -> Verdict:
        return classify(self.http, self.code, self.message)

    @property
    def kind(self) -> ErrorKind:
        return self.verdict.kind

    @property
    def reason(self) -> Reason | None:
        """The reason that the object gets; ``None`` for a transient error."""
        return self.verdict.reason


@dataclass(frozen=True)
class Operation:
    """An operation. ``error`` is set if it has failed."""

    name: str
    is_done: bool
    error: GceError | None = None


@dataclass(frozen=True)
class Policy:
    """A workload policy."""

    uri: str
    description: str


@dataclass(frozen=True)
class Template:
    """The fields of an instance template that matter for TPUs; ``None`` or empty: not set."""

    uri: str
    description: str
    machine_type: str
    has_scheduling: bool
    maintenance: str
    provisioning_model: str
    termination_action: str
    reservation_type: str
    has_boot_disk: bool
    max_run_s: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Mig:
    """A managed instance group.

    ``creating`` counts VMs that are being made or waited for, ``recreating`` those that are being
    repaired; ``topologies`` maps each accelerator topology that the group has applied to its state
    (``ACTIVE``: the interconnect is up). ``missing`` counts members whose VM does not exist; ``None``:
    not given (it is documented for TPUs alone).
    """

    uri: str
    description: str
    target_size: int
    creating: int
    is_bulk_in_progress: bool
    recreating: int
    errors: tuple[GceError, ...] = ()
    topologies: Mapping[str, str] = field(default_factory=dict)
    missing: int | None = None

    @property
    def has_unfinished_vms(self) -> bool:
        """Whether VMs are being made or repaired, so that they may have errors of their own."""
        return bool(self.creating or self.recreating) and not self.waits_as_a_whole

    @property
    def waits_as_a_whole(self) -> bool:
        """Whether it waits for capacity for all of its VMs (BULK), and none exists."""
        return self.is_bulk_in_progress and self.missing == self.target_size


@dataclass(frozen=True)
class ManagedInstance:
    """A member of a MIG. ``status`` and ``id`` are empty while its VM does not exist."""

    name: str
    status: str
    errors: tuple[GceError, ...] = ()
    id: str = ""


@dataclass(frozen=True)
class Instance:
    """A VM. ``started`` is when it was last started."""

    name: str
    id: str
    status: str
    created: datetime | None
    started: datetime | None
    fingerprint: str = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_member: bool = False
    """Whether the list of its MIG's members has it (`membership.mark_members`). Its metadata
    ``created-by`` proves nothing: whoever creates a VM can write it."""


@dataclass(frozen=True)
class TemplateRef:
    """An instance template: global, or of a region."""

    project: str
    name: str
    region: str = ""

    @property
    def uri(self) -> str:
        """The partial URL, which all calls of Compute Engine accept."""
        scope = f"regions/{self.region}" if self.region else "global"
        return f"projects/{self.project}/{scope}/instanceTemplates/{self.name}"


@dataclass(frozen=True)
class ListedResource:
    """A resource as an aggregated list shows it.

    ``kind`` is its collection, as in ``instanceGroupManagers``; ``location`` is a zone or a region,
    empty for a global resource.
    """

    project: str
    kind: str
    location: str
    name: str
    description: str
    created: datetime | None

    @property
    def place(self) -> tuple[str, str]:
        return self.project, self.location


def read_field(found: Document, key: str, kind: type[FieldT]) -> FieldT:
    """The field of a message; empty if it is not set. Raises `TypeError` for another type."""
    value = found.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{key} is of another type")
    return value


def parse_policy(found: Document) -> Policy:
    """A workload policy."""
    return Policy(_read_link(found), read_field(found, "description", str))


def parse_operation(found: Document) -> Operation:
    """An operation. Of several errors the first in `shared.base.reasons.ORDER` counts."""
    http = read_field(found, "httpErrorStatusCode", int)
    errors = _read_errors(read_field(found, "error", dict), http)
    is_done = read_field(found, "status", str) == "DONE"
    return Operation(read_field(found, "name", str), is_done, errors[0] if errors else None)


def parse_template(found: Document) -> Template:
    """An instance template, global or of a region."""
    properties = read_field(found, "properties", dict)
    scheduling = read_field(properties, "scheduling", dict)
    affinity = read_field(properties, "reservationAffinity", dict)
    disks = read_field(properties, "disks", list)
    return Template(
        uri=_read_link(found),
        description=read_field(found, "description", str),
        machine_type=read_field(properties, "machineType", str),
        has_scheduling="scheduling" in properties,
        maintenance=read_field(scheduling, "onHostMaintenance", str),
        provisioning_model=read_field(scheduling, "provisioningModel", str),
        termination_action=read_field(scheduling, "instanceTerminationAction", str),
        reservation_type=read_field(affinity, "consumeReservationType", str),
        has_boot_disk=any(read_field(disk, "boot", bool) for disk in disks),
        # A 64-bit number is a text in JSON.
        max_run_s=int(read_field(scheduling, "maxRunDuration", dict).get("seconds") or 0),
        metadata=_read_items(properties),
    )


def parse_mig(found: Document) -> Mig:
    """A managed instance group."""
    actions = read_field(found, "currentActions", dict)
    status = read_field(found, "status", dict)
    bulk = read_field(status, "bulkInstanceOperation", dict)
    progress = read_field(bulk, "lastProgressCheck", dict)
    return Mig(
        uri=_read_link(found),
        description=read_field(found, "description", str),
        target_size=read_field(found, "targetSize", int),
        creating=read_field(actions, "creating", int)
        + read_field(actions, "creatingWithoutRetries", int),
        is_bulk_in_progress=read_field(bulk, "inProgress", bool),
        recreating=read_field(actions, "recreating", int),
        errors=_read_errors(read_field(progress, "error", dict)),
        topologies={
            read_field(one, "acceleratorTopology", str): read_field(one, "state", str)
            for one in read_field(status, "appliedAcceleratorTopologies", list)
        },
        missing=read_field(read_field(status, "currentInstanceStatuses", dict), "nonExistent", int)
        if "currentInstanceStatuses" in status
        else None,
    )


def parse_managed_instance(found: Document) -> ManagedInstance:
    """A member of a managed instance group."""
    attempt = read_field(found, "lastAttempt", dict)
    return ManagedInstance(
        name=read_field(found, "name", str)
        or read_field(found, "instance", str).rsplit("/", 1)[-1],
        status=read_field(found, "instanceStatus", str),
        errors=_read_errors(read_field(attempt, "errors", dict)),
        id=read_field(found, "id", str),
    )


def parse_instance(found: Document, texts: dict[str, str] | None = None) -> Instance:
    """A VM. ``texts``: those in the metadata of other VMs. Equal ones, such as all startup scripts of a
    slice, are kept once."""
    return Instance(
        name=read_field(found, "name", str),
        id=read_field(found, "id", str),
        status=read_field(found, "status", str),
        created=find_time(read_field(found, "creationTimestamp", str)),
        started=find_time(read_field(found, "lastStartTimestamp", str)),
        fingerprint=read_field(read_field(found, "metadata", dict), "fingerprint", str),
        metadata=_read_items(found, texts),
    )


def parse_listed(kind: str, found: Document) -> ListedResource:
    """A resource of any kind that has a name and a description."""
    _, project, *scope, _, name = _read_link(found).split("/")
    return ListedResource(
        project=project,
        kind=kind,
        location=scope[1] if len(scope) > 1 else "",
        name=name,
        description=read_field(found, "description", str),
        created=find_time(read_field(found, "creationTimestamp", str)),
    )


def find_unseen(page: Document) -> Iterator[str]:
    """The scopes, such as ``zones/us-central1-c``, that a page of an aggregated list says it lacks.

    Any warning but NO_RESULTS_ON_PAGE may mean that resources are missing (WarningCode in the API's
    reference).
    """
    # Its form is not documented: paths, maybe with a host, are assumed.
    for path in read_field(page, "unreachables", list):
        yield f"{'/'.join(path.split('/')[-2:])} (UNREACHABLE)"
    for scope, part in (("", page), *read_field(page, "items", dict).items()):
        warning = read_field(part, "warning", dict)
        code, data = read_field(warning, "code", str), read_field(warning, "data", list)
        if code not in ("", "NO_RESULTS_ON_PAGE"):
            named = next((one["value"] for one in data if one.get("key") == "scope"), "some scopes")
            yield f"{scope or named} ({code})"


def _read_link(found: Document) -> str:
    """A resource's URL from ``projects/`` on: the part before it differs in answers and requests."""
    url = read_field(found, "selfLink", str)
    return url[url.find("projects/") :] if "projects/" in url else url


def _read_errors(holder: Document, http: int = 0) -> tuple[GceError, ...]:
    """Errors in an order that does not depend on that of the answer, which changes."""
    parsed = (
        GceError(read_field(error, "code", str), read_field(error, "message", str), http)
        for error in read_field(holder, "errors", list)
    )
    return tuple(sorted(parsed, key=lambda error: (rank(error.verdict), error.code, error.message)))


def _read_items(holder: Document, texts: dict[str, str] | None = None) -> dict[str, str]:
    items = read_field(read_field(holder, "metadata", dict), "items", list)
    known = {} if texts is None else texts
    read = ((read_field(one, "key", str), read_field(one, "value", str)) for one in items)
    return {key: known.setdefault(value, value) for key, value in read}
