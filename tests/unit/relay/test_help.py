"""``python -m relay --help``: the settings, and no log line."""

from __future__ import annotations

import pytest

from relay.__main__ import main
from relay.settings import VARIABLES


def test_help_names_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m relay")
    for variable in VARIABLES.values():
        assert f"\n  {variable.name}" in shown


def test_an_unknown_option_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--port", "1"])
    assert ended.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err
