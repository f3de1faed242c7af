"""``python -m replay``."""

from __future__ import annotations

from replay.app import app

if __name__ == "__main__":
    app(prog_name="python -m replay")
