"""What a shell offers as NAME, and the protocol of kubectl's plugin completion."""

import contextlib
import io
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from replay.text import printable
from shared.base.names import GROUP, JOBSET_KIND, KIND, PLURAL
from shared.triggers.message import REQUEST_KIND

COMPLETER = "kubectl_complete-tng"
"""What kubectl runs to complete the words after ``kubectl tng``: a link to the program."""
PROGRAM = "kubectl-tng"
VARIABLE = "_KUBECTL_TNG_COMPLETE"
"""Set by a shell that completes `PROGRAM`."""
KINDS = {
    **dict.fromkeys(("tng", KIND.lower(), PLURAL, f"{PLURAL}.{GROUP}"), KIND),
    **dict.fromkeys(("jobset", "jobsets", "jobsets.jobset.x-k8s.io"), JOBSET_KIND),
    **dict.fromkeys(("pod", "pods", "po"), "Pod"),
    **dict.fromkeys(("job", "jobs", "jobs.batch"), "Job"),
    **dict.fromkeys(("deployment", "deployments", "deploy", "deployments.apps"), "Deployment"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts", "statefulsets.apps"), "StatefulSet"),
    **dict.fromkeys(("replicaset", "replicasets", "rs", "replicasets.apps"), "ReplicaSet"),
    **dict.fromkeys(("leaderworkerset", "leaderworkersets", "lws"), "LeaderWorkerSet"),
    **dict.fromkeys(("provisioningrequest", "provisioningrequests", "provreq"), REQUEST_KIND),
}
"""The words before a slash that name a kind, as kubectl accepts them."""


def find_first_words() -> list[str]:
    """A word for each kind."""
    return list({kind: word for word, kind in reversed(KINDS.items())}.values())[::-1]


_NO_FILES = ":4"
"""Cobra's directive for "no file names" (ShellCompDirectiveNoFileComp)."""


def complete_groups(ctx: Any, incomplete: str) -> list[str]:
    """The TPUNodeGroups that begin like this: those of the namespace, or of that before a slash; behind
    ``jobset/`` the JobSets."""
    from replay import dependencies
    from replay.errors import FORESEEN

    prefix, slash, _ = incomplete.rpartition("/")
    is_kind = prefix in KINDS
    try:
        cluster, namespace = dependencies.open_cluster_only(dependencies.Choice(**ctx.meta))
        if slash and not is_kind:
            namespace = prefix
        if KINDS.get(prefix, KIND) == KIND:
            listed = cluster.list_groups(namespace)
        else:
            listed = cluster.list_owners(KINDS[prefix], namespace)
        names = [printable(f"{prefix}{slash}{one['metadata']['name']}") for one in listed]
    except FORESEEN:  # a shell that completes has no place for an error
        return []
    return [name for name in names if name.startswith(incomplete)]


def answer_kubectl(run: Callable[..., Any], words: Sequence[str]) -> None:
    """Print the completions of the last word, with their help, as kubectl reads them."""
    os.environ |= {
        VARIABLE: "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": shlex.join([PROGRAM, *words[:-1]]) + " " + "".join(words[-1:]),
    }
    offered = io.StringIO()
    try:
        with contextlib.redirect_stdout(offered):
            run(prog_name=PROGRAM, args=[])
    finally:
        print("\n".join((*filter(None, offered.getvalue().splitlines()), _NO_FILES)))
