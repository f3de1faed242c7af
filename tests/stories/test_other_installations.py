"""Nothing is written in the cloud unless the cluster is the one of the functions' installation."""

from __future__ import annotations

import pytest

from shared.base.reasons import REASONS, Reason
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME, TWO_SINGLE
from tests.support.manifests import manifest

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
NEW, JOINING, LEAVING = "new-slice", "joining-slice", "leaving-slice"

MISTAKES = {
    "the cluster is another installation's": ("a", "b", "a", "b"),
    "the cluster was restored from an old backup": (None, "a", "not set", "a"),
    "the functions are those of an old version": ("a", "", "a", "not set"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_nothing_is_created_joined_or_deleted_until_the_ids_are_right(
    mistake: tuple[str | None, str, str, str],
) -> None:
    annotation, setting, found, own = mistake
    harness = helpers.ready(manifest(**TWO_SINGLE))
    (lost, _) = helpers.vms(harness)
    helpers.ready_slice(harness, manifest(LEAVING, **TWO_SINGLE))
    harness.apply(manifest(JOINING, **TWO_SINGLE))
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 2)
    harness.delete(LEAVING)
    helpers.until_reason(harness, "DeletingMIG", LEAVING)
    text = (
        f"The annotation tpu-functions.dev/installation-id of Namespace kube-system is {found}, and "
        f"INSTALLATION_ID of the functions is {own}. {REASONS[Reason.OTHER_INSTALLATION]}"
    )
    refused, lines = ("False", "OtherInstallation", text), len(harness.log.lines)
    with helpers.mistaken(harness, annotation, setting) as writes:
        harness.simulation.gce.faults.act_as_user("DELETE", lost)  # its successor needs a token
        harness.apply(manifest(NEW, **TWO_SINGLE))
        for name in (NEW, JOINING, LEAVING):
            helpers.until_reason(harness, "OtherInstallation", name, timeout=3 * MINUTE)
        helpers.until_reason(harness, "OtherInstallation", timeout=HOUR + MINUTE)
        requests = harness.simulation.admin("GET", REQUESTS)["items"]
        assert len([one for one in requests if not one.get("status")]) >= 2, "they stay pending"
        assert helpers.condition_of(harness, "NodesJoined")[1] == "Joined"
        harness.delete(NAME)
        harness.run_for(2 * HOUR)
        for name in (NAME, NEW, JOINING, LEAVING):
            assert helpers.condition_of(harness, "Ready", name) == refused
        assert writes == []
        assert ("Warning", "OtherInstallation", text) in helpers.events(harness)
        helpers.identify(harness, setting or None)  # the functions are not started again
        of_mistake = [line for line in harness.log.lines[lines:] if line["decision"] == refused[1]]
        steps = [line["step"] for line in of_mistake]
        assert steps.count("sweep") > 100, "one line a minute, which the alert counts"
        assert steps.count("report_leaks") >= 2, (
            "slices of the original would look leaked in a copy"
        )
        assert {line["severity"] for line in of_mistake} == {"INFO"}, (
            "one alert, and not one a step"
        )
        helpers.until_reason(harness, "DeletingMIG")
        for name in (NAME, LEAVING):
            helpers.until_gone(harness, name)
        for name in (NEW, JOINING):
            helpers.until_ready(harness, name)
        harness.delete(JOINING)
        helpers.assert_deleted_completely(harness, NEW)
