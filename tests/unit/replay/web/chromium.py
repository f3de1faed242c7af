"""Headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = f"needs Chromium: none of {', '.join(NAMES)} is on the PATH (apt-get install chromium)"
WITHIN_S = 60.0
"""How long a page may take until it shows something."""
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40}


def find_chromium() -> str | None:
    """The program, if one is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile in this folder. It has no network but loopback."""
    program = find_chromium()
    assert program, MISSING
    arguments = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"),
        *("--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars"),
        # No name resolves but those of this machine, as an attacker's name server would have it.
        "--host-resolver-rules=MAP * 127.0.0.1",
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"),
    ]
    environment = {**os.environ, "HOME": str(folder)}
    process = subprocess.Popen(
        [program, *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
    )
    try:
        assert process.stderr is not None
        lines = (line.decode(errors="replace") for line in process.stderr)
        port = next(found[1] for line in lines if (found := re.search(r"ws://[^:]+:(\d+)", line)))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        with asyncio.Runner() as runner:
            browser = Browser(runner, int(port))
            try:
                yield browser
            finally:
                browser.close()
    finally:
        process.kill()
        process.wait()


class Browser:
    """A browser's tabs."""

    def __init__(self, runner: asyncio.Runner, port: int) -> None:
        self._runner = runner
        self._port = port
        self._tabs: list[Tab] = []

    def open_tab(self, url: str, width: int = 1280, height: int = 900, **features: str) -> Tab:
        """A tab of this size; ``features`` are CSS media features, with ``_`` for ``-``."""
        tab = Tab(self._runner)
        self._tabs.append(tab)
        self._runner.run(tab.connect(self._port))
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        named = [{"name": key.replace("_", "-"), "value": text} for key, text in features.items()]
        tab.call("Emulation.setEmulatedMedia", features=named)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.call("Page.navigate", url=url)
        return tab

    def close(self) -> None:
        for tab in self._tabs:
            self._runner.run(tab.disconnect())


class Tab:
    """A page. ``requested`` are the URLs that it has asked for; ``problems`` what its console says."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.requested: list[str] = []
        self.problems: list[str] = []
        self._runner = runner
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0

    async def connect(self, port: int) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
            url = (await answer.json())["webSocketDebuggerUrl"]
        self._socket = await self._session.ws_connect(url, max_msg_size=0)
        self._reading = asyncio.create_task(self._read())

    async def disconnect(self) -> None:
        self._reading.cancel()
        await self._session.close()

    async def _read(self) -> None:
        async for message in self._socket:
            document = json.loads(message.data)
            if "id" in document:
                self._answers.pop(document["id"]).set_result(document)
                continue
            method, values = document["method"], document["params"]
            if method == "Network.requestWillBeSent":
                self.requested.append(values["request"]["url"])
            elif method == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(values["exceptionDetails"]))
            elif method == "Log.entryAdded":
                self.problems.append(values["entry"]["text"])

    def call(self, method: str, **values: Any) -> Any:
        """The result of a method of the protocol."""
        return self._runner.run(self._call(method, values))

    async def _call(self, method: str, values: dict[str, Any]) -> Any:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": values})
        document = await asyncio.wait_for(answer, WITHIN_S)
        assert "error" not in document, document
        return document["result"]

    def show(self) -> None:
        """Show this tab; the others are hidden."""
        self.call("Page.bringToFront")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        options = {"returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Wait until an expression is true in the page; its value."""
        return self._runner.run(self._wait_for(expression))

    async def _wait_for(self, expression: str) -> Any:
        options = {"returnByValue": True, "expression": expression}
        value, end = None, asyncio.get_running_loop().time() + WITHIN_S
        while asyncio.get_running_loop().time() < end:
            value = (await self._call("Runtime.evaluate", options))["result"].get("value")
            if value:
                return value
            await asyncio.sleep(0.05)
        text = await self._call(
            "Runtime.evaluate", {**options, "expression": "document.body.innerText"}
        )
        raise AssertionError(
            f"{expression} is {value!r}; the page shows:\n{text['result']['value']}"
        )

    def press(self, *keys: str) -> None:
        """Press keys one after the other: those of `KEYS`, or characters."""
        for key in keys:
            code = KEYS.get(key, ord(key[0].upper()))
            fields: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
            if text := {"Enter": "\r"}.get(key, "" if key in KEYS else key):
                fields["text"] = text
            self.call("Input.dispatchKeyEvent", type="keyDown", **fields)
            fields.pop("text", None)
            self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def see(self) -> str:
        """The text that the page shows."""
        return str(self.evaluate("document.body.innerText"))

    def write_picture(self, path: Path) -> None:
        """A picture of what is in the window."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
