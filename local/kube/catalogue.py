"""The kinds that are served: the built-in ones and those of established CRDs."""

from __future__ import annotations

from collections.abc import Iterator

from local.kube.kinds import Kind, builtin_kinds


class Catalogue:
    """The served kinds, by the parts of a URL or by an object's apiVersion and kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {kind.resource: kind for kind in builtin_kinds()}
        self._index()

    def _index(self) -> None:
        self._by_path = {(kind.group, kind.plural): kind for kind in self}
        self._by_kind = {(kind.group, kind.kind): kind for kind in self}

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def __getitem__(self, resource: str) -> Kind:
        """The kind of a resource such as ``widgets.example.com``. Raises `KeyError`."""
        return self._kinds[resource]

    def find(self, group: str, plural: str) -> Kind | None:
        """Find the kind that a URL names."""
        return self._by_path.get((group, plural))

    def find_kind(self, group: str, kind: str) -> Kind | None:
        """Find the kind that an object's ``apiVersion`` and ``kind`` name."""
        return self._by_kind.get((group, kind))

    def add(self, kind: Kind) -> None:
        """Serve a kind; it replaces an earlier definition."""
        self._kinds[kind.resource] = kind
        self._index()

    def remove(self, resource: str) -> None:
        """Stop serving a kind. Does nothing if it was not served."""
        if self._kinds.pop(resource, None) is not None:
            self._index()

    def groups(self) -> dict[str, list[str]]:
        """The versions of each group, in the order in which they were added."""
        found: dict[str, dict[str, None]] = {}
        for kind in filter(lambda one: one.served, self):
            found.setdefault(kind.group, {})[kind.version] = None
        return {group: list(versions) for group, versions in found.items()}
