"""A simulated Compute Engine on a virtual clock, called through the real client library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from local.base.clock import VirtualClock
from local.base.http import Request
from local.base.machine import Machine
from local.gce import Principal, Simulator, Timings
from local.gce.inprocess import mount

PROJECT, NUMBER = "my-project", "123456789012"
ZONE, REGION = "us-central1-c", "us-central1"
AGENT = f"{NUMBER}@cloudservices.gserviceaccount.com"
ZONE_PATH = f"projects/{PROJECT}/zones/{ZONE}"
GROUP = f"{ZONE_PATH}/instanceGroupManagers/slice"
POLICY = f"projects/{PROJECT}/regions/{REGION}/resourcePolicies/slice"
TEMPLATE = f"projects/{PROJECT}/global/instanceTemplates/slice"
IMAGE = "projects/images/global/images/family/tpu"

Document = dict[str, Any]


class RecordingAgent:
    """A VM agent that only records its calls."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.events: list[str] = []

    def power_on(self) -> None:
        self.events.append("on")

    def power_off(self) -> None:
        self.events.append("off")

    def metadata_changed(self) -> None:
        self.events.append(f"metadata {','.join(sorted(self.machine.attributes()))}")


def policy_body(topology: str = "2x4", **fields: Any) -> Document:
    """Build the body of an insert of a workload policy."""
    workload = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": topology}
    return {"name": "slice", "workloadPolicy": workload, **fields}


def template_body(
    machine_type: str = "ct6e-standard-4t",
    scheduling: Mapping[str, Any] | None = None,
    **properties: Any,
) -> Document:
    """Build the body of an insert of a template."""
    disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
    return {
        "name": "slice",
        "properties": {
            "machineType": machine_type,
            "disks": [disk],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "scheduling": {"onHostMaintenance": "TERMINATE", **(scheduling or {})},
            **properties,
        },
    }


def group_body(
    size: int = 2, *, bulk: bool = True, repair: bool = False, **fields: Any
) -> Document:
    """Build the body of an insert of a MIG: BULK with a policy, or INDIVIDUAL without."""
    body = {
        "name": "slice",
        "baseInstanceName": "slice",
        "instanceTemplate": TEMPLATE,
        "targetSize": size,
        "targetSizePolicy": {"mode": "BULK" if bulk else "INDIVIDUAL"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "REPAIR" if repair else "DO_NOTHING"},
        **fields,
    }
    return {"resourcePolicies": {"workloadPolicy": POLICY}, **body} if bulk else body


SPOT = {"provisioningModel": "SPOT", "automaticRestart": False}
FLEX = {
    "provisioningModel": "FLEX_START",
    "maxRunDuration": {"seconds": "3600"},
    "instanceTerminationAction": "DELETE",
}


class Cloud:
    """A simulator with its clock, log and VM agents, and methods to call it."""

    def __init__(
        self, timings: Timings | None = None, principals: Mapping[str, Principal] | None = None
    ) -> None:
        self.clock = VirtualClock()
        self.log: list[Document] = []
        self.agents: list[RecordingAgent] = []
        self.simulator = Simulator(
            self.clock,
            projects={PROJECT: NUMBER},
            random=Random(7),
            agents=self._agent,
            on_log_entry=self.log.append,
            timings=timings or Timings(),
            principals=principals or {},
        )
        self.faults = self.simulator.faults

    def _agent(self, machine: Machine) -> RecordingAgent:
        self.agents.append(RecordingAgent(machine))
        return self.agents[-1]

    def client(self, name: str) -> Any:
        """Return a real client, such as ``InstancesClient``, whose requests the simulator answers."""
        client = getattr(compute_v1, name)(
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": "http://simulator.test"},
        )
        mount(client.transport._session, self.simulator)
        return client

    def send(
        self, method: str, path: str, body: Any = None, token: str = ""
    ) -> tuple[int, Document]:
        """Send a request without a client library; return status and answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        request = Request.of(method, f"/compute/v1/{path}", headers=headers, body=raw)
        response = self.simulator.handle(request)
        return response.status, response.json()

    def get(self, path: str) -> Document:
        """Return a resource that must exist."""
        status, document = self.send("GET", path)
        assert status == 200, document
        return document

    def change(self, method: str, path: str, body: Any = None) -> Document:
        """Send a change that must be accepted; return its running operation."""
        status, document = self.send(method, path, body)
        assert status == 200, document
        return document

    def settle(self, method: str, path: str, body: Any = None) -> Document:
        """Send a change that must be accepted; wait for its operation, and return it."""
        operation = self.change(method, path, body)
        assert self.clock.run_until(lambda: self.operation(operation)["status"] == "DONE", 3600)
        return self.operation(operation)

    def operation(self, operation: Document) -> Document:
        """Return the current state of an operation."""
        return self.get(operation["selfLink"].partition("/v1/")[2])

    def make_parts(self, topology: str = "2x4", **template: Any) -> None:
        """Create a policy and a template, and wait until lists contain them."""
        self.settle("POST", POLICY.rpartition("/")[0], policy_body(topology))
        self.settle("POST", TEMPLATE.rpartition("/")[0], template_body(**template))
        self.clock.run_for(5)

    def make_group(self, **fields: Any) -> Document:
        """Create a MIG from policy and template, and wait until it exists."""
        self.settle("POST", GROUP.rpartition("/")[0], group_body(**fields))
        return self.get(GROUP)

    def run_until_running(self, count: int) -> list[Document]:
        """Wait until that many VMs of the MIG are RUNNING, and return them."""
        assert self.clock.run_until(lambda: len(self.vms("RUNNING")) == count, 3600)
        return self.vms("RUNNING")

    def managed(self) -> list[Document]:
        """Return the managed instances of the MIG."""
        _, answer = self.send("POST", f"{GROUP}/listManagedInstances")
        return list(answer.get("managedInstances", ()))

    def vms(self, status: str) -> list[Document]:
        """Return the managed instances of the MIG with a status."""
        return [vm for vm in self.managed() if vm.get("instanceStatus") == status]

    def group_status(self) -> Document:
        """Return the ``status`` of the MIG."""
        status: Document = self.get(GROUP)["status"]
        return status

    def methods(self) -> list[str]:
        """Describe the audit log: the method of each entry, and whether it is first, last or both."""
        return [describe(entry) for entry in self.log]


def describe(entry: Document) -> str:
    """Describe an entry in short: ``v1.compute.instances.insert first``."""
    operation = entry.get("operation", {})
    position = [word for word in ("first", "last") if operation.get(word)]
    return " ".join([entry["protoPayload"]["methodName"], *position])
