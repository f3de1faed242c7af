"""What ``make local`` says of its options before anything runs, and the credentials that it keeps."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from local import __main__ as local
from local.cluster.credentials import Credentials, CredentialsUnreadable
from local.run.supervisor import IDENTITIES

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "name, content, why",
    [
        ("log", None, "--dir: {}/log: Is a directory"),
        ("credentials.json", None, "--dir: {}/credentials.json: Is a directory"),
        ("credentials.json", "[]", "{}/credentials.json holds no credentials; remove it"),
        ("credentials.json", '{"ca": {}}', "{}/credentials.json holds no credentials; remove it"),
        ("lock", None, "--dir {}: Is a directory"),
    ],
)
def test_what_is_wrong_in_a_kept_directory_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, why: str
) -> None:
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    assert start("--dir", str(tmp_path)) == 1
    assert why.format(tmp_path) in capsys.readouterr().out


def test_a_directory_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--dir", str(tmp_path / ("x" * 300))) == 1
    assert "x: File name too long\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("--port", "99999"), "argument --port: '99999' is not a port, 0 to 65535"),
        (("--compute-port", "x"), "argument --compute-port: 'x' is not a port, 0 to 65535"),
        (("--pubsub-port=-1",), "argument --pubsub-port: '-1' is not a port, 0 to 65535"),
        (
            ("--port", "0", "--pubsub-port", "18080"),
            "--port, --compute-port and --pubsub-port must differ, and would be 18080, 18080; "
            "0: any free port",
        ),
    ],
)
def test_ports_that_cannot_be_used_are_rejected(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], why: str
) -> None:
    with pytest.raises(SystemExit):
        local.main(arguments)
    assert capsys.readouterr().err.endswith(f"make local: error: {why}\n")


def start(*arguments: str) -> int:
    """Run the command at any ports; returns the exit code."""
    ports = ("--port=0", "--compute-port=0", "--pubsub-port=0")
    return local.main([*ports, *arguments])


@pytest.mark.parametrize("tokens", ["x", {"relay": 3}, {"relay": "ü"}, None])
def test_tokens_of_another_form_are_no_credentials(tmp_path: Path, tokens: object) -> None:
    path = tmp_path / "credentials.json"
    Credentials.load_or_create(path, IDENTITIES, NOW)
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokens": tokens}))
    with pytest.raises(CredentialsUnreadable, match=r"credentials\.json holds no credentials"):
        Credentials.load_or_create(path, IDENTITIES, NOW)


def test_the_tokens_that_a_version_with_fewer_steps_has_kept_stay_and_others_are_added(
    tmp_path: Path,
) -> None:
    path = tmp_path / "credentials.json"
    before = Credentials.load_or_create(path, ("relay", "renamed"), NOW)
    after = Credentials.load_or_create(path, ("relay", "report-leaks"), NOW)
    assert list(after.tokens) == ["admin", "relay", "report-leaks"]
    assert after.tokens["relay"] == before.tokens["relay"]
    assert after.ca.certificate_pem == before.ca.certificate_pem
    assert Credentials.load_or_create(path, after.tokens, NOW).tokens == after.tokens
    assert path.stat().st_mode & 0o077 == 0
