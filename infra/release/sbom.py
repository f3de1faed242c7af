"""Software bills of materials (CycloneDX): the Python packages that a part of the release contains."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[.*?\])?==([^\s;]+)(\s*;)?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """A package of a requirements file."""

    name: str
    version: str
    is_conditional: bool
    """Whether only some Pythons or systems install it."""
    hashes: tuple[str, ...]


def parse_pins(requirements: str) -> Iterator[Pin]:
    """Yield the packages of a requirements file that pip-compile has written."""
    for line in requirements.replace("\\\n", " ").splitlines():
        found = _PIN.match(line)
        if found:
            yield Pin(found[1], found[2], found[3] is not None, tuple(_HASH.findall(line)))


def render_sbom(part: str, version: str, requirements: str, at: datetime) -> str:
    """Return the SBOM of a part. It is the same text for the same requirements and time."""
    root = Component(
        name=f"tpu-functions-{part}",
        type=ComponentType.APPLICATION,
        version=version,
        bom_ref=f"tpu-functions-{part}",
    )
    bom = Bom(
        components=[_describe(pin) for pin in parse_pins(requirements)],
        serial_number=uuid5(NAMESPACE_URL, f"{part} {version}\n{requirements}"),
    )
    bom.metadata.component = root
    bom.metadata.timestamp = at.astimezone(UTC)
    bom.register_dependency(root, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _describe(pin: Pin) -> Component:
    purl = PackageURL("pypi", name=pin.name, version=pin.version)
    return Component(
        name=pin.name,
        version=pin.version,
        purl=purl,
        bom_ref=purl.to_string(),
        scope=ComponentScope.OPTIONAL if pin.is_conditional else ComponentScope.REQUIRED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in pin.hashes],
    )
