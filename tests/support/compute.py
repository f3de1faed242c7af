"""Resources and VMs of Compute Engine as the steps read them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from shared.node_groups.bootstrap import Token, join_metadata
from shared.ports.gce.values import (
    Instance,
    Mig,
    Policy,
    Template,
)
from tests.support.builders import NOW, RESOURCE, group

URI = "projects/my-gcp-project/x/" + RESOURCE


def policy(description: str | None = None) -> Policy:
    return Policy(URI, group().mark if description is None else description)


def template(**change: Any) -> Template:
    complete = Template(
        uri=URI,
        description=group().mark,
        machine_type="tpu7x-standard-4t",
        has_scheduling=True,
        maintenance="TERMINATE",
        provisioning_model="STANDARD",
        termination_action="",
        reservation_type="",
        has_boot_disk=True,
    )
    return replace(complete, **change)


def instance_group(**change: Any) -> Mig:
    complete = Mig(
        uri=URI,
        description=group().mark,
        target_size=2,
        creating=0,
        is_bulk_in_progress=False,
        recreating=0,
    )
    return replace(complete, **change)


VM = f"{RESOURCE}-ab12"
BOOTED = NOW - timedelta(minutes=1)
CREATED_BY = f"projects/1/zones/us-central1-c/instanceGroupManagers/{RESOURCE}"
OLD = Token("oldold", "o" * 16, NOW + timedelta(minutes=35))


def instance(
    name: str = VM,
    status: str = "RUNNING",
    token: Token | None = None,
    started: datetime = BOOTED,
    created: datetime = BOOTED,
) -> Instance:
    metadata = {"created-by": CREATED_BY}
    if token is not None:
        metadata |= join_metadata(token, endpoint="10.128.0.2", ca_hash="sha256:x", started=started)
    return Instance(name, "42", status, created, started, "fp", metadata, is_member=True)
