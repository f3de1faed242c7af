"""JobSets: their Jobs are units.

JobSet sets its keys as labels and as annotations, on Jobs and on Pods. A Job's ``job-key`` is the SHA-1
of ``namespace/name`` in hex. It is the same after restarts and unique in the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from shared.base import names
from shared.base.documents import Document, read_mapping, read_mappings, read_texts
from shared.base.pods import find_controller, list_tpu_containers, parse_count, read_count
from shared.base.slice_names import JOB_KEY_SELECTOR, job_key, slice_name
from shared.ports.errors import CallError
from shared.slices.kinds.kind import (
    INDEXED,
    Claim,
    Entries,
    Found,
    Members,
    Rules,
    UnitKind,
    add_opt_out,
    build_state,
    find_true,
    refuse_number,
    refuse_sequence,
    refuse_without_index,
)
from shared.slices.units import Demand, Need, Unit, UnitState, UnservableError

if TYPE_CHECKING:
    from shared.ports.kubernetes.cluster import Cluster

EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
MAX_JOBS = 10_000
"""How many Jobs of one JobSet are compared by name: users can write billions of replicas."""
NOT_SERVED = "NotServed"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"


def count_completed(jobset: Mapping[str, Any]) -> int:
    """The number of completed Jobs in a JobSet's status; just after a restart, those of before."""
    counts = read_mappings(read_mapping(jobset, "status"), "replicatedJobsStatus")
    return sum(parse_count(one.get("succeeded")) or 0 for one in counts)


def has_completed(job: Mapping[str, Any], jobset: Mapping[str, Any]) -> bool:
    """Whether a Job of a JobSet has completed. One that JobSet creates again does not count: one that is
    being deleted, is older than the last restart, or is of a predecessor of the same name."""
    metadata, attempt = job["metadata"], read_mapping(jobset, "status").get("restarts") or 0
    return (
        bool(find_true(job, ("Complete",)))
        and "deletionTimestamp" not in metadata
        and read_texts(metadata, "labels").get(names.RESTART_ATTEMPT) == str(attempt)
        and (find_controller(metadata) or {}).get("uid") == jobset["metadata"]["uid"]
    )


def list_replicated_jobs(jobset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The replicated Jobs of a JobSet."""
    return list((jobset.get("spec") or {}).get("replicatedJobs") or ())


def find_replicated_job(jobset: Document, unit: Unit) -> Document | None:
    """The replicated Job of a JobSet whose Jobs a unit is among."""
    replicated, _, index = unit.member.rpartition("-")
    if not re.fullmatch("0|[1-9][0-9]{0,9}", index):
        return None
    named = (
        one for one in list_replicated_jobs(jobset) if replicated == f"{unit.owner}-{one['name']}"
    )
    return next((one for one in named if int(index) < one.get("replicas", 1)), None)


def requests_chips(jobset: Mapping[str, Any]) -> bool:
    """Whether Pods of the JobSet request TPU chips."""
    jobs = read_mappings(read_mapping(jobset, "spec"), "replicatedJobs")
    return any(list_tpu_containers(_pod_spec(job)) for job in jobs)


class JobSetKind(UnitKind):
    """The units of JobSets: their Jobs. A JobSet needs the slices of all its Jobs until it has ended."""

    name = names.JOBSET_KIND
    api_version = f"{names.JOBSET_GROUP}/{names.JOBSET_VERSION}"
    is_always_on = True
    exclusive_topology = EXCLUSIVE_TOPOLOGY
    finished = ("Completed", "Failed")

    def claim(self, demand: Demand) -> Claim | None:
        """A Pod with JobSet's annotation and a controller, normally a Job. The first leads; JobSet
        creates Indexed Jobs unless a JobSet says otherwise."""
        owner, index = demand.controller, demand.annotations.get(names.COMPLETION_INDEX)
        if not demand.annotations.get(names.JOBSET_NAME) or owner is None:
            return None
        refusal = "" if index else refuse_without_index(f"{owner.kind} {owner.name}")
        return Claim(self, index == "0", refusal)

    def find_unit(self, demand: Demand) -> Unit | None:
        job = demand.controller.name if demand.controller else ""
        return Unit(self.name, demand.namespace, _find_jobset_name(demand), job)

    def find(self, cluster: Cluster, demand: Demand) -> Found:
        unit = self.find_unit(demand)
        assert unit is not None
        jobset = cluster.find_owner(self.name, unit.namespace, unit.owner)
        state = self.find_job_state(unit, jobset, None)
        job, replicated = demand.labels.get(_REPLICATED_JOB), list_replicated_jobs(jobset or {})
        templates = [one["template"] for one in replicated if one["name"] == job]
        own = find_replicated_job(jobset or {}, unit)
        if own is None:
            return Found(unit, add_opt_out(state, templates), None)
        violation = _find_sequence(unit.shown, own) if demand.hosts > 1 else ""
        return Found(unit, add_opt_out(state, templates), _count_pods(own), violation)

    def find_change(self, unit: Unit, owner: Document) -> str:
        spec = _pod_spec(find_replicated_job(owner, unit) or {})
        selects = names.TOPOLOGY_LABEL in read_texts(spec, "nodeSelector")
        is_out = spec and not selects and not list_tpu_containers(spec)
        return f"{unit.shown} asks for no TPUs now" if is_out else ""

    def find_job_state(
        self,
        unit: Unit,
        jobset: Document | None,
        job: Document | None,
        rules: Rules | None = None,
    ) -> UnitState:
        """Whether a JobSet needs the slice of its Job.

        ``job``: the Job; ``None`` if the JobSet counts no completed Job or it does not exist.
        """
        state = self.decide_state(unit, jobset, rules)
        if jobset is None or state.need in (Need.OWNER_GONE, Need.OWNER_ENDED):
            return state
        if job is not None and has_completed(job, jobset):
            return build_state(jobset, f"{unit.shown} has completed")
        # A JobSet that was recreated may have fewer Jobs, and a Job may only name the JobSet.
        is_proved = rules is not None and unit in rules.named_by_others
        if is_proved or find_replicated_job(jobset, unit) is not None:
            return state
        return build_state(jobset, f"JobSet {unit.owner} has no Job {unit.member} any more")

    def read_states(
        self, cluster: Cluster, units: Collection[Unit], rules: Rules
    ) -> dict[Unit, UnitState]:
        """JobSets are read one by one or listed; the Jobs of JobSets that count completed ones once:
        those of the only JobSet, or all."""
        keys = {(unit.namespace, unit.owner) for unit in units}
        jobsets: dict[tuple[str, str], Document | None]
        if rules.is_listed:
            try:
                listed = {_key(one): one for one in cluster.list_owners(self.name)}
            except CallError as error:
                if units or error.code != NOT_SERVED:
                    raise
                listed = {}
            jobsets = {key: one for key, one in listed.items() if rules.deleted or key in keys}
        else:
            jobsets = {key: cluster.find_owner(self.name, *key) for key in keys}
        only = next(iter(keys)) if len(keys) == 1 else ()
        wanted = {(unit.namespace, unit.member) for unit in units}
        jobs: dict[tuple[str, str], Document] = {}
        owners = [jobsets.get(key) for key in keys]
        if any(one and not self.find_end(one) and count_completed(one) for one in owners):
            with rules.best_effort():  # the end of a JobSet can be decided without its Jobs
                for job in cluster.list_jobs(*only):
                    if _key(job) in wanted:  # of thousands, only these are kept in memory
                        jobs[_key(job)] = job
        states = {
            unit: self.find_job_state(
                unit,
                jobsets.get((unit.namespace, unit.owner)),
                jobs.get((unit.namespace, unit.member)),
                rules,
            )
            for unit in units
        }
        found = (
            find_unit_of(rules.deleted, filter(None, jobsets.values())) if rules.deleted else None
        )
        if found is not None and found not in states:
            owner = jobsets[found.namespace, found.owner]
            states[found] = self.find_job_state(found, owner, None, rules)
        return states

    def find_pod_violation(self, demand: Demand, unit: Unit) -> str:
        """What in the Pod's labels and selector is not of its JobSet and Job.

        Pods select the Nodes of their slice by the Job's key, in all namespaces: Nodes with another
        Job's key would get that Job's Pods.
        """
        key, given = unit.key, demand.labels.get(names.JOB_KEY, "")
        selected = demand.selector.get(JOB_KEY_SELECTOR, key)
        no_other = "slices are created only for this Job"
        if not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", unit.owner):
            return (
                f"the Pod's {names.JOBSET_NAME} is {unit.owner!r}: it must be the name of a JobSet"
            )
        if not given:
            return f"the Pod has no label {names.JOB_KEY}: JobSet sets it on the Pods of its Jobs"
        if given != key:
            return (
                f"the label {names.JOB_KEY} is {given!r}: for Job {unit.namespace}/{unit.member} JobSet "
                f"computes {key}, and {no_other}"
            )
        if selected != key:
            return (
                f"the Pod's nodeSelector {JOB_KEY_SELECTOR} is {selected!r}: it must be the Pod's label "
                f"{names.JOB_KEY}, {key}: {no_other}"
            )
        return ""

    def list_units(self, owner: Document, _workload: Document, entries: Entries) -> Members:
        for one in list_replicated_jobs(owner):
            if not list_tpu_containers(_pod_spec(one)):
                continue
            job, name = read_mapping(one, "template"), one["name"]
            template = read_mapping(read_mapping(job, "spec"), "template")
            entry = self.find_entry(entries, name, template)
            given = read_texts(read_mapping(job, "metadata"), "annotations")
            shown, hosts, pods = f"replicatedJob {name}", entry.demand.hosts, _count_pods(one)
            mode = read_mapping(job, "spec").get("completionMode", INDEXED)
            if hosts > 1 and mode != INDEXED:  # the Pods could not be told which worker they are
                raise UnservableError(refuse_without_index(shown))
            if hosts > 1 and (violation := _find_sequence(shown, one)):
                raise UnservableError(violation)
            if hosts != pods:
                raise UnservableError(refuse_number(shown, pods, hosts))
            for index in range(one.get("replicas", 1)):
                member = f"{owner['metadata']['name']}-{name}-{index}"
                yield member, entry, job if EXCLUSIVE_TOPOLOGY in given else owner

    def names_unit(self, pod: Document, unit: Unit) -> bool:
        metadata = read_mapping(pod, "metadata")
        job = read_texts(metadata, "labels").get(names.JOB_NAME)
        return (metadata.get("namespace"), job) == (unit.namespace, unit.member)

    def list_pods(self, cluster: Cluster, unit: Unit) -> list[dict[str, Any]]:
        return cluster.list_selected_pods(unit.namespace, f"{names.JOB_NAME}={unit.member}")


JOBSET = JobSetKind()


def find_unit_of(wanted: str, found: Iterable[Document]) -> Unit | None:
    """The Job of a JobSet whose slice has this name. The slice itself need not exist."""
    for jobset in found:
        namespace, name = _key(jobset)
        # A cheap filter: the part of a slice's name before the Job's key follows from the JobSet's.
        if slice_name(name, job_key("", "")).rpartition("-")[0] != wanted.rpartition("-")[0]:
            continue
        jobs = (
            f"{name}-{one['name']}-{index}"
            for one in list_replicated_jobs(jobset)
            for index in range(one.get("replicas", 1))
        )
        units = (Unit(names.JOBSET_KIND, namespace, name, job) for job in islice(jobs, MAX_JOBS))
        unit = next((one for one in units if one.slice_name == wanted), None)
        if unit is not None:
            return unit
    return None


def _key(document: Document) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def _find_jobset_name(demand: Demand) -> str:
    """The name of a Pod's JobSet; empty if it has none."""
    both = (demand.labels, demand.annotations)
    return next((one[names.JOBSET_NAME] for one in both if one.get(names.JOBSET_NAME)), "")


def _count_pods(replicated: Document) -> int:
    """The Pods of a Job that run together: no more than it completes."""
    return min(_read_counts(replicated))


def _find_sequence(shown: str, replicated: Document) -> str:
    """The violation if some Pods of a Job run only after others have ended."""
    parallelism, completions = _read_counts(replicated)
    return refuse_sequence(shown, parallelism, completions) if completions > parallelism else ""


def _read_counts(replicated: Document) -> tuple[int, int]:
    """Parallelism and completions of a Job."""
    spec = read_mapping(read_mapping(replicated, "template"), "spec")
    parallelism = read_count(spec, "parallelism", 1)
    return parallelism, read_count(spec, "completions", parallelism)


def _pod_spec(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Pod's spec in a replicated Job: its template is a Job's, whose template is a Pod's."""
    for key in ("template", "spec", "template", "spec"):
        holder = read_mapping(holder, key)
    return holder
