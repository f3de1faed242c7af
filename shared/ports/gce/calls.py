"""The port to Compute Engine: all calls that are in the budget, and no others.

Calls are single HTTP requests: none waits for an operation, and none is retried (Pub/Sub retries, and
the budget counts). Methods return small values and raise `CallError` for an error. An absent resource is
``None``, and deleting it is not an error. Each page of a list is a call of its own, with a deadline and
a count of its own.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from shared.base.documents import Document
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
    read_field,
)
from shared.ports.google_credentials import Call
from shared.ports.large_lists import one_at_a_time

T = TypeVar("T")

PAGE_SIZE = 500
_LONGEST_WRITE = timedelta(seconds=30)
MEMBERS_KEPT_FOR = timedelta(minutes=1)
"""How long a process keeps the list of a MIG's members. It proves membership only: a VM that it lacks is
searched for in a new list. Ids of VMs are never reused."""


def _zonal(project: str, zone: str) -> str:
    return f"projects/{project}/zones/{zone}"


def _regional(project: str, region: str) -> str:
    return f"projects/{project}/regions/{region}"


def _global(project: str) -> str:
    return f"projects/{project}/global"


def _parse_each(key: str, parse: Callable[[Document], T]) -> Callable[[Document], list[T]]:
    """A parser of pages with a list in this field."""
    return lambda page: [parse(one) for one in read_field(page, key, list)]


def _of_named(parse: Callable[[Document], T]) -> Callable[[Document], T]:
    """A parser that raises an error for what has no name: such an answer proves nothing."""

    def parse_named(found: Document) -> T:
        if not read_field(found, "name", str):
            raise TypeError("it has no name")
        return parse(found)

    return parse_named


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
        return self._find(parse_policy, _regional(project, region), POLICIES, name)

    def insert_policy(
        self, project: str, region: str, body: Mapping[str, Any], request_id: str
    ) -> Operation:
        """Start creating a workload policy."""
        return self._insert(_regional(project, region), POLICIES, body, request_id)

    def delete_policy(self, project: str, region: str, name: str) -> Operation | None:
        """Start deleting it; ``None`` if it does not exist."""
        return self._delete(_regional(project, region), POLICIES, name)

    def find_template(self, ref: TemplateRef) -> Template | None:
        """The instance template, from the scope that the reference names."""
        scope = _regional(ref.project, ref.region) if ref.region else _global(ref.project)
        return self._find(parse_template, scope, TEMPLATES, ref.name)

    def insert_template(self, project: str, body: Mapping[str, Any], request_id: str) -> Operation:
        """Start creating a global instance template."""
        return self._insert(_global(project), TEMPLATES, body, request_id)

    def delete_template(self, project: str, name: str) -> Operation | None:
        """Start deleting a global instance template; ``None`` if it does not exist."""
        return self._delete(_global(project), TEMPLATES, name)

    def find_mig(self, project: str, zone: str, name: str) -> Mig | None:
        """The managed instance group of that name."""
        return self._find(parse_mig, _zonal(project, zone), MIGS, name)

    def insert_mig(
        self, project: str, zone: str, body: Mapping[str, Any], request_id: str
    ) -> Operation:
        """Start creating a managed instance group."""
        return self._insert(_zonal(project, zone), MIGS, body, request_id)

    def delete_mig(self, project: str, zone: str, name: str) -> Operation | None:
        """Start deleting it with its VMs; ``None`` if it does not exist."""
        return self._delete(_zonal(project, zone), MIGS, name)

    def list_managed_instances(
        self, project: str, zone: str, name: str
    ) -> tuple[ManagedInstance, ...]:
        """The members of a group, with the errors of their last attempts; none if it is gone."""
        path = f"{_zonal(project, zone)}/{MIGS}/{name}/listManagedInstances"
        call = Call(f"{MIGS}.listManagedInstances", About(MIGS, name), "POST", path)
        pages = self._pages(call, _parse_each("managedInstances", parse_managed_instance))
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
        return self._find(parse_instance, _zonal(project, zone), VMS, name)

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
        query = {"filter": f'name eq "({"|".join(names)})"', "maxResults": str(PAGE_SIZE)}
        path = f"{_zonal(project, zone)}/{VMS}"
        call = Call(f"{VMS}.list", About(VMS), "GET", path, query)
        pages = self._pages(call, _parse_each("items", partial(parse_instance, texts={})))
        return tuple(instance for page in pages for instance in page)

    def set_metadata(
        self, project: str, zone: str, instance: Instance, items: Mapping[str, str], now: datetime
    ) -> None:
        """Start replacing a VM's metadata by ``items``, if it is unchanged since it was read."""
        listed = [{"key": key, "value": value} for key, value in sorted(items.items())]
        metadata = {"fingerprint": instance.fingerprint, "items": listed}
        path = f"{_zonal(project, zone)}/{VMS}/{instance.name}/setMetadata"
        about = About(VMS, instance.name)
        call = Call(f"{VMS}.setMetadata", about, "POST", path, body=metadata)
        self._call(call, _of_named(parse_operation))
        kept = self._clients.written
        recent = {one: at for one, at in kept.items() if now - at < _LONGEST_WRITE}
        self._clients.written = {**recent, (instance.id, instance.fingerprint): now}

    def is_being_written(self, instance: Instance, now: datetime) -> bool:
        """Whether this process has begun to write the VM's metadata, and that does not show yet: another
        write would be rejected."""
        begun = self._clients.written.get((instance.id, instance.fingerprint))
        return begun is not None and now - begun < _LONGEST_WRITE

    def list_named(
        self, project: str, kind: str, prefix: str
    ) -> tuple[list[ListedResource], set[str]]:
        """The resources whose names have this prefix, in all zones and regions, and which of these
        Compute Engine could not read (`find_unseen`).

        ``kind`` is a collection whose resources have a description, as in ``instanceGroupManagers``. The
        list may lag by seconds.
        """

        def parse(page: Document) -> tuple[list[ListedResource], list[str]]:
            scopes = read_field(page, "items", dict).values()
            listed = [
                parse_listed(kind, one) for scope in scopes for one in read_field(scope, kind, list)
            ]
            return listed, list(find_unseen(page))

        found: list[ListedResource] = []
        unseen: set[str] = set()
        query = {"filter": f'name eq "{prefix}.*"', "maxResults": str(PAGE_SIZE)}
        path = f"projects/{project}/aggregated/{kind}"
        call = Call(f"{kind}.aggregatedList", About(kind), "GET", path, query)
        for listed, lacking in self._pages(call, parse):
            found += listed
            unseen.update(lacking)
        return found, unseen

    def find_operation(self, project: str, scope: str, name: str, about: About) -> Operation | None:
        """An operation on the resource ``about``; ``None`` if GCE has forgotten it. ``scope`` is a zone,
        a region or ``""``."""
        place = _zonal(project, scope) if scope.count("-") == 2 else _regional(project, scope)
        path = f"{place if scope else _global(project)}/operations/{name}"
        return self._find_by(Call("operations.get", about, "GET", path), parse_operation)

    def _find(self, parse: Callable[[Document], T], scope: str, kind: str, name: str) -> T | None:
        call = Call(f"{kind}.get", About(kind, name), "GET", f"{scope}/{kind}/{name}")
        return self._find_by(call, parse)

    def _delete(self, scope: str, kind: str, name: str) -> Operation | None:
        call = Call(f"{kind}.delete", About(kind, name), "DELETE", f"{scope}/{kind}/{name}")
        return self._find_by(call, parse_operation)

    def _find_by(self, call: Call, parse: Callable[[Document], T]) -> T | None:
        try:
            return self._call(call, _of_named(parse))
        except CallError as error:
            if error.kind is ErrorKind.ABSENT:
                return None
            raise

    def _insert(self, scope: str, kind: str, body: Mapping[str, Any], request_id: str) -> Operation:
        about, query = About(kind, body.get("name", "")), {"requestId": request_id}
        call = Call(f"{kind}.insert", about, "POST", f"{scope}/{kind}", query, body)
        return self._call(call, _of_named(parse_operation))

    def _pages(self, call: Call, parse: Callable[[Document], T]) -> Iterator[T]:
        """The pages of a list."""

        def parse_page(page: Document) -> tuple[T, str]:
            return parse(page), read_field(page, "nextPageToken", str)

        while True:
            page, token = self._call(call, parse_page)
            yield page
            if not token:
                return
            call = replace(call, query={**call.query, "pageToken": token})

    def _call(self, call: Call, parse: Callable[[Document], T]) -> T:
        return self._clients.request(call, parse, self._remaining_s, self._count)

    def _count(self) -> None:
        self.calls += 1
