"""Ports of this machine: free ones, and the process that holds a taken one."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

import psutil

LOOPBACK = "127.0.0.1"
_FIRST, _COUNT = 15_000, 15_000
"""Below the ports that systems give to outgoing connections (Linux: from 32768, others: 49152). Such a
connection could take a free port before its server listens."""
_APART = 61
"""How far apart the first ports of two processes with consecutive ids are."""
_steps = itertools.count()


class PortTaken(Exception):
    """A requested port is taken; the message names the process if it is visible. Or too few are free."""


def find_free_ports(count: int) -> list[int]:
    """Find ``count`` different free ports. Another process may take them at any time.

    A process does not get the same port again soon, and processes begin at different ones: a server may
    listen seconds after its port was found. Raises `PortTaken` if there are too few.
    """
    candidates = (_FIRST + (os.getpid() * _APART + step) % _COUNT for step in _steps)
    free = filter(_is_free, itertools.islice(candidates, _COUNT))
    found = list(itertools.islice(free, count))
    if len(found) < count:
        raise PortTaken(f"fewer than {count} ports from {_FIRST} on are free")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


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
            if any(
                connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
                for connection in process.net_connections(kind="tcp")
            ):
                command = " ".join(process.cmdline())
                return f"process {process.pid} ({command}); end it, or choose"
    return "a process of another user; choose"
