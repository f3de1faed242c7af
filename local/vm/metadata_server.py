"""The metadata server of one VM, over HTTP on loopback, as ``metadata.google.internal`` answers.

As documented: it requires the header ``Metadata-Flavor: Google`` and rejects ``X-Forwarded-For``; a
directory ends with a slash, is listed as text, and is returned whole with ``recursive=true`` (JSON,
or text with ``alt=text``); every response has an ETag; ``wait_for_change`` waits until the content
differs from ``last_etag``, for ``timeout_sec`` at most; for an absent key it returns 404
immediately.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web

from local.base.machine import Machine

_PREFIX = "/computeMetadata/v1/"
_FLAVOR = {"Metadata-Flavor": "Google"}
_GUEST_ATTRIBUTE = re.compile(r"instance/guest-attributes/([^/]+)/([^/]+)")
_FORBIDDEN = 403

Tree = Mapping[str, Any]
"""Directories are mappings; leaves are strings and numbers."""


class MetadataServer:
    """Serves the metadata of a `Machine` on the running event loop.

    ``refusals`` are (part of a path, HTTP status): each is the response to one request for such a
    path, as around a maintenance event. ``paths`` are the requested paths.
    """

    def __init__(self, machine: Machine) -> None:
        self.refusals: list[tuple[str, int]] = []
        self.paths: list[str] = []
        self._machine = machine
        self._guest_attributes: dict[str, dict[str, str]] = {}
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        """Listen; returns ``host:port``, the value for ``GCE_METADATA_HOST``."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_put("/{path:.*}", self._put)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        host, bound = self._runner.addresses[0][:2]
        return f"{host}:{bound}"

    async def stop(self) -> None:
        """Stop listening, and disconnect clients that wait for a change."""
        if self._runner is not None:
            await self._runner.cleanup()

    def changed(self) -> None:
        """`Machine.attributes` has changed: answer the clients that wait for it."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _get(self, request: web.Request) -> web.Response:
        refusal = self._refuse(request)
        if refusal is not None:
            return refusal
        rendered = self._render(request)
        if request.query.get("wait_for_change") == "true":
            rendered = await self._await_change(request, rendered)
        return rendered

    def _refuse(self, request: web.Request) -> web.Response | None:
        self.paths.append(request.path_qs)
        for refusal in self.refusals:
            if refusal[0] in request.path:
                self.refusals.remove(refusal)
                return _answer("the metadata server is not available", status=refusal[1])
        if request.headers.get("Metadata-Flavor") != "Google":
            return _answer("Missing Metadata-Flavor:Google header.", status=_FORBIDDEN)
        if "X-Forwarded-For" in request.headers:
            return _answer("X-Forwarded-For is not allowed.", status=_FORBIDDEN)
        return None

    async def _await_change(self, request: web.Request, first: web.Response) -> web.Response:
        """Wait until the content differs from ``last_etag``, or else from the current content."""
        last_etag = request.query.get("last_etag") or first.headers.get("ETag", "")
        timeout_s = request.query.get("timeout_sec")
        rendered = first
        with suppress(TimeoutError):
            async with asyncio.timeout(float(timeout_s) if timeout_s else None):
                while rendered.status == 200 and rendered.headers["ETag"] == last_etag:
                    await self._changed.wait()
                    rendered = self._render(request)
        return rendered

    def _render(self, request: web.Request) -> web.Response:
        if not request.path.startswith(_PREFIX):
            return _answer("not found", status=404)
        path = request.path.removeprefix(_PREFIX)
        found = _find(self._tree(), path)
        if found is None:
            return _answer("not found", status=404)
        if not isinstance(found, Mapping):
            as_json = request.query.get("alt") == "json"
            return _answer(json.dumps(found) if as_json else str(found), is_json=as_json)
        if not path.endswith("/") and path:
            return _answer("", status=301, location=request.path + "/")
        if request.query.get("recursive") != "true":
            names = [f"{one}/" if isinstance(found[one], Mapping) else one for one in found]
            return _answer("".join(f"{name}\n" for name in names))
        if request.query.get("alt") == "text":
            return _answer("".join(f"{key} {value}\n" for key, value in _flatten(found)))
        is_custom = path.startswith("instance/attributes")
        return _answer(json.dumps(found if is_custom else _camel_case(found)), is_json=True)

    def _tree(self) -> Tree:
        machine = self._machine
        zone = f"projects/1/zones/{machine.zone}"
        return {
            "instance": {
                "attributes": dict(machine.attributes()),
                "guest-attributes": self._guest_attributes,
                "hostname": f"{machine.name}.{machine.zone}.c.{machine.project}.internal",
                "id": int(machine.id),
                "machine-type": f"projects/1/machineTypes/{machine.machine_type}",
                "name": machine.name,
                "zone": zone,
            },
            "project": {"project-id": machine.project, "numeric-project-id": 1},
        }

    async def _put(self, request: web.Request) -> web.Response:
        refusal = self._refuse(request)
        if refusal is not None:
            return refusal
        match = _GUEST_ATTRIBUTE.fullmatch(request.path.removeprefix(_PREFIX))
        if match is None:
            return _answer("not found", status=404)
        if self._machine.attributes().get("enable-guest-attributes", "").upper() != "TRUE":
            return _answer("Guest attributes endpoint access is disabled.", status=_FORBIDDEN)
        namespace, key = match.groups()
        value = await request.text()
        self._guest_attributes.setdefault(namespace, {})[key] = value
        self._machine.set_guest_attribute(namespace, key, value)
        return _answer("")


def _answer(
    text: str, *, status: int = 200, is_json: bool = False, location: str | None = None
) -> web.Response:
    etag = hashlib.sha256(text.encode()).hexdigest()[:16]
    headers = {**_FLAVOR, "ETag": etag, **({"Location": location} if location else {})}
    content_type = "application/json" if is_json else "application/text"
    return web.Response(text=text, status=status, headers=headers, content_type=content_type)


def _find(tree: Tree, path: str) -> Any:
    """Find the directory or leaf at ``path``; the path of a leaf has no trailing slash."""
    found: Any = tree
    for part in path.rstrip("/").split("/") if path else []:
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    is_leaf = not isinstance(found, Mapping)
    return None if is_leaf and path.endswith("/") else found


def _flatten(directory: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in directory.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _camel_case(tree: Tree) -> dict[str, Any]:
    """Convert names to camel case, as in JSON responses, except custom keys."""
    return {
        re.sub(r"-(\w)", lambda match: match[1].upper(), name): (
            _camel_case(value) if isinstance(value, Mapping) and "attributes" not in name else value
        )
        for name, value in tree.items()
    }
