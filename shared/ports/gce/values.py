"""The values that the port to Compute Engine reads, and their parsers.

An answer is a message of the client library; a field that is not set reads as empty.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shared.base.reasons import Reason
from shared.base.timestamps import find_time, guess_time
from shared.ports.error_reasons import ErrorKind, Verdict, classify, rank

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
    is_stable: bool = False
    """Whether no change of its VMs is in progress or planned."""

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
class Maintenance:
    """Maintenance of a VM's host that Compute Engine has announced (``UpcomingMaintenance`` in the API),
    in its words. ``kind`` is its type, ``state`` its status."""

    start: datetime | None
    end: datetime | None
    kind: str
    state: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Instance:
    """A VM. ``started`` is when it was last started, ``ends`` when Compute Engine ends it (``None``: not
    given)."""

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
    maintenance: Maintenance | None = None
    ends: datetime | None = None


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

    ``service`` is the client library's name of its kind, as in ``instance_group_managers``;
    ``location`` is a zone or a region, empty for a global resource.
    """

    project: str
    service: str
    location: str
    name: str
    description: str
    created: datetime | None

    @property
    def place(self) -> tuple[str, str]:
        return self.project, self.location


def parse_policy(found: Any) -> Policy:
    """A workload policy."""
    return Policy(_shorten(found.self_link), found.description)


def parse_operation(found: Any) -> Operation:
    """An operation. Of several errors the first in `shared.base.reasons.ORDER` counts."""
    errors = _errors(found.error.errors if found.error else (), found.http_error_status_code)
    return Operation(found.name, found.status.name == "DONE", errors[0] if errors else None)


def parse_template(found: Any) -> Template:
    """An instance template, global or of a region."""
    properties = found.properties
    scheduling = properties.scheduling
    return Template(
        uri=_shorten(found.self_link),
        description=found.description,
        machine_type=properties.machine_type,
        has_scheduling="scheduling" in properties,
        maintenance=scheduling.on_host_maintenance,
        provisioning_model=scheduling.provisioning_model,
        termination_action=scheduling.instance_termination_action,
        reservation_type=properties.reservation_affinity.consume_reservation_type,
        has_boot_disk=any(disk.boot for disk in properties.disks),
        max_run_s=scheduling.max_run_duration.seconds,
        metadata=_items(properties.metadata),
    )


def parse_mig(found: Any) -> Mig:
    """A managed instance group."""
    bulk = found.status.bulk_instance_operation
    return Mig(
        uri=_shorten(found.self_link),
        description=found.description,
        target_size=found.target_size,
        creating=found.current_actions.creating + found.current_actions.creating_without_retries,
        is_bulk_in_progress=bulk.in_progress,
        is_stable=found.status.is_stable,
        recreating=found.current_actions.recreating,
        errors=_errors(bulk.last_progress_check.error.errors),
        topologies={
            applied.accelerator_topology: applied.state
            for applied in found.status.applied_accelerator_topologies
        },
        missing=found.status.current_instance_statuses.non_existent
        if "current_instance_statuses" in found.status
        else None,
    )


def parse_managed_instance(found: Any) -> ManagedInstance:
    """A member of a managed instance group."""
    return ManagedInstance(
        name=found.name or found.instance.rsplit("/", 1)[-1],
        status=found.instance_status,
        errors=_errors(found.last_attempt.errors.errors),
        id=str(found.id or ""),
    )


def parse_instance(found: Any, texts: dict[str, str] | None = None) -> Instance:
    """A VM. ``texts``: those in the metadata of other VMs. Equal ones, such as all startup scripts of a
    slice, are kept once."""
    return Instance(
        name=found.name,
        id=str(found.id),
        status=found.status,
        created=find_time(found.creation_timestamp),
        started=find_time(found.last_start_timestamp),
        fingerprint=found.metadata.fingerprint,
        metadata=_items(found.metadata, texts),
        maintenance=_find_maintenance(found.resource_status),
        ends=guess_time(found.resource_status.scheduling.termination_timestamp),
    )


def _find_maintenance(status: Any) -> Maintenance | None:
    if "upcoming_maintenance" not in status:
        return None
    found = status.upcoming_maintenance
    return Maintenance(
        start=guess_time(found.window_start_time),
        end=guess_time(found.window_end_time),
        kind=found.type_,
        state=found.maintenance_status,
        reasons=tuple(found.maintenance_reasons),
    )


def parse_listed(service: str, found: Any) -> ListedResource:
    """A resource of any kind that has a name and a description."""
    _, project, *scope, _, name = _shorten(found.self_link).split("/")
    return ListedResource(
        project=project,
        service=service,
        location=scope[1] if len(scope) > 1 else "",
        name=name,
        description=found.description,
        created=find_time(found.creation_timestamp),
    )


def find_unseen(page: Any) -> Iterator[str]:
    """The scopes, such as ``zones/us-central1-c``, that a page of an aggregated list says it lacks.

    Any warning but NO_RESULTS_ON_PAGE may mean that resources are missing (WarningCode in the API's
    reference).
    """
    # Templates have no such field. Its form is not documented: paths, maybe with a host, are assumed.
    for path in getattr(page, "unreachables", ()):
        yield f"{'/'.join(path.split('/')[-2:])} (UNREACHABLE)"
    for scope, part in (("", page), *page.items.items()):
        code, data = part.warning.code, part.warning.data
        if code not in ("", "NO_RESULTS_ON_PAGE"):
            named = next((one.value for one in data if one.key == "scope"), "some scopes")
            yield f"{scope or named} ({code})"


def _shorten(url: str) -> str:
    """A URL from ``projects/`` on: the part before it differs in answers and requests."""
    return url[url.find("projects/") :] if "projects/" in url else url


def _errors(errors: Iterable[Any], http: int = 0) -> tuple[GceError, ...]:
    """Errors in an order that does not depend on that of the answer, which changes."""
    parsed = (GceError(error.code, error.message, http) for error in errors)
    return tuple(sorted(parsed, key=lambda error: (rank(error.verdict), error.code, error.message)))


def _items(metadata: Any, texts: dict[str, str] | None = None) -> dict[str, str]:
    known = {} if texts is None else texts
    read = ((item.key, item.value) for item in metadata.items)
    return {key: known.setdefault(value, value) for key, value in read}
