"""Child processes: their start and output, and that none remains."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from local.base.ports import find_free_ports
from local.run.processes import MAX_LINE_BYTES, Process, ProcessError, Processes
from local.tests.run.family import child, is_gone, parse_family, wait_until_gone

pytestmark = pytest.mark.processes

PYTHON = [sys.executable, "-S", "-u"]


async def first_line(lines: list[str]) -> str:
    """Wait for the first line that `Processes` append to ``lines``, and return it."""
    async with asyncio.timeout(20):
        while not lines:
            await asyncio.sleep(0.01)
    return lines[0]


def test_leaving_the_block_ends_children_and_grandchildren() -> None:
    lines: list[str] = []

    async def scenario() -> list[int]:
        async with Processes(on_line=lines.append) as processes:
            await processes.start("child", child())
            pids = parse_family(await first_line(lines))
            assert not any(is_gone(pid) for pid in pids)
            return pids

    pids = asyncio.run(scenario())
    assert len(pids) == 2
    wait_until_gone(pids)


def test_an_error_in_the_block_ends_children_too() -> None:
    lines: list[str] = []

    async def scenario() -> None:
        async with Processes(on_line=lines.append) as processes:
            await processes.start("child", child())
            await first_line(lines)
            raise LookupError("something went wrong")

    with pytest.raises(LookupError, match="something went wrong"):
        asyncio.run(scenario())
    wait_until_gone(parse_family(lines[0]))


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace_time() -> None:
    lines: list[str] = []

    async def scenario() -> int:
        async with Processes(on_line=lines.append) as processes:
            process = await processes.start("child", child(stubborn=True))
            await first_line(lines)
            return await processes.stop(process, grace_s=0.2)

    assert asyncio.run(scenario()) == -signal.SIGKILL
    wait_until_gone(parse_family(lines[0]))


def test_a_child_that_handles_sigterm_exits_by_itself() -> None:
    lines: list[str] = []
    program = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready")
signal.pause()
"""

    async def scenario() -> int:
        async with Processes(on_line=lines.append) as processes:
            process = await processes.start("child", [*PYTHON, "-c", program])
            await first_line(lines)
            return await processes.stop(process)

    assert asyncio.run(scenario()) == 7


def test_a_grandchild_ends_when_a_child_exits_by_itself() -> None:
    program = """
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
print(grandchild.pid)
"""

    async def scenario() -> Process:
        async with Processes() as processes:
            await processes.start("child", [*PYTHON, "-c", program])
            return await processes.until_one_ends()

    ended = asyncio.run(asyncio.wait_for(scenario(), 20))
    assert (ended.name, ended.exit_code) == ("child", 0)
    wait_until_gone([int(ended.tail[0])])


def test_lines_are_printed_with_the_name_and_written_to_the_log(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "local.log"
    program = r"""
import sys
print("one")
print("two", file=sys.stderr)
sys.stdout.buffer.write(b"\xff\r\nno end")
"""

    async def scenario() -> None:
        async with Processes(on_line=lines.append, log=log) as processes:
            process = await processes.start("child", [*PYTHON, "-c", program])
            await process.wait()

    asyncio.run(scenario())
    assert lines == [f"child              | {text}" for text in ("one", "two", "\ufffd", "no end")]
    assert log.read_text().splitlines() == lines


def test_a_long_line_is_printed_in_parts() -> None:
    lines: list[str] = []

    async def scenario() -> None:
        async with Processes(on_line=lines.append) as processes:
            program = f"print('x' * {5 * MAX_LINE_BYTES})"
            await (await processes.start("c", [*PYTHON, "-c", program])).wait()

    asyncio.run(scenario())
    assert len(lines) > 1
    assert sum(line.count("x") for line in lines) == 5 * MAX_LINE_BYTES


SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    answers = [503, 404]
    def do_GET(self):
        self.send_response(self.answers.pop(0))
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_ready_when_it_answers_without_a_server_error() -> None:
    (port,) = find_free_ports(1)

    async def scenario() -> list[str]:
        async with Processes() as processes:
            server = await processes.start("server", [*PYTHON, "-c", SERVER, str(port)])
            await server.ready(f"http://127.0.0.1:{port}/")
            await processes.stop(server)
            return list(server.tail)

    answers = [re.sub(r".*HTTP/1.1\" (\d+) -", r"\1", line) for line in asyncio.run(scenario())]
    assert answers == ["503", "404"]


def test_a_child_that_exits_before_it_is_ready_is_an_error_with_its_last_lines() -> None:
    async def scenario() -> None:
        async with Processes() as processes:
            program = "import sys; print('no such setting'); sys.exit(3)"
            server = await processes.start("relay", [*PYTHON, "-c", program])
            await server.ready("http://127.0.0.1:1/")

    with pytest.raises(ProcessError) as error:
        asyncio.run(scenario())
    assert str(error.value) == (
        "before it was ready: relay ended with code 3; its last lines:\n  no such setting"
    )


def test_a_child_that_is_not_ready_in_time_is_an_error() -> None:
    lines: list[str] = []

    async def scenario() -> None:
        async with Processes(on_line=lines.append) as processes:
            program = "import signal; print('hm'); signal.pause()"
            server = await processes.start("relay", [*PYTHON, "-c", program])
            await first_line(lines)
            await server.ready("http://127.0.0.1:1/healthz", within_s=0.2)

    with pytest.raises(ProcessError) as error:
        asyncio.run(scenario())
    assert str(error.value) == (
        "relay did not answer GET http://127.0.0.1:1/healthz within 0.2 seconds; "
        "its last lines:\n  hm"
    )


def test_a_server_that_accepts_connections_without_answering_is_not_ready() -> None:
    async def scenario(url: str) -> None:
        async with Processes() as processes:
            program = "import signal; signal.pause()"
            server = await processes.start("relay", [*PYTHON, "-c", program])
            await server.ready(url, within_s=0.2)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(ProcessError, match=r"within 0.2 seconds; it wrote nothing"):
            asyncio.run(scenario(url))


def test_a_command_that_does_not_exist_is_an_error() -> None:
    async def scenario() -> None:
        async with Processes() as processes:
            await processes.start("relay", ["no-such-command"])

    with pytest.raises(ProcessError) as error:
        asyncio.run(scenario())
    assert str(error.value) == "relay cannot be started: there is no command 'no-such-command'"


def test_a_child_gets_its_environment_and_directory(tmp_path: Path) -> None:
    lines: list[str] = []
    program = "import os; print(os.environ['GREETING'], len(os.environ) < 4, os.getcwd())"

    async def scenario() -> None:
        async with Processes(on_line=lines.append) as processes:
            process = await processes.start(
                "child",
                [*PYTHON, "-c", program],
                environment={"GREETING": "hello"},
                directory=tmp_path,
            )
            await process.wait()

    asyncio.run(scenario())
    assert lines == [f"child              | hello True {tmp_path}"]
