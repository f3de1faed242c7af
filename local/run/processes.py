"""Subprocesses that behave as expected at a terminal and never outlive their parent.

    async with Processes(on_line=print, log=Path("local.log")) as processes:
        relay = await processes.start("relay", [sys.executable, "-m", "relay"])
        await relay.ready("http://127.0.0.1:8080/healthz")
        await processes.until_one_ends()

When the block is left, its processes get SIGTERM, and after a grace period they and their descendants
get SIGKILL. SIGINT (Ctrl-C), SIGTERM and SIGHUP end the block, which then raises `Interrupted`; a second
signal kills the remaining processes immediately. If this process is killed, `local.base.parent_watch`
ends them. Each child leads its own session, so a Ctrl-C reaches only this process, which stops them.

On Linux and macOS, on the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import aiohttp

from local.base import parent_watch

GRACE_S = 5.0
TAIL_LINES = 20
MAX_LINE_BYTES = 256 * 1024
"""The limit of an entry in Cloud Logging."""
PREFIX_WIDTH = 18
_POLL_S = 0.05
_DRAIN_S = 1.0
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

OnLine = Callable[[str], None]


class ProcessError(Exception):
    """A child did not start, did not become ready, or ended; the message says which and why."""


class Interrupted(Exception):
    """A signal ended this process; ``exit_code`` is the exit code by the convention of shells."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Process:
    """A child that was started; ``tail`` has the last lines that it wrote."""

    def __init__(
        self,
        name: str,
        child: asyncio.subprocess.Process,
        output: _Output,
        on_end: Callable[[int], None],
    ) -> None:
        self.name = name
        self.pid = child.pid
        self.tail = output.tail
        self._child = child
        self._output = output
        self._ended = asyncio.create_task(self._supervise())
        self._ended.add_done_callback(lambda _: on_end(self.pid))

    @property
    def exit_code(self) -> int | None:
        """`None` while it runs; negative when a signal ended it."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait until it and its descendants have ended; returns the exit code."""
        return await asyncio.shield(self._ended)

    async def ready(self, url: str, *, within_s: float = 30.0) -> None:
        """Wait until GET ``url`` is answered by a status under 500.

        Raises `ProcessError` if the process ends before, or after ``within_s``.
        """
        try:
            async with asyncio.timeout(within_s), aiohttp.ClientSession() as session:
                while not await _answers(session, url):
                    if self._ended.done():
                        raise ProcessError(f"before it was ready: {self.describe_end()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise ProcessError(
                f"{self.name} did not answer GET {url} within {within_s:g} seconds"
                f"{self._describe_output()}"
            ) from error

    async def stop(self, grace_s: float = GRACE_S) -> int:
        """Send SIGTERM, and SIGKILL after ``grace_s``; returns the exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()
        await asyncio.wait([self._ended], timeout=grace_s)
        self.kill()
        return await self.wait()

    def kill(self) -> None:
        """Send SIGKILL to it and its descendants; does nothing if it has ended."""
        if not self._ended.done():
            parent_watch.signal_group(self.pid, signal.SIGKILL)

    def describe_exit(self) -> str:
        """How the process ended."""
        code = self.exit_code
        assert code is not None
        how = (
            f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )
        return f"{self.name} {how}"

    def describe_end(self) -> str:
        """How the process ended, with its last lines."""
        return f"{self.describe_exit()}{self._describe_output()}"

    def _describe_output(self) -> str:
        if not self.tail:
            return "; it wrote nothing"
        return "; its last lines:\n" + "\n".join(f"  {line}" for line in self.tail)

    async def _supervise(self) -> int:
        code = await self._child.wait()
        parent_watch.signal_group(self.pid, signal.SIGKILL)
        await self._output.drain()
        return code


class Processes:
    """The children of this process; an asynchronous context manager that ends them all.

    ``on_line`` gets each line that a child writes, prefixed with the child's name; the lines are also
    appended to the file ``log``. A child that ignores SIGTERM is killed after ``grace_s``.
    """

    def __init__(
        self, *, on_line: OnLine | None = None, log: Path | None = None, grace_s: float = GRACE_S
    ) -> None:
        self._grace_s = grace_s
        self._on_line = on_line
        self._log_path = log
        self._log: IO[str] | None = None
        self._running: list[Process] = []
        self._waiting: set[asyncio.Task[int]] = set()
        self._signal: int | None = None
        self._leaving = False
        self._owner: asyncio.Task[object] | None = None
        self._watch: asyncio.subprocess.Process | None = None
        self._watch_pipe = -1

    async def __aenter__(self) -> Processes:
        self._owner = asyncio.current_task()
        if self._log_path is not None:
            self._log = self._log_path.open("a", buffering=1)
        await self._start_watch()
        loop = asyncio.get_running_loop()
        for number in _ENDING_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._leaving = True
        try:
            await asyncio.gather(*(process.stop(self._grace_s) for process in self._running))
        finally:
            await self._end_watch()
            for number in _ENDING_SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)
            if self._log is not None:
                self._log.close()
        if self._signal is not None and (
            error is None or isinstance(error, asyncio.CancelledError)
        ):
            raise Interrupted(self._signal) from None

    async def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Process:
        """Start a child in its own session, with ``environment`` instead of this process's.

        Raises `ProcessError` if the command does not exist.
        """
        path = (environment or os.environ).get("PATH")
        if shutil.which(argv[0], path=path) is None:
            raise ProcessError(f"{name} cannot be started: there is no command {argv[0]!r}")
        output, writing = await _connect_output(
            lambda line: self._write(f"{name:<{PREFIX_WIDTH}} | {line}")
        )
        try:
            child = await self._spawn(*argv, env=environment, cwd=directory, stdout=writing)
        finally:
            os.close(writing)
        process = Process(name, child, output, self._forget)
        self._running.append(process)
        return process

    async def spawn(self, *argv: str, **options: Any) -> asyncio.subprocess.Process:
        """Start a process that the caller ends; if this process is killed, the parent watch ends it.

        ``options`` are those of `asyncio.create_subprocess_exec`. It leads its own session.
        """
        child = await self._spawn(*argv, **options)
        waiting = asyncio.create_task(child.wait())
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        waiting.add_done_callback(lambda _: self._forget(child.pid))
        return child

    async def stop(self, process: Process, grace_s: float = GRACE_S) -> int:
        """End one child; returns its exit code."""
        code = await process.stop(grace_s)
        self._running.remove(process)
        return code

    async def until_one_ends(self) -> Process:
        """Wait until one of the processes ends, and return it."""
        waiting = {asyncio.ensure_future(process.wait()): process for process in self._running}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()
        return waiting[done.pop()]

    def kill(self) -> None:
        """Send SIGKILL to all."""
        for process in self._running:
            process.kill()

    async def _spawn(self, *argv: str, **options: Any) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *parent_watch.exec_command(self._watch_pipe),
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(self._watch_pipe,),
            **options,
        )

    def _on_signal(self, number: int) -> None:
        again = self._leaving or self._signal is not None
        self._signal = self._signal or number
        if again:
            self.kill()
            return
        self._write(
            f"{'':<{PREFIX_WIDTH}} | {signal.Signals(number).name}: stopping "
            f"{len(self._running)} processes (a second signal kills them)"
        )
        assert self._owner is not None
        self._owner.cancel()

    def _write(self, line: str) -> None:
        if self._on_line is not None:
            self._on_line(line)
        if self._log is not None:
            self._log.write(line + "\n")

    async def _start_watch(self) -> None:
        reading, self._watch_pipe = os.pipe()
        try:
            self._watch = await asyncio.create_subprocess_exec(
                *parent_watch.WATCH, stdin=reading, start_new_session=True
            )
        finally:
            os.close(reading)

    async def _end_watch(self) -> None:
        os.close(self._watch_pipe)
        self._watch_pipe = -1
        assert self._watch is not None
        await self._watch.wait()

    def _forget(self, pid: int) -> None:
        """Tell the parent watch that a process has ended: its pid may be reused."""
        if self._watch_pipe >= 0:
            os.write(self._watch_pipe, f"-{pid}\n".encode())


class _Output(asyncio.Protocol):
    """The output of a child by lines; a line that is too long comes in parts.

    The pipe is not asyncio's: with that, waiting for a child would wait for all processes that have the
    pipe open, and a grandchild may have it open without end.
    """

    def __init__(self, on_line: OnLine) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._on_line = on_line
        self._begun = b""
        self._transport: asyncio.BaseTransport | None = None
        self._closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *whole, self._begun = (self._begun + data).split(b"\n")
        for line in whole:
            self._emit(line)
        if len(self._begun) >= MAX_LINE_BYTES:
            self._emit(self._begun)
            self._begun = b""

    def connection_lost(self, error: Exception | None) -> None:
        if self._begun:
            self._emit(self._begun)
        self._closed.set_result(error)

    async def drain(self) -> None:
        """Read the rest. Does not wait for a process outside the session that has the pipe open."""
        assert self._transport is not None
        await asyncio.wait([self._closed], timeout=_DRAIN_S)
        self._transport.close()
        await self._closed

    def _emit(self, raw: bytes) -> None:
        line = raw.decode(errors="replace").rstrip("\r")
        self.tail.append(line)
        self._on_line(line)


async def _connect_output(on_line: OnLine) -> tuple[_Output, int]:
    """Create a pipe whose lines go to ``on_line``; the caller closes the returned writing end."""
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()
    _, output = await loop.connect_read_pipe(lambda: _Output(on_line), os.fdopen(reading, "rb"))
    return output, writing


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        # No TLS verification: the server is a child of this process, on the loopback interface.
        async with session.get(url, allow_redirects=False, ssl=False) as answer:
            return answer.status < 500
    except aiohttp.ClientError:
        return False
