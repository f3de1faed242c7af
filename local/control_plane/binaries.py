"""The programs of a real control plane: found, or built once from pinned Go modules.

They are taken from ``KUBEBUILDER_ASSETS`` or ``PATH``, if all five exist there. Otherwise they are built
from ``kubernetes/go.mod`` and ``etcd/go.mod`` beside this file (two modules, because etcd and Kubernetes
need different versions of common dependencies) and cached in a folder whose name has a hash of both.
`local.control_plane.workload_controllers` are built from the first one, too: most of their packages are
Kubernetes'. `local.control_plane.helm` has a module of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
HERE = Path(__file__).parent
GO_SETTINGS = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "auto"}
"""Environment variables of all calls of go."""

_ETCD = "go.etcd.io/etcd/server/v3"
_DOWNLOAD_WITHIN_S = 120.0
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
_PRINT_EVERY_S = 30.0

Print = Callable[[str], None]


class Unavailable(Exception):
    """No real control plane is available; the message says what to do."""


@dataclass(frozen=True)
class Binaries:
    """The folder of the programs, and a description of their source."""

    directory: Path
    origin: str

    def path(self, name: str) -> str:
        """The path of one of `NAMES`."""
        return str(self.directory / name)


def obtain(environment: Mapping[str, str], print_text: Print) -> Binaries:
    """Find the programs or build them; a build takes up to 15 minutes.

    Raises `Unavailable` if they are not found and cannot be built.
    """
    found = find(environment)
    return found if found is not None else _build(environment, print_text)


def find(environment: Mapping[str, str]) -> Binaries | None:
    """Find the programs without a build."""
    assets = environment.get("KUBEBUILDER_ASSETS")
    if assets and _is_whole(Path(assets)):
        return Binaries(Path(assets), f"KUBEBUILDER_ASSETS={assets}")
    beside = shutil.which("kube-apiserver", path=environment.get("PATH", os.defpath))
    if beside and _is_whole(Path(beside).parent):
        return Binaries(Path(beside).parent, f"PATH ({Path(beside).parent})")
    built = cache(environment)
    return Binaries(built, f"built earlier ({built})") if _is_whole(built) else None


def can_build() -> bool:
    """Whether Go is installed."""
    return shutil.which("go") is not None


def cache(environment: Mapping[str, str]) -> Path:
    """The cache folder of the builds of these modules."""
    return folder_in_cache(
        environment, f"control-plane-{_kubernetes_version()}", "etcd", "kubernetes"
    )


def folder_in_cache(environment: Mapping[str, str], name: str, *parts: str) -> Path:
    """Return the cache folder for the pinned modules in folders beside this file."""
    base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    modules = [HERE / part / file for part in parts for file in ("go.mod", "go.sum")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in modules)).hexdigest()[:12]
    return base / "tpu-functions" / f"{name}-{digest}"


def get_version(part: str, module: str) -> str:
    """Return the version of a module, as in ``v1.36.3``, that a ``go.mod`` beside this file pins."""
    match = re.search(
        rf"^(?:require )?\s*{re.escape(module)} (v[\d.]+)(?: // indirect)?$",
        (HERE / part / "go.mod").read_text(),
        re.MULTILINE,
    )
    assert match is not None, f"{part}/go.mod names {module} and its version"
    return match[1]


def _kubernetes_version() -> str:
    return get_version("kubernetes", "k8s.io/kubernetes")


def _is_whole(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in NAMES)


def _build(environment: Mapping[str, str], print_text: Print) -> Binaries:
    if not can_build():
        raise Unavailable(
            "there is no real control plane here: set KUBEBUILDER_ASSETS to a folder with "
            f"{', '.join(NAMES)}, or install Go; for tests, TEST_KUBECONFIG may name a cluster"
        )
    target = cache(environment)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as folder:
        go_build("etcd", {"etcd": _ETCD}, f"{folder}/etcd", print_text)
        packages = {name: f"k8s.io/kubernetes/cmd/{name}" for name in NAMES if name != "etcd"}
        go_build("kubernetes", packages, f"{folder}/", print_text, _version_flags())
        target.mkdir(exist_ok=True)
        for name in NAMES:
            (Path(folder) / name).replace(target / name)
    return Binaries(target, f"built now ({target})")


def _version_flags() -> list[str]:
    version = _kubernetes_version()
    _, minor, _ = version.split(".")
    values = {
        "gitVersion": version,
        "gitMajor": "1",
        "gitMinor": minor,
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    return [
        f"-X {package}.{name}={value}"
        for package in _VERSION_PACKAGES
        for name, value in values.items()
    ]


def go_build(
    module: str | Path,
    packages: Mapping[str, str],
    output: str,
    print_text: Print,
    linker_flags: Sequence[str] = (),
) -> None:
    """Build programs of the module in a folder, or beside this file; ``packages`` by their names.

    Raises `Unavailable`.
    """
    names = ", ".join(packages)
    command = ["go", "build", "-mod=readonly", "-trimpath", "-o", output]
    command += ["-ldflags", " ".join(["-s", "-w", *linker_flags]), *packages.values()]
    with _progress(f"building {names}", print_text):
        done = subprocess.run(
            command,
            cwd=HERE / module,
            env={**os.environ, **GO_SETTINGS},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-20:])
        raise Unavailable(f"go could not build {names} in {HERE / module}:\n{last}")


def download(module: str, part: str = "kubernetes") -> Path:
    """Return the folder with the files of a module that a ``go.mod`` beside this file pins.

    Raises `Unavailable`.
    """
    if not can_build():
        raise Unavailable(f"{module} is not cached; install Go to download it")
    try:
        done = subprocess.run(
            ["go", "mod", "download", "-json", module],
            cwd=HERE / part,
            env={**os.environ, **GO_SETTINGS},
            capture_output=True,
            text=True,
            check=False,
            timeout=_DOWNLOAD_WITHIN_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"go could not download {module} in {_DOWNLOAD_WITHIN_S:.0f} s"
        ) from error
    if done.returncode:
        raise Unavailable(f"go could not download {module}:\n{done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


@contextmanager
def _progress(what: str, print_text: Print) -> Iterator[None]:
    """Print the start, a line every half minute, and the duration of a build."""
    began = time.monotonic()
    ended = threading.Event()

    def print_elapsed() -> None:
        while not ended.wait(_PRINT_EVERY_S):
            print_text(f"  {what}: {time.monotonic() - began:.0f} s so far")

    print_text(f"{what} (once; a quarter of an hour on two cores when nothing is cached) ...")
    printer = threading.Thread(target=print_elapsed, daemon=True)
    printer.start()
    try:
        yield
    finally:
        ended.set()
        printer.join()
    print_text(f"  {what}: done in {time.monotonic() - began:.0f} s")
