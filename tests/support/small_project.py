"""A project on the simulated Compute Engine, for the suite of `tools.cloud` and its flights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from local.base.clock import VirtualClock
from local.base.http import Request, Response
from local.cloud.logging import CloudLogging
from local.gce import Inventory, Principal, Simulator, Timings
from local.tests.gce.small_cloud import RecordingAgent
from replay import cloud_logging
from tests.support.loopback import Loopback
from tools.cloud.__main__ import Dependencies, main, open_clients
from tools.cloud.project import Project, Time

ROOT = Path(__file__).parents[2]
PROJECT, NUMBER = "some-project", "123456789012"
PERSON, TOKEN = "user@example.com", "token"
FOREIGN_ACCOUNT = f"another@{PROJECT}.iam.gserviceaccount.com"
POLICIES = f"projects/{PROJECT}/regions/us-east5/resourcePolicies"
IMAGE = "projects/debian-cloud/global/images/family/debian-12"
INVENTORY = Inventory(
    {
        "us-east5-b": ["e2-micro", "ct6e-standard-4t"],
        "us-central1-c": ["tpu7x-standard-1t", "tpu7x-standard-4t"],
    },
    {
        "images": [IMAGE],
        "networks": [f"projects/{PROJECT}/global/networks/default"],
        "diskTypes": ["pd-standard", "hyperdisk-balanced"],
    },
)


def read_permissions() -> frozenset[str]:
    """Return the permissions that the page documents."""
    found = re.search(r"--permissions=(\S+)", (ROOT / "docs" / "test-cloud.md").read_text())
    assert found is not None
    return frozenset(found[1].split(","))


def build_simulator(
    clock: VirtualClock, write_log: Callable[[dict[str, Any]], None], timings: Timings
) -> Simulator:
    """Build the project; its user is the owner of `TOKEN`."""
    simulator = Simulator(
        clock,
        projects={PROJECT: NUMBER},
        random=Random(3),
        agents=RecordingAgent,
        on_log_entry=write_log,
        timings=timings,
        principals={TOKEN: Principal(PERSON, read_permissions())},
    )
    simulator.restrict(INVENTORY)
    return simulator


class Cloud:
    """A simulated Compute Engine on a port; its virtual clock advances while the suite sleeps."""

    def __init__(self, loopback: Loopback, answers: Path, timings: Timings) -> None:
        self._loopback = loopback
        self._clock = VirtualClock()
        self.logging = CloudLogging(self._clock, PROJECT)
        self.log: list[dict[str, Any]] = []
        self.simulator = build_simulator(self._clock, self._write_log, timings)
        self.faults = self.simulator.faults
        self.faults.set_capacity("us-east5-b", "ct6e", 0)
        self.requests: list[Request] = []
        self.before_request: Callable[[Request], None] = lambda _: None
        self.on_request: Callable[[Request], None] = lambda _: None
        self.answers_path = answers
        self._url = f"http://127.0.0.1:{loopback.serve(self)}"

    def handle(self, request: Request) -> Response:
        """Answer a request."""
        self.requests.append(request)
        self.before_request(request)
        headers = {**request.headers, "authorization": f"Bearer {TOKEN}"}
        response = self.simulator.handle(replace(request, headers=headers))
        self.on_request(request)
        return response

    def ask(self, *options: str) -> int:
        """Run the suite and return its exit code."""
        arguments = ["--project", PROJECT, "--endpoint", self._url]
        arguments += ["--answers", str(self.answers_path)]
        return main([*arguments, *options], Dependencies(self._time))

    def create_foreign(self, name: str) -> str:
        """Create a policy outside the suite; return its path."""
        body = {"name": name, "workloadPolicy": {"type": "HIGH_THROUGHPUT"}}
        self._loopback.call(lambda: self.faults.act_as_user("POST", POLICIES, body))
        self._sleep(60)
        return f"{POLICIES}/{name}"

    def open_project(self, run: str) -> Project:
        """Return the project of a run with this name."""
        logs = cloud_logging.CloudLogging()
        return Project(PROJECT, "us-east5-b", run, open_clients(self._url), logs, self._time)

    @property
    def _time(self) -> Time:
        return Time(self._clock.now, self._seconds, self._sleep)

    def count_minutes(self) -> float:
        """Return the minutes since the start of the clock."""
        return (self._clock.now() - VirtualClock().now()).total_seconds() / 60

    def list_parts_with_vms(self) -> set[str]:
        """Return the last parts of the names of all VMs whose creation started."""
        payloads = [entry["protoPayload"] for entry in self.log if "operation" in entry]
        names = [payload["resourceName"] for payload in payloads]
        return {name.rsplit("/", 1)[1].split("-")[2] for name in names if "/instances/" in name}

    def read_answers(self) -> dict[str, Any]:
        """Return the answers by question."""
        document = json.loads(self.answers_path.read_text())
        return {answer["id"]: answer for answer in document["answers"]}

    def _write_log(self, entry: dict[str, Any]) -> None:
        self.log.append(entry)
        self.logging.write(entry)

    def _seconds(self) -> float:
        return self._clock.now().timestamp()

    def _sleep(self, seconds: float) -> None:
        self._loopback.call(lambda: self._clock.run_for(seconds))
