"""Free ports, and the errors about used ones."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import psutil
import pytest

from local.base.ports import PortTaken, check_port, find_free_ports


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_free_ports_differ_and_can_be_bound() -> None:
    ports = find_free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        check_port(port, "--port")


def test_a_free_port_is_outside_the_ephemeral_range() -> None:
    first = 32768  # Linux; systems that follow IANA begin at 49152
    assert all(1024 < port < first for port in find_free_ports(5))


def test_a_free_port_is_not_returned_twice() -> None:
    found = [port for _ in range(50) for port in find_free_ports(2)]
    assert len(set(found)) == len(found)


def test_a_used_port_is_not_returned() -> None:
    (port,) = find_free_ports(1)
    with socket.create_server(("127.0.0.1", port + 1)):
        assert find_free_ports(1) == [port + 2]


def test_the_error_about_a_used_port_names_its_process(listener: int) -> None:
    with pytest.raises(PortTaken) as error:
        check_port(listener, "--port")
    command = " ".join(psutil.Process().cmdline())
    assert str(error.value) == (
        f"port {listener} is taken by process {os.getpid()} ({command}); "
        "end it, or choose another port: --port N, 0 for any free one"
    )


def test_the_error_about_a_used_port_without_a_visible_process_names_another_user(
    listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(()))
    with pytest.raises(PortTaken) as error:
        check_port(listener, "--port")
    assert str(error.value) == (
        f"port {listener} is taken by a process of another user; choose another port: "
        "--port N, 0 for any free one"
    )


def test_a_port_whose_server_has_just_ended_is_free(listener: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
    check_port(port, "--port")
    assert port != listener
