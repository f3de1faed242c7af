"""May this user do this? RBAC from the objects that are stored, and the Node authorizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from local.kube import errors
from local.kube.errors import ApiError
from local.kube.kinds import qualify
from local.kube.node_rights import NodeAuthorizer
from local.kube.requests import RequestInfo
from local.kube.store import Record, Store
from local.kube.users import ALL_AUTHENTICATED, MASTERS, User

RBAC = "rbac.authorization.k8s.io"
_RBAC_RESOURCES = tuple(
    f"{plural}.{RBAC}"
    for plural in ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
)


@dataclass(frozen=True)
class Decision:
    """Yes or no, and why (if there is more to say than that nothing allows it)."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True)
class Rule:
    """One PolicyRule."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Rule:
        return cls(
            frozenset(document.get("verbs") or ()),
            frozenset(document.get("apiGroups") or ()),
            frozenset(document.get("resources") or ()),
            frozenset(document.get("resourceNames") or ()),
            tuple(document.get("nonResourceURLs") or ()),
        )

    def allows(self, info: RequestInfo) -> bool:
        """Whether this rule allows what is asked, wherever it is bound."""
        if not _has(self.verbs, info.verb):
            return False
        if not info.resource:
            return any(_path_matches(path, info.path) for path in self.paths)
        return (
            _has(self.groups, info.group)
            and self._has_resource(info)
            and (not self.names or info.name in self.names)
        )

    def _has_resource(self, info: RequestInfo) -> bool:
        wanted = {"*", info.full_resource}
        if info.subresource:
            wanted.add(f"*/{info.subresource}")
        return not wanted.isdisjoint(self.resources)


def _has(allowed: frozenset[str], wanted: str) -> bool:
    return "*" in allowed or wanted in allowed


def _path_matches(rule: str, path: str) -> bool:
    return path.startswith(rule[:-1]) if rule.endswith("*") else path == rule


@dataclass(frozen=True)
class Grant:
    """Rules that a binding gives in one namespace, or everywhere (``""``). ``words`` say which."""

    namespace: str
    rules: tuple[Rule, ...]
    words: str

    def covers(self, info: RequestInfo) -> bool:
        """Whether what is asked lies where this is bound; paths lie everywhere or nowhere."""
        return not self.namespace or (bool(info.resource) and self.namespace == info.namespace)


class Rbac:
    """Role-based access control over the Roles and bindings in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._grants: dict[tuple[str, str], list[Grant]] = {}
        self._read_at: tuple[int, ...] = ()

    def decide(self, user: User, info: RequestInfo) -> Decision:
        """Whether any rule that is bound to the user or a group of theirs allows this."""
        for grant in self.grants_of(user):
            if grant.covers(info) and any(rule.allows(info) for rule in grant.rules):
                return Decision(True, f"RBAC: allowed by {grant.words}")
        return Decision(False)

    def grants_of(self, user: User) -> Iterator[Grant]:
        """All that is bound to a user."""
        self._refresh()
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        for subject in subjects:
            yield from self._grants.get(subject, ())

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
        if role is None:
            return
        rules = tuple(Rule.of(one) for one in role.document.get("rules") or ())
        binding = f"{record.key[1]}/{namespace}" if namespace else record.key[1]
        for subject in record.document.get("subjects") or ():
            words = (
                f'{record.document["kind"]} "{binding}" of {ref["kind"]} "{ref["name"]}" to '
                f"{_render_subject(subject, namespace)}"
            )
            grant = Grant(namespace, rules, words)
            self._grants.setdefault(_subject_key(subject, namespace), []).append(grant)


def _render_subject(subject: Mapping[str, str], namespace: str) -> str:
    if subject["kind"] != "ServiceAccount":
        return f'{subject["kind"]} "{subject["name"]}"'
    return f'ServiceAccount "{subject["name"]}/{subject.get("namespace", namespace)}"'


def _subject_key(subject: Mapping[str, str], namespace: str) -> tuple[str, str]:
    if subject["kind"] != "ServiceAccount":
        return subject["kind"], subject["name"]
    owner = subject.get("namespace", namespace)
    return "User", f"system:serviceaccount:{owner}:{subject['name']}"


class Authorizer:
    """system:masters, then Node, then RBAC, as ``--authorization-mode=Node,RBAC`` has it."""

    def __init__(self, store: Store) -> None:
        self.rbac = Rbac(store)
        self._nodes = NodeAuthorizer(store)

    def decide(self, user: User, info: RequestInfo) -> Decision:
        """Yes or no."""
        if MASTERS in user.groups:
            return Decision(True)
        refusal = self._nodes.find_refusal(user.node_name, info) if user.node_name else ""
        if refusal is None:
            return Decision(True)
        decision = self.rbac.decide(user, info)
        return decision if decision.allowed else Decision(False, refusal)

    def check(self, user: User, info: RequestInfo) -> None:
        """Raises 403 in Kubernetes' words."""
        decision = self.decide(user, info)
        if not decision.allowed:
            raise denial(user, info, decision.reason)


def denial(user: User, info: RequestInfo, reason: str) -> ApiError:
    """The 403 of a request that nothing allows."""
    more = f": {reason}" if reason else ""
    if not info.resource:
        return errors.forbidden_path(
            f'User "{user.name}" cannot {info.verb} path "{info.path}"{more}'
        )
    where = f'in the namespace "{info.namespace}"' if info.namespace else "at the cluster scope"
    return errors.forbidden(
        qualify(info.resource, info.group),
        info.name,
        f'User "{user.name}" cannot {info.verb} resource "{info.full_resource}" in API group '
        f'"{info.group}" {where}{more}',
    )


def impersonate(authorizer: Authorizer, user: User, headers: Mapping[str, str]) -> User:
    """The user whom somebody asks to be taken for (``kubectl --as``), or the asker.

    One ``Impersonate-Group`` is read; a header that comes more than once is not. Raises 403.
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
