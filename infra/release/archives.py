"""Reproducible archives and checksums: they do not depend on times, owners, umasks or file order."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that the zip format supports."""


def list_function_files(names: Iterable[str]) -> list[str]:
    """Return the files of the functions' archive, as the Terraform module selects them."""
    return sorted(
        name
        for name in names
        if name in {"main.py", "requirements.txt"}
        or (name.startswith(("functions/", "shared/")) and name.endswith((".py", ".sh")))
    )


def write_zip(target: Path, root: Path, names: Iterable[str]) -> None:
    """Write files of ``root`` into a zip file."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(names):
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, on any system
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, (root / name).read_bytes())


def write_tar(target: Path, files: Mapping[str, Path], replaced: Mapping[str, str]) -> None:
    """Write files, by their names in the archive, into a compressed tar file.

    ``replaced``: other contents, by the same names.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            content = replaced[name].encode() if name in replaced else path.read_bytes()
            entry.size = len(content)
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(content))
    with target.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
        compressed.write(packed.getvalue())


def render_checksums(folder: Path) -> str:
    """Return the SHA-256 of each file of a folder, in the format of ``sha256sum --check``."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
    )
