"""What a kind's objects are by now: an administrator's list and watch, in a thread."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any

import urllib3

from local.base.http import Request
from tests.real.bridge.connections import Caller, Connections, Lines

Document = dict[str, Any]
_AGAIN_S = 0.05


class Mirror:
    """All objects of one collection by uid, and the version up to which they have been seen.

    ``news`` is notified of every change, and guards what is read here. ``caller`` is this mirror's
    alone: TLS contexts do not like to be shared by threads.
    """

    def __init__(self, server: str, caller: Caller, path: str, news: threading.Condition) -> None:
        self.path = path
        self.objects: dict[str, Document] = {}
        self.version = 0
        """The newest version of an object, or of a deletion, that has been seen."""
        self.changes = 0
        """How often what is known here has changed."""
        self._connections = Connections(server)
        self._caller = caller
        self._news = news
        self._ending = threading.Event()
        self._lines: Lines | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"mirror {path}")
        self._thread.start()

    def find(self, name: str, namespace: str = "") -> Document | None:
        """The object of that name."""
        for document in self.objects.values():
            metadata = document["metadata"]
            if metadata["name"] == name and metadata.get("namespace", "") == namespace:
                return document
        return None

    def end(self) -> None:
        """End the watch and its thread."""
        self._ending.set()
        if self._lines is not None:
            self._lines.cut()
        self._thread.join()
        self._connections.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                version = self._list()
                if version:
                    self._follow(version)
            except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError, ValueError):
                pass  # the API server is away, or cut us off: a fresh list follows
            self._ending.wait(_AGAIN_S)

    def _list(self) -> str:
        answer = self._connections.send(self._caller, Request.of("GET", self.path))
        if answer.status != 200:
            return ""
        listed = answer.json()
        with self._news:
            self.objects = {item["metadata"]["uid"]: item for item in listed["items"]}
            versions = [int(item["metadata"]["resourceVersion"]) for item in listed["items"]]
            self.version = max([self.version, *versions])
            self.changes += 1
            self._news.notify_all()
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
            self._take(event["type"], event["object"])

    def _take(self, word: str, document: Document) -> None:
        metadata = document["metadata"]
        with self._news:
            if word == "DELETED":
                self.objects.pop(metadata["uid"], None)
            else:
                self.objects[metadata["uid"]] = document
            self.version = max(self.version, int(metadata["resourceVersion"]))
            self.changes += 1
            self._news.notify_all()
