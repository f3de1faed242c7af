"""Pushes between real processes: the functions verify that the embedded Pub/Sub has sent them."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from local.run.supervisor import JOBSET_STEPS, STEPS
from tests.processes.program import STARTED, running

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("make local")]

ANY_PORTS = ("--port", "0", "--compute-port", "0", "--pubsub-port", "0")


def knock(port: str, authorization: str) -> int:
    """The status of the answer to somebody who is not Pub/Sub."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/", b"{}", headers={"Authorization": authorization}
    )
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(request, timeout=60)
    answer.value.close()
    return answer.value.code


def test_whoever_is_not_pubsub_wakes_no_function(tmp_path: Path) -> None:
    with running(tmp_path, "local", *ANY_PORTS) as local:
        local.until_it_says(STARTED)
        commands = [" ".join(process.cmdline()) for process in local.children()]
        ports = {
            found[1]: found[2]
            for command in commands
            if (found := re.search(r"--target (\w+) .*--port (\d+)", command))
        }
        assert set(ports) == {*STEPS, *JOBSET_STEPS}
        assert {knock(port, "Bearer e30.e30.e30") for port in ports.values()} == {401}
