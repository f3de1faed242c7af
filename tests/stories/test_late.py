"""A process that is delayed: its remaining calls are not executed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from local.cloud.simulation import PROJECT
from shared.ports.google_credentials import GoogleCredentials
from tests.stories import helpers
from tests.stories.helpers import MINUTE, ONE_HOST, harness_for
from tests.support.harness import Harness
from tests.support.late import SlowCredentials
from tests.support.manifests import manifest

TEMPLATE = f"projects/{PROJECT}/global/instanceTemplates/my-template"
OWN_TEMPLATE: dict[str, Any] = {
    **ONE_HOST,
    "instanceConfig": None,
    "bootstrapKubernetes": None,
    "instanceTemplateURI": TEMPLATE,
}
"""A group whose MIG needs no resource that the deletion removes, so a late insert would succeed."""


class Expired(SlowCredentials):
    """Credentials whose token expires when the status reports the insert of the MIG as an intent."""

    def __init__(self, harness: Harness, delay: timedelta) -> None:
        super().__init__(self._wait)
        self._harness = harness
        self._delay = delay
        self.fetched = 0

    @property
    def valid(self) -> bool:
        group = self._harness.group(helpers.NAME) or {}
        resources = group.get("status", {}).get("resources", {})
        state = resources.get("managedInstanceGroup", {}).get("state")
        return self.fetched > 0 or state != "Creating"

    def apply(self, headers: dict[str, str], token: str | None = None) -> None:
        """The simulator accepts requests without credentials."""

    def _wait(self) -> str:
        self.fetched += 1
        self._harness.delete(helpers.NAME)
        self._harness.run_for(self._delay)
        return "token"


@pytest.mark.parametrize("seconds", [31, 170, 3600])
def test_a_slow_token_inserts_no_mig_for_a_deleted_group(seconds: int) -> None:
    applied = manifest(**OWN_TEMPLATE)
    harness = harness_for(applied["spec"])
    slow = Expired(harness, timedelta(seconds=seconds))
    harness.runtime("create_resources").clients.credentials = GoogleCredentials(lambda: slow)
    harness.apply(applied)
    helpers.until(harness, lambda: slow.fetched == 1)
    helpers.until_gone(harness)
    harness.run_for(10 * MINUTE)
    assert harness.leftovers() == [TEMPLATE]
    assert harness.operations["instanceGroupManagers.insert"] == 0


def test_tokens_are_revoked_before_the_vms_are_deleted_by_an_api_that_takes_seven_seconds() -> None:
    harness = Harness(helpers.vm_options(joins=False))
    harness.apply(manifest())
    helpers.until(harness, lambda: len(helpers.secrets(harness)) == 2)
    calls, left = list[str](), list[list[str]]()

    def before(step: str, call: str) -> None:
        calls.extend([call] if step == "tear_down" and not left else [])
        if call.startswith("DELETE /compute/"):
            left.append(helpers.secrets(harness))

    harness.hooks.before = before
    now = harness.clock.now
    harness.runtime("tear_down").monotonic = lambda: now().timestamp() + 7 * len(calls)
    harness.delete(helpers.NAME)
    helpers.until_gone(harness)
    assert (left[0], harness.leftovers()) == ([], [])
