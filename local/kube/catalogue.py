"""Which kinds are served right now: the built-in ones and those of established CRDs."""

from __future__ import annotations

from collections.abc import Iterator

from local.kube.kinds import Kind, builtin_kinds


class Catalogue:
    """The served kinds, found by URL part or by what an object says of itself."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {kind.resource: kind for kind in builtin_kinds()}
        self._index()

    def _index(self) -> None:
        self._by_path = {(kind.group, kind.plural): kind for kind in self}
        self._by_kind = {(kind.group, kind.kind): kind for kind in self}

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def __getitem__(self, resource: str) -> Kind:
        """The kind of ``widgets.example.com``. Raises `KeyError`."""
        return self._kinds[resource]

    def find(self, group: str, plural: str) -> Kind | None:
        """The kind that a URL names."""
        return self._by_path.get((group, plural))

    def find_kind(self, group: str, kind: str) -> Kind | None:
        """The kind that an object's ``apiVersion`` and ``kind`` name."""
        return self._by_kind.get((group, kind))

    def add(self, kind: Kind) -> None:
        """Serve a kind, in place of an earlier form of it."""
        self._kinds[kind.resource] = kind
        self._index()

    def remove(self, resource: str) -> None:
        """Serve a kind no more; nothing happens if it was not served."""
        if self._kinds.pop(resource, None) is not None:
            self._index()

    def groups(self) -> dict[str, list[str]]:
        """Each group's versions, the group's and the version's order being that of appearance."""
        found: dict[str, dict[str, None]] = {}
        for kind in filter(lambda one: one.served, self):
            found.setdefault(kind.group, {})[kind.version] = None
        return {group: list(versions) for group, versions in found.items()}
