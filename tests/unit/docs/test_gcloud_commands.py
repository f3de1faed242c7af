"""Every gcloud command in the docs and in the scripts is valid, as gcloud itself parses it.

gcloud reads the command lines without running them (``gcloud meta lint-gcloud-commands``).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("infra/**/*.md")]
SCRIPTS = [
    ROOT / "deploy.sh",
    ROOT / "infra" / "preflight.sh",
    ROOT / "infra" / "settings.sh",
    ROOT / "infra" / "terraform" / "outputs.tf",
    *ROOT.glob("infra/*.yaml"),
]

_VARIABLE = re.compile(r"\$\{[^}]*\}|\$\((?:date|git)[^)]*\)|\$\w+")
_SPAN = re.compile(r"`(gcloud [^`]+)`")
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_NAMED_ONLY = "Must be specified"
"""gcloud's error for a command that a page names without its required arguments."""


def in_page(text: str) -> Iterator[str]:
    """Yield the commands in a page's code."""
    for language, block in _FENCE.findall(text):
        if language in ("", "sh"):
            yield from in_script(block)
    for span in _SPAN.findall(_FENCE.sub("", text).replace("\\|", "|")):
        yield from in_script(re.sub(r"\s+", " ", span))


def in_script(text: str) -> Iterator[str]:
    """Yield the commands in a script, each up to the end of its quotes and brackets."""
    text = _VARIABLE.sub("x", text.replace("\\\n", " "))
    text = text.replace("--iam-account=x", "--iam-account=x@x.iam.gserviceaccount.com")
    for line in text.splitlines():
        for start in re.finditer(r"(?<![\w/.-])gcloud (?=[a-z])", line):
            before = line[: start.start()].rpartition("$(")[2]
            quote = next((mark for mark in "\"'" if before.count(mark) % 2), "")
            yield re.sub(r"\s+", " ", _cut(line[start.start() :], quote)).strip()


def _cut(line: str, outer: str) -> str:
    """Return the command up to the end of its quotation, or to the character that ends it in a shell."""
    inner = ""
    for place, mark in enumerate(line):
        if inner:
            inner = "" if mark == inner else inner
        elif mark == outer or (not outer and mark in "|;<>&)#`") or line[place:].startswith("2>"):
            return line[:place]
        elif mark in "\"'":
            inner = mark
    return line


FOUND = [
    *((page.name, command) for page in PAGES for command in in_page(page.read_text())),
    *((script.name, command) for script in SCRIPTS for command in in_script(script.read_text())),
]
PROSE = re.compile(r"gcloud (has|terraform)\b")
COMMANDS = sorted({one for one in FOUND if not PROSE.match(one[1])})


ALERTS = (Path(__file__).parents[3] / "infra" / "terraform" / "alerts.tf").read_text()
QUERIES = [
    *(command for _, command in COMMANDS if re.match("gcloud logging read [\"']", command)),
    *re.findall(r"`(gcloud logging read [^`]+)`", ALERTS),
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_a_log_says_who_writes_it(query: str) -> None:
    """Anybody who may write log entries could answer another. deploy.sh asks for an id of its own."""
    known = ("log_id(", "resource.labels.service_name", "jsonPayload.message_id=")
    assert any(restriction in query for restriction in known)


def test_commands_were_found() -> None:
    assert {"deploy.sh", "preflight.sh", "install.md", "operate.md", "cluster-access.md"} <= {
        name for name, _ in COMMANDS
    }
    assert len(COMMANDS) > 25


@pytest.mark.real
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_accepts_every_command(tmp_path: Path) -> None:
    listed = tmp_path / "commands.json"
    listed.write_text(json.dumps([{"command_string": command} for _, command in COMMANDS]))
    checked = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={listed}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "CLOUDSDK_CONFIG": str(tmp_path), "HOME": str(tmp_path)},
        cwd=tmp_path,
        timeout=240,
    )
    wrong = {
        answer["command_string"]: answer["error_message"]
        for answer in json.loads(checked.stdout)
        if not answer["success"] and _NAMED_ONLY not in answer["error_message"]
    }
    assert wrong == {}
