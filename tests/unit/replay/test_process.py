"""``python -m replay`` as a user starts it: a process with real client libraries on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.base.clock import LoopClock
from local.cloud.logging import CloudLogging
from local.cloud.logging import serve as serve_logging
from local.pubsub.model import Received, SubscriptionConfig
from local.pubsub.server import Server, serve
from replay.__main__ import LATE
from shared.base.timestamps import render_time
from tests.unit.infra.terraform.log_entries import ENTRIES, EXCESS, find_steps
from tests.unit.replay.entries import message

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[3]
LINE = json.dumps(message(step="label_node")).encode()
SUBSCRIPTION = "projects/my-project/subscriptions/mine"


def without_notice(stderr: bytes) -> bytes:
    """What a process has said beside that it still runs, which a slow machine makes it say."""
    return stderr.replace(f"{LATE}\n".encode(), b"")


async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    inherited = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "replay",
        *arguments,
        cwd=ROOT,
        env={**inherited, "PUBSUB_PROJECT": "my-project", **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def make_topic(server: Server) -> None:
    topic = "projects/my-project/topics/tpu-functions-label-node"
    server.pubsub.create_topic(topic)
    server.pubsub.create_subscription(SubscriptionConfig(SUBSCRIPTION, topic=topic))


Ended = tuple[int | None, bytes, bytes]


async def publish_line(*, has_topic: bool, **environment: str) -> tuple[Ended, list[Received]]:
    """Publish the line from stdin; return the result of the process and the messages received."""
    server = await serve()
    if has_topic:
        make_topic(server)
    environment["PUBSUB_EMULATOR_HOST"] = server.address
    process = await start("file", "-", "-o", "json", **environment)
    stdout, stderr = await process.communicate(LINE)
    received = server.pubsub.pull(SUBSCRIPTION, 10) if has_topic else []
    await server.stop()
    return (process.returncode, stdout, without_notice(stderr)), received


@pytest.mark.parametrize("proxy", [{}, {"http_proxy": "http://127.0.0.1:9"}], ids=["", "a proxy"])
def test_a_message_is_published_with_the_id_that_is_printed(proxy: dict[str, str]) -> None:
    (code, stdout, stderr), [received] = asyncio.run(publish_line(has_topic=True, **proxy))
    assert (code, stderr) == (0, b"")
    [shown] = json.loads(stdout)
    assert (shown["messageId"], LINE) == (received.message.id, received.message.data)


def test_a_missing_topic_is_reported_without_a_traceback() -> None:
    (code, stdout, stderr), _ = asyncio.run(publish_line(has_topic=False))
    assert (code, json.loads(stdout)) == (1, [])
    report = stderr.decode()
    assert report.startswith(
        "Error: the call `publish to tpu-functions-label-node` to Pub/Sub failed: 404 "
    )
    assert "PUBSUB_PROJECT and TOPIC_PREFIX must be those of the installation" in report
    assert report.count("\n") == 1


def test_ctrl_c_ends_the_tool_without_output(tmp_path: Path) -> None:
    code, stdout, stderr = asyncio.run(interrupt_while_waiting(tmp_path / "config"))
    assert (code, stdout, stderr) == (130, b"", b"")


async def interrupt_while_waiting(kubeconfig: Path) -> Ended:
    """Send SIGINT while the tool waits for a cluster that never answers."""
    requested = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        requested.set()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    kubeconfig.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{port}")))
    process = await start("resync", "--all", KUBECONFIG=str(kubeconfig))
    try:
        await asyncio.wait_for(requested.wait(), 60)
    finally:
        process.send_signal(signal.SIGINT)
    stdout, stderr = await process.communicate()
    server.close()
    return process.returncode, stdout, without_notice(stderr)


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


class EmptyCluster(BaseHTTPRequestHandler):
    """Answers each list with an empty one."""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> dict[str, Any]:
        return {"kind": "List", "metadata": {}, "items": []}

    def do_GET(self) -> None:
        body = json.dumps(self.answer()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class OneGroup(EmptyCluster):
    """A cluster with one group, which waits for capacity."""

    def answer(self) -> dict[str, Any]:
        if not self.path.endswith("/training"):
            return {**super().answer(), "metadata": {"name": "kube-system", "uid": "c"}}
        since = "2026-01-01T00:00:00Z"
        ready = {"type": "Ready", "status": "False", "reason": "InsufficientCapacity"}
        ready |= {"message": "No capacity.", "lastTransitionTime": since}
        group: dict[str, Any] = yaml.safe_load((ROOT / "examples/tpu7x-2x2x2.yaml").read_text())
        group["metadata"] |= {"uid": "u", "creationTimestamp": since}
        return {**group, "status": {"conditions": [ready]}}


@contextmanager
def serve_cluster(handler: type[BaseHTTPRequestHandler], folder: Path) -> Iterator[str]:
    """A cluster on loopback: the path of its kubeconfig."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = folder / "config"
    config.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{server.server_port}")))
    yield str(config)
    server.shutdown()
    server.server_close()


GOOGLE = (
    "google.cloud.",
    "google.api_core",
    "google.oauth2",
    "grpc",
    "cryptography",
    "websocket",
)


def find_imports(stderr: str) -> list[str]:
    """What Python reports with ``-X importtime``."""
    return re.findall(r"^import time: .*\| +(\S+)$", stderr, re.MULTILINE)


def test_explain_shows_on_a_terminal_what_the_cluster_says_before_it_loads_clients_of_google(
    tmp_path: Path,
) -> None:
    own = {"COMPUTE_ENDPOINT": "http://127.0.0.1:1", "LOGGING_EMULATOR_HOST": "127.0.0.1:1"}
    terminal, stderr = os.openpty()
    with serve_cluster(OneGroup, tmp_path) as config:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "replay", "explain", "training"],
            cwd=ROOT,
            env={**os.environ, **own, "PUBSUB_PROJECT": "my-gcp-project", "KUBECONFIG": config},
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        os.close(stderr)
        shown = b""
        with suppress(OSError):  # how the terminal of a process that has ended answers
            while more := os.read(terminal, 65536):
                shown += more
        stdout, _ = process.communicate(timeout=60)
    os.close(terminal)
    state = "default/training has not been Ready for "
    text = shown.decode().replace("\r\n", "\n")
    before, _, after = text.partition(f"\r\x1b[K{state}")
    first, _, later = after.partition("\r")
    assert re.fullmatch(r"\d+d \(InsufficientCapacity\) by its .* \.\.\.", first)
    assert [name for name in find_imports(before) if name.startswith(GOOGLE)] == []
    assert "google.cloud.compute_v1.types.compute" in find_imports(later)
    assert "google.cloud.logging_v2.types.logging" in find_imports(later)
    assert later.count("\r\x1b[K\r") == 1, "the line is empty again"
    assert (process.returncode, stdout.decode()[: len(state)]) == (0, state)
    assert b"\x1b" not in stdout


@pytest.mark.parametrize(
    "words, said, most",
    [
        (("--help",), "", 300),
        (("get", "-A"), "There are no slices, and nothing waits for one.", 720),
    ],
    ids=["help", "get"],
)
def test_the_first_line_needs_no_client_of_google(
    tmp_path: Path, words: tuple[str, ...], said: str, most: int
) -> None:
    """Imports are the CPU of a start; the whole of the client libraries would be 1,900 modules."""
    with serve_cluster(EmptyCluster, tmp_path) as config:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "replay", *words],
            cwd=ROOT,
            env={**os.environ, "PUBSUB_PROJECT": "my-project", "KUBECONFIG": config},
            capture_output=True,
            text=True,
            timeout=60,
        )
    imported = find_imports(done.stderr)
    printed = [
        line for line in done.stderr.splitlines() if not line.startswith(("import time:", LATE))
    ]
    assert (done.returncode, "".join(printed)) == (0, said)
    assert [name for name in imported if name.startswith(GOOGLE)] == []
    assert len(imported) < most, len(imported)


def test_a_closed_pipe_is_not_an_error() -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} -m replay dead-letters --help | true; echo ${{PIPESTATUS[0]}}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout in ("0\n", "1\n")


DEAD = "projects/my-project/topics/tpu-functions-dead-letters"
KEPT = "projects/my-project/subscriptions/tpu-functions-dead-letters"
OF_LABEL_NODE = {"CloudPubSubDeadLetterSourceSubscription": "tpu-functions-label-node"}


async def replay_a_dead_letter() -> tuple[Ended, list[Received], list[Received]]:
    """Return the result of the process, the messages of the step, and the remaining dead letters."""
    server = await serve()
    make_topic(server)
    server.pubsub.create_topic(DEAD)
    server.pubsub.create_subscription(SubscriptionConfig(KEPT, topic=DEAD))
    server.pubsub.publish(DEAD, LINE, OF_LABEL_NODE)
    arguments = ("dead-letters", "replay", "--all", "--yes", "-o", "json")
    process = await start(*arguments, PUBSUB_EMULATOR_HOST=server.address)
    stdout, stderr = await process.communicate()
    arrived, left = server.pubsub.pull(SUBSCRIPTION, 10), server.pubsub.pull(KEPT, 10)
    await server.stop()
    return (process.returncode, stdout, without_notice(stderr)), arrived, left


def test_a_dead_letter_is_replayed_to_its_step_over_grpc() -> None:
    (code, stdout, stderr), [arrived], left = asyncio.run(replay_a_dead_letter())
    assert (code, stderr, left) == (0, b"", [])
    assert (arrived.message.data, dict(arrived.message.attributes)) == (LINE, {})
    assert json.loads(stdout)[0]["messageId"] == arrived.message.id


async def record_one(path: Path) -> Ended:
    """Publish a message as soon as the recording's subscription exists."""
    server = await serve()
    make_topic(server)
    topic = "projects/my-project/topics/tpu-functions-label-node"
    process = await start(
        *("record", "label_node", str(path), "--limit", "1"), PUBSUB_EMULATOR_HOST=server.address
    )
    async with asyncio.timeout(60):
        while len(server.pubsub.list_subscriptions("projects/my-project")) < 2:
            await asyncio.sleep(0.05)
    server.pubsub.publish(topic, LINE, {})
    stdout, stderr = await process.communicate()
    assert len(server.pubsub.list_subscriptions("projects/my-project")) == 1
    await server.stop()
    return process.returncode, stdout, without_notice(stderr)


def test_a_topic_is_recorded_over_grpc(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert asyncio.run(record_one(path)) == (0, b"", b"Recorded 1 message.\n")
    [line] = path.read_text().splitlines()
    assert json.loads(line)["data"] == json.loads(LINE)


SLUGS = ("create-resources", "inject-token", "label-node", "tear-down")
Payloads = list[tuple[str, dict[str, Any]]]


async def publish_the_audit_log() -> tuple[Ended, Payloads, Payloads]:
    """Publish all example entries, an hour old: the received messages and those of the sinks."""
    pubsub = await serve()
    for slug in SLUGS:
        topic = f"projects/my-project/topics/tpu-functions-{slug}"
        pubsub.pubsub.create_topic(topic)
        name = topic.replace("/topics/", "/subscriptions/")
        pubsub.pubsub.create_subscription(SubscriptionConfig(name, topic=topic))
    logging = CloudLogging(LoopClock(asyncio.get_running_loop()), "my-project")
    server, address = await serve_logging(logging, "127.0.0.1")
    moment = render_time(datetime.now(UTC) - timedelta(hours=1))
    taken: Payloads = []
    for name, row in ENTRIES.items():
        log = row["entry"]["logName"].rpartition("/")[2]
        entry = {**row["entry"], "logName": f"projects/my-project/logs/{log}", "timestamp": moment}
        logging.write(entry)
        if row["wakes"] != "none" or name in EXCESS:
            taken += [(step, entry["protoPayload"]) for step in find_steps(entry)]
    process = await start(
        *("audit-log", "--since", "2h", "--yes", "-o", "json"),
        PUBSUB_EMULATOR_HOST=pubsub.address,
        LOGGING_EMULATOR_HOST=address,
    )
    stdout, stderr = await process.communicate()
    received = [
        (slug.replace("-", "_"), json.loads(one.message.data)["protoPayload"])
        for slug in SLUGS
        for one in pubsub.pubsub.pull(
            f"projects/my-project/subscriptions/tpu-functions-{slug}", 999
        )
    ]
    await server.stop(None)
    await pubsub.stop()
    return (process.returncode, stdout, without_notice(stderr)), received, taken


def test_the_audit_log_is_read_and_published_over_grpc() -> None:
    (code, stdout, stderr), received, taken = asyncio.run(publish_the_audit_log())
    assert (code, len(json.loads(stdout))) == (0, len(received)), stderr.decode()
    assert stderr.endswith(b" in 1 call.\n")
    assert sorted(received, key=str) == sorted(taken, key=str)


FIND_CONTEXT = """
import sys
from replay.dependencies import find_context
from shared.ports.kubernetes.access_settings import Kubeconfig
print(find_context(Kubeconfig(sys.argv[1])), "kubernetes.stream" in sys.modules)
"""


def test_the_context_is_found_without_loading_the_whole_client_library(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(_kubeconfig("http://127.0.0.1:1")))
    words = [sys.executable, "-c", FIND_CONTEXT, str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["x", "False"]
