"""The port to Compute Engine: all calls that are in the budget, and no others.

Calls are single HTTP requests: ``*_unary`` methods never wait for an operation, and the client's own
retries are off (Pub/Sub retries, and the budget counts). Methods return small values and raise
`CallError` for an error. An absent resource is ``None``, and deleting it is not an error. Each page of a
list is a call of its own, with a deadline and a count of its own.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

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

PAGE_SIZE = 500
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
        found = self._find(
            "resource_policies", "get", project=project, region=region, resource_policy=name
        )
        return parse_policy(found) if found else None

    def insert_policy(
        self, project: str, region: str, body: Mapping[str, Any], request_id: str
    ) -> Operation:
        """Start creating a workload policy."""
        return self._mutate(
            "resource_policies",
            "insert_unary",
            project=project,
            region=region,
            resource_policy_resource=body,
            request_id=request_id,
        )

    def delete_policy(self, project: str, region: str, name: str) -> Operation | None:
        """Start deleting it; ``None`` if it does not exist."""
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
        return parse_template(found) if found else None

    def insert_template(self, project: str, body: Mapping[str, Any], request_id: str) -> Operation:
        """Start creating a global instance template."""
        return self._mutate(
            "instance_templates",
            "insert_unary",
            project=project,
            instance_template_resource=body,
            request_id=request_id,
        )

    def delete_template(self, project: str, name: str) -> Operation | None:
        """Start deleting a global instance template; ``None`` if it does not exist."""
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
        return parse_mig(found) if found else None

    def insert_mig(
        self, project: str, zone: str, body: Mapping[str, Any], request_id: str
    ) -> Operation:
        """Start creating a managed instance group."""
        return self._mutate(
            "instance_group_managers",
            "insert_unary",
            project=project,
            zone=zone,
            instance_group_manager_resource=body,
            request_id=request_id,
        )

    def delete_mig(self, project: str, zone: str, name: str) -> Operation | None:
        """Start deleting it with its VMs; ``None`` if it does not exist."""
        return self._delete(
            "instance_group_managers", project=project, zone=zone, instance_group_manager=name
        )

    def list_managed_instances(
        self, project: str, zone: str, name: str
    ) -> tuple[ManagedInstance, ...]:
        """The members of a group, with the errors of their last attempts; none if it is gone."""
        found = self._list(
            "instance_group_managers",
            "list_managed_instances",
            "managed_instances",
            project=project,
            zone=zone,
            instance_group_manager=name,
        )
        try:
            return tuple(parse_managed_instance(member) for member in found)
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
        found = self._find("instances", "get", project=project, zone=zone, instance=name)
        return parse_instance(found) if found else None

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

    def list_instances(self, project: str, zone: str, group: str) -> tuple[Instance, ...]:
        """The VMs with names of this managed instance group. The list may lag by seconds."""
        found = self._list(
            "instances",
            "list",
            "items",
            project=project,
            zone=zone,
            filter=f'name eq "{group}-[a-z0-9]{{4}}"',
            max_results=PAGE_SIZE,
        )
        return tuple(parse_instance(instance) for instance in found)

    def set_metadata(
        self, project: str, zone: str, instance: Instance, items: Mapping[str, str]
    ) -> Operation:
        """Start replacing a VM's metadata by ``items``, if it is unchanged since it was read."""
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

    def list_named(
        self, project: str, service: str, prefix: str
    ) -> tuple[list[ListedResource], set[str]]:
        """The resources whose names have this prefix, in all zones and regions, and which of these
        Compute Engine could not read (`find_unseen`).

        ``service`` is one whose resources have a description, as in ``instance_group_managers``. The
        list may lag by seconds.
        """
        found: list[ListedResource] = []
        unseen: set[str] = set()
        pages = self._pages(
            service,
            "aggregated_list",
            project=project,
            filter=f'name eq "{prefix}.*"',
            max_results=PAGE_SIZE,
        )
        for page in pages:
            unseen.update(find_unseen(page))
            for scope in page.items.values():
                found += (parse_listed(service, one) for one in getattr(scope, service))
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
        found = self._find(service, "get", about=about, project=project, operation=name, **place)
        return parse_operation(found) if found else None

    def _find(self, service: str, method: str, **request: Any) -> Any:
        try:
            return self._call(service, method, **request)
        except CallError as error:
            if error.kind is ErrorKind.ABSENT:
                return None
            raise

    def _delete(self, service: str, **request: Any) -> Operation | None:
        found = self._find(service, "delete_unary", **request)
        return parse_operation(found) if found else None

    def _mutate(self, service: str, method: str, **request: Any) -> Operation:
        return parse_operation(self._call(service, method, **request))

    def _list(self, service: str, method: str, items: str, **request: Any) -> Iterator[Any]:
        for page in self._pages(service, method, **request):
            yield from getattr(page, items)

    def _pages(self, service: str, method: str, **request: Any) -> Iterator[Any]:
        """The pages of a list. The library's pager would use one timeout for all pages."""
        while True:
            page = self._call(service, method, **request)
            yield page
            if not page.next_page_token:
                return
            request["page_token"] = page.next_page_token

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
            return call(request=request, timeout=timeout_s, retry=None, metadata=headers)

        return self._clients.send(name, about, send, self._remaining_s)
