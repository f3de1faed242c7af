"""Upgrades and downgrades: of tokens while VMs join, and of slices of classes.

The older version's tokens are in kubeadm's group.

The older version has no approve_join, no permissions for the new group, and a policy that rejects it.
Its functions are simulated by those of this version with ``JOIN_APPROVAL=external``, whose tokens are
equal. A version without classes is simulated by one that reads none.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import LAZY_LEASE_S, Options
from local.vm import agents
from shared.base.names import BOOTSTRAP_GROUP
from shared.node_groups.bootstrap import KUBEADM_GROUP
from shared.settings import GKE, TPU_NODE_GROUP, JoinApproval
from shared.slices.by_node_group import provider as group_slices
from shared.slices.by_node_pool import found_pools
from shared.slices.classes import CLASS_ANNOTATION
from shared.slices.work import SliceWork
from tests.faults import jobsets
from tests.stories import helpers
from tests.stories import jobsets as stories
from tests.stories.helpers import HOUR, MINUTE, STANDARD
from tests.support import jobset_objects as objects
from tests.support.harness import Harness, manifests
from tests.support.manifests import manifest

SLOW_TO_JOIN = Options(agents=agents.Timings(lease_s=LAZY_LEASE_S, prepare_s=(240.0, 300.0)))
NEW_GROUP_IN_POLICY = "'c3lzdGVtOmJvb3RzdHJhcHBlcnM6dHB1LWZ1bmN0aW9ucw==', "
WITH_A_VM_IN_POLICY = "c3lzdGVtOmJvb3RzdHJhcHBlcnM6dHB1LWZ1bmN0aW9ucyx"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
NEW_POLICIES = ("join-approvals", "join-requests", "node-registrations")
NEW = [
    f"{RBAC}/clusterroles/tpu-functions-approve-join",
    f"{RBAC}/clusterroles/tpu-functions-joining-vm",
    f"{RBAC}/namespaces/kube-system/roles/tpu-functions-approve-join",
    f"{RBAC}/namespaces/kube-system/roles/tpu-functions-joining-vm",
    *(f"{POLICIES}/validatingadmissionpolicies/tpu-functions-{one}" for one in NEW_POLICIES),
]
"""Objects that the older version does not have. A binding without its Role grants nothing."""


class Upgrade:
    """A cluster with the older version and one Ready slice."""

    def __init__(self) -> None:
        self.harness = Harness(SLOW_TO_JOIN)
        self.apply_older_manifests()
        self.deploy("sweep", JoinApproval.EXTERNAL)
        self.deploy("inject_token", JoinApproval.EXTERNAL)
        self.harness.run_for(timedelta(seconds=10))
        helpers.ready_slice(self.harness, manifest("old", instanceConfig=STANDARD))
        self._joined = {name: self._describe(name) for name in helpers.nodes(self.harness)}

    def deploy(self, step: str, approval: JoinApproval) -> None:
        """Deploy one function only."""
        before = dict(self.harness.settings)
        self.harness.configure(join_approval=approval)
        self.harness.settings |= {name: before[name] for name in before if name != step}

    def apply_manifests(self, *, external_approval: bool = False) -> None:
        """Apply bindings, policies, and the permissions of approve_join and of the relay."""
        documents = manifests(external_approval=external_approval)
        self.harness.simulation.kube.apply_manifests(documents)

    def apply_older_manifests(self) -> None:
        self.harness.simulation.kube.apply_manifests(_list_older_manifests())
        for path in NEW:
            self.harness.simulation.admin("DELETE", path)

    def begin(self, name: str) -> None:
        """Apply a slice, and wait until its VMs have tokens and none has joined."""
        self.harness.apply(manifest(name, instanceConfig=STANDARD))
        before = set(helpers.secrets(self.harness))
        helpers.until(self.harness, lambda: len({*helpers.secrets(self.harness)} - before) == 2)
        assert helpers.summary(self.harness, name)["joined"] == 0

    def groups_of_tokens(self) -> set[str]:
        """The authentication groups of the tokens that are valid now."""
        found = self.harness.simulation.admin("GET", "/api/v1/namespaces/kube-system/secrets")[
            "items"
        ]
        texts = (b64decode(secret["data"]["auth-extra-groups"]).decode() for secret in found)
        return {text.partition(",")[0] for text in texts}

    def until_ready(self, name: str, timeout: timedelta = 10 * MINUTE) -> None:
        helpers.until_ready(self.harness, name, timeout)

    def list_changed_nodes(self) -> Iterator[str]:
        """Nodes that joined before and are gone, were replaced, or were not Ready for a while."""
        now = helpers.nodes(self.harness)
        for name, before in self._joined.items():
            if name not in now or self._describe(name) != before:
                yield name

    def _describe(self, name: str) -> tuple[Any, ...]:
        node = helpers.nodes(self.harness)[name]
        (ready,) = (one for one in node["status"]["conditions"] if one["type"] == "Ready")
        labels_and_spec = (node["metadata"]["labels"], node["spec"])
        return (
            node["metadata"]["uid"],
            ready["status"],
            ready["lastTransitionTime"],
            labels_and_spec,
        )


def _list_older_manifests() -> Iterator[dict[str, Any]]:
    for document in manifests(external_approval=True):
        text = json.dumps(document).replace(NEW_GROUP_IN_POLICY, "")
        text = text.replace(WITH_A_VM_IN_POLICY, "-")
        older: dict[str, Any] = json.loads(text)
        if older["kind"] == "ClusterRole" and older["metadata"]["name"] == "tpu-functions-relay":
            older["rules"] = [
                rule
                for rule in older["rules"]
                if rule["resources"] != ["certificatesigningrequests"]
            ]
        yield older


def test_upgrade_and_downgrade_in_two_runs_each_delay_no_vm_and_touch_no_node() -> None:
    """As in docs/operate.md: the first and the last run have external approval."""
    upgrade = Upgrade()
    upgrade.begin("early")
    assert upgrade.groups_of_tokens() == {KUBEADM_GROUP}
    upgrade.apply_manifests(external_approval=True)
    upgrade.until_ready("early")
    upgrade.begin("between")
    upgrade.deploy("sweep", JoinApproval.APPROVE_JOIN)
    upgrade.deploy("inject_token", JoinApproval.APPROVE_JOIN)
    upgrade.begin("late")
    assert upgrade.groups_of_tokens() == {KUBEADM_GROUP, BOOTSTRAP_GROUP}
    upgrade.apply_manifests()
    upgrade.until_ready("between")
    upgrade.until_ready("late")

    upgrade.begin("last")
    upgrade.deploy("inject_token", JoinApproval.EXTERNAL)
    upgrade.deploy("sweep", JoinApproval.EXTERNAL)
    upgrade.apply_manifests(external_approval=True)
    upgrade.until_ready("last")
    upgrade.apply_older_manifests()
    upgrade.begin("older")
    assert upgrade.groups_of_tokens() == {KUBEADM_GROUP}
    upgrade.until_ready("older")
    assert list(upgrade.list_changed_nodes()) == []
    assert upgrade.harness.node_deletes() == 0


def test_functions_deployed_before_the_manifests_report_what_is_refused_and_continue() -> None:
    upgrade = Upgrade()
    upgrade.begin("early")
    upgrade.deploy("sweep", JoinApproval.APPROVE_JOIN)
    upgrade.deploy("inject_token", JoinApproval.APPROVE_JOIN)
    upgrade.harness.apply(manifest("late", instanceConfig=STANDARD))
    upgrade.until_ready("early")
    status, reason, message = helpers.condition_of(upgrade.harness, "TokensInjected", "late")
    assert (status, reason) == ("False", "PermissionDenied")
    assert (
        "'tpu-functions-bootstrap-tokens' denied request: bootstrap tokens of tpu-functions"
        in message
    )
    upgrade.apply_manifests()
    upgrade.until_ready("late")
    assert list(upgrade.list_changed_nodes()) == []


def test_after_a_downgrade_in_one_run_a_vm_with_a_newer_token_waits_for_the_next_token() -> None:
    upgrade = Upgrade()
    upgrade.apply_manifests()
    upgrade.deploy("sweep", JoinApproval.APPROVE_JOIN)
    upgrade.deploy("inject_token", JoinApproval.APPROVE_JOIN)
    upgrade.begin("late")
    upgrade.deploy("sweep", JoinApproval.EXTERNAL)
    upgrade.deploy("inject_token", JoinApproval.EXTERNAL)
    upgrade.apply_older_manifests()
    upgrade.harness.run_for(20 * MINUTE)
    assert helpers.summary(upgrade.harness, "late")["joined"] == 0
    upgrade.until_ready("late", HOUR)
    assert list(upgrade.list_changed_nodes()) == []
    assert upgrade.harness.node_deletes() == 0


def test_with_external_approval_approve_join_gets_no_message() -> None:
    harness = Harness(seed=1)  # an API server knows tokens, and their groups, for ten seconds more
    harness.configure(join_approval=JoinApproval.EXTERNAL)
    harness.simulation.kube.apply_manifests(manifests(external_approval=True))
    helpers.ready_slice(harness, manifest())
    assert [answer for step, answer in harness.answers if step == "approve_join"] == []
    assert not harness.simulation.kube.calls.count(
        verb="list", resource="certificatesigningrequests", user="sweep"
    )
    helpers.assert_deleted_completely(harness)


@contextmanager
def without_classes() -> Iterator[None]:
    """Functions of a version that knows no classes: what it does not read of a slice is empty."""
    with pytest.MonkeyPatch.context() as older:
        older.setattr(SliceWork, "list_classes", lambda _: ())
        for module in (group_slices, found_pools):
            older.setattr(module, "CLASS_ANNOTATION", "tpu-functions.dev/unknown")
        yield


@pytest.mark.parametrize("provider", [TPU_NODE_GROUP, GKE])
def test_slices_of_a_class_survive_a_version_without_classes_and_the_reverse(provider: str) -> None:
    harness = Harness(helpers.with_heartbeats(), slices=jobsets.SETTINGS[provider])
    jobsets.prepare(harness)
    jobsets.make_class(harness)

    def apply(*names: str, running: int) -> None:
        for name in names:
            stories.apply(harness, objects.small_jobset(name))
        stories.until(harness, lambda: stories.phases(harness) == ["Running"] * running)

    def read() -> dict[str, bool]:
        """Whether each slice has a class, by its uid or name."""
        groups = harness.simulation.admin("GET", jobsets.GROUPS)["items"]
        found = {one["metadata"]["uid"]: one["metadata"]["annotations"] for one in groups}
        pools = filter(None, map(harness.gke.find_pool, jobsets.pools(harness)))
        found |= {one.content["name"]: one.content["config"]["labels"] for one in pools}
        return {key: CLASS_ANNOTATION in marks for key, marks in found.items()}

    apply("newer", "ended", running=2)
    before = read()
    assert [*before.values()] == [True, True]
    with without_classes():
        harness.run_for(HOUR)
        assert read() == before
        assert {*stories.phases(harness)} == {"Running"}
        harness.simulation.admin("DELETE", f"{stories.JOBSETS}/ended")
        stories.until(harness, lambda: len(read()) == 1)
        apply("older", running=2)
    mixed = read()
    assert sorted(mixed.values()) == [False, True]
    harness.run_for(HOUR)
    assert read() == mixed
    assert {*stories.phases(harness)} == {"Running"}
    for name in ("newer", "older"):
        harness.simulation.admin("DELETE", f"{stories.JOBSETS}/{name}")
    stories.until(harness, lambda: not read())
    assert harness.leftovers() == []
