"""What a VM that has not joined reports on its serial port."""

from datetime import datetime, timedelta
from typing import Any

from google.auth.exceptions import GoogleAuthError

from functions.label_node.observed_nodes import ObservedNodes
from replay.dependencies import Dependencies
from replay.errors import in_plain_words
from replay.text import link, render_age
from shared.base.names import VMS
from shared.ports.errors import About, CallError, OutOfTimeError
from shared.ports.gce.values import Instance
from shared.ports.google_credentials import Headers

BOOTS_WITHIN = timedelta(minutes=2)
"""A VM that was started later is not asked: it boots, or is about to join."""
_MARK = "tpu-functions: "
"""How the lines of the startup script begin; before it, the guest agent may add its own words."""
_LONGEST_LINE = 300
_LAST_BYTES = 2**18
"""So much is read: the whole port may have 1 MB."""


def find_report(deps: Dependencies, observed: Any, now: datetime) -> str:
    """The last line of the startup script of the VM that runs longest without a Node, and what it means;
    empty if no such VM was ``observed`` by label_node. One call to Compute Engine."""
    vm = _find_waiting_vm(observed, now) if isinstance(observed, ObservedNodes) else None
    if vm is None or vm.started is None:
        return ""
    spec = observed.group.spec
    place = {"project": spec.project, "zone": spec.zone, "instance": vm.name}
    request = {**place, "start": -_LAST_BYTES}

    def send(headers: Headers, timeout_s: float) -> str:
        client = deps.clients.get("instances")
        answer = client.get_serial_port_output(
            request=request, timeout=timeout_s, retry=None, metadata=headers
        )
        return str(answer.contents)

    about = About(VMS, vm.name)
    try:
        contents = deps.clients.send(
            "instances.get_serial_port_output", about, send, deps.count_down()
        )
    except (CallError, OutOfTimeError, GoogleAuthError) as error:
        return f"The serial port of {vm.name} cannot be read: {in_plain_words(error)}"
    age = render_age(now - vm.started)
    return f"{vm.name}, which was started {age} ago, {_describe(contents, observed)}"


def _find_waiting_vm(observed: ObservedNodes, now: datetime) -> Instance | None:
    waiting = [
        (vm.started, name, vm)
        for name, vm in observed.members.items()
        if vm.status == "RUNNING" and vm.started and name not in observed.joined
    ]
    started, _, vm = min(waiting, default=(now, "", None))
    return vm if now - started >= BOOTS_WITHIN else None


def _describe(contents: str, observed: ObservedNodes) -> str:
    lines = [line.partition(_MARK)[2] for line in contents.splitlines() if _MARK in line]
    if lines:
        page = link("docs/reference/startup-script.md")
        return f"reports on its serial port: {lines[-1][:_LONGEST_LINE]}. Its meaning: {page}"
    if observed.group.spec.joins_with_tokens:
        return "has no line of the startup script on its serial port: it boots, or its image runs none."
    page = link("docs/own-image.md")
    return f"gets no startup script from tpu-functions: its image must join the cluster. See {page}"
