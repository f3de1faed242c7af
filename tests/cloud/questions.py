"""The questions: what each makes, costs and assumes, where that stands, and how it is asked.

An answer is a map of words to words, so that it can be compared with what is assumed. What it was drawn
from (refusals, operations, entries of the log) is in the project's ``evidence``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from shared.base.timestamps import parse_time
from tests.cloud.project import (
    LABEL,
    MIG,
    POLICY,
    REGIONAL_TEMPLATE,
    TEMPLATE,
    VM,
    CallError,
    Document,
    Kind,
    Project,
    Unanswered,
    to_document,
)

WITH_TPU, FOREIGN_ACCOUNT = "--with-tpu", "--foreign-account"
SMALL = "e2-micro"
TPU = "ct6e-standard-4t"
CHEAP_USD = 0.01
"""An e2-micro VM with a disk of 10 GB for half an hour, at list price in the US: less than this."""
TPU_USD = 3.0
"""A ct6e-standard-4t VM (4 chips at 2.70 USD an hour, list price in the US) for 15 minutes."""
_MACHINE_TYPES = (TPU, "tpu7x-standard-1t", "tpu7x-standard-4t")
_IMAGE = "projects/debian-cloud/global/images/family/debian-12"
_LAG_S = 30.0
"""What steps bear by trying again before anybody notices."""
_LAG_AT_MOST_S = 180.0
_VM_S = 300.0
_REPAIR_S = 1200.0
_LOG_S = 180.0
_CAPACITY_S = 600.0
_NAMED = "docs/how-it-works.md#not-known-for-sure"
_DIFFERENCES = "docs/reference/simulated-compute-engine.md#where-it-differs-from-the-real-one"

Facts = dict[str, str]


@dataclass(frozen=True)
class Question:
    """One question.

    ``assumed`` is the answer that the code is written for, ``place`` the file that assumes it,
    ``cites`` the page that says that it is not known.
    """

    id: str
    asks: str
    makes: str
    assumed: Mapping[str, str]
    place: str
    cites: str
    ask: Callable[[Project], Facts]
    costs_usd: float = 0.0
    needs: str = ""
    """The option without which it is not asked."""


def find_questions(names: Collection[str], given: Collection[str]) -> tuple[Question, ...]:
    """The questions of these names, all if there are none, that the options given allow.

    Raises `ValueError`.
    """
    if unknown := sorted(set(names) - {question.id for question in QUESTIONS}):
        known = ", ".join(question.id for question in QUESTIONS)
        raise ValueError(f"no question is named {', '.join(unknown)}; there are {known}")
    for question in QUESTIONS:
        if question.id in names and question.needs and question.needs not in given:
            raise ValueError(f"{question.id} needs {question.needs}")
    return tuple(
        question
        for question in QUESTIONS
        if (not names or question.id in names) and (not question.needs or question.needs in given)
    )


# What insert calls and lists answer


def _ask_repeated_insert(project: Project) -> Facts:
    first = project.insert(POLICY, "twice", _policy())
    during = project.attempt(lambda: project.insert(POLICY, "twice", _policy()))
    project.finish(first)
    after = project.attempt(lambda: project.insert(POLICY, "twice", _policy()))
    return {"while the first runs": during, "afterwards": after}


def _ask_request_id(project: Project) -> Facts:
    request_id = str(uuid.uuid4())

    def insert(topology: str) -> Any:
        return project.insert(POLICY, "requested", _policy(topology), request_id)

    def repeat() -> str:
        try:
            return (
                "the first operation" if insert("2x4").name == first.name else "another operation"
            )
        except CallError as error:
            project.keep(error.document)
            return f"refused at once: {error.http} {error.reason}"

    first = insert("2x4")
    during = repeat()
    project.finish(first)
    return {
        "same body, while it runs": during,
        "same body, afterwards": repeat(),
        "another body": project.attempt(lambda: insert("4x4")),
    }


def _ask_list_lag(project: Project) -> Facts:
    resource = project.resource(POLICY, "listed")

    def is_listed() -> bool:
        return resource in project.list_named(POLICY, f'name eq "{resource.name}"')

    project.make(POLICY, "listed", _policy())
    shown = _measure(project, "listed after its insert", is_listed)
    project.finish(project.delete(POLICY, "listed"))
    return {
        "listed after its insert": shown,
        "no longer listed after its delete": _measure(
            project, "no longer listed after its delete", lambda: not is_listed()
        ),
    }


def _ask_description_filter(project: Project) -> Facts:
    resource = project.resource(POLICY, "described")
    project.make(POLICY, "described", _policy())
    project.wait(lambda: project.list_named(POLICY, f'name eq "{resource.name}"'), _LAG_AT_MOST_S)
    try:
        found = project.list_named(POLICY, f'description eq "{re.escape(project.mark)}"')
    except CallError as error:
        if error.http != 400:
            raise
        project.keep(error.document)
        return {"a filter by description": f"refused at once: 400 {error.reason}"}
    return {"a filter by description": "finds it" if resource in found else "does not find it"}


def _ask_machine_types(project: Project) -> Facts:
    answer = {}
    for name in _MACHINE_TYPES:
        pager = project.call("machine_types", "aggregated_list", filter=f'name eq "{name}"')
        zones = sorted(scope for scope, listed in pager if listed.machine_types)
        project.keep({"machineType": name, "zones": zones})
        answer[name] = "listed" if zones else "listed in no zone"
    return answer


# What groups take, and what is in use


def _ask_in_use(project: Project) -> Facts:
    policy = project.make(POLICY, "used", _policy())
    template = project.make(TEMPLATE, "used", _template(project, TPU))
    group = _bulk(template, policy)
    made = _measure(
        project, "a group may use a new template", lambda: project.make(MIG, "used", group)
    )
    answer = {
        "a group may use a new template": made,
        "delete of a used template": project.attempt(lambda: project.delete(TEMPLATE, "used")),
        "delete of a used policy": project.attempt(lambda: project.delete(POLICY, "used")),
    }
    project.finish(project.delete(MIG, "used"))
    for word, kind in (("template", TEMPLATE), ("policy", POLICY)):
        words = f"{word} free after the group's delete"
        answer[words] = _measure(project, words, partial(_is_deleted, project, kind))
    return answer


def _is_deleted(project: Project, kind: Kind) -> bool:
    return project.attempt(lambda: project.delete(kind, "used")) == "accepted"


def _ask_name_again(project: Project) -> Facts:
    template = project.make(TEMPLATE, "again", _template(project, SMALL))
    group = _group(template, size=0)
    project.make(MIG, "again", group)
    deletion = project.delete(MIG, "again")
    during = project.attempt(lambda: project.insert(MIG, "again", group))
    project.finish(deletion)
    after = project.attempt(lambda: project.insert(MIG, "again", group))
    return {"insert while it is deleted": during, "insert afterwards": after}


def _ask_bulk_config(project: Project) -> Facts:
    policy = project.make(POLICY, "bulk", _policy())
    template = project.make(TEMPLATE, "bulk", _template(project, TPU))
    config = {"properties": {"metadata": {"kube-labels": "a=b"}}}
    group = {**_bulk(template, policy), "all_instances_config": config}
    return {"a BULK group with allInstancesConfig": project.attempt_insert(MIG, "bulk", group)}


def _ask_topology(project: Project) -> Facts:
    policy = project.make(POLICY, "shape", _policy("2x2x2"))
    template = project.make(TEMPLATE, "shape", _template(project, TPU))
    group = _bulk(template, policy)
    return {
        f"an empty group of {TPU} with topology 2x2x2": project.attempt_insert(MIG, "shape", group)
    }


# What a VM's account and metadata are checked for


def _ask_act_as(project: Project) -> Facts:
    account = {
        "email": project.foreign_account,
        "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
    }
    template = _template(project, SMALL)
    template["properties"]["service_accounts"] = [account]
    vm = {**_vm(project), "service_accounts": [account]}
    return {
        "insert of a template": project.attempt(
            lambda: project.insert(TEMPLATE, "account", template), keeps=[403]
        ),
        "insert of a VM": project.attempt(lambda: project.insert(VM, "account", vm), keeps=[403]),
    }


def _ask_fingerprint(project: Project) -> Facts:
    project.make(VM, "metadata", _vm(project))
    name = project.resource(VM, "metadata").name
    stale = project.get(VM, "metadata").metadata.fingerprint

    def write(value: str, fingerprint: str) -> str:
        items = [{"key": "tngtest", "value": value}]
        body = {"items": items, **({"fingerprint": fingerprint} if fingerprint else {})}
        return project.attempt(
            lambda: project.call(
                "instances",
                "set_metadata_unary",
                zone=project.zone,
                instance=name,
                metadata_resource=body,
            )
        )

    return {
        "the current fingerprint": write("a", stale),
        "a stale fingerprint": write("b", stale),
        "no fingerprint": write("c", ""),
    }


# What becomes of a group's VMs


def _ask_delete_early(project: Project) -> Facts:
    template = project.make(TEMPLATE, "early", _template(project, SMALL))
    project.make(MIG, "early", _group(template, size=1))
    project.wait(lambda: _members(project, "early"), _VM_S)
    name = _members(project, "early")[0].name
    project.wait(lambda: project.find_vm(name) is not None, _VM_S)
    outcome = project.attempt(lambda: project.delete(MIG, "early"))
    vm = project.find_vm(name)
    return {
        "delete while a VM is created": outcome,
        "the VM when the delete has ended": "gone" if vm is None else f"there, {vm.status}",
    }


def _ask_repair(project: Project) -> Facts:
    template = project.make(TEMPLATE, "repair", _template(project, SMALL))
    project.make(MIG, "repair", _group(template, size=1))
    project.wait(lambda: _running(project, "repair"), _VM_S)
    before = _running(project, "repair")
    items = [{"key": item.key, "value": item.value} for item in before.metadata.items]
    body = {
        "fingerprint": before.metadata.fingerprint,
        "items": [*items, {"key": "tngtest", "value": "set"}],
    }
    place = {"zone": project.zone, "instance": before.name}
    for method, request in (
        ("set_metadata_unary", {"metadata_resource": body}),
        ("stop_unary", {}),
    ):
        project.finish(project.call("instances", method, **place, **request))

    def find_repaired() -> Any:
        now = _running(project, "repair")
        is_new = now and now.last_start_timestamp != before.last_start_timestamp
        return now if is_new else None

    project.wait(find_repaired, _REPAIR_S)
    after = find_repaired() or _fail("the repaired VM is lost again")
    project.evidence += [{"vm": _describe_vm(vm)} for vm in (before, after)]
    keys = {item.key for item in after.metadata.items}
    return {
        "name": "the same" if after.name == before.name else "another",
        "numeric id": "the same" if after.id == before.id else "another",
        "metadata that was set": "kept" if "tngtest" in keys else "lost",
    }


def _ask_bulk_wait(project: Project) -> Facts:
    policy = project.make(POLICY, "wait", _policy("2x2"))
    template = project.make(TEMPLATE, "wait", _template(project, TPU))
    project.make(MIG, "wait", {**_bulk(template, policy), "target_size": 1})

    def find_end() -> str:
        bulk = project.get(MIG, "wait").status.bulk_instance_operation
        errors = bulk.last_progress_check.error.errors
        if errors:
            project.keep({"lastProgressCheck": to_document(bulk)})
            return ", ".join(sorted({error.code for error in errors}))
        return "none: its VM runs" if _running(project, "wait") else ""

    project.wait(find_end, _CAPACITY_S)
    end = find_end()
    logged = _read_log(project, "wait", "instances.insert", 0)
    return {"error while it waits": end, "VM inserts in the log": _describe_positions(logged)}


# What is logged


def _ask_policy_log(project: Project) -> Facts:
    return _ask_log_of(project, POLICY, _policy(), "resourcePolicies")


def _ask_template_log(project: Project) -> Facts:
    body = _template(project, SMALL)
    return _ask_log_of(project, REGIONAL_TEMPLATE, body, "regionInstanceTemplates")


def _ask_log_of(project: Project, kind: Kind, body: Document, collection: str) -> Facts:
    project.make(kind, "logged", body)
    project.finish(project.delete(kind, "logged"))
    inserts = _read_log(project, "logged", f"{collection}.insert", 2)
    deletes = _read_log(project, "logged", f"{collection}.delete", 2)
    types = {entry.get("resource", {}).get("type", "") for entry in (*inserts, *deletes)}
    return {
        f"entries of {collection}.insert": _describe_positions(inserts),
        f"entries of {collection}.delete": _describe_positions(deletes),
        "resource.type": ", ".join(sorted(types)) or "none",
    }


def _ask_vm_log(project: Project) -> Facts:
    template = project.make(TEMPLATE, "vmlog", _template(project, SMALL))
    project.make(MIG, "vmlog", _group(template, size=1))
    project.wait(lambda: _running(project, "vmlog"), _VM_S)
    inserts = _read_log(project, "vmlog", "instances.insert", 2)
    project.finish(project.delete(MIG, "vmlog"))
    ends = _read_log(project, "vmlog", "instanceGroupManagers.delete", 2)
    vm_ends = _read_log(project, "vmlog", "instances.delete", 2)
    if not inserts:
        return {"entries of the VM's insert": "none"}
    last = [entry["protoPayload"] for entry in inserts if _is(entry, "last")]
    is_last = bool(ends and vm_ends) and max(map(_read_time, ends)) >= max(map(_read_time, vm_ends))
    return {
        "entries of the VM's insert": _describe_positions(inserts),
        "resource.type": ", ".join(sorted({entry["resource"]["type"] for entry in inserts})),
        "made by": _describe_caller(inserts[0]["protoPayload"]),
        "the last entry has a response": "yes" if any("response" in one for one in last) else "no",
        "entries of the group's delete": _describe_positions(ends),
        "the group's delete ends after its VM's": "yes" if is_last else "no",
    }


def _describe_caller(payload: Document) -> str:
    """Google's agent, or somebody else; addresses of people are no words of an answer."""
    email = payload.get("authenticationInfo", {}).get("principalEmail", "")
    is_agent = re.fullmatch(r"\d+@cloudservices\.gserviceaccount\.com", email) is not None
    return "NUMBER@cloudservices.gserviceaccount.com" if is_agent else "another account"


def _read_log(project: Project, part: str, method: str, count: int) -> list[Document]:
    """The entries of a method about this question's resources, once there are as many as expected.

    If fewer come, what there is after all the time that entries may take.
    """
    found: list[Document] = []

    def is_complete() -> bool:
        entries = project.read_log(project.resource(MIG, part).name)
        pattern = rf"([a-z0-9]+\.)?compute\.{re.escape(method)}"
        found[:] = [
            entry
            for entry in entries
            if re.fullmatch(pattern, entry["protoPayload"].get("methodName", ""))
        ]
        return len(found) >= count

    project.measure(is_complete, _LOG_S if count else 0.0)
    project.evidence += [{"entry": entry} for entry in found]
    return found


def _describe_positions(entries: list[Document]) -> str:
    words = [_position(entry) for entry in entries]
    return ", ".join(sorted(words)) or "none"


def _position(entry: Document) -> str:
    return " and ".join(word for word in ("first", "last") if _is(entry, word)) or "no operation"


def _is(entry: Document, position: str) -> bool:
    return bool(entry.get("operation", {}).get(position))


def _read_time(entry: Document) -> datetime:
    return parse_time(entry["timestamp"])


def _describe_vm(vm: Any) -> Document:
    """What tells one life of a VM from the next."""
    names = ("id", "name", "creationTimestamp", "lastStartTimestamp")
    return {name: value for name, value in to_document(vm).items() if name in names}


# Bodies, and what is read of a group


def _policy(topology: str = "2x4") -> Document:
    return {"workload_policy": {"type": "HIGH_THROUGHPUT", "accelerator_topology": topology}}


def _template(project: Project, machine_type: str) -> Document:
    disk_type = "hyperdisk-balanced" if machine_type == TPU else "pd-standard"
    return {
        "properties": {
            "machine_type": machine_type,
            "labels": {LABEL: project.run},
            "disks": [_disk(disk_type)],
            "network_interfaces": [_interface(project)],
            **({"scheduling": {"on_host_maintenance": "TERMINATE"}} if machine_type == TPU else {}),
        }
    }


def _vm(project: Project) -> Document:
    zone = f"projects/{project.id}/zones/{project.zone}"
    return {
        "machine_type": f"{zone}/machineTypes/{SMALL}",
        "disks": [_disk(f"{zone}/diskTypes/pd-standard")],
        "network_interfaces": [_interface(project)],
    }


def _disk(disk_type: str) -> Document:
    parameters = {"source_image": _IMAGE, "disk_size_gb": "10", "disk_type": disk_type}
    return {"boot": True, "auto_delete": True, "initialize_params": parameters}


def _interface(project: Project) -> Document:
    if project.subnetwork:
        return {"subnetwork": project.subnetwork}
    return {"network": f"projects/{project.id}/global/networks/default"}


def _group(template: str, size: int) -> Document:
    return {"instance_template": template, "target_size": size}


def _bulk(template: str, policy: str) -> Document:
    return {
        **_group(template, size=0),
        "target_size_policy": {"mode": "BULK"},
        "resource_policies": {"workload_policy": policy},
        "instance_lifecycle_policy": {"default_action_on_failure": "DO_NOTHING"},
    }


def _members(project: Project, part: str) -> list[Any]:
    group = project.resource(MIG, part).name
    place = {"zone": project.zone, "instance_group_manager": group}
    return list(project.call(MIG.service, "list_managed_instances", **place))


def _running(project: Project, part: str) -> Any:
    """The group's VM if it is RUNNING, else ``None``."""
    for member in _members(project, part):
        vm = project.find_vm(member.name)
        if vm is not None and vm.status == "RUNNING":
            return vm
    return None


def _measure(project: Project, what: str, condition: Callable[[], Any]) -> str:
    seconds = project.measure(condition, _LAG_AT_MOST_S)
    project.keep({"measured": what, "seconds": seconds})
    if seconds is None:
        return f"not within {_LAG_AT_MOST_S:.0f} s"
    return f"within {_LAG_S:.0f} s" if seconds <= _LAG_S else f"within {_LAG_AT_MOST_S:.0f} s"


def _fail(why: str) -> Any:
    raise Unanswered(why)


_SOON = "within 30 s"
_TAKEN = "refused at once: 409 alreadyExists"
_IN_USE = "refused at once: 400 resourceInUseByAnotherResource"
_PAIR = "first, last"

_ACCOUNT = "refused at once: 403 forbidden"
_STALE = "refused at once: 412 conditionNotMet"
_GROUP = "1 instance template, 1 MIG"

QUESTIONS = (
    Question(
        "machine-types",
        "Which machine types for TPUs have zones?",
        "nothing",
        dict.fromkeys(_MACHINE_TYPES, "listed"),
        "shared/base/accelerators.py",
        _NAMED,
        _ask_machine_types,
    ),
    Question(
        "repeated-insert",
        "How is an insert refused whose name is taken, also by an insert that still runs?",
        "1 workload policy",
        {"while the first runs": _TAKEN, "afterwards": _TAKEN},
        "shared/node_groups/lifecycle.py",
        "docs/decisions/repeated-inserts.md",
        _ask_repeated_insert,
    ),
    Question(
        "request-id",
        "What does a repeated requestId answer, with the same body and with another?",
        "1 workload policy",
        {
            "same body, while it runs": "the first operation",
            "same body, afterwards": "the first operation",
            "another body": "refused at once: 400 invalid",
        },
        "shared/node_groups/resources.py",
        "docs/reference/simulated-compute-engine.md#refusals",
        _ask_request_id,
    ),
    Question(
        "list-lag",
        "How long do aggregated lists lag behind an insert and a delete?",
        "1 workload policy",
        {"listed after its insert": _SOON, "no longer listed after its delete": _SOON},
        "shared/node_groups/leaks.py",
        "docs/decisions/leaked-slices.md",
        _ask_list_lag,
    ),
    Question(
        "description-filter",
        "Can an aggregated list be filtered by description?",
        "1 workload policy",
        {"a filter by description": "finds it"},
        "local/gce/listing.py",
        "docs/decisions/leaked-slices.md#cost",
        _ask_description_filter,
    ),
    Question(
        "policy-log",
        "Which entries does the audit log have of a workload policy's insert and delete?",
        "1 workload policy",
        {
            "entries of resourcePolicies.insert": _PAIR,
            "entries of resourcePolicies.delete": _PAIR,
            "resource.type": "gce_resource_policy",
        },
        "infra/terraform/filters/create_resources.txt",
        _NAMED,
        _ask_policy_log,
    ),
    Question(
        "regional-template-log",
        "Which entries does the audit log have of a regional template's insert and delete?",
        "1 regional instance template",
        {
            "entries of regionInstanceTemplates.insert": _PAIR,
            "entries of regionInstanceTemplates.delete": _PAIR,
            "resource.type": "gce_instance_template",
        },
        "local/gce/audit.py",
        _NAMED,
        _ask_template_log,
    ),
    Question(
        "in-use",
        "How is the delete of a used template or policy refused, and how long after its MIG is gone?",
        f"1 workload policy, 1 instance template of {TPU}, 1 MIG in BULK mode without VMs",
        {
            "a group may use a new template": _SOON,
            "delete of a used template": _IN_USE,
            "delete of a used policy": _IN_USE,
            "template free after the group's delete": _SOON,
            "policy free after the group's delete": _SOON,
        },
        "shared/node_groups/actions.py",
        _DIFFERENCES,
        _ask_in_use,
    ),
    Question(
        "name-again",
        "When can the name of a MIG be used again after its delete?",
        f"{_GROUP} without VMs, twice",
        {"insert while it is deleted": _TAKEN, "insert afterwards": "accepted"},
        "shared/node_groups/lifecycle.py",
        _NAMED,
        _ask_name_again,
    ),
    Question(
        "bulk-config",
        "May a MIG in BULK mode have allInstancesConfig?",
        f"1 workload policy, 1 instance template of {TPU}, 1 MIG in BULK mode without VMs",
        {"a BULK group with allInstancesConfig": "accepted"},
        "shared/node_groups/user_template.py",
        _NAMED,
        _ask_bulk_config,
    ),
    Question(
        "topology-check",
        "Is a topology that the machine type cannot form refused before VMs are made?",
        f"1 workload policy, 1 instance template of {TPU}, 1 MIG in BULK mode without VMs",
        {f"an empty group of {TPU} with topology 2x2x2": "accepted"},
        "local/gce/group_checks.py",
        _NAMED,
        _ask_topology,
    ),
    Question(
        "act-as",
        "Are inserts with a service account that the caller may not act as refused at once?",
        f"nothing; if it is not refused: 1 instance template, 1 VM {SMALL}",
        {"insert of a template": _ACCOUNT, "insert of a VM": _ACCOUNT},
        "shared/ports/classify.py",
        "docs/reference/simulated-compute-engine.md#refusals",
        _ask_act_as,
        costs_usd=CHEAP_USD,
        needs=FOREIGN_ACCOUNT,
    ),
    Question(
        "metadata-fingerprint",
        "How is setMetadata refused with a stale fingerprint, and with none?",
        f"1 VM {SMALL} for 3 minutes",
        {
            "the current fingerprint": "accepted",
            "a stale fingerprint": _STALE,
            "no fingerprint": _STALE,
        },
        "functions/inject_token.py",
        _NAMED,
        _ask_fingerprint,
        costs_usd=CHEAP_USD,
    ),
    Question(
        "delete-early",
        "Can a MIG be deleted while its VM is being created, and is the VM gone when the delete ends?",
        f"{_GROUP} of 1 VM {SMALL} for 3 minutes",
        {
            "delete while a VM is created": "accepted",
            "the VM when the delete has ended": "gone",
        },
        "functions/tear_down.py",
        _NAMED,
        _ask_delete_early,
        costs_usd=CHEAP_USD,
    ),
    Question(
        "repair",
        "Does a repaired VM keep its numeric id, and the metadata that was set?",
        f"{_GROUP} of 1 VM {SMALL} for 10 minutes",
        {"name": "the same", "numeric id": "another", "metadata that was set": "lost"},
        "shared/node_groups/membership.py",
        _NAMED,
        _ask_repair,
        costs_usd=CHEAP_USD,
    ),
    Question(
        "vm-log",
        "Which entries does the audit log have of a MIG's VM, and when does the MIG's delete end?",
        f"{_GROUP} of 1 VM {SMALL} for 10 minutes",
        {
            "entries of the VM's insert": _PAIR,
            "resource.type": "gce_instance",
            "made by": "NUMBER@cloudservices.gserviceaccount.com",
            "the last entry has a response": "no",
            "entries of the group's delete": _PAIR,
            "the group's delete ends after its VM's": "yes",
        },
        "infra/terraform/filters/inject_token.txt",
        _NAMED,
        _ask_vm_log,
        costs_usd=CHEAP_USD,
    ),
    Question(
        "bulk-wait",
        "What do a BULK group's status and the log say while it waits for capacity?",
        f"1 workload policy, 1 instance template, 1 MIG of 1 VM {TPU} for 15 minutes",
        {
            "error while it waits": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "VM inserts in the log": "none",
        },
        "shared/node_groups/creation_report.py",
        _NAMED,
        _ask_bulk_wait,
        costs_usd=TPU_USD,
        needs=WITH_TPU,
    ),
)
"""In the order in which they are asked: the cheapest first."""
