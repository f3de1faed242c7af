"""The start of ``kubectl-tng``: it unpacks itself once, into the user's cache, and runs from there."""

import io
import lzma
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any


def find_folder(bundle: Any, cache: Path) -> Path:
    """The folder with the file's content, which is unpacked if it is not there. Raises `OSError`."""
    folder = cache / str(bundle.get_data("folder"), "ascii")
    if folder.is_dir():
        return folder
    if sys.stderr.isatty():
        print(f"Unpacking kubectl tng into {cache}, once ...", file=sys.stderr)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as scratch:
        content = Path(scratch, "content")
        with zipfile.ZipFile(io.BytesIO(lzma.decompress(bundle.get_data("content.xz")))) as archive:
            archive.extractall(content)
        try:
            content.rename(folder)
        except OSError:
            if not folder.is_dir():  # as by another process that was faster
                raise
    return folder


if __name__ == "__main__":
    default = os.path.join(os.path.expanduser("~"), ".cache")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or default, "kubectl-tng")
    try:
        sys.path.insert(0, str(find_folder(globals()["__loader__"], cache)))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(
            f"Error: kubectl tng cannot unpack itself into {cache}: {error.strerror}. "
            "Set XDG_CACHE_HOME to a folder that can be written."
        )
    from replay.__main__ import run_plugin

    run_plugin()
