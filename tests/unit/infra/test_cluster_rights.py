"""The roles of the cluster against what the parts ask of it: no right is lacking, and none is unused.

The steps live whole lives on the embedded API, which holds them to their roles and remembers who
called what. What the relay reads is said in its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.kube.calls import Call, CallLog
from relay import daemon
from shared.base.names import JOBSET_STEPS, STEPS
from tests.harness import Harness
from tests.manifests import manifest
from tests.signing_requests import kubelets, pem
from tests.stories import (
    jobsets,
    life,
    test_jobset_slices,
    test_joins,
    test_losses,
    test_refusals,
)
from tests.stories.life import HOUR, MINUTE
from tests.unit.test_manifests import Right, expand

pytestmark = pytest.mark.xdist_group("lives with the rights of the cluster")

KUBERNETES = Path(__file__).parents[3] / "infra" / "kubernetes"
FILES = (
    "base/rbac.yaml",
    *(f"components/jobsets/{name}.yaml" for name in ("roles", "relay")),
    "components/jobsets-node-groups/roles.yaml",
)
DOCUMENTS = [
    document for name in FILES for document in yaml.safe_load_all((KUBERNETES / name).read_text())
]


def granted(account: str) -> set[Right]:
    """What the roles give a ServiceAccount of ours."""

    def roles() -> Iterator[dict[str, Any]]:
        for binding in DOCUMENTS:
            if account in [one["name"] for one in binding.get("subjects", ())]:
                namespace = binding["metadata"].get("namespace")
                yield from (
                    one
                    for one in DOCUMENTS
                    if one["kind"] == binding["roleRef"]["kind"]
                    and one["metadata"]["name"] == binding["roleRef"]["name"]
                    and one["metadata"].get("namespace") == namespace
                )

    return {right for role in roles() for right in expand(role)}


def is_covered(right: Right, call: Call) -> bool:
    """True if a call needs this right."""
    namespace, _, resource, verb = right
    asked = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
    if resource.startswith("signers/") and verb == "approve":
        return asked == "certificatesigningrequests/approval"  # admission asks for this one
    if resource == asked == "events" and call.verb == "create":
        return True  # one call of the port: an Event that says the same already is counted up
    return (
        namespace in ("*", call.namespace)
        and resource in (asked, f"{asked}/{call.name}")
        and verb == call.verb
    )


def lose_a_vm_unheard() -> None:
    """A VM is made again, and nobody has reported that it was gone: its Node stands in the way."""
    harness = Harness(replace(life.watchful(), sinks=False))
    life.ready_slice(harness, manifest(**test_losses.TWO_SINGLE))
    harness.simulation.gce.faults.act_by_hand("DELETE", life.vms(harness)[0])
    harness.run_for(30 * MINUTE)
    life.until_ready(harness)


def give_up_early() -> None:
    """Deleted when its VMs are there and none has joined."""
    harness = Harness(life.vm_options(joins=False))
    harness.apply(manifest())
    life.until(harness, lambda: len(life.vms(harness)) == 2)
    harness.run_for(5 * MINUTE)
    harness.delete(life.NAME)
    life.until_gone(harness)


def write_no_token() -> None:
    """Compute Engine refuses the tokens for a while."""
    test_refusals.test_missing_permission_to_write_tokens_is_reported("instances.setMetadata")


def live_beside_tpu_operator() -> None:
    """The kinds of tpu-operator's children are defined, and the group has none of them."""
    harness = Harness()
    test_refusals._define_children(harness)
    life.ready_slice(harness, manifest())
    harness.run_for(2 * HOUR)  # leaks are looked for once an hour
    life.assert_deleted_completely(harness)


def want_a_slice_again() -> None:
    """A JobSet is made again while its slice, which may go by now, is still being made."""
    harness = test_jobset_slices.new_harness()
    test_jobset_slices.post(harness)
    life.until(harness, lambda: harness.group(jobsets.NAME) is not None)
    jobsets.delete(harness)
    harness.run_for(20 * jobsets.SECOND)
    assert "tpu-functions.dev/release-after" in test_jobset_slices.marks(harness)
    test_jobset_slices.post(harness)
    jobsets.until(harness, lambda: jobsets.are_running(harness))


def ask_for_a_control_planes_certificate() -> None:
    """It is denied, and the token revoked."""
    place = test_joins.Place()
    place.ask(pem(kubelets("control-plane-1")))
    place.harness.run_for(MINUTE)
    assert place.decisions() == ["Denied"]


# Stories that together need each right; a part that lacks one makes no progress in them.
LIVES: tuple[Callable[[], object], ...] = (
    lose_a_vm_unheard,
    give_up_early,
    write_no_token,
    ask_for_a_control_planes_certificate,
    test_losses.test_a_vm_deleted_manually_is_recreated_and_admitted_again,
    live_beside_tpu_operator,
    test_jobset_slices.test_a_jobset_gets_its_slice_runs_and_leaves_nothing_behind,
    want_a_slice_again,
    test_jobset_slices.test_a_jobset_that_requests_another_slice_gets_it,
    test_jobset_slices.test_a_slice_that_has_lost_a_host_is_recreated_if_configured,
    test_jobset_slices.test_the_sweep_alone_is_enough,
)


@pytest.fixture(scope="module")
def calls() -> set[Call]:
    """All that was asked of the API server in these lives."""
    found: set[Call] = set()
    add = CallLog.add

    def note(log: CallLog, call: Call) -> None:
        found.add(replace(call, name=call.name if call.name in ONLY_NAMES else ""))
        add(log, call)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(CallLog, "add", note)
        for live in LIVES:
            live()
    return found


ONLY_NAMES = {"kube-system", "kube-root-ca.crt", "jobsets"}
"""Those to which roles limit a right."""


@pytest.mark.parametrize("step", [*STEPS, *JOBSET_STEPS])
def test_a_step_has_the_rights_that_it_uses_and_no_others(step: str, calls: set[Call]) -> None:
    account = step.replace("_", "-")
    user = f"system:serviceaccount:tpu-functions:{account}"
    asked = {call for call in calls if call.user == user}
    unused = {
        right for right in granted(account) if not any(is_covered(right, call) for call in asked)
    }
    assert unused == set()


def test_the_relay_may_read_what_it_watches_and_nothing_else() -> None:
    watched = [resource.path for resource in (*daemon.RESOURCES, *daemon.JOBSET_RESOURCES)]
    needed = {
        ("*", group_of(path), path.rpartition("/")[2], verb)
        for path in watched
        for verb in ("list", "watch")
    }
    assert granted("relay") == needed | {("*", "", "namespaces/kube-system", "get")}


def group_of(path: str) -> str:
    """The API group of a collection."""
    return path.split("/")[2] if path.startswith("/apis/") else ""
