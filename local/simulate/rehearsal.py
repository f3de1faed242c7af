"""A manifest and a script on the stand-ins, and what came of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from local import kube
from local.base.controls import UnknownFault
from local.base.http import Request
from local.base.machine import Machine
from local.cloud.logging import CloudLogging
from local.cloud.simulation import PROJECT, Options, topic
from local.cluster.manifests import (
    GROUPS,
    collection_path,
    describe,
    object_path,
    read_definitions_for_examples,
)
from local.gce.supply import ANY_MODEL
from local.gce.topology import FAMILIES
from local.jobsets import PodBehaviour
from local.simulate import script
from local.simulate.harness import ROOT, Harness, Log
from local.simulate.script import Line, WrongInput
from local.vm import agents
from local.vm.conversation import Bearer, Identity
from replay.cloud_logging import CloudLogging as Logs
from replay.dependencies import Dependencies
from replay.subscriptions import Subscriptions
from replay.text import find_time_of
from replay.timeline import Moment, Timeline
from replay.timeline_sources import TimelineRequest, build_timeline
from shared.base.documents import parse_yaml_documents, read_mapping, read_texts
from shared.base.names import (
    JOBSET_KIND,
    JOBSET_LABEL,
    RESOURCE_NAME_LABEL,
    UNIT_KIND_LABEL,
    find_resource_name,
)
from shared.ports.kubernetes.access_settings import Kubeconfig
from shared.settings import TPU_NODE_GROUP

Document = dict[str, Any]
_GROUP = "TPUNodeGroup"
_WORKLOADS = ("JobSet", "LeaderWorkerSet", "Deployment", "ReplicaSet", "StatefulSet", "Job", "Pod")
_OF_CLUSTER = (
    *("Namespace", "TPUSliceClass", "PriorityClass", "StorageClass", "PersistentVolume"),
    *("ClusterQueue", "ResourceFlavor", "AdmissionCheck", "WorkloadPriorityClass", "Topology"),
    *("ProvisioningRequestConfig", "ClusterRole", "ClusterRoleBinding"),
)
"""The kinds of objects without a namespace, of those that manifests of workloads have."""
_OF_SYSTEM = frozenset({"kube-system", "tpu-functions"})
_FIRST = {"Namespace": 0, "ConfigMap": 1, "TPUSliceClass": 2}
_OPTIONS = ROOT / "examples" / "jobset-template.yaml"
_PROJECT = re.compile(r"^\s*project:\s*[\"']?([a-z][-a-z0-9]+)", re.MULTILINE)
_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
_LEASE_S = 20.0
_MOST = 1000
"""Slices of a namespace, if the manifest does not say it."""
_RESERVED = 4096
"""VMs of a reservation that a group names."""
_LOSSES = {
    script.PREEMPT: "preempt",
    script.FAIL: "host_error",
    script.MAINTAIN: "host_maintenance",
}
"""The fault of Compute Engine for a verb."""


def read_text(file: Path) -> str:
    """The text of a file. Raises `WrongInput`."""
    try:
        return file.read_text()
    except OSError as error:
        raise WrongInput(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WrongInput(f"{file}: it is not text in UTF-8") from error


def read_manifest(file: Path) -> list[Document]:
    """The documents of a file. Raises `WrongInput`."""
    try:
        found = parse_yaml_documents(read_text(file))
    except ValueError as error:
        raise WrongInput(f"{file}: this is not YAML that kubectl reads: {error}") from error
    documents = [one for one in found if one is not None]
    if not documents:
        raise WrongInput(f"{file}: there is no object in it")
    for number, one in enumerate(documents, 1):
        meta = one.get("metadata") if isinstance(one, dict) else None
        needed = {**meta, **one}.get if isinstance(meta, dict) else {}.get
        if not all(isinstance(needed(key), str) for key in ("apiVersion", "kind", "name")):
            what = "it must have apiVersion, kind and metadata.name"
            raise WrongInput(f"{file}, document {number}: {what}")
        if one["kind"] not in _OF_CLUSTER:
            one["metadata"]["namespace"] = one["metadata"].get("namespace") or "default"
    return documents


def _find_projects(value: Any) -> Iterator[str]:
    """The projects that specs name, also in a template that a ConfigMap holds as text."""
    if isinstance(value, str):
        yield from _PROJECT.findall(value)
    elif isinstance(value, dict):
        yield from _PROJECT.findall(f"project: {value.get('project')}")
        yield from _find_projects([value[key] for key in value if key != "metadata"])
    elif isinstance(value, list):
        for one in value:
            yield from _find_projects(one)


class _Recorder(Log):
    """The steps' log, which is in Cloud Logging, too."""

    def __init__(self, logs: CloudLogging) -> None:
        super().__init__()
        self._logs = logs

    def add(self, line: dict[str, Any]) -> None:
        super().add(line)
        service = topic(str(line["step"])).rpartition("/")[2]
        self._logs.write_line(service, json.loads(json.dumps(line, default=str)))


class Rehearsal:
    """A world with the product, in which a manifest is applied and a script is played."""

    def __init__(self, documents: Sequence[Document], pods_run_s: float | None) -> None:
        """``pods_run_s``: how long the Pods of Jobs run; ``None``: without end."""
        self._documents = sorted(documents, key=lambda one: _FIRST.get(one["kind"], len(_FIRST)))
        kinds = {one["kind"] for one in documents}
        self._has_workloads = bool(kinds & {*_WORKLOADS, "TPUSliceClass", "ProvisioningRequest"})
        self.notes: list[str] = []
        """What the world has that the manifest does not."""
        self.script: list[Moment] = []
        """What was done by hand, and what came of it at once."""
        self._groups: dict[str, tuple[str, str]] = {}
        """Namespace and name of each slice that has existed, by its uid."""
        projects = list(_find_projects(list(documents))) or [PROJECT]
        self._project = projects[0]
        self._harness = self._make_harness(frozenset(projects))
        self._faults = self._harness.simulation.gce.faults
        self._logs = CloudLogging(self._harness.clock, PROJECT, kept=None)
        self._log = self._harness.log = _Recorder(self._logs)
        self._harness.hooks.on_entry = self._logs.write
        runs = PodBehaviour(run_s=pods_run_s or 0.0)
        endless = PodBehaviour(ends=lambda _: "")
        self._harness.jobsets.behaviour = endless if pods_run_s is None else runs
        self._harness.simulation.kube.apply_manifests(read_definitions_for_examples())
        self._began = self._harness.clock.now()
        self._watch_groups()

    def _make_harness(self, projects: frozenset[str]) -> Harness:
        groups = [one for one in self._documents if one["kind"] == _GROUP]
        is_own = bool(groups) and not any(
            "bootstrapKubernetes" in read_mapping(one, "spec") for one in groups
        )
        if is_own:
            self.notes.append("No group has bootstrapKubernetes: the VMs join by their image.")
        harness = Harness(
            Options(
                workloads=self._has_workloads,
                agents=agents.Timings(
                    lease_s=_LEASE_S, identity=_join_by_image if is_own else None
                ),
                kube=kube.ClusterOptions(node_grace_s=4 * _LEASE_S),
            ),
            projects=projects,
            slices={"slice_provider": TPU_NODE_GROUP} if self._has_workloads else None,
        )
        harness.may_crash = True
        for group in groups:
            spec = read_texts(group, "spec")
            config = read_texts(read_mapping(group, "spec"), "instanceConfig")
            if name := config.get("reservation", "").rpartition("/")[2]:
                zone = f"projects/{spec.get('project')}/zones/{spec.get('nodeLocation')}"
                path, machine = f"{zone}/reservations/{name}", config.get("machineType", "")
                harness.simulation.gce.faults.set_reservation(path, machine, _RESERVED)
        return harness

    def play(self, lines: Iterable[Line], end_s: int, progress: Callable[[str], None]) -> None:
        """Apply the manifest, play the script and let time pass until ``end_s``. Raises `WrongInput`."""
        lines = sorted(lines, key=lambda line: line.at_s)
        for line in (one for one in lines if one.at_s == 0):
            self._play(line)
        self._apply()
        for line in (one for one in lines if one.at_s > 0):
            self._run_until(line.at_s, progress)
            self._play(line)
        self._run_until(end_s, progress)

    def _run_until(self, at_s: float, progress: Callable[[str], None]) -> None:
        end, clock = self._began + timedelta(seconds=at_s), self._harness.clock
        while clock.now() < end:
            progress(f"{clock.now():%H:%M:%S} of the rehearsal")
            self._harness.run_for(min(_MINUTE, end - clock.now()))

    def _apply(self) -> None:
        admin = self._harness.simulation.admin
        spaces = {one["metadata"].get("namespace", "default") for one in self._documents}
        for name in sorted(spaces - _OF_SYSTEM - {"default"}):
            admin("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": name}})
        for one in (*self._options(spaces), *self._documents):
            self._create(one)
            if one in self._documents:
                self._note("apply", describe(one))

    def _create(self, one: Document) -> None:
        """Create an object, or merge it into the one that exists. Raises `WrongInput`."""
        headers = {"Authorization": "Bearer admin", "Content-Type": "application/json"}
        ask, body = self._harness.simulation.kube.handle, json.dumps(one)
        answer = ask(Request.of("POST", collection_path(one), headers=headers, body=body))
        if answer.status == 409:
            headers["Content-Type"] = "application/merge-patch+json"
            answer = ask(Request.of("PATCH", object_path(one), headers=headers, body=body))
        if answer.status >= 400:
            kind = f"{one['apiVersion']} {one['kind']}"
            why = f"{kind} is not simulated" if answer.status == 404 else answer.json()["message"]
            raise WrongInput(f"{describe(one)} is rejected: {why}")

    def _options(self, namespaces: Iterable[str]) -> Iterator[Document]:
        """The ConfigMap of the slices of workloads, if the manifest has none and they need it."""
        if not self._has_workloads or "ConfigMap tpu-functions/jobsets" in map(
            describe, self._documents
        ):
            return
        options = yaml.safe_load(_OPTIONS.read_text())
        kinds = f"{{kinds: [{', '.join(_WORKLOADS)}], slices: {_MOST}}}"
        listed = "\n".join(f"{name}: {kinds}" for name in sorted(namespaces))
        self.notes.append(
            "The manifest has no ConfigMap tpu-functions/jobsets: all kinds of workloads get slices, "
            f"by the template of {_OPTIONS.relative_to(ROOT)} where no class has another."
        )
        yield {**options, "data": {**options["data"], "namespaces": listed}}

    def _play(self, line: Line) -> None:
        try:
            self._note(line.text, self._do(line))
        except UnknownFault as error:
            self._note(line.text, f"not done: {error}", is_bad=True)

    def _do(self, line: Line) -> str:
        values = line.values
        if line.verb == script.DELETE:
            one = self._find(values["name"])
            answer = self._harness.simulation.admin("DELETE", object_path(one))
            if answer.get("status") == "Failure":
                raise UnknownFault(answer["message"])
            return describe(one)
        if line.verb == script.NO_CAPACITY:
            model = values.get("model", ANY_MODEL)
            vms = None if values.get("until") == script.ENDED else 0
            for family in FAMILIES:
                self._faults.set_capacity(values["zone"], family, vms, model)
            return ""
        if line.verb == script.RESERVATION:
            path = f"projects/{self._project}/zones/{values['zone']}/reservations/{values['name']}"
            self._faults.set_reservation(path, values["type"], int(values["count"]))
            return ""
        lose = getattr(self._faults, _LOSSES[line.verb])
        hosts = self._choose_hosts(values)
        for path in hosts:
            lose(path)
        return ", ".join(path.rpartition("/")[2] for path in hosts)

    def _choose_hosts(self, values: Mapping[str, str]) -> list[str]:
        """The VMs of a line; of a number of hosts the first that run. Raises `UnknownFault`."""
        found = self._harness.simulation.gce.state()["instances"]
        names = self._slices_of(values["name"]) if "name" in values else None
        own = {
            path: found[path] for path in sorted(found) if names is None or _slice_of(path) in names
        }
        if "host" in values:
            number = int(values["host"])
            if number >= len(own):
                raise UnknownFault(f"there are {len(own)} hosts, and the first is host 0")
            return [list(own)[number]]
        running, count = [path for path in own if own[path] == "RUNNING"], int(values["count"])
        if len(running) < count:
            raise UnknownFault(f"{len(running)} hosts run")
        return running[:count]

    def _find(self, name: str) -> Document:
        kind, _, name = name.rpartition("/")
        return next(
            one
            for one in self._documents
            if one["metadata"]["name"] == name and kind.lower() in ("", one["kind"].lower())
        )

    def _slices_of(self, name: str) -> set[str]:
        """The names of the resources of an object's slices."""
        one = self._find(name)
        it, found = (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]), set()
        for group in self._harness.simulation.admin("GET", GROUPS)["items"]:
            meta, labels = group["metadata"], read_texts(group["metadata"], "labels")
            kind, owner = labels.get(UNIT_KIND_LABEL, JOBSET_KIND), labels.get(JOBSET_LABEL)
            of_group, of_owner = (_GROUP, meta["name"]), (kind, owner)
            if it in [(kind, meta["namespace"], name) for kind, name in (of_group, of_owner)]:
                found.add(labels.get(RESOURCE_NAME_LABEL, ""))
        return found

    def _note(self, what: str, why: str, *, is_bad: bool = False) -> None:
        self.script.append(Moment(self._harness.clock.now(), "script", what, why, is_bad))

    def _watch_groups(self) -> None:
        asked = Request.of("GET", f"{GROUPS}?watch=1", headers={"Authorization": "Bearer admin"})
        stream = self._harness.simulation.kube.handle(asked).stream
        assert stream is not None
        stream.subscribe(self._note_groups, lambda: None)

    def _note_groups(self, chunk: bytes) -> None:
        for line in chunk.splitlines():
            meta = json.loads(line)["object"]["metadata"]
            self._groups[meta["uid"]] = (meta["namespace"], meta["name"])

    @property
    def now(self) -> datetime:
        return self._harness.clock.now()

    def build_timelines(self, note: Callable[[str], None]) -> Iterator[Timeline]:
        """The timeline of each slice that has existed, with the script's lines."""
        deps = self._open_dependencies()
        for uid, (namespace, name) in self._groups.items():
            since = self._began - _HOUR  # all is in it
            request = TimelineRequest(namespace, name, since, self.now, uid)
            found = build_timeline(deps, request, self._read_log, note)
            moments = sorted((*self.script, *found.moments), key=lambda moment: moment.at)
            yield replace(found, moments=tuple(moments), since=self._began)

    def _read_log(self, _: Any, __: Any, ___: Any, ____: Any, query: str) -> list[dict[str, Any]]:
        """A `replay.timeline_sources.Read`."""
        return [dict(entry) for entry in self._logs.find(query)]

    def _open_dependencies(self) -> Dependencies:
        settings = self._harness.settings["sweep"]
        path = self._harness.kubeconfig("sweep")
        admin = path.with_name("admin")
        admin.write_text(path.read_text().replace('"sweep"', '"admin"'))
        self._harness.settings["admin"] = replace(settings, access=Kubeconfig(str(admin)))
        runtime = self._harness.runtime("admin")
        return Dependencies(
            settings=runtime.settings,
            connection=runtime.connection,
            clients=runtime.clients,
            publish=lambda *_: "",
            now=runtime.now,
            monotonic=runtime.monotonic,
            random_bytes=runtime.random_bytes,
            subscriptions=Subscriptions(PROJECT),
            logs=Logs(),
            sleep=lambda _: None,
            is_interactive=False,
        )

    def list_conditions(self) -> Iterator[tuple[str, list[Document] | None]]:
        """The manifest's objects and the slices of its workloads, with the conditions now.

        ``None``: it is gone.
        """
        admin = self._harness.simulation.admin
        groups = ({**one, "kind": _GROUP} for one in admin("GET", GROUPS)["items"])
        for name, one in {describe(one): one for one in (*self._documents, *groups)}.items():
            found = admin("GET", object_path(one))
            is_gone = found["kind"] == "Status"
            yield name, None if is_gone else read_mapping(found, "status").get("conditions", [])

    def list_events(self) -> list[Moment]:
        """The Events of all objects."""
        found = self._harness.simulation.admin("GET", "/api/v1/events")["items"]
        return [
            Moment(find_time_of(one), "event", str(one.get("reason")), str(one.get("message")))
            for one in found
        ]

    def count_calls(self) -> list[tuple[str, int, int, int]]:
        """Each step's invocations, and its calls to Compute Engine and to Kubernetes."""
        counts: dict[str, Counter[str]] = {}
        for line in self._log.lines:
            counts.setdefault(line["step"], Counter()).update({"": 1, **line.get("calls", {})})
        return [(step, one[""], one["gce"], one["kubernetes"]) for step, one in counts.items()]

    def count_left(self) -> Counter[str]:
        """What exists on Compute Engine now, by collection."""
        return Counter(path.split("/")[-2] for path in self._harness.simulation.gce.leftovers())

    def count_pods(self) -> Counter[str]:
        """The Pods outside of the system's namespaces, by phase."""
        found = self._harness.simulation.admin("GET", "/api/v1/pods")["items"]
        own = (one for one in found if one["metadata"]["namespace"] not in _OF_SYSTEM)
        return Counter(read_texts(one, "status").get("phase", "Pending") for one in own)


def _slice_of(path: str) -> str:
    return find_resource_name(path.rpartition("/")[2])


def _join_by_image(_: Machine) -> Identity:
    return Identity("https://10.128.0.2:6443", "", Bearer("admin"), impersonates=True)
