"""Authorization: RBAC from the stored objects, and the Node authorizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from local.kube import errors
from local.kube.kinds import qualify
from local.kube.node_authorizer import find_denial
from local.kube.requests import RequestInfo
from local.kube.store import Record, Store
from local.kube.users import ALL_AUTHENTICATED, MASTERS, User

RBAC = "rbac.authorization.k8s.io"
_RBAC_RESOURCES = tuple(
    f"{plural}.{RBAC}"
    for plural in ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
)


@dataclass(frozen=True)
class PolicyRule:
    """One rule of a Role or a ClusterRole."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> PolicyRule:
        return cls(
            frozenset(document.get("verbs") or ()),
            frozenset(document.get("apiGroups") or ()),
            frozenset(document.get("resources") or ()),
            frozenset(document.get("resourceNames") or ()),
            tuple(document.get("nonResourceURLs") or ()),
        )

    def allows(self, info: RequestInfo) -> bool:
        """Whether this rule allows a request in the namespaces where it is bound."""
        if not {"*", info.verb} & self.verbs:
            return False
        if not info.resource:
            return any(_path_matches(path, info.path) for path in self.paths)
        wanted = {"*", info.full_resource}
        if info.subresource:
            wanted.add(f"*/{info.subresource}")
        return (
            bool({"*", info.group} & self.groups)
            and bool(wanted & self.resources)
            and (not self.names or info.name in self.names)
        )


def _path_matches(rule: str, path: str) -> bool:
    return path.startswith(rule[:-1]) if rule.endswith("*") else path == rule


class Authorizer:
    """system:masters, then Node, then RBAC, as with ``--authorization-mode=Node,RBAC``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._grants: dict[tuple[str, str], list[tuple[str, PolicyRule]]] = {}
        """By kind and name of a subject: its rules, each with its namespace (empty for all)."""
        self._read_at: tuple[int, ...] = ()

    def allows(self, user: User, info: RequestInfo) -> bool:
        """Whether a user may make this request."""
        return self._find_denial(user, info) is None

    def check(self, user: User, info: RequestInfo) -> None:
        """Raises 403, with Kubernetes' message, unless the request is allowed."""
        denial = self._find_denial(user, info)
        if denial is None:
            return
        more = f": {denial}" if denial else ""
        if not info.resource:
            raise errors.forbidden_path(
                f'User "{user.name}" cannot {info.verb} path "{info.path}"{more}'
            )
        where = f'in the namespace "{info.namespace}"' if info.namespace else "at the cluster scope"
        raise errors.forbidden(
            qualify(info.resource, info.group),
            info.name,
            f'User "{user.name}" cannot {info.verb} resource "{info.full_resource}" in API group '
            f'"{info.group}" {where}{more}',
        )

    def _find_denial(self, user: User, info: RequestInfo) -> str | None:
        """Why the request is denied (empty: nothing allows it); ``None`` if it is allowed."""
        if MASTERS in user.groups:
            return None
        denial = find_denial(user.node_name, info) if user.node_name else ""
        return None if denial is None or self._is_granted(user, info) else denial

    def _is_granted(self, user: User, info: RequestInfo) -> bool:
        self._refresh()
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        return any(
            namespace in ("", info.namespace if info.resource else "") and rule.allows(info)
            for subject in subjects
            for namespace, rule in self._grants.get(subject, ())
        )

    def _refresh(self) -> None:
        changed_at = tuple(self._store.changed_at(resource) for resource in _RBAC_RESOURCES)
        if changed_at == self._read_at:
            return
        self._read_at = changed_at
        self._grants = {}
        for plural in ("clusterrolebindings", "rolebindings"):
            for record in self._store.records(f"{plural}.{RBAC}"):
                self._read_binding(record)

    def _read_binding(self, record: Record) -> None:
        namespace = record.key[0]
        ref = record.document["roleRef"]
        owner = namespace if ref["kind"] == "Role" else ""
        plural = "roles" if ref["kind"] == "Role" else "clusterroles"
        role = self._store.find(f"{plural}.{RBAC}", (owner, ref["name"]))
        rules = (
            [] if role is None else [PolicyRule.of(one) for one in role.document.get("rules") or ()]
        )
        for subject in record.document.get("subjects") or ():
            grants = self._grants.setdefault(_subject_key(subject, namespace), [])
            grants += ((namespace, rule) for rule in rules)


def _subject_key(subject: Mapping[str, str], namespace: str) -> tuple[str, str]:
    if subject["kind"] != "ServiceAccount":
        return subject["kind"], subject["name"]
    owner = subject.get("namespace", namespace)
    return "User", f"system:serviceaccount:{owner}:{subject['name']}"


def impersonate(authorizer: Authorizer, user: User, headers: Mapping[str, str]) -> User:
    """The impersonated user (``kubectl --as``), or the user itself.

    Only one ``Impersonate-Group`` header is read. Raises 403.
    """
    name = headers.get("impersonate-user", "")
    group = headers.get("impersonate-group", "")
    if not name:
        return user
    for resource, wanted in (("users", name), ("groups", group)):
        if wanted:
            info = RequestInfo("impersonate", "", resource=resource, name=wanted)
            authorizer.check(user, info)
    groups = (group,) if group else ()
    return User(name, (*groups, ALL_AUTHENTICATED))
