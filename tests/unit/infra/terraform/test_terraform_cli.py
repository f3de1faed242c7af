"""Terraform itself validates the module: its expressions, types and validations, and each example.

Without a cloud: ``validate`` uses only the schemas, and ``test`` mocks the planned resources
(``infra/terraform/tests``).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from local.tests.real_parts import miss
from tests.terraform import workspace
from tests.terraform.examples import EXAMPLES, read_settings
from tests.terraform.workspace import Workspace

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("terraform")]
NAMES = sorted(path.name for path in EXAMPLES.iterdir())
A_PLAN = """\
mock_provider "google" {}
mock_provider "archive" {}
mock_provider "time" {}

run "plan" {
  command = plan
}
"""


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    if workspace.find_terraform() is None:
        pytest.skip("there is no terraform here")
    try:
        return workspace.make(tmp_path_factory.mktemp("terraform"))
    except workspace.Unavailable as error:
        miss(str(error))


def test_the_files_are_formatted_by_terraform(terraform: Workspace) -> None:
    done = terraform.run(terraform.module, "fmt", "-check", "-diff", "-recursive")
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_module_is_valid(terraform: Workspace, print_figure: Callable[[str], None]) -> None:
    print_figure(f"terraform: the module is validated with {terraform.providers}")
    done = terraform.run(terraform.module, "validate")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_valid(terraform: Workspace, name: str) -> None:
    folder = terraform.module / "examples" / name
    for file in ("ca.crt", "gke-ca.crt", "jwks.json"):
        (folder / file).write_text("")
    terraform.init(folder)
    done = terraform.run(folder, "validate")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_an_example_can_be_planned(terraform: Workspace, name: str) -> None:
    folder = terraform.module / "plans"
    folder.mkdir(exist_ok=True)
    (folder / "plan.tftest.hcl").write_text(A_PLAN)
    settings = folder / "settings.tfvars"
    settings.write_text(read_settings(name))
    done = terraform.run(terraform.module, "test", "-test-directory=plans", f"-var-file={settings}")
    assert "1 passed, 0 failed" in done.stdout, done.stdout + done.stderr


def test_the_terraform_tests_of_the_module_pass(terraform: Workspace) -> None:
    done = terraform.run(terraform.module, "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
