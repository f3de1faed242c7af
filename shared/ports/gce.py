"""The port to Compute Engine: every call that the budget knows, by name, and nothing else.

Calls are single HTTP requests: ``*_unary`` methods never wait for an operation, and the client's own
retries are off (Pub/Sub retries, and the budget counts). What comes back are small values; what
is refused is a `CallError`. An absent resource is ``None``, and deleting it is no error.

google-cloud-compute imports all of its 130 services with the package, 1.3 s and 148 MB; with the
package module left unloaded, a service costs 0.65 s. `_leave_unloaded` does that without breaking
anybody who wants the whole package: the first use of anything else loads it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import ModuleType
from typing import Any

from shared.base.errors import CallError
from shared.base.timestamps import find_time
from shared.node_groups.node_group import TemplateRef

PAGE_SIZE = 500


@dataclass(frozen=True)
class Fault:
    """An error as an operation, a group or a managed instance holds it."""

    code: str
    message: str
    http: int = 0


@dataclass(frozen=True)
class Operation:
    """An operation of ours. ``fault`` is set when it has ended badly."""

    name: str
    is_done: bool
    fault: Fault | None = None


@dataclass(frozen=True)
class Policy:
    """A workload policy."""

    uri: str
    description: str


@dataclass(frozen=True)
class Template:
    """What of an instance template matters for TPUs; ``None`` or empty: not set there."""

    uri: str
    description: str
    machine_type: str
    has_scheduling: bool
    maintenance: str
    provisioning_model: str
    termination_action: str
    reservation_type: str
    has_boot_disk: bool
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mig:
    """A managed instance group.

    ``creating`` counts VMs that are being made or waited for, ``topologies`` maps each accelerator
    topology that the group has applied to its state (``ACTIVE``: the slice is wired).
    """

    uri: str
    description: str
    target_size: int
    creating: int
    is_bulk_in_progress: bool
    faults: tuple[Fault, ...] = ()
    topologies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ManagedInstance:
    """A member as its MIG sees it; ``status`` is empty while there is no VM behind the name."""

    name: str
    status: str
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Instance:
    """A VM. ``started`` is when it was last started, ``created_by`` the group that made it."""

    name: str
    id: str
    status: str
    created: datetime | None
    started: datetime | None
    created_by: str
    fingerprint: str
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)

    def is_member_of(self, zone: str, group: str) -> bool:
        """Whether the group made this VM; its project stands there by number, so it is left out."""
        return self.created_by.endswith(f"/zones/{zone}/instanceGroupManagers/{group}")


class Gce:
    """Compute Engine in one project, for one invocation.

    ``remaining_s`` says how many seconds are left for calls; it raises `OutOfTimeError` at the end.
    """

    def __init__(self, clients: Clients, remaining_s: Callable[[], float]) -> None:
        self._clients = clients
        self._remaining_s = remaining_s
        self.calls = 0

    def find_policy(self, project: str, region: str, name: str) -> Policy | None:
        """The workload policy of that name."""
        found = self._find(
            "resource_policies", "get", project=project, region=region, resource_policy=name
        )
        return Policy(_tail(found.self_link), found.description) if found else None

    def insert_policy(
        self, project: str, region: str, body: Mapping[str, Any], request_id: str
    ) -> Operation:
        """Begin to make a workload policy."""
        return self._mutate(
            "resource_policies",
            "insert_unary",
            project=project,
            region=region,
            resource_policy_resource=body,
            request_id=request_id,
        )

    def delete_policy(self, project: str, region: str, name: str) -> Operation | None:
        """Begin to delete it; ``None`` when it is not there."""
        return self._delete(
            "resource_policies", project=project, region=region, resource_policy=name
        )

    def find_template(self, ref: TemplateRef) -> Template | None:
        """The instance template, from the scope that the reference names."""
        if ref.region:
            found = self._find(
                "region_instance_templates",
                "get",
                project=ref.project,
                region=ref.region,
                instance_template=ref.name,
            )
        else:
            found = self._find(
                "instance_templates", "get", project=ref.project, instance_template=ref.name
            )
        return _template(found) if found else None

    def insert_template(self, project: str, body: Mapping[str, Any], request_id: str) -> Operation:
        """Begin to make a global instance template."""
        return self._mutate(
            "instance_templates",
            "insert_unary",
            project=project,
            instance_template_resource=body,
            request_id=request_id,
        )

    def delete_template(self, project: str, name: str) -> Operation | None:
        """Begin to delete a global instance template; ``None`` when it is not there."""
        return self._delete("instance_templates", project=project, instance_template=name)

    def find_mig(self, project: str, zone: str, name: str) -> Mig | None:
        """The managed instance group of that name."""
        found = self._find(
            "instance_group_managers",
            "get",
            project=project,
            zone=zone,
            instance_group_manager=name,
        )
        return _mig(found) if found else None

    def insert_mig(
        self, project: str, zone: str, body: Mapping[str, Any], request_id: str
    ) -> Operation:
        """Begin to make a managed instance group."""
        return self._mutate(
            "instance_group_managers",
            "insert_unary",
            project=project,
            zone=zone,
            instance_group_manager_resource=body,
            request_id=request_id,
        )

    def delete_mig(self, project: str, zone: str, name: str) -> Operation | None:
        """Begin to delete it with its VMs; ``None`` when it is not there."""
        return self._delete(
            "instance_group_managers", project=project, zone=zone, instance_group_manager=name
        )

    def list_managed_instances(
        self, project: str, zone: str, name: str
    ) -> tuple[ManagedInstance, ...]:
        """The members of a group, with the errors of their last attempts; none if it is gone."""
        found = self._find(
            "instance_group_managers",
            "list_managed_instances",
            project=project,
            zone=zone,
            instance_group_manager=name,
        )
        return tuple(_managed(member) for member in found) if found else ()

    def find_instance(self, project: str, zone: str, name: str) -> Instance | None:
        """The VM of that name."""
        found = self._find("instances", "get", project=project, zone=zone, instance=name)
        return _instance(found) if found else None

    def list_instances(self, project: str, zone: str, group: str) -> tuple[Instance, ...]:
        """The VMs whose names a group of that name can have given. The list may lag by seconds."""
        found = self._call(
            "instances",
            "list",
            project=project,
            zone=zone,
            filter=f'name eq "{group}-[a-z0-9]{{4}}"',
            max_results=PAGE_SIZE,
        )
        return tuple(_instance(instance) for instance in found)

    def set_metadata(
        self, project: str, zone: str, instance: Instance, items: Mapping[str, str]
    ) -> Operation:
        """Begin to replace a VM's metadata by ``items``, if it is still as it was read."""
        return self._mutate(
            "instances",
            "set_metadata_unary",
            project=project,
            zone=zone,
            instance=instance.name,
            metadata_resource={
                "fingerprint": instance.fingerprint,
                "items": [{"key": key, "value": value} for key, value in sorted(items.items())],
            },
        )

    def find_operation(self, project: str, scope: str, name: str) -> Operation | None:
        """An operation; ``scope`` is a zone, a region or ``""``. ``None`` when GCE forgot it."""
        if not scope:
            found = self._find("global_operations", "get", project=project, operation=name)
        elif scope.count("-") == 2:
            found = self._find(
                "zone_operations", "get", project=project, zone=scope, operation=name
            )
        else:
            found = self._find(
                "region_operations", "get", project=project, region=scope, operation=name
            )
        return _operation(found) if found else None

    def _find(self, service: str, method: str, **request: Any) -> Any:
        try:
            return self._call(service, method, **request)
        except CallError as error:
            if error.http == 404:
                return None
            raise

    def _delete(self, service: str, **request: Any) -> Operation | None:
        found = self._find(service, "delete_unary", **request)
        return _operation(found) if found else None

    def _mutate(self, service: str, method: str, **request: Any) -> Operation:
        return _operation(self._call(service, method, **request))

    def _call(self, service: str, method: str, **request: Any) -> Any:
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        name = f"{service}.{method.removesuffix('_unary')}"
        client = self._clients.get(service)
        self.calls += 1
        try:
            answer = getattr(client, method)(
                request=request, timeout=self._remaining_s(), retry=None
            )
            return list(answer) if method.startswith("list") else answer
        except exceptions.GoogleAPICallError as error:
            raise _call_error(name, error) from error
        except (RequestException, GoogleAuthError) as error:
            raise CallError(name, 0, "unreachable", type(error).__name__) from error


class Clients:
    """The client libraries' clients, each made when it is first needed and then kept.

    ``endpoint`` is another address of the API, for the simulator; ``prepare`` is called with each
    new client's HTTP session.
    """

    def __init__(self, endpoint: str = "", *, prepare: Callable[[Any], None] | None = None) -> None:
        self._endpoint = endpoint
        self._prepare = prepare
        self._made: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, service: str) -> Any:
        """The client of a service, by its package's name, as in ``instance_templates``."""
        with self._lock:
            if service not in self._made:
                self._made[service] = self._make(service)
            return self._made[service]

    def _make(self, service: str) -> Any:
        _leave_unloaded("google.cloud.compute_v1", "google.cloud.compute_v1.services")
        module = importlib.import_module(f"google.cloud.compute_v1.services.{service}")
        words = "".join(part.capitalize() for part in service.split("_"))
        make = getattr(module, f"{words}Client")
        client = make(**self._options())
        if self._prepare is not None:
            self._prepare(client.transport._session)
        return client

    def _options(self) -> dict[str, Any]:
        if not self._endpoint:
            return {}
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials

        return {
            "credentials": AnonymousCredentials(),
            "client_options": ClientOptions(api_endpoint=self._endpoint),
        }


class _UnloadedPackage(ModuleType):
    """A package whose submodules can be imported while its ``__init__`` has not run yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(name)
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _leave_unloaded(*packages: str) -> None:
    for name in packages:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"{name} is not installed; see requirements.txt")
        module = _UnloadedPackage(name)
        module.__spec__ = spec
        module.__path__ = list(spec.submodule_search_locations or ())
        module.__file__ = spec.origin
        sys.modules[name] = module


def _call_error(call: str, error: Any) -> CallError:
    details: Sequence[Any] = error.errors or ()
    first = details[0] if details and isinstance(details[0], Mapping) else {}
    reason = first.get("reason") or getattr(error, "reason", None) or ""
    message = first.get("message") or error.message or ""
    return CallError(call, int(error.code or 0), reason, message)


def _tail(url: str) -> str:
    """A URL from ``projects/`` on: answers and requests differ in what stands before it."""
    return url[url.find("projects/") :] if "projects/" in url else url


def _faults(errors: Iterable[Any]) -> tuple[Fault, ...]:
    return tuple(Fault(error.code, error.message) for error in errors)


def _operation(found: Any) -> Operation:
    errors = list(found.error.errors) if found.error else []
    fault = None
    if errors:
        fault = Fault(errors[0].code, errors[0].message, found.http_error_status_code)
    return Operation(found.name, found.status.name == "DONE", fault)


def _template(found: Any) -> Template:
    properties = found.properties
    scheduling = properties.scheduling
    return Template(
        uri=_tail(found.self_link),
        description=found.description,
        machine_type=properties.machine_type,
        has_scheduling="scheduling" in properties,
        maintenance=scheduling.on_host_maintenance,
        provisioning_model=scheduling.provisioning_model,
        termination_action=scheduling.instance_termination_action,
        reservation_type=properties.reservation_affinity.consume_reservation_type,
        has_boot_disk=any(disk.boot for disk in properties.disks),
        metadata=_items(properties.metadata),
    )


def _items(metadata: Any) -> dict[str, str]:
    return {item.key: item.value for item in metadata.items}


def _mig(found: Any) -> Mig:
    bulk = found.status.bulk_instance_operation
    return Mig(
        uri=_tail(found.self_link),
        description=found.description,
        target_size=found.target_size,
        creating=found.current_actions.creating + found.current_actions.creating_without_retries,
        is_bulk_in_progress=bulk.in_progress,
        faults=_faults(bulk.last_progress_check.error.errors),
        topologies={
            applied.accelerator_topology: applied.state
            for applied in found.status.applied_accelerator_topologies
        },
    )


def _managed(found: Any) -> ManagedInstance:
    return ManagedInstance(
        name=found.name or found.instance.rsplit("/", 1)[-1],
        status=found.instance_status,
        faults=_faults(found.last_attempt.errors.errors),
    )


def _instance(found: Any) -> Instance:
    metadata = _items(found.metadata)
    return Instance(
        name=found.name,
        id=str(found.id),
        status=found.status,
        created=find_time(found.creation_timestamp),
        started=find_time(found.last_start_timestamp),
        created_by=metadata.get("created-by", ""),
        fingerprint=found.metadata.fingerprint,
        metadata=metadata,
    )


def describe_body(body: Mapping[str, Any]) -> str:
    """A request body in one canonical line: the same body, the same text."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
