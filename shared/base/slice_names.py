"""The names that follow from a Job of a JobSet: its key, and its slice."""

import hashlib
import re

JOB_LABEL = "tpu-functions.dev/job-name"
"""On the TPUNodeGroup of a JobSet: its Job. It is an annotation if the name is too long for a label."""
JOB_KEY_SELECTOR = "job-key"
"""The label of a slice's Nodes that the Pods of its Job select; see ``admit_job``."""
_KEY_LENGTH = 16
_MAX_NAME = 40
"""The documented limit of a node pool's name."""
_JOB_KEY = re.compile("[0-9a-f]{40}")
_SLICE_NAME = re.compile(rf".+-[0-9a-f]{{{_KEY_LENGTH}}}")


def job_key(namespace: str, job: str) -> str:
    """The ``job-key`` that JobSet computes for a Job. Half a surrogate pair counts as ``?``."""
    text = f"{namespace}/{job}".encode(errors="replace")
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


def slice_name(jobset: str, job_key: str) -> str:
    """The name of a Job's slice: at most 40 characters, of which 16 are from the Job's key (64 bits)."""
    key = job_key[:_KEY_LENGTH]
    return f"{jobset[: _MAX_NAME - 1 - len(key)].rstrip('-.')}-{key}".replace(".", "-")


def workload_key(namespace: str, kind: str, owner: str, member: str) -> str:
    """The value of `names.WORKLOAD_LABEL`: one for all units that Kueue admits together, also if their
    owner is created again. These are those of an owner, or of a LeaderWorkerSet's group."""
    group = f"/{member.partition('/')[0]}" if kind == "LeaderWorkerSet" else ""
    return job_key(namespace, f"{kind}/{owner}{group}")[:_KEY_LENGTH]


def may_be_job_key(value: str) -> bool:
    """Whether some Job may have this key."""
    return _JOB_KEY.fullmatch(value) is not None


def may_be_slice_name(name: str) -> bool:
    """Whether the slice of some Job may have this name."""
    return _SLICE_NAME.fullmatch(name) is not None
