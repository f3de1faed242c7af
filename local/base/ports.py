"""Ports of this machine: free ones, and the process that holds a taken one."""

from __future__ import annotations

import contextlib
import socket

import psutil

LOOPBACK = "127.0.0.1"


class PortTaken(Exception):
    """A requested port is taken; the message names the process if it is visible."""


def find_free_ports(count: int) -> list[int]:
    """Find ``count`` different free ports. Another process may take them at any time."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


def check_port(port: int, option: str) -> None:
    """Raise `PortTaken` unless a server can listen at ``port`` on the loopback interface.

    ``option`` is the one that names another port.
    """
    with socket.socket() as attempt:
        # As servers do; otherwise a port would be taken for minutes after its server has ended.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((LOOPBACK, port))
            attempt.listen()
        except OSError as error:
            raise PortTaken(
                f"port {port} is taken by {_holder(port)} another port: {option} N, 0 for any free one"
            ) from error


def _holder(port: int) -> str:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            if _listens(process, port):
                command = " ".join(process.cmdline())
                return f"process {process.pid} ({command}); end it, or choose"
    return "a process of another user; choose"


def _listens(process: psutil.Process, port: int) -> bool:
    return any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in process.net_connections(kind="tcp")
    )
