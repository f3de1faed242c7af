"""The audit log of calls and system events.

An operation writes two entries, at its begin (with request and response) and at its end (without them,
with a one-word status if it failed). A refused call writes one entry without operation, a system event
one that is first and last. Reads write none, because the data access log is off by default. Of instance
metadata, only the changed keys appear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from local.gce import links
from local.gce.callers import Caller
from local.gce.environment import Environment
from local.gce.operation import Operation
from local.gce.refusals import LogStatus
from local.gce.schema import Document

_AUDIT_LOG = "type.googleapis.com/google.cloud.audit.AuditLog"
_METADATA = "type.googleapis.com/google.cloud.audit.GceInstanceAuditMetadata"
_LOCATION = "type.googleapis.com/google.cloud.audit.GceInstanceLocationMetadata"
_SYSTEM = "system@google.com"

_RESOURCE_TYPES: Mapping[str, Callable[[str, str, str], Document]] = {
    "resourcePolicies": lambda place, _, id_: {
        "type": "gce_resource_policy",
        "labels": {"region": place, "resource_policy_id": id_},
    },
    "instanceTemplates": lambda _, name, id_: {
        "type": "gce_instance_template",
        "labels": {"instance_template_id": id_, "instance_template_name": name},
    },
    "instanceGroupManagers": lambda place, name, id_: {
        "type": "gce_instance_group_manager",
        "labels": {
            "location": place,
            "instance_group_manager_id": id_,
            "instance_group_manager_name": name,
        },
    },
    "instances": lambda place, _, id_: {
        "type": "gce_instance",
        "labels": {"zone": place, "instance_id": id_},
    },
}


class AuditLog:
    """Writes entries and passes each to ``on_log_entry`` after a delay."""

    def __init__(
        self, environment: Environment, on_log_entry: Callable[[dict[str, Any]], None]
    ) -> None:
        self._environment = environment
        self._on_log_entry = on_log_entry

    def write_first(self, operation: Operation) -> None:
        """Write the entry of an operation's begin."""
        payload = self._payload(operation.caller, operation.verb, operation.target)
        payload["resourceName"] = self._as_seen_by(operation.caller, operation.target)
        request = operation.request or {}
        payload["request"] = {**request, "@type": f"type.googleapis.com/compute.{operation.verb}"}
        payload["response"] = {
            "@type": "type.googleapis.com/operation",
            "name": operation.name,
            "operationType": operation.kind,
            "status": "RUNNING",
            "targetId": operation.target_id,
            "targetLink": links.url(operation.target),
        }
        if operation.changed_keys:
            payload["metadata"] = _metadata_delta(operation.changed_keys)
        self._write(
            operation.target, operation.target_id, "NOTICE", payload, operation.name, first=True
        )

    def write_last(self, operation: Operation) -> None:
        """Write the entry of an operation's end."""
        payload = self._payload(operation.caller, operation.verb, operation.target)
        if operation.changed_keys:
            payload["metadata"] = _metadata_delta(operation.changed_keys)
            payload["request"] |= {
                f"Metadata Keys {change.capitalize()}": keys
                for change, keys in operation.changed_keys.items()
            }
        severity = "NOTICE"
        if operation.error is not None:
            severity = "ERROR"
            payload["status"] = _status(operation.error.log)
        self._write(
            operation.target, operation.target_id, severity, payload, operation.name, last=True
        )

    def write_refusal(
        self, caller: Caller, verb: str, path: str, resource_id: str, body: Document, log: LogStatus
    ) -> None:
        """Write the entry of a refused call."""
        payload = self._payload(caller, verb, path)
        payload["request"] |= {"name": body["name"]} if body.get("name") else {}
        payload["status"] = _status(log)
        self._write(path, resource_id, "ERROR", payload, "")

    def write_system_event(
        self,
        method: str,
        path: str,
        resource_id: str,
        *,
        message: str = "",
        principal: str = _SYSTEM,
        metadata: Document | None = None,
    ) -> None:
        """Write the entry of a system event."""
        payload = self._system_payload(method, path, principal)
        if metadata:
            payload["metadata"] = metadata
        if message:
            payload["status"] = {"message": message}
        prefix = "repair" if ".repair." in method else "systemevent"
        name = links.operation_name(self._environment.random, self._environment.clock.now(), prefix)
        entry = self._entry(path, resource_id, "INFO", payload, "system_event")
        entry["operation"] = {"id": name, "producer": method, "first": True, "last": True}
        self._deliver(entry)

    def write_location(self, path: str, resource_id: str) -> None:
        """Write the notice of a VM's host, which has no operation."""
        payload = self._system_payload("NotifyInstanceLocation", path, _SYSTEM)
        payload["metadata"] = {
            "@type": _LOCATION,
            "serverId": f"{self._environment.random.getrandbits(128):032x}",
            "timestamp": links.zulu(self._environment.clock.now()),
        }
        self._deliver(self._entry(path, resource_id, "INFO", payload, "system_event"))

    def _system_payload(self, method: str, path: str, principal: str) -> Document:
        return {
            "@type": _AUDIT_LOG,
            "status": {},
            "authenticationInfo": {"principalEmail": principal} if principal else {},
            "serviceName": "compute.googleapis.com",
            "methodName": method,
            "resourceName": path,
            "request": {"@type": f"type.googleapis.com/{method}"},
        }

    def _payload(self, caller: Caller, verb: str, path: str) -> Document:
        payload: Document = {
            "@type": _AUDIT_LOG,
            "authenticationInfo": {"principalEmail": caller.email},
            "serviceName": "compute.googleapis.com",
            "methodName": f"{caller.surface}.compute.{verb}",
            "resourceName": path,
            "request": {"@type": f"type.googleapis.com/compute.{verb}"},
        }
        if caller.user_agent:
            payload["requestMetadata"] = {"callerSuppliedUserAgent": caller.user_agent}
        return payload

    def _as_seen_by(self, caller: Caller, path: str) -> str:
        """The path; with the project's number if Google's own agent is the caller."""
        project = path.split("/", 2)[1]
        if caller.email != self._environment.agent_email(project):
            return path
        return self._environment.numbered(path)

    def _write(
        self,
        path: str,
        resource_id: str,
        severity: str,
        payload: Document,
        operation: str,
        **position: bool,
    ) -> None:
        entry = self._entry(path, resource_id, severity, payload, "activity")
        if operation:
            entry["operation"] = {
                "id": operation,
                "producer": "compute.googleapis.com",
                **position,
            }
        self._deliver(entry)

    def _entry(
        self, path: str, resource_id: str, severity: str, payload: Document, log: str
    ) -> Document:
        parts = path.split("/")
        project, collection, name = parts[1], parts[-2], parts[-1]
        resource = _RESOURCE_TYPES[collection](parts[-3], name, resource_id)
        resource["labels"] = {"project_id": project, **resource["labels"]}
        return {
            "insertId": f"{self._environment.random.getrandbits(44):011x}",
            "logName": f"projects/{project}/logs/cloudaudit.googleapis.com%2F{log}",
            "timestamp": links.zulu(self._environment.clock.now()),
            "severity": severity,
            "resource": resource,
            "protoPayload": payload,
        }

    def _deliver(self, entry: Document) -> None:
        def arrive() -> None:
            entry["receiveTimestamp"] = links.zulu(self._environment.clock.now())
            self._on_log_entry(entry)

        self._environment.later(self._environment.timings.log_delay_s, arrive)


def _status(log: LogStatus) -> Document:
    return {"code": log[0], "message": log[1]}


def _metadata_delta(changed: Mapping[str, list[str]]) -> Document:
    delta = {f"{change}MetadataKeys": keys for change, keys in changed.items()}
    return {"@type": _METADATA, "instanceMetadataDelta": delta}
