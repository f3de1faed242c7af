# ruff: noqa: E501  (a table reads best with a row on a line)
"""The relay's settings from the environment, and the errors for invalid ones."""

from __future__ import annotations

import pytest

from relay.settings import RelaySettings, read_settings
from shared.base.environment import SettingsError


def test_only_the_project_is_required() -> None:
    assert read_settings({"PUBSUB_PROJECT": "proj-1"}) == RelaySettings(
        project="proj-1",
        topic_prefix="tpu-functions-",
        kubeconfig="",
        cluster_id="",
        port=8080,
        jobsets=False,
        slice_workloads=False,
    )


def test_every_variable_is_read() -> None:
    environ = {
        "PUBSUB_PROJECT": "example.com:proj-1",
        "TOPIC_PREFIX": "tf.",
        "KUBECONFIG": "/etc/kubeconfig",
        "CLUSTER_ID": "east-1",
        "PORT": "0",
        "JOBSETS": "true",
        "SLICE_WORKLOADS": "true",
    }
    assert read_settings(environ) == RelaySettings(
        "example.com:proj-1", "tf.", "/etc/kubeconfig", "east-1", 0, True, True
    )


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read_settings({"PUBSUB_PROJECT": "proj-1", "PORT": ""}).port == 8080


def test_white_space_around_a_value_is_removed() -> None:
    read = read_settings({"PUBSUB_PROJECT": "proj-1\n", "PORT": " ", "CLUSTER_ID": " east-1 "})
    assert (read.project, read.port, read.cluster_id) == ("proj-1", 8080, "east-1")


INVALID: dict[str, tuple[dict[str, str], str]] = {
    "no project": ({}, "PUBSUB_PROJECT is not set: it must be the id of a Google Cloud project"),
    "project": ({"PUBSUB_PROJECT": "projects/p"}, "PUBSUB_PROJECT='projects/p' is wrong: it must be the id of a Google Cloud project"),
    "prefix": (
        {"PUBSUB_PROJECT": "proj-1", "TOPIC_PREFIX": "a/b"},
        "TOPIC_PREFIX='a/b' is wrong: it must be the beginning of a Pub/Sub topic id: a letter,"
        " then letters, digits and -_.~+%",
    ),
    "cluster": ({"PUBSUB_PROJECT": "proj-1", "CLUSTER_ID": "a b"}, "CLUSTER_ID='a b' is wrong: it must be at most 63 letters, digits and -_."),
    "port": ({"PUBSUB_PROJECT": "proj-1", "PORT": "65536"}, "PORT='65536' is wrong: it must be a port number, 0 to 65535"),
    "jobsets": ({"PUBSUB_PROJECT": "proj-1", "JOBSETS": "yes"}, "JOBSETS='yes' is wrong: it must be true or false"),
    "several": (
        {"PORT": "http"},
        "PUBSUB_PROJECT is not set: it must be the id of a Google Cloud project; "
        "PORT='http' is wrong: it must be a port number, 0 to 65535",
    ),
}  # fmt: skip


@pytest.mark.parametrize("environ, message", INVALID.values(), ids=INVALID.keys())
def test_the_error_for_an_invalid_setting_has_its_name_and_valid_values(
    environ: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings(environ)
    assert str(raised.value) == message
