"""The actions of a plan about a TPUNodeGroup. Each is one call of a port or one write of the object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from shared.base.names import BOOTSTRAP_GROUP, FINALIZER, RESOURCE_NAME_LABEL, TOKEN_KEY
from shared.base.reasons import Reason
from shared.frame.plan import StaleObservation
from shared.node_groups.bootstrap import KUBEADM_GROUP, Token, token_secret
from shared.node_groups.node_group import Spec
from shared.node_groups.resources import KINDS, request_id
from shared.node_groups.status import MIG, NOUN, Resource, State
from shared.node_groups.work import GroupWork
from shared.ports.classify import NOT_READY, ErrorKind
from shared.ports.errors import CallError
from shared.ports.gce.values import Instance
from shared.settings import JoinApproval

SEEN_EVERYWHERE_AFTER = timedelta(minutes=1)
"""A resource that was created longer ago is visible to all services of Compute Engine."""
IN_USE_FOR_LONG = timedelta(minutes=5)
"""After this time, "in use" does not come from the MIG's delete: something else uses the resource."""


@dataclass(frozen=True)
class WriteResults:
    """Write the status that earlier actions of the plan have changed."""

    def apply(self, work: GroupWork) -> None:
        work.conclude_and_write()

    def describe(self) -> str:
        return "write the results of the calls before"


@dataclass(frozen=True)
class TakeOwnership:
    """Add this system's finalizer and resource-name label to the group."""

    def apply(self, work: GroupWork) -> None:
        group = work.group
        finalizers = [*group.finalizers, *([] if group.has_finalizer else [FINALIZER])]
        labels = {RESOURCE_NAME_LABEL: group.resource_name}
        work.replace_object(
            work.cluster.patch_group(group.raw, finalizers=finalizers, labels=labels)
        )

    def describe(self) -> str:
        return "take ownership: finalizer and label"


@dataclass(frozen=True)
class RemoveFinalizer:
    """Remove this system's finalizer from the group."""

    def apply(self, work: GroupWork) -> None:
        rest = [name for name in work.group.finalizers if name != FINALIZER]
        work.cluster.patch_group(work.group.raw, finalizers=rest)

    def describe(self) -> str:
        return "remove the finalizer"


@dataclass(frozen=True)
class Insert:
    """Insert one of the three resources. The intent (``Creating``) is already written.

    An environment error is recorded in the resource's entry and not raised: the plan continues, and
    a later action writes the status.
    """

    kind: str
    spec: Spec = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        resource = work.status.resources[self.kind]
        request = request_id(work.group, self.kind, resource.since or work.now, self.body)
        try:
            operation = KINDS[self.kind].insert(work.gce, self.spec, self.body, request)
        except CallError as error:
            resource = self._record_error(work, resource, error)
        else:
            resource = replace(resource, operation=operation.name)
        work.status = work.status.with_resource(self.kind, resource)

    def _record_error(self, work: GroupWork, resource: Resource, error: CallError) -> Resource:
        """Record an environment error. A transient error ends the plan.

        If the answer shows that no insert has begun, the intent is withdrawn first: otherwise the next
        attempt would treat the insert as in progress.
        """
        if error.kind is ErrorKind.ABSENT:
            return self._handle_missing(work, resource, error)
        if error.reason is not None:
            return resource.fail(error.reason, error.code, error.message, work.now)
        if 400 <= error.http < 500 and error.http != 409:  # it may exist
            self._withdraw_intent(work, resource)
        raise error

    def _handle_missing(self, work: GroupWork, resource: Resource, error: CallError) -> Resource:
        """A referenced resource was not found. First observe again, because the observation may be
        stale. Then retry while the resource may not be visible yet, and otherwise record the error."""
        is_fresh = any(
            entry.since is not None and work.now - entry.since < SEEN_EVERYWHERE_AFTER
            for kind, entry in work.status.resources.items()
            if kind != self.kind
        )
        if not work.is_first_observation and not is_fresh:
            return resource.fail(Reason.REFUSED, error.code, error.message, work.now)
        self._withdraw_intent(work, resource)
        if work.is_first_observation:
            raise StaleObservation(str(error)) from error
        raise CallError(error.call, 400, NOT_READY, error.message, error.about) from error

    def _withdraw_intent(self, work: GroupWork, resource: Resource) -> None:
        withdrawn = resource.enter(State.PENDING, work.now)
        work.status = work.status.with_resource(self.kind, withdrawn)
        work.conclude_and_write()

    def describe(self) -> str:
        return f"insert the {NOUN[self.kind]} {self.body['name']}"


@dataclass(frozen=True)
class Delete:
    """Delete one of the three resources. The intent (``Deleting``) is already written.

    An environment error is recorded in the resource's entry and not raised: the plan continues, and
    `WriteResults` writes the status.
    """

    kind: str
    spec: Spec = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        resource = work.status.resources[self.kind]
        name = work.group.resource_name
        try:
            operation = KINDS[self.kind].delete(work.gce, self.spec, name)
        except CallError as error:
            resource = self._record_error(resource, error, work.now)
        else:
            if operation is None:
                raise StaleObservation(f"the {NOUN[self.kind]} is gone already")
            resource = replace(resource, operation=operation.name)
        work.status = work.status.with_resource(self.kind, resource)

    def _record_error(self, resource: Resource, error: CallError, now: datetime) -> Resource:
        """Record an environment error. Two answers have a meaning of their own.

        Not ready: a create or delete is in progress; its end triggers the step. In use: the MIG that
        uses the resource is still being deleted, so the delete is retried for some minutes.
        """
        if error.kind is ErrorKind.NOT_READY:
            return resource
        if error.kind is ErrorKind.IN_USE:
            begun = resource.since or now
            if self.kind != MIG and now - begun < IN_USE_FOR_LONG:
                raise error
            return resource.with_error(Reason.IN_USE, error.code, error.message, now)
        if error.reason is None:
            raise error
        return resource.with_error(error.reason, error.code, error.message, now)

    def describe(self) -> str:
        return f"delete the {NOUN[self.kind]}"


@dataclass(frozen=True)
class SetMetadata:
    """Write a VM's metadata, if it is unchanged since it was read."""

    spec: Spec = field(repr=False)
    instance: Instance = field(repr=False)
    items: Mapping[str, str] = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        project, zone = self.spec.project, self.spec.zone
        try:
            work.gce.set_metadata(project, zone, self.instance, self.items)
        except CallError as error:
            named = error.of(self.instance.name)
            raise _without_secret(named, self.items.get(TOKEN_KEY, "")) from None

    def describe(self) -> str:
        return f"write the join token into the metadata of {self.instance.name}"


def _without_secret(error: CallError, secret: str) -> CallError:
    """The error without the token: an API may quote what it rejects."""
    message = error.message.replace(secret, "[token]") if secret else error.message
    return CallError(error.call, error.http, error.code, message, error.about)


@dataclass(frozen=True)
class CreateSecret:
    """Make a token valid: create its Secret from the VM's metadata. It is not an error if it exists."""

    token: Token
    vm: str

    def apply(self, work: GroupWork) -> None:
        is_external = work.settings.join_approval is JoinApproval.EXTERNAL
        manifest = token_secret(
            self.token,
            resource_name=work.group.resource_name,
            vm=self.vm,
            bootstrap_group=KUBEADM_GROUP if is_external else BOOTSTRAP_GROUP,
        )
        try:
            work.cluster.create_token_secret(manifest)
        except CallError as error:
            raise error.of(self.vm) from error

    def describe(self) -> str:
        return f"make the token of {self.vm} valid"


@dataclass(frozen=True)
class RevokeIfJoined:
    """Revoke a VM's token if its Node exists now, other than the stale one.

    The VM may have joined since it was observed. Then label_node may have revoked the token before
    `CreateSecret` has made it valid again, and would not do so a second time. A VM that joins after this
    read is left to label_node.
    """

    token_id: str
    vm: str
    stale_uid: str = ""
    """The uid of the Node of the VM's predecessor, which has been deleted."""

    def apply(self, work: GroupWork) -> None:
        try:
            node = work.cluster.find_node(self.vm)
            if node is not None and node["metadata"]["uid"] != self.stale_uid:
                work.cluster.delete_token_secret(self.token_id)
        except CallError as error:
            raise error.of(self.vm) from error

    def describe(self) -> str:
        return f"revoke the token of {self.vm} if it has joined meanwhile"


@dataclass(frozen=True)
class DeleteSecret:
    """Revoke a VM's token."""

    token_id: str
    vm: str

    def apply(self, work: GroupWork) -> None:
        work.cluster.delete_token_secret(self.token_id)

    def describe(self) -> str:
        return f"revoke the token of {self.vm}"


@dataclass(frozen=True)
class RevokeTokens:
    """Revoke all tokens of the group, also those that no VM's metadata shows."""

    def apply(self, work: GroupWork) -> None:
        work.cluster.delete_token_secrets(work.group.resource_name)

    def describe(self) -> str:
        return "revoke all tokens of the group"


@dataclass(frozen=True)
class PatchNode:
    """Patch this Node (labels, taints, cordon), but no later Node with its name."""

    name: str
    uid: str
    patch: Mapping[str, Any]

    def apply(self, work: GroupWork) -> None:
        metadata = {**self.patch.get("metadata", {}), "uid": self.uid}
        work.cluster.patch_node(self.name, {**self.patch, "metadata": metadata})

    def describe(self) -> str:
        return f"patch the Node {self.name}: {sorted(self.patch)}"


@dataclass(frozen=True)
class DeleteNode:
    """Delete this Node object, but no later Node with its name."""

    name: str
    uid: str

    def apply(self, work: GroupWork) -> None:
        work.cluster.delete_node(self.name, self.uid)

    def describe(self) -> str:
        return f"delete the Node {self.name}"
