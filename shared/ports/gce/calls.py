"""The port to Compute Engine: all calls that are in the budget, and no others.

Calls are single HTTP requests: ``*_unary`` methods never wait for an operation, and the client's own
retries are off (Pub/Sub retries, and the budget counts). Methods return small values and raise
`CallError` for an error. An absent resource is ``None``, and deleting it is not an error. Each page of a
list is a call of its own, with a deadline and a count of its own.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from shared.base.names import MIGS, POLICIES, TEMPLATES, VMS
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import About, CallError
from shared.ports.gce.clients import Clients
from shared.ports.gce.values import (
    Instance,
    ListedResource,
    ManagedInstance,
    Mig,
    Operation,
    Policy,
    Template,
    TemplateRef,
    find_unseen,
    parse_instance,
    parse_listed,
    parse_managed_instance,
    parse_mig,
    parse_operation,
    parse_policy,
    parse_template,
)
from shared.ports.google_credentials import Headers
from shared.ports.large_lists import one_at_a_time

T = TypeVar("T")

PAGE_SIZE = 500
_LONGEST_WRITE = timedelta(seconds=30)
MEMBERS_KEPT_FOR = timedelta(minutes=1)
"""How long a process keeps the list of a MIG's members. It proves membership only: a VM that it lacks is
searched for in a new list. Ids of VMs are never reused."""
_KINDS = {
    "resource_policies": (POLICIES, "resource_policy"),
    "instance_templates": (TEMPLATES, "instance_template"),
    "region_instance_templates": (TEMPLATES, "instance_template"),
    "instance_group_managers": (MIGS, "instance_group_manager"),
    "instances": (VMS, "instance"),
}
"""The kind of a service's resources, and the field of a request that names one."""


class Gce:
    """Compute Engine in one project, for one invocation.

    ``remaining_s`` says how many seconds are left for calls; it raises `OutOfTimeError` at the end.
    """

    def __init__(self, clients: Clients, remaining_s: Callable[[], float]) -> None:
        self._clients = clients
        self._remaining_s = remaining_s
        self.calls = 0
        self._listed: set[tuple[str, str, str]] = set()
        """The MIGs whose members this invocation has listed."""

    def find_policy(self, project: str, region: str, name: str) -> Policy | None:
        """The workload policy of that name."""
        request = {"project": project, "region": region, "resource_policy": name}
        return self._find(parse_policy, "resource_policies", **request)

    def insert_policy(
        self, project: str, region: str, body: Mapping[str, Any], request_id: str
    ) -> Operation:
        """Start creating a workload policy."""
        request = {"project": project, "region": region, "request_id": request_id}
        return self._insert("resource_policies", resource_policy_resource=body, **request)

    def delete_policy(self, project: str, region: str, name: str) -> Operation | None:
        """Start deleting it; ``None`` if it does not exist."""
        return self._delete(
            "resource_policies", project=project, region=region, resource_policy=name
        )

    def find_template(self, ref: TemplateRef) -> Template | None:
        """The instance template, from the scope that the reference names."""
        request = {"project": ref.project, "instance_template": ref.name}
        service = "instance_templates"
        if ref.region:
            service, request["region"] = "region_instance_templates", ref.region
        return self._find(parse_template, service, **request)

    def insert_template(self, project: str, body: Mapping[str, Any], request_id: str) -> Operation:
        """Start creating a global instance template."""
        request = {"project": project, "request_id": request_id}
        return self._insert("instance_templates", instance_template_resource=body, **request)

    def delete_template(self, project: str, name: str) -> Operation | None:
        """Start deleting a global instance template; ``None`` if it does not exist."""
        return self._delete("instance_templates", project=project, instance_template=name)

    def find_mig(self, project: str, zone: str, name: str) -> Mig | None:
        """The managed instance group of that name."""
        request = {"project": project, "zone": zone, "instance_group_manager": name}
        return self._find(parse_mig, "instance_group_managers", **request)

    def insert_mig(
        self, project: str, zone: str, body: Mapping[str, Any], request_id: str
    ) -> Operation:
        """Start creating a managed instance group."""
        request = {"project": project, "zone": zone, "request_id": request_id}
        service = "instance_group_managers"
        return self._insert(service, instance_group_manager_resource=body, **request)

    def delete_mig(self, project: str, zone: str, name: str) -> Operation | None:
        """Start deleting it with its VMs; ``None`` if it does not exist."""
        return self._delete(
            "instance_group_managers", project=project, zone=zone, instance_group_manager=name
        )

    def list_managed_instances(
        self, project: str, zone: str, name: str
    ) -> tuple[ManagedInstance, ...]:
        """The members of a group, with the errors of their last attempts; none if it is gone."""
        request = {"project": project, "zone": zone, "instance_group_manager": name}

        def read(page: Any) -> list[ManagedInstance]:
            return [parse_managed_instance(member) for member in page.managed_instances]

        pages = self._pages(read, "instance_group_managers", "list_managed_instances", **request)
        try:
            return tuple(member for page in pages for member in page)
        except CallError as error:
            if error.kind is not ErrorKind.ABSENT:
                raise
            return ()

    def find_member_ids(
        self, project: str, zone: str, name: str, ids: Collection[str], now: datetime
    ) -> frozenset[str]:
        """Those of these ids of VMs that the MIG's list of its members has.

        Several calls in one invocation list the members at most once.
        """
        kept, key = self._clients.members, (project, zone, name)
        until, known = kept.get(key, (now, frozenset[str]()))
        if until <= now or not (key in self._listed or known.issuperset(ids)):
            known = frozenset(vm.id for vm in self.list_managed_instances(*key))
            current = {one: kept[one] for one in kept if kept[one][0] > now}
            self._clients.members = {**current, key: (now + MEMBERS_KEPT_FOR, known)}
            self._listed.add(key)
        return known.intersection(ids)

    def find_instance(self, project: str, zone: str, name: str) -> Instance | None:
        """The VM of that name."""
        return self._find(parse_instance, "instances", project=project, zone=zone, instance=name)

    def find_instances(
        self, project: str, zone: str, names: Sequence[str]
    ) -> dict[str, Instance | None]:
        """The VMs of these names (``None``: there is none), one after the other, for at most a third of
        the seconds that are left: a name that is not in the answer has not been asked for."""
        stop_at_remaining_s = self._remaining_s() * 2 / 3 if names else 0.0
        found: dict[str, Instance | None] = {}
        for name in names:
            if self._remaining_s() <= stop_at_remaining_s:
                break
            found[name] = self.find_instance(project, zone, name)
        return found

    def list_instances(
        self, project: str, zone: str, group: str, hosts: int
    ) -> tuple[Instance, ...]:
        """The VMs with names of this managed instance group; there may be so many. The list may lag by
        seconds."""
        with one_at_a_time(hosts, self._remaining_s):
            return self.list_instances_named(project, zone, (f"{group}-[a-z0-9]{{4}}",))

    def list_instances_named(
        self, project: str, zone: str, names: Iterable[str]
    ) -> tuple[Instance, ...]:
        """The VMs whose names match one of these expressions. The list may lag by seconds."""
        named = f'name eq "({"|".join(names)})"'
        request = {"project": project, "zone": zone, "filter": named, "max_results": PAGE_SIZE}
        texts: dict[str, str] = {}

        def read(page: Any) -> list[Instance]:
            return [parse_instance(instance, texts) for instance in page.items]

        pages = self._pages(read, "instances", "list", **request)
        return tuple(instance for page in pages for instance in page)

    def set_metadata(
        self, project: str, zone: str, instance: Instance, items: Mapping[str, str], now: datetime
    ) -> None:
        """Start replacing a VM's metadata by ``items``, if it is unchanged since it was read."""
        listed = [{"key": key, "value": value} for key, value in sorted(items.items())]
        metadata = {"fingerprint": instance.fingerprint, "items": listed}
        named: dict[str, Any] = {"project": project, "zone": zone, "instance": instance.name}
        self._call("instances", "set_metadata_unary", metadata_resource=metadata, **named)
        kept = self._clients.written
        recent = {one: at for one, at in kept.items() if now - at < _LONGEST_WRITE}
        self._clients.written = {**recent, (instance.id, instance.fingerprint): now}

    def is_being_written(self, instance: Instance, now: datetime) -> bool:
        """Whether this process has begun to write the VM's metadata, and that does not show yet: another
        write would be rejected."""
        begun = self._clients.written.get((instance.id, instance.fingerprint))
        return begun is not None and now - begun < _LONGEST_WRITE

    def list_named(
        self, project: str, service: str, prefix: str
    ) -> tuple[list[ListedResource], set[str]]:
        """The resources whose names have this prefix, in all zones and regions, and which of these
        Compute Engine could not read (`find_unseen`).

        ``service`` is one whose resources have a description, as in ``instance_group_managers``. The
        list may lag by seconds.
        """

        def read(page: Any) -> tuple[list[ListedResource], list[str]]:
            scopes = page.items.values()
            listed = [
                parse_listed(service, one) for part in scopes for one in getattr(part, service)
            ]
            return listed, [*find_unseen(page)]

        found: list[ListedResource] = []
        unseen: set[str] = set()
        request = {"filter": f'name eq "{prefix}.*"', "max_results": PAGE_SIZE}
        for listed, lacking in self._pages(
            read, service, "aggregated_list", project=project, **request
        ):
            found += listed
            unseen.update(lacking)
        return found, unseen

    def find_operation(self, project: str, scope: str, name: str, about: About) -> Operation | None:
        """An operation on the resource ``about``; ``None`` if GCE has forgotten it. ``scope`` is a zone,
        a region or ``""``."""
        if not scope:
            service, place = "global_operations", {}
        elif scope.count("-") == 2:
            service, place = "zone_operations", {"zone": scope}
        else:
            service, place = "region_operations", {"region": scope}
        request = {"project": project, "operation": name, **place}
        return self._find(parse_operation, service, about=about, **request)

    def _find(
        self, parse: Callable[[Any], T], service: str, method: str = "get", **request: Any
    ) -> T | None:
        try:
            return parse(self._call(service, method, **request))
        except CallError as error:
            if error.kind is ErrorKind.ABSENT:
                return None
            raise

    def _delete(self, service: str, **request: Any) -> Operation | None:
        return self._find(parse_operation, service, "delete_unary", **request)

    def _insert(self, service: str, **request: Any) -> Operation:
        return parse_operation(self._call(service, "insert_unary", **request))

    def _pages(
        self, read: Callable[[Any], T], service: str, method: str, **request: Any
    ) -> Iterator[T]:
        """What is read of each page of a list; the page's messages, which take ten times as much memory,
        are dropped. The library's pager would keep them, and use one timeout for all pages."""

        def read_page(page: Any) -> tuple[T, str]:
            return read(page), page.next_page_token

        while True:
            found, token = read_page(self._call(service, method, **request))
            yield found
            if not token:
                return
            request["page_token"] = token

    def _call(
        self, service: str, method: str, *, about: About | None = None, **request: Any
    ) -> Any:
        """Make one request. ``about`` must be given if the request does not name it."""
        name = f"{service}.{method.removesuffix('_unary')}"
        if about is None:
            kind, field = _KINDS[service]
            inserted = request.get(f"{field}_resource", {})
            about = About(kind, request.get(field) or inserted.get("name", ""))
        call = getattr(self._clients.get(service), method)

        def send(headers: Headers, timeout_s: float) -> Any:
            self.calls += 1
            answer = call(request=request, timeout=timeout_s, retry=None, metadata=headers)
            if "list" not in method and not answer.name:
                raise KeyError("name")  # the library reads any object, also an empty one
            return answer

        return self._clients.send(name, about, send, self._remaining_s)
