"""Find leaked slices as report_leaks does, and the commands that delete them.

The commands name what Compute Engine and the API server list to the user: whoever writes log lines
cannot choose them.
"""

import re
from collections.abc import Iterator

from functions.report_leaks.leaks import (
    MIG_SERVICE,
    POLICY_SERVICE,
    TEMPLATE_SERVICE,
    Leak,
    render_message,
    render_pool_message,
)
from functions.report_leaks.observe import ObservedLeaks, observe
from replay.dependencies import Dependencies
from replay.explain import work_fields
from replay.output import INDENT, Format, print_json, print_paragraph
from shared.base.names import is_dns_subdomain
from shared.frame.plan import Work
from shared.ports.gke_settings import GkeSettings
from shared.triggers.trigger import TimeTrigger

_PLAIN = re.compile(r"[a-z0-9][-a-z0-9.:]*")
"""The names of projects, zones, regions and resources: no shell reads more into them."""


def observe_leaks(deps: Dependencies) -> ObservedLeaks:
    """The leaked slices now, with the user's permissions. Raises `CallError`."""
    now = deps.now()
    return observe(Work(**work_fields(deps, TimeTrigger(now), now)), with_use=False)


def describe_leaks(observed: ObservedLeaks, gke: GkeSettings | None) -> list[tuple[str, list[str]]]:
    """Leaked slices, node pools and Nodes in words, each with the commands that delete it."""
    described = [
        (f"{render_message(leak)} To delete them, run in this order:", list(render_commands(leak)))
        for leak in observed.leaks
    ]
    for pool in observed.pools:
        deletion = _render_pool_commands(pool, gke)
        end = f"When that has ended, {'run:' if deletion else 'delete it.'}"
        described.append((f"{render_pool_message(pool)} {end}", deletion))
    if observed.nodes:
        deletions = [f"kubectl delete node {n}" for n in filter(is_dns_subdomain, observed.nodes)]
        message = "No TPUNodeGroup has these Nodes. When their VMs are gone, delete them:"
        described.append((message, deletions))
    return described


def print_leaks(observed: ObservedLeaks, gke: GkeSettings | None, form: Format) -> None:
    """What is leaked, and the commands that delete it, each on a line."""
    described = describe_leaks(observed, gke)
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


def _render_pool_commands(pool: str, gke: GkeSettings | None) -> list[str]:
    """The command that deletes a node pool; none if the settings do not name its cluster."""
    if gke is None or not _PLAIN.fullmatch(pool):
        return []
    where = f"--cluster={gke.cluster} --location={gke.location} --project={gke.project}"
    return [f"gcloud container node-pools delete {pool} {where}"]
