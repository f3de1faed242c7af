"""The questions: the resources that each creates, their cost, the assumed answer, and the calls.

An answer is a map of strings, so that it can be compared with the assumption. The errors, operations and
log entries on which it is based are in the ``evidence`` of the project.
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
from tools.cloud.project import (
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
"""Retries of the steps cover a lag of this length."""
_LAG_AT_MOST_S = 180.0
_VM_S = 300.0
_REPAIR_S = 1200.0
_LOG_S = 180.0
_CAPACITY_S = 600.0
_NAMED = "docs/how-it-works.md#not-known-for-sure"
_DIFFERENCES = "local/docs/simulated-compute-engine.md#where-it-differs-from-the-real-one"

Facts = dict[str, str]


@dataclass(frozen=True)
class Question:
    """One question.

    ``assumed`` is the answer that the code assumes, ``assumed_in`` the file with the assumption,
    ``documented_in`` the page that describes it.
    """

    id: str
    text: str
    creates: str
    assumed: Mapping[str, str]
    assumed_in: str
    documented_in: str
    ask: Callable[[Project], Facts]
    cost_usd: float = 0.0
    required_option: str = ""
    """The option that is required for the question."""


def select_questions(names: Collection[str], given: Collection[str]) -> tuple[Question, ...]:
    """Return the questions with these names (all if empty) whose option is set.

    Raises `ValueError`.
    """
    if unknown := sorted(set(names) - {question.id for question in QUESTIONS}):
        known = ", ".join(question.id for question in QUESTIONS)
        raise ValueError(f"no question is named {', '.join(unknown)}; there are {known}")
    for question in QUESTIONS:
        if (
            question.id in names
            and question.required_option
            and question.required_option not in given
        ):
            raise ValueError(f"{question.id} needs {question.required_option}")
    return tuple(
        question
        for question in QUESTIONS
        if (not names or question.id in names)
        and (not question.required_option or question.required_option in given)
    )


# Inserts and lists


def _ask_repeated_insert(project: Project) -> Facts:
    first = project.insert(POLICY, "twice", _policy())
    during = project.attempt(lambda: project.insert(POLICY, "twice", _policy()))
    project.wait_for(first)
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
            project.record(error.document)
            return f"rejected: {error.http} {error.reason}"

    first = insert("2x4")
    during = repeat()
    project.wait_for(first)
    return {
        "same body, while it runs": during,
        "same body, afterwards": repeat(),
        "another body": project.attempt(lambda: insert("4x4")),
    }


def _ask_list_lag(project: Project) -> Facts:
    resource = project.resource(POLICY, "listed")

    def is_listed() -> bool:
        return resource in project.list_named(POLICY, f'name eq "{resource.name}"')

    project.create(POLICY, "listed", _policy())
    shown = _measure(project, "listed after its insert", is_listed)
    project.wait_for(project.delete(POLICY, "listed"))
    return {
        "listed after its insert": shown,
        "no longer listed after its delete": _measure(
            project, "no longer listed after its delete", lambda: not is_listed()
        ),
    }


def _ask_description_filter(project: Project) -> Facts:
    resource = project.resource(POLICY, "described")
    project.create(POLICY, "described", _policy())
    project.wait_until(
        lambda: project.list_named(POLICY, f'name eq "{resource.name}"'), _LAG_AT_MOST_S
    )
    try:
        found = project.list_named(POLICY, f'description eq "{re.escape(project.mark)}"')
    except CallError as error:
        if error.http != 400:
            raise
        project.record(error.document)
        return {"a filter by description": f"rejected: 400 {error.reason}"}
    return {"a filter by description": "finds it" if resource in found else "does not find it"}


def _ask_machine_types(project: Project) -> Facts:
    answer = {}
    for name in _MACHINE_TYPES:
        pager = project.call("machine_types", "aggregated_list", filter=f'name eq "{name}"')
        zones = sorted(scope for scope, listed in pager if listed.machine_types)
        project.record({"machineType": name, "zones": zones})
        answer[name] = "listed" if zones else "listed in no zone"
    return answer


# MIGs, and the resources that they use


def _ask_in_use(project: Project) -> Facts:
    policy = project.create(POLICY, "used", _policy())
    template = project.create(TEMPLATE, "used", _template(project, TPU))
    mig = _bulk_mig(template, policy)
    usable = _measure(
        project, "a MIG can use a new template", lambda: project.create(MIG, "used", mig)
    )
    answer = {
        "a MIG can use a new template": usable,
        "delete of a used template": project.attempt(lambda: project.delete(TEMPLATE, "used")),
        "delete of a used policy": project.attempt(lambda: project.delete(POLICY, "used")),
    }
    project.wait_for(project.delete(MIG, "used"))
    for word, kind in (("template", TEMPLATE), ("policy", POLICY)):
        words = f"{word} unused after the MIG's delete"
        answer[words] = _measure(project, words, partial(_is_deleted, project, kind))
    return answer


def _is_deleted(project: Project, kind: Kind) -> bool:
    return project.attempt(lambda: project.delete(kind, "used")) == "accepted"


def _ask_name_again(project: Project) -> Facts:
    template = project.create(TEMPLATE, "again", _template(project, SMALL))
    mig = _mig(template, size=0)
    project.create(MIG, "again", mig)
    deletion = project.delete(MIG, "again")
    during = project.attempt(lambda: project.insert(MIG, "again", mig))
    project.wait_for(deletion)
    after = project.attempt(lambda: project.insert(MIG, "again", mig))
    return {"insert during the delete": during, "insert after the delete": after}


def _ask_bulk_config(project: Project) -> Facts:
    policy = project.create(POLICY, "bulk", _policy())
    template = project.create(TEMPLATE, "bulk", _template(project, TPU))
    config = {"properties": {"metadata": {"kube-labels": "a=b"}}}
    mig = {**_bulk_mig(template, policy), "all_instances_config": config}
    return {"a BULK MIG with allInstancesConfig": project.attempt_insert(MIG, "bulk", mig)}


def _ask_topology(project: Project) -> Facts:
    policy = project.create(POLICY, "shape", _policy("2x2x2"))
    template = project.create(TEMPLATE, "shape", _template(project, TPU))
    mig = _bulk_mig(template, policy)
    return {f"an empty MIG of {TPU} with topology 2x2x2": project.attempt_insert(MIG, "shape", mig)}


# Service account and metadata of a VM


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
    project.create(VM, "metadata", _vm(project))
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


# VMs of a MIG


def _ask_delete_early(project: Project) -> Facts:
    template = project.create(TEMPLATE, "early", _template(project, SMALL))
    project.create(MIG, "early", _mig(template, size=1))
    project.wait_until(lambda: _list_members(project, "early"), _VM_S)
    name = _list_members(project, "early")[0].name
    project.wait_until(lambda: project.find_vm(name) is not None, _VM_S)
    outcome = project.attempt(lambda: project.delete(MIG, "early"))
    vm = project.find_vm(name)
    return {
        "delete while a VM is being created": outcome,
        "the VM after the delete": "absent" if vm is None else vm.status,
    }


def _ask_repair(project: Project) -> Facts:
    template = project.create(TEMPLATE, "repair", _template(project, SMALL))
    project.create(MIG, "repair", _mig(template, size=1))
    project.wait_until(lambda: _find_running_vm(project, "repair"), _VM_S)
    before = _find_running_vm(project, "repair")
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
        project.wait_for(project.call("instances", method, **place, **request))

    def find_repaired() -> Any:
        now = _find_running_vm(project, "repair")
        is_new = now and now.last_start_timestamp != before.last_start_timestamp
        return now if is_new else None

    project.wait_until(find_repaired, _REPAIR_S)
    after = find_repaired() or _fail("the repaired VM was lost")
    project.evidence += [{"vm": _describe_vm(vm)} for vm in (before, after)]
    keys = {item.key for item in after.metadata.items}
    return {
        "name": "the same" if after.name == before.name else "another",
        "numeric id": "the same" if after.id == before.id else "another",
        "metadata that was set": "kept" if "tngtest" in keys else "lost",
    }


def _ask_bulk_wait(project: Project) -> Facts:
    policy = project.create(POLICY, "wait", _policy("2x2"))
    template = project.create(TEMPLATE, "wait", _template(project, TPU))
    project.create(MIG, "wait", {**_bulk_mig(template, policy), "target_size": 1})

    def find_end() -> str:
        bulk = project.get(MIG, "wait").status.bulk_instance_operation
        errors = bulk.last_progress_check.error.errors
        if errors:
            project.record({"lastProgressCheck": to_document(bulk)})
            return ", ".join(sorted({error.code for error in errors}))
        return "none: the VM is running" if _find_running_vm(project, "wait") else ""

    project.wait_until(find_end, _CAPACITY_S)
    end = find_end()
    logged = _read_log(project, "wait", "instances.insert", 0)
    return {"error while the MIG waits": end, "VM inserts in the log": _describe_positions(logged)}


# Audit log


def _ask_policy_log(project: Project) -> Facts:
    return _ask_log_of(project, POLICY, "logged", _policy(), "resourcePolicies")


def _ask_template_log(project: Project) -> Facts:
    body = _template(project, SMALL)
    return _ask_log_of(project, REGIONAL_TEMPLATE, "regional", body, "regionInstanceTemplates")


def _ask_log_of(project: Project, kind: Kind, part: str, body: Document, collection: str) -> Facts:
    project.create(kind, part, body)
    project.wait_for(project.delete(kind, part))
    inserts = _read_log(project, part, f"{collection}.insert", 2)
    deletes = _read_log(project, part, f"{collection}.delete", 2)
    types = {entry.get("resource", {}).get("type", "") for entry in (*inserts, *deletes)}
    return {
        f"entries of {collection}.insert": _describe_positions(inserts),
        f"entries of {collection}.delete": _describe_positions(deletes),
        "resource.type": ", ".join(sorted(types)) or "none",
    }


def _ask_vm_log(project: Project) -> Facts:
    template = project.create(TEMPLATE, "vmlog", _template(project, SMALL))
    project.create(MIG, "vmlog", _mig(template, size=1))
    project.wait_until(lambda: _find_running_vm(project, "vmlog"), _VM_S)
    inserts = _read_log(project, "vmlog", "instances.insert", 2)
    project.wait_for(project.delete(MIG, "vmlog"))
    ends = _read_log(project, "vmlog", "instanceGroupManagers.delete", 2)
    vm_ends = _read_log(project, "vmlog", "instances.delete", 2)
    if not inserts:
        return {"entries of the VM's insert": "none"}
    last = [entry["protoPayload"] for entry in inserts if _is_entry(entry, "last")]
    is_last = bool(ends and vm_ends) and max(map(_read_time, ends)) >= max(map(_read_time, vm_ends))
    return {
        "entries of the VM's insert": _describe_positions(inserts),
        "resource.type": ", ".join(sorted({entry["resource"]["type"] for entry in inserts})),
        "created by": _describe_caller(inserts[0]["protoPayload"]),
        "the last entry has a response": "yes" if any("response" in one for one in last) else "no",
        "entries of the MIG's delete": _describe_positions(ends),
        "the MIG's delete ends after its VM's": "yes" if is_last else "no",
    }


def _describe_caller(payload: Document) -> str:
    """Return whether Google's agent is the caller; answers have no addresses of people."""
    email = payload.get("authenticationInfo", {}).get("principalEmail", "")
    is_agent = re.fullmatch(r"\d+@cloudservices\.gserviceaccount\.com", email) is not None
    return "NUMBER@cloudservices.gserviceaccount.com" if is_agent else "another account"


def _read_log(project: Project, part: str, method: str, count: int) -> list[Document]:
    """Return the log entries of a method about the resources of this question.

    Waits until there are ``count`` entries, and returns fewer after the longest delay of entries.
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
    words = [_describe_position(entry) for entry in entries]
    return ", ".join(sorted(words)) or "none"


def _describe_position(entry: Document) -> str:
    return (
        " and ".join(word for word in ("first", "last") if _is_entry(entry, word)) or "no operation"
    )


def _is_entry(entry: Document, position: str) -> bool:
    return bool(entry.get("operation", {}).get(position))


def _read_time(entry: Document) -> datetime:
    return parse_time(entry["timestamp"])


def _describe_vm(vm: Any) -> Document:
    """Return the fields that differ between a VM and its repaired successor."""
    names = ("id", "name", "creationTimestamp", "lastStartTimestamp")
    return {name: value for name, value in to_document(vm).items() if name in names}


# Requests, and reads of a MIG


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


def _mig(template: str, size: int) -> Document:
    return {"instance_template": template, "target_size": size}


def _bulk_mig(template: str, policy: str) -> Document:
    return {
        **_mig(template, size=0),
        "target_size_policy": {"mode": "BULK"},
        "resource_policies": {"workload_policy": policy},
        "instance_lifecycle_policy": {"default_action_on_failure": "DO_NOTHING"},
    }


def _list_members(project: Project, part: str) -> list[Any]:
    name = project.resource(MIG, part).name
    place = {"zone": project.zone, "instance_group_manager": name}
    return list(project.call(MIG.service, "list_managed_instances", **place))


def _find_running_vm(project: Project, part: str) -> Any:
    """Return the VM of the MIG if it is RUNNING, else ``None``."""
    for member in _list_members(project, part):
        vm = project.find_vm(member.name)
        if vm is not None and vm.status == "RUNNING":
            return vm
    return None


def _measure(project: Project, name: str, condition: Callable[[], Any]) -> str:
    seconds = project.measure(condition, _LAG_AT_MOST_S)
    project.record({"measured": name, "seconds": seconds})
    if seconds is None:
        return f"not within {_LAG_AT_MOST_S:.0f} s"
    return f"within {_LAG_S:.0f} s" if seconds <= _LAG_S else f"within {_LAG_AT_MOST_S:.0f} s"


def _fail(reason: str) -> Any:
    raise Unanswered(reason)


_SOON = "within 30 s"
_TAKEN = "rejected: 409 alreadyExists"
_IN_USE = "rejected: 400 resourceInUseByAnotherResource"
_PAIR = "first, last"

_ACCOUNT = "rejected: 403 forbidden"
_STALE = "rejected: 412 conditionNotMet"
_MIG = "1 instance template, 1 MIG"

QUESTIONS = (
    Question(
        "machine-types",
        "Which machine types for TPUs are listed in a zone?",
        "nothing",
        dict.fromkeys(_MACHINE_TYPES, "listed"),
        "shared/base/accelerators.py",
        _NAMED,
        _ask_machine_types,
    ),
    Question(
        "repeated-insert",
        "Which error does an insert with a taken name return, also while the first insert is running?",
        "1 workload policy",
        {"while the first runs": _TAKEN, "afterwards": _TAKEN},
        "shared/node_groups/lifecycle.py",
        "docs/decisions/repeated-inserts.md",
        _ask_repeated_insert,
    ),
    Question(
        "request-id",
        "What does a repeated requestId return, with the same body and with another?",
        "1 workload policy",
        {
            "same body, while it runs": "the first operation",
            "same body, afterwards": "the first operation",
            "another body": "rejected: 400 invalid",
        },
        "functions/create_resources/bodies.py",
        "local/docs/simulated-compute-engine.md#refusals",
        _ask_request_id,
    ),
    Question(
        "list-lag",
        "How long do aggregated lists lag behind an insert and a delete?",
        "1 workload policy",
        {"listed after its insert": _SOON, "no longer listed after its delete": _SOON},
        "functions/report_leaks/leaks.py",
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
        "Which audit log entries do the insert and the delete of a workload policy have?",
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
        "Which audit log entries do the insert and the delete of a regional template have?",
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
        "Which error does the delete of a used template or policy return, and how soon after the delete"
        " of its MIG does it succeed?",
        f"1 workload policy, 1 instance template of {TPU}, 1 MIG in BULK mode without VMs",
        {
            "a MIG can use a new template": _SOON,
            "delete of a used template": _IN_USE,
            "delete of a used policy": _IN_USE,
            "template unused after the MIG's delete": _SOON,
            "policy unused after the MIG's delete": _SOON,
        },
        "shared/node_groups/actions.py",
        _DIFFERENCES,
        _ask_in_use,
    ),
    Question(
        "name-again",
        "When can the name of a deleted MIG be used again?",
        f"{_MIG} without VMs, twice",
        {"insert during the delete": _TAKEN, "insert after the delete": "accepted"},
        "shared/node_groups/lifecycle.py",
        _NAMED,
        _ask_name_again,
    ),
    Question(
        "bulk-config",
        "Can a MIG in BULK mode have allInstancesConfig?",
        f"1 workload policy, 1 instance template of {TPU}, 1 MIG in BULK mode without VMs",
        {"a BULK MIG with allInstancesConfig": "accepted"},
        "functions/create_resources/user_template.py",
        _NAMED,
        _ask_bulk_config,
    ),
    Question(
        "topology-check",
        "Is a topology that the machine type cannot form rejected before VMs are created?",
        f"1 workload policy, 1 instance template of {TPU}, 1 MIG in BULK mode without VMs",
        {f"an empty MIG of {TPU} with topology 2x2x2": "accepted"},
        "local/gce/group_checks.py",
        _NAMED,
        _ask_topology,
    ),
    Question(
        "act-as",
        "Is an insert rejected if the caller cannot act as its service account?",
        f"nothing; if it is not rejected: 1 instance template, 1 VM {SMALL}",
        {"insert of a template": _ACCOUNT, "insert of a VM": _ACCOUNT},
        "shared/ports/error_reasons.py",
        "local/docs/simulated-compute-engine.md#refusals",
        _ask_act_as,
        cost_usd=CHEAP_USD,
        required_option=FOREIGN_ACCOUNT,
    ),
    Question(
        "metadata-fingerprint",
        "Which error does setMetadata return with a stale fingerprint, and with none?",
        f"1 VM {SMALL} for 3 minutes",
        {
            "the current fingerprint": "accepted",
            "a stale fingerprint": _STALE,
            "no fingerprint": _STALE,
        },
        "functions/inject_token/",
        _NAMED,
        _ask_fingerprint,
        cost_usd=CHEAP_USD,
    ),
    Question(
        "delete-early",
        "Can a MIG be deleted while its VM is being created, and is the VM absent after the delete?",
        f"{_MIG} of 1 VM {SMALL} for 3 minutes",
        {
            "delete while a VM is being created": "accepted",
            "the VM after the delete": "absent",
        },
        "functions/tear_down/",
        _NAMED,
        _ask_delete_early,
        cost_usd=CHEAP_USD,
    ),
    Question(
        "repair",
        "Does a repaired VM keep its numeric id, and the metadata that was set on it?",
        f"{_MIG} of 1 VM {SMALL} for 10 minutes",
        {"name": "the same", "numeric id": "another", "metadata that was set": "lost"},
        "shared/node_groups/membership.py",
        _NAMED,
        _ask_repair,
        cost_usd=CHEAP_USD,
    ),
    Question(
        "vm-log",
        "Which audit log entries does the VM of a MIG have, and when does the MIG's delete end?",
        f"{_MIG} of 1 VM {SMALL} for 10 minutes",
        {
            "entries of the VM's insert": _PAIR,
            "resource.type": "gce_instance",
            "created by": "NUMBER@cloudservices.gserviceaccount.com",
            "the last entry has a response": "no",
            "entries of the MIG's delete": _PAIR,
            "the MIG's delete ends after its VM's": "yes",
        },
        "infra/terraform/filters/inject_token.txt",
        _NAMED,
        _ask_vm_log,
        cost_usd=CHEAP_USD,
    ),
    Question(
        "bulk-wait",
        "What do the status of a BULK MIG and the audit log contain while it waits for capacity?",
        f"1 workload policy, 1 instance template, 1 MIG of 1 VM {TPU} for 15 minutes",
        {
            "error while the MIG waits": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "VM inserts in the log": "none",
        },
        "functions/create_resources/resource_conditions.py",
        _NAMED,
        _ask_bulk_wait,
        cost_usd=TPU_USD,
        required_option=WITH_TPU,
    ),
)
"""In the order in which they are asked, the cheapest first."""
