"""Find leaked slices as report_leaks does, and the commands that delete them.

The commands name what Compute Engine lists to the user: whoever writes log lines cannot choose them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from functions.report_leaks.leaks import (
    MIG_SERVICE,
    POLICY_SERVICE,
    TEMPLATE_SERVICE,
    Leak,
    render_message,
)
from functions.report_leaks.observe import LeakWork, ObservedLeaks, observe
from replay.dependencies import Dependencies
from replay.explain import publish_nothing
from shared.triggers.trigger import TimeTrigger

_PLAIN = re.compile(r"[a-z0-9][-a-z0-9.:]*")
"""The names of projects, zones, regions and resources: no shell reads more into them."""


def observe_leaks(deps: Dependencies) -> ObservedLeaks:
    """The leaked slices now, with the user's permissions. Raises `CallError`."""
    work = LeakWork(
        settings=deps.settings,
        gce=deps.open_gce(),
        cluster=deps.open_cluster(),
        publish=publish_nothing,
        random_bytes=deps.random_bytes,
        remaining_s=deps.count_down(),
        now=deps.now(),
        trigger=TimeTrigger(deps.now()),
        log=None,
    )
    return observe(work)


def render_commands(leak: Leak) -> Iterator[str]:
    """The commands that delete the remaining resources, in this order."""
    for one in leak.resources:
        noun, where = {
            MIG_SERVICE: ("instance-groups managed", f" --zone={one.location}"),
            TEMPLATE_SERVICE: ("instance-templates", ""),
            POLICY_SERVICE: ("resource-policies", f" --region={one.location}"),
        }[one.service]
        if all(map(_PLAIN.fullmatch, (one.name, one.project, one.location or "global"))):
            yield f"gcloud compute {noun} delete {one.name}{where} --project={one.project}"


def to_document(leak: Leak) -> dict[str, Any]:
    """A leaked slice as JSON."""
    return {
        "group": leak.group,
        "uid": leak.uid,
        "project": leak.project,
        "slice": leak.name,
        "vms": list(leak.vms),
        "message": render_message(leak),
        "commands": list(render_commands(leak)),
    }
