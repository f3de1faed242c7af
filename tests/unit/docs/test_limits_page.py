"""docs/reference/limits.md names each limit and time of the product, with its value."""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ROWS = re.findall(
    r"^\| .+ \| (.+) \| .*\| `([a-z_.]+)\.(_?[A-Z].*)` \|$",
    (ROOT / "docs/reference/limits.md").read_text(),
    re.MULTILINE,
)
SETTINGS = re.findall(
    r"^\| .+ \| (.+) \| .*\| `(\w+\.tf): (\w+)` \|$",
    (ROOT / "docs/reference/limits.md").read_text(),
    re.MULTILINE,
)
NO_LIMITS = {
    "shared.frame.step.MAX_RECOVERIES": "how often a step may recover in sequence",
    "functions.inject_token.observe.READING_SHARE": "a share",
    "shared.base.accelerators.SLICE_HOST_CHIPS": "a fact of the hardware",
    "shared.base.topology.TPU7_CHIPS": "a fact of the hardware",
    "shared.triggers.message.MESSAGE_VERSION": "a version",
    "shared.frame.snapshot.VERSION": "a version",
    "shared.triggers.push.UNAUTHORIZED": "an HTTP status",
    "shared.triggers.push.FORBIDDEN": "an HTTP status",
    "shared.triggers.push.UNAVAILABLE": "an HTTP status",
    "shared.frame.execution.ACKNOWLEDGED": "an HTTP status",
    "shared.frame.execution.POISON": "an HTTP status",
    "shared.frame.execution.TRY_AGAIN": "an HTTP status",
}


def format_value(name: str, value: Any) -> str:
    """Return a value with its unit: a time in the largest unit that divides it."""
    is_time = isinstance(value, timedelta | float) or name.lower().endswith("_s")
    if not is_time:
        return f"{value:,}"
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    sizes = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
    unit, size = next((unit, size) for unit, size in sizes if seconds % size == 0 or size == 1)
    return f"{seconds / size:g} {unit}{'' if seconds == size else 's'}"


@pytest.mark.parametrize(
    "written, module, name", ROWS, ids=[f"{module}.{name}" for _, module, name in ROWS]
)
def test_a_limit_on_the_page_has_its_value_in_the_code(
    written: str, module: str, name: str
) -> None:
    assert written == format_value(name, attrgetter(name)(import_module(module)))


@pytest.mark.parametrize("written, file, name", SETTINGS, ids=[name for _, _, name in SETTINGS])
def test_a_setting_on_the_page_has_its_value_in_the_terraform_module(
    written: str, file: str, name: str
) -> None:
    text = (ROOT / "infra" / "terraform" / file).read_text()
    if file == "variables.tf":
        text = text.partition(f'variable "{name}" {{')[2].replace("default", name, 1)
    found = re.search(rf'^ *{name} += "?(\d+)(s?)"?', text, re.MULTILINE)
    assert found is not None
    is_time = bool(found[2]) or name.endswith("_seconds")
    assert written == format_value("_s" if is_time else name, int(found[1]))


def test_the_page_names_settings_of_three_terraform_files() -> None:
    assert {file for _, file, _ in SETTINGS} == {"pubsub.tf", "functions.tf", "variables.tf"}


def list_limits() -> list[str]:
    """List the public constants of the product that are a number or a duration."""
    return [
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')}.{name.id}"
        for folder in ("functions", "shared", "relay")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Assign) and _is_quantity(statement.value)
        for target in statement.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and name.id.isupper() and not name.id.startswith("_")
    ]


def _is_quantity(value: ast.expr) -> bool:
    return bool(re.fullmatch(r"(timedelta\(\w+=)?\(?[\d., */+-]+\)?", ast.unparse(value)))


def test_each_limit_of_the_product_is_on_the_page() -> None:
    listed = {f"{module}.{name}" for _, module, name in ROWS}
    missing = set(list_limits()) - listed
    assert missing == set(NO_LIMITS)
