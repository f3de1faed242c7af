"""The tool as one file, ``kubectl-tng``: ``python -m tools.bundle FILE`` (``make kubectl-tng``).

A zip application with a shebang: our packages, and what the tool imports of the pinned distributions as
they are installed in this environment, so that nothing is downloaded. It is unpacked once
(`tools.bundle_main`), because Python loads compiled libraries only from a folder: the file is for this
version of Python and this kind of machine.
"""

import hashlib
import importlib._bootstrap_external as bytecode
import importlib.util
import io
import lzma
import os
import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePath

from version import VERSION

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "replay" / "requirements.txt"
PACKAGES = ("replay", "functions", "shared")
FILTERS = "infra/terraform/filters"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[.*?\])?==(\S+)", re.MULTILINE)
# In this order: of kubernetes.aio; typer's colours; google-cloud-logging's handlers, and optional
# parts of Google's libraries; cffi's compiler, time zones, and `kubectl exec`.
_UNUSED = re.compile(
    "aiohttp|aiohappyeyeballs|aiohttp-retry|aiosignal|attrs|frozenlist|multidict|propcache|yarl"
    "|rich|pygments|markdown-it-py|mdurl"
    "|google-cloud-appengine-logging|google-cloud-core|opentelemetry-.*|pyasn1|pyasn1-modules"
    "|pycparser|tzdata|websocket-client"
)
"""Distributions of which the tool imports nothing."""
_SERVICES = (
    "instances|instance_templates|region_instance_templates|instance_group_managers|resource_policies"
    "|global_operations|region_operations|zone_operations|regions"
)
"""Compute Engine's services that the steps call (`shared.ports.gce.calls`)."""
_LEFT_OUT = re.compile(
    r"^\.\./|\.(pyc|pyi|pyx|pxd|h|typed)$|(^|/)tests?/|\.dist-info/(RECORD|WHEEL|INSTALLER)$"
    r"|^kubernetes/(aio|docs|dynamic|informer|leaderelection|stream|watch)/"
    r"|^kubernetes/client/(api|models)/(?!__init__)"
    rf"|^google/cloud/compute_v1/services/(?!({_SERVICES}|__init__\.py)\b)"
    r"|^google/cloud/container_v1beta1/|^google/cloud/logging(_v2/handlers)?/"
    r"|^pydantic/(v1|deprecated/(?!__init__))|^cffi/|_testcapi\."
)
"""Files that the tool does not import."""


class WrongVersionError(Exception):
    """What is installed is not what is pinned."""


def build(target: Path, requirements: str) -> None:
    """Write the file. Raises `WrongVersionError`."""
    files = dict(_list_own())
    for name, version in _PIN.findall(requirements):
        files |= dict(_list_distribution(name, version))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, source in sorted(
            files.items(), key=lambda file: (PurePath(file[0]).suffix, file)
        ):
            for name, data in _compile(path, source):
                archive.writestr(zipfile.ZipInfo(name), data)  # the same time in each build
    packed = _compress(content.getvalue())
    folder = f"{VERSION}-{hashlib.sha256(packed).hexdigest()[:16]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.write(f"#!/usr/bin/env python{sys.version_info[0]}.{sys.version_info[1]}\n".encode())
        with zipfile.ZipFile(file, "w") as archive:
            main = (ROOT / "tools" / "bundle_main.py").read_bytes()
            for name, data in (
                ("__main__.py", main),
                ("folder", folder.encode()),
                ("content.xz", packed),
            ):
                archive.writestr(zipfile.ZipInfo(name), data)
    target.chmod(0o755)


def _list_own() -> Iterator[tuple[str, Path]]:
    paths = [path for package in (*PACKAGES, FILTERS) for path in (ROOT / package).rglob("*.*")]
    for path in (*paths, ROOT / "version.py"):
        if path.is_file() and path.suffix != ".pyc":
            yield str(path.relative_to(ROOT)), path


def _list_distribution(name: str, version: str) -> Iterator[tuple[str, Path]]:
    try:
        found = distribution(name)
        installed = f"{found.version} is installed"
    except PackageNotFoundError:
        found, installed = None, "it is not installed"
    if found is None or found.version != version:
        raise WrongVersionError(
            f"{REQUIREMENTS.relative_to(ROOT)} pins {name} {version}, and {installed}; "
            "`make kubectl-tng` installs what is pinned"
        )
    for file in found.files or ():
        if not _UNUSED.fullmatch(name) and not _LEFT_OUT.search(str(file)):
            yield str(file), Path(str(file.locate()))


def _compile(path: str, source: Path) -> Iterator[tuple[str, bytes]]:
    """The file as it is packed: a module of ours with its source, for tracebacks, others without."""
    repository = os.environ.get("GITHUB_REPOSITORY", "OWNER/tpu-functions").encode()
    data = source.read_bytes().replace(b"OWNER/tpu-functions", repository)
    is_own = path.startswith((*PACKAGES, "version.py"))
    if is_own or not path.endswith(".py"):
        yield path, data
    if path.endswith(".py"):
        code = compile(data, path, "exec", dont_inherit=True, optimize=-1 if is_own else 2)
        name = importlib.util.cache_from_source(path) if is_own else f"{path}c"
        # Unchecked, because a module's time is that of the unpacking.
        yield name, bytecode._code_to_hash_pyc(code, bytes(8), False)  # type: ignore[attr-defined]


def _compress(content: bytes) -> bytes:
    filters: list[dict[str, int]] = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 25}]
    if platform.machine() in ("x86_64", "AMD64"):
        filters.insert(0, {"id": lzma.FILTER_X86})
    return lzma.compress(content, filters=filters)


if __name__ == "__main__":
    build(Path(sys.argv[1]), REQUIREMENTS.read_text())
