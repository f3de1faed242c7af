"""``kubectl-tng`` for krew: an archive for each platform, and the plugin's manifest."""

import hashlib
import re
from pathlib import Path

from infra.release.archives import write_tar

MANIFEST = "tng.yaml"
"""krew requires the plugin's name as the name of the file."""
_FILE = re.compile(r"kubectl-tng-.*-(linux|darwin)-(\w+)-python3\.\d+")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
"""krew's names of machines, by Python's."""
_PLUGIN = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata: {{name: tng}}
spec:
  version: v{version}
  homepage: {address}
  shortDescription: Explain why a TPU slice is not Ready
  description: Finds the cause in the group, the steps' log and the VMs, and triggers steps again.
  caveats: Python 3.11, 3.12 or 3.13 must be on PATH. For logs and VMs it needs Google credentials.
  platforms:
"""
_PLATFORM = """\
    - selector: {{matchLabels: {{os: {system}, arch: {machine}}}}}
      uri: {address}/releases/download/v{version}/{name}
      sha256: {digest}
      bin: kubectl-tng
"""


def write_plugin(folder: Path, version: str, repository: str, root: Path) -> None:
    """Pack the files ``kubectl-tng-...`` of a folder for each platform, and write the manifest."""
    platforms: dict[tuple[str, str], dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        if found := _FILE.fullmatch(path.name):
            platforms.setdefault((found[1], _MACHINES[found[2]]), {})[path.name] = path
    address = f"https://github.com/{repository}"
    text = _PLUGIN.format(version=version, address=address)
    launcher = {"kubectl-tng": root / "infra/release/kubectl-tng.sh", "LICENSE": root / "LICENSE"}
    for (system, machine), files in platforms.items():
        name = f"kubectl-tng-{version}-{system}-{machine}.tar.gz"
        write_tar(folder / name, launcher | files, {})
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        text += _PLATFORM.format(
            system=system,
            machine=machine,
            address=address,
            version=version,
            name=name,
            digest=digest,
        )
    (folder / MANIFEST).write_text(text)
