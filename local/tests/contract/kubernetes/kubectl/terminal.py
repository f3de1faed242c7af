"""A terminal that runs kubectl and records its output."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from local.control_plane import binaries
from local.tests.contract.kubernetes.dialogue import fill
from local.tests.contract.kubernetes.masks import mask

JOE = {"as": "joe", "as-groups": ["devs"]}
"""A user without permissions, whom the administrator impersonates."""
_MASKS = (
    (re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} [\d:]{8} [+-]\d{4}"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d [\d:]{8}\.\d+ [+-]\d{4}"), "<time>"),
    (re.compile(r"(?<=/LIVE-)\d+|(?<=/MERGED-)\d+"), "<folder>"),
    (re.compile(r"(?<=resourceVersion: )\"\d+\"|(?<=Resource Version: )\s*\d+"), "<version>"),
    (re.compile(r"v1\.\d+\.\d+\S*"), "<version>"),
    (re.compile(r"(?<![\w.-])(\d+[smhd]){1,2}(?![\w.-])|<invalid>"), "<age>"),
)


def find_kubectl() -> str | None:
    """Find the installed kubectl, or the one of the real control plane's programs."""
    installed = shutil.which("kubectl")
    if installed is not None:
        return installed
    found = binaries.find(os.environ)
    return None if found is None else found.path("kubectl")


@dataclass(frozen=True)
class Shown:
    """A command and the lines of its output, masked where they depend on chance or time.

    A command that fails has no lines, because error messages may differ.
    """

    command: str
    lines: tuple[str, ...]


@dataclass
class Terminal:
    """Runs commands one after another in one namespace.

    ``kubeconfig`` is the administrator's. ``known`` are the variables of commands and manifests,
    including the namespace (``ns``).
    """

    program: str
    kubeconfig: Path
    home: Path
    known: dict[str, str]
    shown: list[Shown] = field(default_factory=list)

    def __call__(
        self, *arguments: str, user: str = "admin", stdin: Any = None, code: int = 0, **extra: str
    ) -> str:
        """Run kubectl and return its output and errors. ``code`` is the expected exit code.

        ``stdin`` is a manifest. ``extra`` are environment variables.
        """
        command = [fill(one, self.known) for one in arguments]
        done = subprocess.run(
            [self.program, *command],
            env={**self._environment(user), **extra},
            # JSON: kubectl would read the plain YAML string 7241e8 as a number.
            input=None if stdin is None else json.dumps(fill(stdin, self.known)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == code, f"kubectl {' '.join(command)}\n{printed}"
        self._record(arguments, "" if code else printed)
        return printed

    @contextmanager
    def following(self, *arguments: str) -> Iterator[Iterator[str]]:
        """Run a command within the context, and yield its lines."""
        command = [self.program, *(fill(one, self.known) for one in arguments)]
        with subprocess.Popen(
            command, env=self._environment("admin"), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield (self._follow(arguments, line) for line in process.stdout)
            finally:
                process.terminate()

    def _follow(self, arguments: tuple[str, ...], line: str) -> str:
        self._record(arguments, line)
        return line

    def _record(self, arguments: tuple[str, ...], printed: str) -> None:
        self.shown.append(Shown(" ".join(arguments), tuple(_mask_lines(printed, self.kubeconfig))))

    def _environment(self, user: str) -> dict[str, str]:
        path = self.home / f"as-{user}.yaml"
        config = yaml.safe_load(self.kubeconfig.read_text())
        (one,) = config["contexts"]
        one["context"]["namespace"] = self.known["ns"]
        if user == "joe":
            (holder,) = config["users"]
            holder["user"].update(JOE)
        path.write_text(yaml.safe_dump(config))
        return {"HOME": str(self.home), "PATH": os.defpath, "KUBECONFIG": str(path)}


def _mask_lines(printed: str, kubeconfig: Path) -> Iterator[str]:
    server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    for line in printed.replace(server, "<server>").splitlines():
        shown = str(mask(line))
        for pattern, word in _MASKS:
            shown = pattern.sub(word, shown)
        if shown.strip():
            yield " ".join(shown.split())  # the widths of columns depend on masked values
