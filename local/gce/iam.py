"""Conditions on roles: the part of IAM's language that compares a resource's name.

A resource has a name only where Google documents one for conditions. A condition on the name of any
other resource, or of a project, is false. So it never grants a list, which is checked on the project.
"""

from __future__ import annotations

import re

_NAMED = re.compile(r"projects/[^/]+/(zones/[^/]+/instances|global/instanceTemplates)/[^/]+")
_TERM = re.compile(r'resource\.name\.extract\("([^"{]*)\{\w+}([^"]*)"\)\.startsWith\("([^"]+)"\)')


def holds(condition: str, resource: str) -> bool:
    """Whether a condition holds for the resource at a path.

    Raises `ValueError` for an unsupported expression.
    """
    terms = [_TERM.fullmatch(term.strip()) for term in condition.split("||")]
    if None in terms:
        raise ValueError(f"{condition} is not known here")
    if not _NAMED.fullmatch(resource):
        return False
    return any(
        _extract(resource, term[1], term[2]).startswith(term[3])
        for term in terms
        if term is not None
    )


def _extract(text: str, before: str, after: str) -> str:
    """Extract the text between two texts, as IAM's ``extract``; empty if they are missing."""
    _, found, rest = text.partition(before)
    if not found:
        return ""
    if not after:
        return rest
    inner, ended, _ = rest.partition(after)
    return inner if ended else ""
