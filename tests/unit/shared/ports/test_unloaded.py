"""A package of client libraries is loaded when one of its own names is first used."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from shared.ports.unloaded import leave_unloaded


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return an unloaded package with a submodule."""
    (tmp_path / "costly").mkdir()
    (tmp_path / "costly" / "__init__.py").write_text("from costly.part import LIGHT\nHEAVY = 5\n")
    (tmp_path / "costly" / "part.py").write_text("LIGHT = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("costly", "costly.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    leave_unloaded("costly")
    return sys.modules["costly"]


def test_a_submodule_is_imported_without_loading_its_package(package: ModuleType) -> None:
    assert importlib.import_module("costly.part").LIGHT == 1
    assert "HEAVY" not in vars(package)
    assert package.part.LIGHT == 1


def test_the_package_is_loaded_when_one_of_its_own_names_is_used(package: ModuleType) -> None:
    assert package.HEAVY == 5
    assert package.LIGHT == 1
    with pytest.raises(AttributeError):
        _ = package.NOTHING


def test_a_dunder_name_does_not_load_the_package(package: ModuleType) -> None:
    with pytest.raises(AttributeError):
        _ = package.__wrapped__
    assert "HEAVY" not in vars(package)


def test_an_unloaded_package_is_named_by_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`google.auth` names google.auth.transport.requests so."""
    (tmp_path / "whole" / "costly").mkdir(parents=True)
    (tmp_path / "whole" / "__init__.py").write_text("")
    (tmp_path / "whole" / "costly" / "__init__.py").write_text("HEAVY = 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    leave_unloaded("whole.costly")
    whole = importlib.import_module("whole")
    assert "HEAVY" not in vars(whole.costly)
    assert whole.costly.HEAVY == 5


def test_a_loaded_package_stays_loaded(package: ModuleType) -> None:
    leave_unloaded("costly")
    assert sys.modules["costly"] is package


def test_a_missing_package_is_named() -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"costlier is not installed; see requirements\.txt"
    ):
        leave_unloaded("costlier")


def test_two_threads_that_use_a_package_at_once_both_get_its_names(
    tmp_path: Path, package: ModuleType
) -> None:
    (tmp_path / "costly" / "__init__.py").write_text(
        "import threading, time\nSTARTED.set()\ntime.sleep(0.1)\nHEAVY = 5\n"
    )
    started = vars(package)["STARTED"] = threading.Event()

    def use_later() -> int:
        assert started.wait(60)
        return int(package.HEAVY)

    with ThreadPoolExecutor() as threads:
        later = threads.submit(use_later)
        assert package.HEAVY == 5
        assert later.result() == 5


def test_two_threads_that_leave_a_package_unloaded_share_one_module(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, package.__name__)
    find_spec, both = importlib.util.find_spec, threading.Barrier(2)

    def find_late(name: str) -> object:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # the second one comes too, if it may
        return find_spec(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_late)

    def leave(_: int) -> ModuleType:
        leave_unloaded(package.__name__)
        return sys.modules[package.__name__]

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(leave, range(2))
    assert one is other


def test_a_package_that_could_not_be_loaded_is_loaded_by_its_next_use(
    tmp_path: Path, package: ModuleType
) -> None:
    source = tmp_path / "costly" / "__init__.py"
    source.write_text("import costly\nassert not hasattr(costly, 'HEAVY')\n1 // 0\n")
    with pytest.raises(ZeroDivisionError):
        _ = package.HEAVY
    source.write_text("HEAVY = 5  # of another size: the cached bytecode is not used\n")
    assert package.HEAVY == 5
