"""A person at the tool, in a world: what the commands print, and what arrives elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from local.world import Dials, topic
from replay.app import app
from replay.ways import Ways
from shared.base.errors import CallError
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access_settings import Kubeconfig
from tests.harness import Harness

ROOT = Path(__file__).parents[3]
ALONE = Dials(sweeps=False, relays=False, sinks=False)
"""A world in which nobody wakes a step but the person."""


def example(file: str, **metadata: str) -> dict[str, Any]:
    """A manifest of ``examples/``."""
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples" / file).read_text())
    manifest["metadata"] |= metadata
    return manifest


def training(name: str = "training") -> dict[str, Any]:
    """A slice of two VMs."""
    return example("tpu7x-2x2x2.yaml", name=name)


@dataclass
class Desk:
    """``published`` is what reached Pub/Sub by the tool, ``asked`` its calls to cluster and GCE.

    ``refuse_after`` is how many messages Pub/Sub takes before it refuses the right to publish.
    """

    harness: Harness
    is_interactive: bool = False
    refuse_after: int = 1_000_000
    clients: Clients | None = None
    published: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.harness.settings["sweep"]
        theirs = self.harness.kubeconfig("sweep")
        path = theirs.with_name("admin")
        path.write_text(theirs.read_text().replace('"sweep"', '"admin"'))
        self.harness.settings["admin"] = replace(settings, access=Kubeconfig(str(path)))
        self.harness.hooks.before = self._note

    def run(self, *arguments: str, typed: str | bytes | None = None) -> Result:
        """Run a command; what is typed comes from stdin."""
        return CliRunner().invoke(app, list(arguments), input=typed, obj=self.ways)

    def json(self, *arguments: str, typed: str | None = None) -> Any:
        """What a command prints with ``--output json``."""
        return json.loads(self.run(*arguments, "--output", "json", typed=typed).stdout)

    def ways(self) -> Ways:
        runtime = self.harness.runtime("admin")
        return Ways(
            settings=runtime.settings,
            connection=runtime.connection,
            clients=self.clients or runtime.clients,
            publish=self._publish,
            now=runtime.now,
            monotonic=runtime.monotonic,
            random_bytes=runtime.random_bytes,
            is_interactive=self.is_interactive,
            gke=runtime.gke,
        )

    @property
    def inboxes(self) -> list[str]:
        """The inboxes that got something from the tool, in order."""
        return [step for step, _, _ in self.published]

    def _note(self, step: str, call: str) -> None:
        if step == "admin":
            self.asked.append(call)

    def _publish(self, step: str, data: bytes, attributes: Mapping[str, str]) -> str:
        if len(self.published) >= self.refuse_after:
            inbox = topic(step).rsplit("/", 1)[-1]
            raise CallError(f"publish to {inbox}", 403, "refused", "User not authorized")
        self.published.append((step, json.loads(data), dict(attributes)))
        return self.harness.world.pubsub.publish(topic(step), data, attributes)
