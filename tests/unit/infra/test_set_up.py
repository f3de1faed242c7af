"""`make setup`: its progress, the package index's error after a failure, and the packages of a demo."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest

from infra import set_up
from infra.set_up import count_packages, find_causes, report_progress
from tests.support.harness import ROOT

LOCAL = (ROOT / "local/requirements.txt").read_text()
PROGRAMS = ("functions", "shared", "relay", "replay", "webhook", "local")
"""The packages that `make demo`, `make local` and `python -m replay` run."""


def test_the_progress_has_a_line_for_every_20_packages_and_every_error() -> None:
    lines = [f"Collecting package-{n}[x]==1.0 (from -r x)\n" for n in range(40)]
    lines += ["  Downloading x.whl (3 kB)\n", "Collecting package-0==1.0 (from y)\n"]
    lines += ["Installing collected packages: a, b\n", "ERROR: These are not pinned:\n"]
    lines += ["    c>=1 (from b==1.0)\n", "    d>=1 (from b==1.0)\n", "Done\n", "  in time\n"]
    assert list(report_progress(lines, 41)) == [
        "  20 of 41 packages found",
        "  40 of 41 packages found",
        "  installing them, which takes about as long",
        "ERROR: These are not pinned:",
        "    c>=1 (from b==1.0)",
        "    d>=1 (from b==1.0)",
    ]


def test_packages_are_counted_by_their_pins() -> None:
    pinned = "# why\na==1\nb-c==2 ; python_version > '3'\n    # via a==1\n-r other.txt\n"
    assert count_packages(pinned) == 2


@pytest.mark.parametrize(
    "line, cause",
    [
        (
            "2026 Could not fetch URL https://index/x/: 403 Client Error: Forbidden - skipping",
            "Could not fetch URL https://index/x/: 403 Client Error: Forbidden - skipping",
        ),
        (
            "  WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnection'",
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnection'",
        ),
        ("2026 Looking in indexes", None),
    ],
)
def test_the_error_of_the_index_is_found_in_pips_log(line: str, cause: str | None) -> None:
    assert find_causes(f"{line}\n{line}\n") == ([cause] if cause else [])


def test_an_error_of_ensurepip_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: str, **_: bool) -> None:
        raise subprocess.CalledProcessError(1, [folder, "-m", "ensurepip"])

    monkeypatch.setattr(venv, "create", fail)
    assert set_up.main(str(tmp_path / "venv"), str(ROOT / "local/requirements.txt")) == 1
    assert (
        "On Debian and Ubuntu install python3-venv, then run make again." in capsys.readouterr().out
    )


def test_an_unreachable_index_is_reported(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("no-such-package==1.0\n")
    found = subprocess.run(
        [sys.executable, ROOT / "infra" / "set_up.py", tmp_path / "venv", "requirements.txt"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "packages to install: 1," in found.stdout
    assert "the package index: " in found.stdout
    assert "127.0.0.1" in found.stdout
    assert found.stderr == ""


@pytest.mark.parametrize("python", [None, "python-of-yesterday"])
def test_a_setup_that_was_interrupted_or_whose_python_is_gone_is_done_again(
    tmp_path: Path, python: str | None
) -> None:
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    if python is not None:
        (folder / "bin" / "pip").touch()
        (folder / "bin" / "python").unlink()
        (folder / "bin" / "python").symlink_to(tmp_path / python)
    (tmp_path / "requirements.txt").write_text("# nothing\n")
    assert set_up.main(str(folder), str(tmp_path / "requirements.txt")) == 0
    assert (folder / "bin" / "pip").stat().st_size > 0


def test_a_folder_that_is_no_virtual_environment_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").touch()
    create = venv.create
    monkeypatch.setattr(
        venv, "create", lambda folder, **kinds: create(folder, clear=kinds["clear"])
    )
    set_up.main(str(tmp_path), str(ROOT / "local/requirements.txt"))
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_make_sets_up_again_when_the_python_is_gone(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable if is_there else tmp_path / "gone")
    (tmp_path / ".set-up-local").touch()
    command = ["make", "--dry-run", "demo", f"VENV={tmp_path}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("infra/set_up.py" in found.stdout) != is_there


def test_an_interrupt_is_reported_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: str, **__: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(venv, "create", interrupt)
    assert set_up.main(str(tmp_path / "venv"), str(ROOT / "local/requirements.txt")) == 130
    expected = f"Setting up {tmp_path}/venv was interrupted: run make again to continue.\n"
    assert capsys.readouterr().out.endswith(expected)


def test_the_message_for_an_old_python_names_the_required_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    oldest = ".".join(map(str, set_up.OLDEST))
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text()
    monkeypatch.setattr(set_up, "OLDEST", (99, 1))
    assert set_up.main(str(tmp_path / "venv"), "missing.txt") == 1
    message = "tpu-functions needs Python 99.1 or newer: make PYTHON=python99.1 setup\n"
    assert capsys.readouterr().out == message


def list_imports() -> Iterator[str]:
    """Yield the modules that the programs import; a name that is imported from a package may be one."""
    files = [ROOT / "main.py", *(path for one in PROGRAMS for path in (ROOT / one).rglob("*.py"))]
    for path in files:
        if path.is_relative_to(ROOT / "local" / "tests"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def list_modules(found: Distribution) -> Iterator[str]:
    for file in found.files or ():
        if file.suffix in {".py", ".so"}:
            parts = [*file.parts[:-1], file.name.partition(".")[0]]
            yield ".".join(part for part in parts if part != "__init__")


def test_the_local_requirements_have_every_package_that_the_programs_import() -> None:
    pinned = re.findall(r"^([\w.-]+)(?:\[.*?\])?==", LOCAL, re.MULTILINE)
    has = {name for package in pinned for name in list_modules(distribution(package))}
    installed = {name for found in distributions() for name in list_modules(found)}
    imported = {*list_imports()}
    assert {"structlog", "google.cloud.logging_v2", "cel_expr_python.cel"} <= imported & has
    assert imported & (installed - has) == set()


def test_the_local_requirements_have_no_package_for_tests_checks_and_builds() -> None:
    named = (ROOT / "requirements-dev.in").read_text()
    others = set(re.findall(r"^([\w.-]+)(?:==\S+)?$", named, re.MULTILINE)) - {"packaging"}
    assert {"pytest", "mypy", "ruff", "pip-tools"} <= others
    assert [name for name in sorted(others) if re.search(rf"(?mi)^{name}==", LOCAL)] == []


@pytest.mark.parametrize(
    "target, needs",
    [
        ("demo", "LOCAL"),
        ("demo-workload", "LOCAL"),
        ("demo-jobset", "LOCAL"),
        ("recording", "LOCAL"),
        ("local", "LOCAL"),
        ("control-plane", "LOCAL"),
        ("setup", "STAMP"),
        ("test", "STAMP"),
        ("check", "STAMP"),
        ("kubectl-tng", "TOOL"),
        ("lock", "STAMP"),
    ],
)
def test_each_make_target_installs_the_requirements_that_it_needs(target: str, needs: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}: \$\({needs}\)", makefile, re.MULTILINE)
    files = {"LOCAL": "local/requirements.txt", "STAMP": "requirements-dev.txt"}
    files["TOOL"] = "replay/requirements.txt"
    recipe = f"$({needs}): {files[needs]}\n\t@$(PYTHON) infra/set_up.py $(VENV) {files[needs]}\n"
    assert recipe in makefile
