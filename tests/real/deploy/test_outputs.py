"""The simulated outputs are equal to those of Terraform and the module."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from local.tests.real_parts import miss
from tests.real.deploy.outputs import (
    ACCOUNTS,
    ACCOUNTS_WITH_JOBSETS,
    AUDIENCE,
    BUILDER,
    EMAILS,
    ID_TOKENS,
    JOBSETS,
    KUBECONFIGS,
    POOLS,
    PROJECT,
    UNIQUE_IDS,
    Outputs,
)
from tests.terraform import workspace

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("terraform")]

ID_TOKEN_ACCESS = {
    "google_id_token": {
        "server": "https://10.128.0.2:6443",
        "ca_certificate": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "audience": AUDIENCE,
    }
}
KUBECONFIG_ACCESS = {"kubeconfig_secrets": {name.replace("-", "_"): name for name in ACCOUNTS}}
CASES: dict[str, tuple[Outputs, dict[str, Any], str, list[str]]] = {
    "kubeconfigs": (KUBECONFIGS, KUBECONFIG_ACCESS, "", ACCOUNTS),
    "ID tokens": (ID_TOKENS, ID_TOKEN_ACCESS, "", ACCOUNTS),
    "node pools": (POOLS, ID_TOKEN_ACCESS, "gke", ACCOUNTS_WITH_JOBSETS),
    "JobSets": (JOBSETS, ID_TOKEN_ACCESS, "tpu-node-group", ACCOUNTS_WITH_JOBSETS),
}
NODE_POOLS = {
    "location": "us-east5",
    "cluster": "research",
    "service_account": f"tpu-nodes@{PROJECT}.iam.gserviceaccount.com",
}
ACCOUNT = """
override_resource {{
  target = google_service_account.step["{step}"]
  values = {{
    name      = "projects/{project}/serviceAccounts/{email}"
    email     = "{email}"
    member    = "serviceAccount:{email}"
    unique_id = "{unique_id}"
  }}
}}
"""
RUN = """
mock_provider "google" {{
  mock_data "google_project" {{
    defaults = {{ number = "123456789012" }}
  }}
  mock_resource "google_service_account" {{
    defaults = {{ name = "{builder}" }}
  }}
}}
mock_provider "archive" {{}}
mock_provider "time" {{}}

run "outputs" {{
  variables {{
    project_id     = "{project}"
    region         = "us-central1"
    cluster_access = {access}
    jobset_provider = "{jobset_provider}"
    node_pools     = {node_pools}
    relay_identity = {{ vm_service_account = "vm@{project}.iam.gserviceaccount.com" }}
  }}
{assertions}
}}
"""
ASSERTION = """
  assert {{
    condition     = yamldecode(output.{name}) == yamldecode(file("outputs/{name}"))
    error_message = "The simulated output differs."
  }}
"""


@pytest.mark.parametrize("case", CASES)
def test_the_simulated_outputs_are_equal_to_terraforms(case: str, tmp_path: Path) -> None:
    if workspace.find_terraform() is None:
        pytest.skip("there is no terraform here")
    try:
        terraform = workspace.make(tmp_path / "module")
    except workspace.Unavailable as error:
        miss(str(error))
    outputs, access, jobset_provider, names = CASES[case]
    folder = terraform.module / "outputs"
    folder.mkdir()
    expected = {name: text for name, text in asdict(outputs).items() if text}
    del expected["tool_environment"]  # it has the id of an installation
    for name, text in expected.items():
        (folder / name).write_text(text)
    accounts = "".join(
        ACCOUNT.format(
            project=PROJECT,
            step=name.replace("-", "_"),
            email=EMAILS[name],
            unique_id=UNIQUE_IDS[name],
        )
        for name in names
    )
    run = RUN.format(
        project=PROJECT,
        builder=BUILDER,
        access=json.dumps(access),
        jobset_provider=jobset_provider,
        node_pools=json.dumps(NODE_POOLS if jobset_provider == "gke" else None),
        assertions="".join(ASSERTION.format(name=name) for name in expected),
    )
    (folder / "outputs.tftest.hcl").write_text(accounts + run)
    done = terraform.run(terraform.module, "test", "-test-directory=outputs")
    assert "1 passed, 0 failed" in done.stdout, done.stdout + done.stderr
