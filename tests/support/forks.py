"""Runs that branch: the process forks where something may go wrong, so no beginning is run twice."""

from __future__ import annotations

import gc
import os
import pickle
from typing import Any


class Branches:
    """A run in this process's main thread, and the runs that have branched off from it."""

    def __init__(self) -> None:
        gc.freeze()
        self.path: tuple[str, ...] = ()
        """What goes wrong in this run: one text for each branch taken."""
        self._ends: list[tuple[tuple[str, ...], Any]] = []
        self._parent = -1

    def take(self, name: str) -> bool:
        """Fork. True in the child; its parent waits for the child's end first, then gets False."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            self.path, self._ends, self._parent = (*self.path, name), [], write
            return True
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            self._ends += pickle.load(pipe)
        os.waitpid(child, 0)
        return False

    def end(self, result: Any) -> dict[tuple[str, ...], Any]:
        """End this run. Returns the results of all runs, by path; ends the process of a child."""
        self._ends.append((self.path, result))
        if self.path:
            with os.fdopen(self._parent, "wb") as pipe:
                pickle.dump(self._ends, pipe)
            os._exit(0)
        return dict(self._ends)
