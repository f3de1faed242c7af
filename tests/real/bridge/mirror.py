"""The current objects of a kind: an administrator's list and watch in a thread."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any

import urllib3

from local.base.http import Request
from tests.real.bridge.connections import Caller, Connections, Lines

Document = dict[str, Any]
_RETRY_S = 0.05


class Mirror:
    """All objects of one collection by uid, and the last version that was received.

    ``changed`` is notified of every change; a reader of the mirror must hold it. ``caller`` is used by
    this mirror only, because threads should not share a TLS context.
    """

    def __init__(
        self, server: str, caller: Caller, path: str, changed: threading.Condition
    ) -> None:
        self.path = path
        self.objects: dict[str, Document] = {}
        self.version = 0
        """The newest version of an object or a deletion that was received."""
        self.changes = 0
        """The number of changes."""
        self._connections = Connections(server)
        self._caller = caller
        self._changed = changed
        self._is_ending = threading.Event()
        self._lines: Lines | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"mirror {path}")
        self._thread.start()

    def find(self, name: str, namespace: str = "") -> Document | None:
        """Return the object with a name."""
        for document in self.objects.values():
            metadata = document["metadata"]
            if metadata["name"] == name and metadata.get("namespace", "") == namespace:
                return document
        return None

    def end(self) -> None:
        """End the watch and its thread."""
        self._is_ending.set()
        if self._lines is not None:
            self._lines.close()
        self._thread.join()
        self._connections.close()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            try:
                version = self._list()
                if version:
                    self._follow(version)
            except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError, ValueError):
                pass  # the API server is unreachable, or has ended the watch: list again
            self._is_ending.wait(_RETRY_S)

    def _list(self) -> str:
        answer = self._connections.send(self._caller, Request.of("GET", self.path))
        if answer.status != 200:
            return ""
        listed = answer.json()
        with self._changed:
            self.objects = {item["metadata"]["uid"]: item for item in listed["items"]}
            versions = [int(item["metadata"]["resourceVersion"]) for item in listed["items"]]
            self.version = max([self.version, *versions])
            self.changes += 1
            self._changed.notify_all()
        return str(listed["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> None:
        path = f"{self.path}?watch=1&resourceVersion={version}"
        self._lines, answer = self._connections.watch(self._caller, Request.of("GET", path))
        if answer.status != 200:
            return
        for line in self._lines:
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            self._record(event["type"], event["object"])

    def _record(self, event: str, document: Document) -> None:
        metadata = document["metadata"]
        with self._changed:
            if event == "DELETED":
                self.objects.pop(metadata["uid"], None)
            else:
                self.objects[metadata["uid"]] = document
            self.version = max(self.version, int(metadata["resourceVersion"]))
            self.changes += 1
            self._changed.notify_all()
