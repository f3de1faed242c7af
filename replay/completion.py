"""What a shell offers as NAME, and the protocol of kubectl's plugin completion."""

import contextlib
import io
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from replay.text import printable
from shared.base.names import JOBSET_KIND, KIND
from shared.triggers.message import REQUEST_KIND

COMPLETER = "kubectl_complete-tng"
"""What kubectl runs to complete the words after ``kubectl tng``: a link to the program."""
PROGRAM = "kubectl-tng"
VARIABLE = "_KUBECTL_TNG_COMPLETE"
"""Set by a shell that completes `PROGRAM`."""
_KINDS = {KIND: "tng", JOBSET_KIND: "", "Pod": "po", "Job": "", "Deployment": "deploy"}
_KINDS |= {"StatefulSet": "sts", "ReplicaSet": "rs", "LeaderWorkerSet": "lws"}
_KINDS |= {REQUEST_KIND: "provreq"}
KINDS = {
    word: kind
    for kind, short in _KINDS.items()
    for word in (kind.lower(), f"{kind.lower()}s", short)
    if word
}
"""The words before a slash that name a kind, as kubectl accepts them. It also accepts and prints them
with the group behind a dot, which is in no name of a namespace: `find_kind`."""


def find_kind(word: str) -> str | None:
    """The kind that a word before a slash names, if it names one."""
    return KINDS.get(word.partition(".")[0])


_NO_FILES = ":4"
"""Cobra's directive for "no file names" (ShellCompDirectiveNoFileComp)."""


def complete_groups(ctx: Any, incomplete: str) -> list[str]:
    """The TPUNodeGroups that begin like this: those of the namespace, or of that before a slash; behind
    ``jobset/`` the JobSets."""
    from replay import dependencies
    from replay.errors import FORESEEN

    prefix, slash, _ = incomplete.rpartition("/")
    kind = find_kind(prefix)
    try:
        cluster, namespace = dependencies.open_cluster_only(dependencies.Choice(**ctx.meta))
        if slash and not kind:
            namespace = prefix
        if kind in (None, KIND):
            listed = cluster.list_groups(namespace)
        else:
            listed = cluster.list_owners(kind, namespace)
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
