"""What is in shared/ has at least two users; what has one belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.unit.rules.imports import imported_modules

ROOT = Path(__file__).parents[3]
USERS = ("main.py", "functions", "webhook", "relay", "replay", "infra")
"""The product. Tests, tools and stand-ins are no users."""


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PATHS = [
    path for top in (*USERS, "shared") for path in (*ROOT.glob(top), *(ROOT / top).rglob("*.py"))
]
FILES = {dotted(path): path.read_text() for path in PATHS if path.suffix == ".py"}
IMPORTS = {name: set(imported_modules(text)) & FILES.keys() for name, text in FILES.items()}


def users_of(module: str, seen: set[str]) -> Iterator[str]:
    """The steps and packages that import a module, themselves or by other modules of shared/."""
    seen.add(module)
    for user, imports in IMPORTS.items():
        if module not in imports or user in seen:
            continue
        if user.startswith("shared."):
            yield from users_of(user, seen)
        else:
            yield ".".join(user.split(".")[: 2 if user.startswith("functions.") else 1])


def test_each_module_of_shared_has_two_users() -> None:
    users = {
        name: set(users_of(name, set()))
        for name, text in FILES.items()
        if name.startswith("shared.") and text
    }
    assert {name: found for name, found in users.items() if len(found) < 2} == {}


def test_the_modules_of_one_step_are_none_of_shared() -> None:
    assert set(users_of("functions.create_resources.bodies", set())) == {
        "functions.create_resources"
    }
