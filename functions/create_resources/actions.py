"""Take ownership of a group, and insert its resources."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from functions.create_resources.bodies import request_id
from functions.create_resources.resource_conditions import CreationReport
from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL
from shared.base.reasons import Reason
from shared.frame.plan import StaleObservation
from shared.node_groups.node_group import NodeGroup, Spec
from shared.node_groups.resources import KINDS
from shared.node_groups.status import NOUN, Resource, State, Status
from shared.node_groups.work import GroupWork
from shared.ports.error_reasons import NOT_READY, ErrorKind
from shared.ports.errors import CallError

SEEN_EVERYWHERE_AFTER = timedelta(minutes=1)
"""A resource that was created longer ago is visible to all services of Compute Engine."""


@dataclass(frozen=True)
class TakeOwnership:
    """Add this system's finalizer and resource-name label to the group."""

    def apply(self, work: GroupWork) -> None:
        group = work.group
        finalizers = [*group.finalizers, *([] if group.has_finalizer else [FINALIZER])]
        labels = {RESOURCE_NAME_LABEL: group.resource_name}
        raw = work.cluster.patch_group(group.raw, finalizers=finalizers, labels=labels)
        work.replace_object(raw)

    def describe(self) -> str:
        return "take ownership: finalizer and label"


@dataclass(frozen=True)
class InsertCall:
    """The insert of one of the three resources. The intent (``Creating``) is already written."""

    kind: str
    spec: Spec = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)

    def send(self, work: GroupWork, known: Status) -> Resource:
        """Send the insert. Returns the resource's entry, with the operation or an environment error.
        Raises `CallError` and `StaleObservation`.

        If the answer shows that no insert has begun, the intent is withdrawn first: otherwise the next
        attempt would treat the insert as in progress.
        """
        resource = known.resources[self.kind]
        request = request_id(work.group, self.kind, resource.since or work.now, self.body)
        try:
            operation = KINDS[self.kind].insert(work.gce, self.spec, self.body, request)
            return replace(resource, operation=operation.name)
        except CallError as error:
            if error.kind is ErrorKind.ABSENT:
                return self._handle_missing(work, known, resource, error)
            if error.reason is not None:
                return resource.fail(error.reason, error.code, error.message, work.now)
            if 400 <= error.http < 500 and error.http != 409:  # it may exist
                self._withdraw_intent(work, known, resource)
            raise

    def _handle_missing(
        self, work: GroupWork, known: Status, resource: Resource, error: CallError
    ) -> Resource:
        """A referenced resource was not found. First observe again, because the observation may be
        stale. Then retry while the resource may not be visible yet, and otherwise record the error."""
        is_fresh = any(
            entry.since is not None and work.now - entry.since < SEEN_EVERYWHERE_AFTER
            for kind, entry in known.resources.items()
            if kind != self.kind
        )
        if not work.is_first_observation and not is_fresh:
            return resource.fail(Reason.REFUSED, error.code, error.message, work.now)
        self._withdraw_intent(work, known, resource)
        if work.is_first_observation:
            raise StaleObservation(str(error)) from error
        raise CallError(error.call, 400, NOT_READY, error.message, error.about) from error

    def _withdraw_intent(self, work: GroupWork, known: Status, resource: Resource) -> None:
        withdrawn = resource.enter(State.PENDING, work.now)
        work.conclude_and_write(known.with_resource(self.kind, withdrawn))


@dataclass(frozen=True)
class InsertResources:
    """Insert resources, then write the status with the operations and the environment errors."""

    inserts: tuple[InsertCall, ...]
    report: CreationReport = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        known = work.status
        for insert in self.inserts:
            known = known.with_resource(insert.kind, insert.send(work, known))
        if isinstance(work.group, NodeGroup):
            known = self.report.add_conditions(work.group, known, work.now)
        work.conclude_and_write(known)

    def describe(self) -> str:
        names = (f"{NOUN[one.kind]} {one.body['name']}" for one in self.inserts)
        return f"insert the {' and the '.join(names)}, and write the results"
