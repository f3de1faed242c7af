"""The tool in a simulation: the output of its commands, and the calls and messages that it sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from google.cloud.logging_v2 import types
from google.protobuf.json_format import MessageToDict
from typer.testing import CliRunner, Result

from local.cloud.logging import CloudLogging, LoggingError
from local.cloud.simulation import DEAD_LETTERS, PROJECT, Options, topic
from local.pubsub.model import SubscriptionConfig
from replay.app import app
from replay.cloud_logging import MAX_PAGE, Page
from replay.dependencies import Choice, Dependencies
from replay.subscriptions import MAX_PULLED, Pulled, Subscriptions
from shared.ports.errors import About, CallError
from shared.ports.gce.clients import Clients
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.settings import TPU_NODE_GROUP
from tests.faults.jobsets import SETTINGS, make_class, post, prepare
from tests.support.harness import Harness

ROOT = Path(__file__).parents[3]
ALONE = Options(sweeps=False, relays=False, sinks=False)
"""A simulation in which only the tool triggers steps."""


def example(file: str, **metadata: str) -> dict[str, Any]:
    """A manifest of ``examples/``."""
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples" / file).read_text())
    manifest["metadata"] |= metadata
    return manifest


def training(name: str = "training") -> dict[str, Any]:
    """A slice of two VMs."""
    return example("tpu7x-2x2x2.yaml", name=name)


class InProcess(Subscriptions):
    """Subscriptions of the simulation's Pub/Sub without a transport; calls raise ``error`` if set."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(PROJECT)
        self._harness = harness
        self._pubsub = harness.simulation.pubsub
        self.while_pulling: Callable[[], None] = lambda: None
        self.error: CallError | None = None
        self.leases: list[tuple[int, int]] = []
        """The number of messages and the seconds of each lease; 0 seconds return the messages."""

    def pull(self, subscription: str, limit: int = MAX_PULLED) -> list[Pulled]:
        if self.error is not None:
            raise self.error
        self.while_pulling()
        self._harness.run_for(timedelta(seconds=1))
        return [
            Pulled(
                one.ack_id,
                one.message.id,
                one.message.data,
                one.message.attributes,
                one.message.publish_time,
            )
            for one in self._pubsub.pull(self._path(subscription), limit)
        ]

    def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> None:
        self._pubsub.acknowledge(self._path(subscription), ack_ids)

    def lease(self, subscription: str, ack_ids: Sequence[str], seconds: int) -> None:
        self.leases.append((len(ack_ids), seconds))
        self._pubsub.modify_ack_deadline(self._path(subscription), ack_ids, seconds)

    @contextmanager
    def open(self, topic: str, name: str) -> Iterator[str]:
        if self.error is not None:
            raise self.error
        path = f"projects/{PROJECT}/topics/{topic}"
        self._pubsub.create_subscription(SubscriptionConfig(self._path(name), topic=path))
        try:
            yield name
        finally:
            self._pubsub.delete_subscription(self._path(name))


class InProcessLogs:
    """The embedded Cloud Logging without a transport, with the audit log and the steps' log lines."""

    def __init__(self, harness: Harness) -> None:
        self.stand_in = CloudLogging(harness.clock, PROJECT)
        self.queries: list[str] = []
        harness.hooks.on_entry = self.stand_in.write
        for level in ("info", "warning", "error"):
            setattr(harness.log, level, self._recording(getattr(harness.log, level), level))

    def _recording(self, write: Callable[..., None], level: str) -> Callable[..., None]:
        def record(message: str, **fields: Any) -> None:
            write(message, **fields)
            line = {"severity": level.upper(), "message": message, **fields}
            service = topic(str(fields["step"])).rsplit("/", 1)[-1]
            self.stand_in.write_line(service, json.loads(json.dumps(line, default=str)))

        return record

    def list_page(self, projects: Sequence[str], query: str, token: str, newest: int = 0) -> Page:
        self.queries.append(query)
        request = types.ListLogEntriesRequest(
            resource_names=[f"projects/{project}" for project in projects],
            filter=query,
            order_by="timestamp desc" if newest else "timestamp asc",
            page_size=newest or MAX_PAGE,
            page_token=token,
        )
        try:
            answer = self.stand_in.list(request)
        except LoggingError as error:
            code = {"RESOURCE_EXHAUSTED": 429}.get(error.status, 400)
            raise CallError(
                "entries.list", code, "refused", str(error), About("entries")
            ) from error
        documents = [MessageToDict(types.LogEntry.pb(one)) for one in answer.entries]
        return Page(tuple(documents), answer.next_page_token)


@dataclass
class Tool:
    """The tool with its messages (``published``) and its ``calls`` to the cluster and Compute Engine.

    ``fail_after`` is the number of messages after which Pub/Sub denies the permission to publish.
    """

    harness: Harness
    is_interactive: bool = False
    fail_after: int = 1_000_000
    clients: Clients | None = None
    found_in: str = ""
    unread: str = ""
    published: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.harness.settings["sweep"]
        kubeconfig = self.harness.kubeconfig("sweep")
        path = kubeconfig.with_name("admin")
        path.write_text(kubeconfig.read_text().replace('"sweep"', '"admin"'))
        self.harness.settings["admin"] = replace(settings, access=Kubeconfig(str(path)))
        self.harness.hooks.before = self._note
        self.subscriptions = InProcess(self.harness)
        self.logs = InProcessLogs(self.harness)
        self.harness.simulation.pubsub.create_subscription(
            SubscriptionConfig(
                f"projects/{PROJECT}/subscriptions/{DEAD_LETTERS}",
                topic=f"projects/{PROJECT}/topics/{DEAD_LETTERS}",
                ack_deadline_s=60,
            )
        )

    def run(self, *arguments: str, typed: str | bytes | None = None) -> Result:
        """Run a command with this text as stdin."""
        return CliRunner().invoke(app, list(arguments), input=typed, obj=self.dependencies)

    def json(self, *arguments: str, typed: str | None = None) -> Any:
        """Return the output of a command with ``--output json``."""
        return json.loads(self.run(*arguments, "--output", "json", typed=typed).stdout)

    def dependencies(self, choice: Choice = Choice()) -> Dependencies:  # noqa: B008 - frozen
        runtime = self.harness.runtime("admin")
        return Dependencies(
            settings=runtime.settings,
            connection=runtime.connection,
            clients=self.clients or runtime.clients,
            publish=self._publish,
            now=runtime.now,
            monotonic=runtime.monotonic,
            random_bytes=runtime.random_bytes,
            subscriptions=self.subscriptions,
            logs=self.logs,
            sleep=self._sleep,
            is_interactive=self.is_interactive,
            gke=runtime.gke,
            namespace=choice.namespace or "default",
            found_in=self.found_in,
            unread=self.unread,
        )

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.harness.run_for(timedelta(seconds=seconds))

    @property
    def topics(self) -> list[str]:
        """The steps to whose topics the tool published, in order."""
        return [step for step, _, _ in self.published]

    def _note(self, step: str, call: str) -> None:
        if step == "admin":
            self.calls.append(call)

    def _publish(self, step: str, data: bytes, attributes: Mapping[str, str]) -> str:
        if len(self.published) >= self.fail_after:
            name = topic(step).rsplit("/", 1)[-1]
            raise CallError(
                f"publish to {name}", 403, "refused", "User not authorized", About("topics")
            )
        self.published.append((step, json.loads(data), dict(attributes)))
        return self.harness.simulation.pubsub.publish(topic(step), data, attributes)


def make_tool_with_class() -> Tool:
    """A class, and a Pod that waits for a slice of it since ten seconds."""
    tool = Tool(Harness(ALONE, slices=SETTINGS[TPU_NODE_GROUP]))
    prepare(tool.harness)
    make_class(tool.harness)
    post(tool.harness)
    tool.harness.run_for(timedelta(seconds=10))
    return tool


def make_dead_letter(tool: Tool, step: str, data: bytes, **attributes: str) -> None:
    """Publish a dead letter of a step with this data."""
    source = topic(step).rsplit("/", 1)[-1]
    dead = {
        "CloudPubSubDeadLetterSourceDeliveryCount": "10",
        "CloudPubSubDeadLetterSourceSubscription": source,
        "CloudPubSubDeadLetterSourceTopicPublishTime": "2026-01-01T00:00:00Z",
    }
    simulation = tool.harness.simulation
    simulation.pubsub.publish(topic("dead-letters"), data, {**dead, **attributes})
    tool.harness.run_for(timedelta(seconds=1))
