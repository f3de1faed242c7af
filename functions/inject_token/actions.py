"""Write the token of a VM into its metadata, make it valid, and revoke it if the VM has joined."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.base.names import TOKEN_KEY
from shared.base.signing_requests import token_groups
from shared.node_groups.bootstrap import KUBEADM_GROUP, Token, token_secret
from shared.node_groups.node_group import Spec
from shared.node_groups.work import GroupWork
from shared.ports.errors import CallError
from shared.ports.gce.values import Instance
from shared.settings import JoinApproval

JOINS_AFTER_S = 3.0
"""No VM has joined so few seconds after its token was written, even if another invocation has made it
valid: kubeadm and the kubelet need longer."""


@dataclass(frozen=True)
class SetMetadata:
    """Write a VM's metadata, if it is unchanged since it was read."""

    spec: Spec = field(repr=False)
    instance: Instance = field(repr=False)
    items: Mapping[str, str] = field(repr=False)

    def apply(self, work: GroupWork) -> None:
        project, zone = self.spec.project, self.spec.zone
        work.writing_s = work.remaining_s()
        try:
            work.gce.set_metadata(project, zone, self.instance, self.items, work.now)
        except CallError as error:
            # Without the token: an API may quote what it rejects.
            secret, named = self.items.get(TOKEN_KEY, ""), error.of(self.instance.name)
            message = named.message.replace(secret, "[token]") if secret else named.message
            raise CallError(named.call, named.http, named.code, message, named.about) from None

    def describe(self) -> str:
        return f"write the join token into the metadata of {self.instance.name}"


@dataclass(frozen=True)
class CreateSecret:
    """Make a token valid: create its Secret from the VM's metadata. It is not an error if it exists."""

    token: Token
    vm: str
    vm_id: str

    def apply(self, work: GroupWork) -> None:
        is_external = work.settings.join_approval is JoinApproval.EXTERNAL
        manifest = token_secret(
            self.token,
            resource_name=work.group.resource_name,
            vm=self.vm,
            bootstrap_group=KUBEADM_GROUP if is_external else token_groups(self.vm, self.vm_id),
        )
        try:
            work.cluster.create_token_secret(manifest)
        except CallError as error:
            raise error.of(self.vm) from error

    def describe(self) -> str:
        return f"make the token of {self.vm} valid"


@dataclass(frozen=True)
class RevokeIfJoined:
    """Revoke a VM's token if its Node exists now.

    The VM may have joined since it was observed. Then label_node may have revoked the token before
    `CreateSecret` has made it valid again, and would not do so a second time. A VM that joins after this
    read is left to label_node. Without a read if the VM had no token before (``is_new``) and has
    had one for less than `JOINS_AFTER_S`.
    """

    token_id: str
    vm: str
    is_new: bool = False

    def apply(self, work: GroupWork) -> None:
        if self.is_new and work.writing_s - work.remaining_s() < JOINS_AFTER_S:
            return
        try:
            if work.cluster.find_node(self.vm) is not None:
                work.cluster.delete_token_secret(self.token_id)
        except CallError as error:
            raise error.of(self.vm) from error

    def describe(self) -> str:
        return f"revoke the token of {self.vm} if it has joined meanwhile"
