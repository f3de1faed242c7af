"""Find leaked slices as report_leaks does, and the commands that delete them.

The commands name what Compute Engine lists to the user: whoever writes log lines cannot choose them.
"""

import re
from collections.abc import Iterator

from functions.report_leaks.leaks import (
    MIG_SERVICE,
    POLICY_SERVICE,
    TEMPLATE_SERVICE,
    Leak,
    render_message,
)
from functions.report_leaks.observe import ObservedLeaks, observe
from replay.dependencies import Dependencies
from replay.explain import work_fields
from replay.output import INDENT, Format, print_json, print_paragraph
from shared.base.names import is_dns_subdomain
from shared.frame.plan import Work
from shared.triggers.trigger import TimeTrigger

_PLAIN = re.compile(r"[a-z0-9][-a-z0-9.:]*")
"""The names of projects, zones, regions and resources: no shell reads more into them."""


def observe_leaks(deps: Dependencies) -> ObservedLeaks:
    """The leaked slices now, with the user's permissions. Raises `CallError`."""
    now = deps.now()
    return observe(Work(**work_fields(deps, TimeTrigger(now), now)), with_use=False)


def describe_leaks(observed: ObservedLeaks) -> list[tuple[str, list[str]]]:
    """Leaked slices and Nodes in words, each with the commands that delete it."""
    described = [
        (f"{render_message(leak)} To delete them, run in this order:", list(render_commands(leak)))
        for leak in observed.leaks
    ]
    if observed.nodes:
        deletions = [f"kubectl delete node {n}" for n in filter(is_dns_subdomain, observed.nodes)]
        message = "No TPUNodeGroup has these Nodes. When their VMs are gone, delete them:"
        described.append((message, deletions))
    return described


def print_leaks(observed: ObservedLeaks, form: Format) -> None:
    """Leaked slices and Nodes, and the commands that delete them, each on a line."""
    described = describe_leaks(observed)
    if form is Format.JSON:
        print_json([{"message": message, "commands": commands} for message, commands in described])
        return
    for message, commands in described:
        print_paragraph(message)
        print("\n".join(f"{INDENT}{command}" for command in commands))


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
