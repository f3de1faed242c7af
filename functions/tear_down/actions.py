"""Delete the resources of a group, revoke its tokens, and remove its finalizer."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from shared.base.names import FINALIZER
from shared.base.reasons import Reason
from shared.frame.plan import StaleObservation
from shared.node_groups.node_group import Spec
from shared.node_groups.resources import KINDS
from shared.node_groups.status import MIG, NOUN, Resource
from shared.node_groups.work import GroupWork
from shared.ports.error_reasons import ErrorKind
from shared.ports.errors import CallError

IN_USE_FOR_LONG = timedelta(minutes=5)
"""After this time, "in use" does not come from the MIG's delete: something else uses the resource."""


@dataclass(frozen=True)
class DeleteResources:
    """Delete resources, then write the status with the operations and the environment errors.

    The intents (``Deleting``) are already written.
    """

    kinds: tuple[str, ...]
    spec: Spec = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        known = work.status
        for kind in self.kinds:
            resource = known.resources[kind]
            try:
                operation = KINDS[kind].delete(work.gce, self.spec, work.group.resource_name)
            except CallError as error:
                resource = _record_error(kind, resource, error, work.now)
            else:
                if operation is None:
                    raise StaleObservation(f"the {NOUN[kind]} is gone already")
                resource = replace(resource, operation=operation.name)
            known = known.with_resource(kind, resource)
        work.conclude_and_write(known)

    def describe(self) -> str:
        names = " and the ".join(NOUN[kind] for kind in self.kinds)
        return f"delete the {names}, and write the results"


def _record_error(kind: str, resource: Resource, error: CallError, now: datetime) -> Resource:
    """Record an environment error in the resource's entry. Raises any other. Two answers have a meaning
    of their own.

    Not ready: a create or delete is in progress; its end triggers the step. In use: the MIG that uses
    the resource is still being deleted, so the delete is retried for some minutes.
    """
    if error.kind is ErrorKind.NOT_READY:
        return resource
    if error.kind is ErrorKind.IN_USE:
        begun = resource.since or now
        if kind != MIG and now - begun < IN_USE_FOR_LONG:
            raise error
        return resource.with_error(Reason.IN_USE, error.code, error.message, now)
    if error.reason is None:
        raise error
    return resource.with_error(error.reason, error.code, error.message, now)


@dataclass(frozen=True)
class RevokeTokens:
    """Revoke all tokens of the group, also those that no VM's metadata shows. Best effort."""

    def apply(self, work: GroupWork) -> None:
        with work.best_effort():
            work.cluster.delete_token_secrets(work.group.resource_name)

    def describe(self) -> str:
        return "revoke all tokens of the group"


@dataclass(frozen=True)
class RemoveFinalizer:
    """Remove this system's finalizer from the group."""

    def apply(self, work: GroupWork) -> None:
        rest = [name for name in work.group.finalizers if name != FINALIZER]
        work.cluster.patch_group(work.group.raw, finalizers=rest)

    def describe(self) -> str:
        return "remove the finalizer"
