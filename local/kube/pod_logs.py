"""The logs of Pods. No container runs, so a log lists the variables that the container would have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from local.kube import errors
from local.kube.kinds import Document

_PATH = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_FIRST_LINE = "No container runs in this simulation. This one would have these variables:"


def render_log(pod: Document, name: str) -> str:
    """Render the log of a container. Raises 400, with the API server's message, while it has none."""
    metadata, spec = pod["metadata"], pod["spec"]
    containers = {one["name"]: one for one in spec["containers"]}
    name = name or next(iter(containers))
    if name not in containers:
        raise errors.bad_request(f"container {name} is not valid for pod {metadata['name']}")
    if not spec.get("nodeName"):
        raise errors.bad_request(f"pod {metadata['name']} does not have a host assigned")
    if pod["status"].get("phase", "Pending") == "Pending":
        raise errors.bad_request(
            f'container "{name}" in pod "{metadata["name"]}" is waiting to start: ContainerCreating'
        )
    variables = dict(_read_variables(pod, containers[name]))
    return "\n".join([_FIRST_LINE, *(f"{key}={value}" for key, value in variables.items()), ""])


def _read_variables(pod: Document, container: Document) -> Iterator[tuple[str, str]]:
    for variable in container.get("env") or ():
        path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if path:
            yield variable["name"], _read_field(pod, path)
        elif "valueFrom" not in variable:
            yield variable["name"], variable.get("value", "")


def _read_field(pod: Document, path: str) -> str:
    found = _PATH.fullmatch(path)
    if found:
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: object = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return str(value)
