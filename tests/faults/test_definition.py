"""The CustomResourceDefinition of TPUNodeGroups is deleted while groups exist."""

from __future__ import annotations

from tests.stories import helpers
from tests.stories.helpers import MINUTE
from tests.support.harness import manifests
from tests.support.manifests import manifest


def test_deleting_the_definition_deletes_its_groups_and_it_can_be_created_again() -> None:
    harness = helpers.ready()
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    (definition,) = (one for one in manifests() if one["kind"] == "CustomResourceDefinition")
    one = f"{path}/{definition['metadata']['name']}"
    harness.simulation.admin("DELETE", one)
    helpers.until(harness, lambda: harness.simulation.gce.leftovers() == [])
    harness.run_for(10 * MINUTE)
    assert harness.simulation.admin("GET", one)["reason"] == "NotFound"
    harness.simulation.admin("POST", path, definition)
    harness.run_for(MINUTE)
    helpers.ready_slice(harness, manifest())
    helpers.assert_deleted_completely(harness)
