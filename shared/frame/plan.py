"""What a step may do: a plan is a tuple of actions, each one call (or one write) of a port.

A step's decision makes actions from what was observed; the frame (`step`) carries them out in order.
Actions hold only values, so that a plan can be compared, printed and tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from shared.base.errors import STALE_ANSWERS, CallError
from shared.base.names import FINALIZER, RESOURCE_NAME_LABEL, TOKEN_KEY
from shared.base.reasons import Reason
from shared.frame.decode import Occasion
from shared.frame.message import Message
from shared.node_groups import node_group, status
from shared.node_groups.bootstrap import Token, token_secret
from shared.node_groups.node_group import NodeGroup
from shared.node_groups.resources import KINDS, request_id
from shared.node_groups.status import Status
from shared.ports.classify import verdict_of
from shared.ports.gce.calls import Gce
from shared.ports.gce.values import Instance
from shared.ports.kubernetes.cluster import Cluster
from shared.ports.kubernetes.events import Event

Publish = Callable[[str, Sequence[Message]], None]
"""Publish messages to a step's inbox. Raises `CallError`."""


IN_USE, NOT_READY = "resourceInUseByAnotherResource", "resourceNotReady"
SEEN_EVERYWHERE_AFTER = timedelta(minutes=1)
"""What was made longer ago than this is known to all of Compute Engine's services."""
IN_USE_FOR_LONG = timedelta(minutes=5)
"""After this, "in use" is no after-effect of the MIG's delete but somebody's doing."""


class LookAgain(Exception):
    """The world is not as it was seen; the step looks and decides once more."""


@dataclass
class Work:
    """One invocation at work on one group: the ports, the time, and what is known by now.

    ``group`` follows every write to the object; ``status`` is the status as it shall be, which
    actions change in memory until a `WriteStatus` writes it.
    """

    gce: Gce
    cluster: Cluster
    publish: Publish
    random_bytes: Callable[[int], bytes]
    now: datetime
    occasion: Occasion
    group: NodeGroup
    status: Status
    is_first_look: bool = True
    """False when the step looks again because the world had moved."""

    def took(self, raw: Mapping[str, Any]) -> None:
        """The object has been written; what comes back is the truth about it."""
        self.group = node_group.parse(raw, self.group.cluster)


class Action(Protocol):
    """One thing to do. ``describe`` says it in a person's words, for ``replay explain``."""

    def apply(self, work: Work) -> None:
        """Do it. Raises `CallError`, or `LookAgain` when the world has moved."""

    def describe(self) -> str:
        """What would be done."""


@dataclass(frozen=True)
class Plan:
    """What is to be done and, in one word of the step's own, why; ``note`` is for the log."""

    outcome: str
    actions: tuple[Action, ...] = ()
    note: str = ""


Derive = Callable[[NodeGroup, Status, datetime], Status]


def _as_it_is(_group: NodeGroup, known: Status, _now: datetime) -> Status:
    return known


@dataclass(frozen=True)
class WriteStatus:
    """Derive what follows from all that is known by now, conclude, and write it if it is news."""

    derive: Derive = field(default=_as_it_is, repr=False)

    def apply(self, work: Work) -> None:
        derived = self.derive(work.group, work.status, work.now)
        work.status = status.conclude(work.group, derived, work.now)
        wanted = status.render(work.status)
        if wanted != (work.group.raw.get("status") or {}):
            work.took(work.cluster.replace_status(work.group.raw, wanted))

    def describe(self) -> str:
        return "write the status, if it has changed"


@dataclass(frozen=True)
class TakeOwnership:
    """Put our finalizer and the resource-name label on the group."""

    def apply(self, work: Work) -> None:
        group = work.group
        finalizers = [*group.finalizers, *([] if group.has_finalizer else [FINALIZER])]
        labels = {RESOURCE_NAME_LABEL: group.resource_name}
        work.took(work.cluster.patch_group(group.raw, finalizers=finalizers, labels=labels))

    def describe(self) -> str:
        return "take ownership: finalizer and label"


@dataclass(frozen=True)
class RemoveFinalizer:
    """Let the group go."""

    def apply(self, work: Work) -> None:
        rest = [name for name in work.group.finalizers if name != FINALIZER]
        work.cluster.patch_group(work.group.raw, finalizers=rest)

    def describe(self) -> str:
        return "remove the finalizer"


@dataclass(frozen=True)
class Insert:
    """Make one of the three resources; its intent (``Creating``, since) stands written already."""

    kind: str
    body: Mapping[str, Any] = field(repr=False)

    def apply(self, work: Work) -> None:
        resource = work.status.resources[self.kind]
        request = request_id(work.group, self.kind, resource.since or work.now, self.body)
        try:
            operation = KINDS[self.kind].insert(work.gce, work.group, self.body, request)
        except CallError as error:
            resource = self._refused(work, resource, error)
        else:
            resource = replace(resource, operation=operation.name)
        work.status = work.status.with_resource(self.kind, resource)

    def _refused(self, work: Work, resource: status.Resource, error: CallError) -> status.Resource:
        """The world's refusals are written down. What is ours to retry ends the plan; where the
        answer says that nothing was begun, the intent is taken back first, so that the next try
        need not think it under way.
        """
        if error.http == 404:
            return self._lacks_something(work, resource, error)
        verdict = verdict_of(error)
        if verdict.reason is not None and error.http not in STALE_ANSWERS:
            return resource.fail(verdict.reason, error.reason, error.message, work.now)
        if 400 <= error.http < 500 and error.http not in STALE_ANSWERS:
            self._take_back(work, resource)
        raise error

    def _lacks_something(
        self, work: Work, resource: status.Resource, error: CallError
    ) -> status.Resource:
        """What it refers to is not known there: seen wrongly, not seen yet, or really not there."""
        is_fresh = any(
            entry.since is not None and work.now - entry.since < SEEN_EVERYWHERE_AFTER
            for kind, entry in work.status.resources.items()
            if kind != self.kind
        )
        if not work.is_first_look and not is_fresh:
            return resource.fail(Reason.REFUSED, error.reason, error.message, work.now)
        self._take_back(work, resource)
        if work.is_first_look:
            raise LookAgain(str(error)) from error
        raise CallError(error.call, 400, NOT_READY, error.message) from error

    def _take_back(self, work: Work, resource: status.Resource) -> None:
        taken_back = resource.enter(status.State.PENDING, work.now)
        work.status = work.status.with_resource(self.kind, taken_back)
        WriteStatus().apply(work)

    def describe(self) -> str:
        return f"insert the {status.NOUN[self.kind]} {self.body['name']}"


@dataclass(frozen=True)
class Delete:
    """Delete one of the three; its intent (``Deleting``, since) stands written already."""

    kind: str

    def apply(self, work: Work) -> None:
        resource = work.status.resources[self.kind]
        try:
            operation = KINDS[self.kind].delete(work.gce, work.group)
        except CallError as error:
            resource = self._refused(resource, error, work.now)
        else:
            if operation is None:
                raise LookAgain(f"the {status.NOUN[self.kind]} is gone already")
            resource = replace(resource, operation=operation.name)
        work.status = work.status.with_resource(self.kind, resource)

    def _refused(
        self, resource: status.Resource, error: CallError, now: datetime
    ) -> status.Resource:
        """Not ready: it is being made or deleted, whose end wakes us. In use: by what is going."""
        if error.reason == NOT_READY:
            return resource
        if error.reason == IN_USE:
            begun = resource.since or now
            if self.kind != status.MIG and now - begun < IN_USE_FOR_LONG:
                raise error
            return resource.with_trouble(Reason.IN_USE, error.reason, error.message, now)
        reason = _refusal_of_the_world(error)
        return resource.with_trouble(reason, error.reason, error.message, now)

    def describe(self) -> str:
        return f"delete the {status.NOUN[self.kind]}"


def _refusal_of_the_world(error: CallError) -> str:
    """The reason to be written down; what is ours to retry is raised again and ends the plan."""
    verdict = verdict_of(error)
    if error.http in STALE_ANSWERS or verdict.reason is None:
        raise error
    return verdict.reason


@dataclass(frozen=True)
class SetMetadata:
    """Write a VM's metadata, which must still be as it was read."""

    instance: Instance = field(repr=False)
    items: Mapping[str, str] = field(repr=False)

    def apply(self, work: Work) -> None:
        spec = work.group.spec
        assert spec is not None
        try:
            work.gce.set_metadata(spec.project, spec.zone, self.instance, self.items)
        except CallError as error:
            raise _without_secret(error, self.items.get(TOKEN_KEY, "")) from None

    def describe(self) -> str:
        return f"write the join token into the metadata of {self.instance.name}"


def _without_secret(error: CallError, secret: str) -> CallError:
    """An API may quote what it refuses."""
    message = error.message.replace(secret, "[token]") if secret else error.message
    return CallError(error.call, error.http, error.reason, message)


@dataclass(frozen=True)
class CreateSecret:
    """Make a token valid: its Secret, from what the VM's metadata says."""

    token: Token
    vm: str

    def apply(self, work: Work) -> None:
        manifest = token_secret(self.token, resource_name=work.group.resource_name, vm=self.vm)
        work.cluster.create_token_secret(manifest)

    def describe(self) -> str:
        return f"make the token of {self.vm} valid"


@dataclass(frozen=True)
class DeleteSecret:
    """Revoke a token."""

    token_id: str
    vm: str

    def apply(self, work: Work) -> None:
        work.cluster.delete_token_secret(self.token_id)

    def describe(self) -> str:
        return f"revoke the token of {self.vm}"


@dataclass(frozen=True)
class PatchNode:
    """Change this Node (labels, taints, cordon), and no other that may have its name by now."""

    name: str
    uid: str
    patch: Mapping[str, Any]

    def apply(self, work: Work) -> None:
        metadata = {**self.patch.get("metadata", {}), "uid": self.uid}
        work.cluster.patch_node(self.name, {**self.patch, "metadata": metadata})

    def describe(self) -> str:
        return f"patch the Node {self.name}: {sorted(self.patch)}"


@dataclass(frozen=True)
class DeleteNode:
    """Remove one Node object, and no other that may have its name by now."""

    name: str
    uid: str

    def apply(self, work: Work) -> None:
        work.cluster.delete_node(self.name, self.uid)

    def describe(self) -> str:
        return f"delete the Node {self.name}"


@dataclass(frozen=True)
class Send:
    """Publish an occasion to another step's inbox (or to this one's); best effort."""

    step: str
    message: Message

    def apply(self, work: Work) -> None:
        work.publish(self.step, (self.message,))

    def describe(self) -> str:
        return f"wake {self.step} ({self.message.cause})"


@dataclass(frozen=True)
class Emit:
    """Write a Kubernetes Event about the group, or about the Node given; best effort, last."""

    event: Event
    about: Mapping[str, Any] | None = field(default=None, repr=False)

    def apply(self, work: Work) -> None:
        about = self.about if self.about is not None else work.group.raw
        work.cluster.emit(about, self.event, work.now)

    def describe(self) -> str:
        return f"event {self.event.reason}: {self.event.message}"


@dataclass(frozen=True)
class Attempt:
    """Something that is better done, and must not hold up what comes after it."""

    action: Action

    def apply(self, work: Work) -> None:
        self.action.apply(work)

    def describe(self) -> str:
        return f"try to {self.action.describe()}"


@dataclass(frozen=True)
class ForOne:
    """What is done about one VM or Node; a refusal ends this, and not what is done about others."""

    actions: tuple[Action, ...]

    def apply(self, work: Work) -> None:
        for action in self.actions:
            action.apply(work)

    def describe(self) -> str:
        return ", ".join(action.describe() for action in self.actions)


BEST_EFFORT = (Send, Emit, Attempt)
"""Actions whose failure changes nothing: the sweep finds the work, the condition says the same."""
