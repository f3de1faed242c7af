"""The relay's settings: environment variables, read once at the start."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shared.base.environment import Variables


@dataclass(frozen=True)
class RelaySettings:
    """The values of the environment variables."""

    project: str
    topic_prefix: str
    kubeconfig: str
    cluster_id: str
    port: int
    jobsets: bool
    slice_workloads: bool


@dataclass(frozen=True)
class Variable:
    """One environment variable. ``default`` is ``None`` when there is none."""

    name: str
    default: str | None
    meaning: str
    pattern: str
    must_be: str

    def read(self, variables: Variables) -> str:
        """Its value, or its default."""
        pattern = re.compile(self.pattern)
        if self.default is None:
            return variables.require(self.name, self.must_be, pattern)
        return variables.match(self.name, self.must_be, pattern, self.default)


VARIABLES = {
    "project": Variable(
        "PUBSUB_PROJECT",
        None,
        "The Google Cloud project of the topics.",
        r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
        "the id of a Google Cloud project",
    ),
    "topic_prefix": Variable(
        "TOPIC_PREFIX",
        "tpu-functions-",
        "The prefix of the topics' ids: the topic of `create_resources` is `<prefix>create-resources`.",
        r"[A-Za-z][\w.~+%-]{0,199}",
        "the beginning of a Pub/Sub topic id: a letter, then letters, digits and -_.~+%",
    ),
    "kubeconfig": Variable(
        "KUBECONFIG",
        "",
        "A kubeconfig file; if it is not set, the Pod's service account is used.",
        r".*",
        "the path of a kubeconfig file",
    ),
    "cluster_id": Variable(
        "CLUSTER_ID",
        "",
        "The id of the cluster, an attribute of each message; by default the uid of the namespace"
        " kube-system, read once at the start.",
        r"[\w.-]{0,63}",
        "at most 63 letters, digits and -_.",
    ),
    "port": Variable(
        "PORT",
        "8080",
        "The port of `/healthz`, `/readyz` and `/metrics`. 0: any free port (the log names it).",
        r"\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d{2}|655[0-2]\d|6553[0-5]",
        "a port number, 0 to 65535",
    ),
    "jobsets": Variable(
        "JOBSETS",
        "false",
        "Whether to publish messages about Pods of JobSets that wait for a slice, and about JobSets"
        " that have ended.",
        r"true|false",
        "true or false",
    ),
    "slice_workloads": Variable(
        "SLICE_WORKLOADS",
        "false",
        "Whether to publish messages about all Pods that wait for a slice, not only those of JobSets."
        " It includes `JOBSETS`; JobSet need not be installed.",
        r"true|false",
        "true or false",
    ),
}
"""The field of `RelaySettings` that each variable fills."""


def read_settings(environ: Mapping[str, str]) -> RelaySettings:
    """The settings. An empty variable counts as not set. Raises `SettingsError`."""
    variables = Variables(environ)
    texts = {field: variable.read(variables) for field, variable in VARIABLES.items()}
    variables.check()
    return RelaySettings(
        project=texts["project"],
        topic_prefix=texts["topic_prefix"],
        kubeconfig=texts["kubeconfig"],
        cluster_id=texts["cluster_id"],
        port=int(texts["port"]),
        jobsets=texts["jobsets"] == "true",
        slice_workloads=texts["slice_workloads"] == "true",
    )
