"""What a shell offers as NAMESPACE/NAME, and the protocol of kubectl's plugin completion."""

import contextlib
import io
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from replay.text import printable
from shared.base.names import JOBSET_KIND

COMPLETER = "kubectl_complete-tng"
"""What kubectl runs to complete the words after ``kubectl tng``: a link to the program."""
PROGRAM = "kubectl-tng"
VARIABLE = "_KUBECTL_TNG_COMPLETE"
"""Set by a shell that completes `PROGRAM`."""
_NO_FILES = ":4"
"""Cobra's directive for "no file names" (ShellCompDirectiveNoFileComp)."""


def complete_groups(incomplete: str) -> list[str]:
    """The cluster's TPUNodeGroups that begin like this."""
    return _complete(incomplete, lambda cluster: cluster.list_groups())


def complete_jobsets_too(ctx: Any, incomplete: str) -> list[str]:
    """The cluster's TPUNodeGroups, or its JobSets where ``--jobset`` is given."""
    if ctx.params.get("is_jobset"):
        return _complete(incomplete, lambda cluster: cluster.list_owners(JOBSET_KIND))
    return complete_groups(incomplete)


def _complete(
    incomplete: str, list_objects: Callable[[Any], Iterable[Mapping[str, Any]]]
) -> list[str]:
    from replay.dependencies import open_cluster_only
    from replay.errors import FORESEEN

    try:
        found = [one["metadata"] for one in list_objects(open_cluster_only())]
    except FORESEEN:  # a shell that completes has no place for an error
        return []
    names = [printable(f"{metadata['namespace']}/{metadata['name']}") for metadata in found]
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
