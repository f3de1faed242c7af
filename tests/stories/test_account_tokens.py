"""The steps use tokens of their ServiceAccounts in files, which a token-writer renews each hour."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from local.kube import CertificateAuthority
from shared.ports.kubernetes.access_settings import AccountToken
from tests.stories import helpers
from tests.stories.helpers import HOUR, MINUTE, NAME
from tests.support.harness import Harness
from tests.support.manifests import manifest

ACCOUNTS = "/api/v1/namespaces/tpu-functions/serviceaccounts"


class TokenFiles:
    """The token files of all steps, each with a text that is no token until `renew` has run."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        self.harness = harness
        self.folder = folder
        ca_pem = CertificateAuthority.create(datetime(2026, 1, 1, tzinfo=UTC)).certificate_pem
        for step in harness.steps:
            path = folder / step
            path.write_text("the token-writer has not run yet")
            access = AccountToken("https://10.128.0.2:6443", ca_pem, str(path))
            harness.settings[step] = replace(harness.settings[step], access=access)
        harness.configure()

    def renew(self) -> None:
        """Write a new token for each step."""
        for step in self.harness.steps:
            path = f"{ACCOUNTS}/{step.replace('_', '-')}/token"
            answer = self.harness.simulation.admin(
                "POST", path, {"spec": {"expirationSeconds": 43200}}
            )
            (self.folder / step).write_text(answer["status"]["token"])

    def list_errors(self) -> set[str]:
        """The errors of all invocations so far that the API server answered, or that had no token."""
        notes = [answer.note for _, answer in self.harness.answers if answer.http > 299]
        self.harness.answers.clear()
        kinds = ("401 Unauthorized", "has no token that expires")
        return {kind for note in notes for kind in kinds if kind in note}


@pytest.fixture
def files(tmp_path: Path) -> TokenFiles:
    return TokenFiles(Harness(helpers.vm_options()), tmp_path)


def test_a_slice_is_created_kept_and_deleted_while_tokens_are_renewed(files: TokenFiles) -> None:
    files.renew()
    harness = files.harness
    helpers.ready_slice(harness, manifest())
    for _ in range(7):
        harness.run_for(HOUR)
        files.renew()
    assert harness.is_ready(NAME)
    helpers.assert_deleted_completely(harness)
    assert files.list_errors() == set()


def test_messages_wait_for_the_first_token_of_a_new_installation(files: TokenFiles) -> None:
    harness = files.harness
    harness.apply(manifest())
    harness.run_for(10 * MINUTE)
    assert helpers.vms(harness) == []
    assert files.list_errors() == {"has no token that expires"}
    files.renew()
    helpers.until_ready(harness)


def test_a_token_writer_that_is_down_for_thirteen_hours_heals_at_its_first_round(
    files: TokenFiles,
) -> None:
    files.renew()
    harness = files.harness
    helpers.ready_slice(harness, manifest(**helpers.TWO_SINGLE, instanceConfig=helpers.SPOT))
    harness.run_for(11 * HOUR)
    assert files.list_errors() == set(), "functions work on without it"
    harness.run_for(2 * HOUR)
    assert files.list_errors() == {"401 Unauthorized"}
    harness.simulation.gce.faults.act_as_user("DELETE", helpers.vms(harness)[0])
    harness.run_for(30 * MINUTE)
    files.renew()
    helpers.until(harness, lambda: not harness.is_ready(NAME), 10 * MINUTE)
    helpers.until_ready(harness)
    helpers.assert_deleted_completely(harness)
