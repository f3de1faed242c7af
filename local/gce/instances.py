"""VMs as the API shows them: the calls about instances."""

from __future__ import annotations

from local.gce import links
from local.gce.calls import Call, Route
from local.gce.context import Context
from local.gce.instance import Instance, Ownership
from local.gce.listing import answer_aggregated, answer_list
from local.gce.operation import Operation
from local.gce.policies import Policies
from local.gce.records import check_free, check_name
from local.gce.refusals import (
    METADATA_FINGERPRINT,
    NOT_FOUND,
    NOT_READY,
    VM_IS_DOWN,
    WORKLOAD_POLICY_ON_VM,
    OperationError,
    Refused,
)
from local.gce.schema import Document
from local.gce.store import Store
from local.gce.supply import Order, read_order
from local.gce.templates import Templates, complete_properties, read_metadata

_KIND = "compute#instance"


class Instances:
    """All VMs."""

    def __init__(self, context: Context, policies: Policies, templates: Templates) -> None:
        self._context = context
        self._policies = policies
        self._templates = templates
        self.store: Store[Instance] = Store(context)
        self._addresses = 1

    def routes(self) -> tuple[Route, ...]:
        """The methods about instances."""
        base = "zones instances"
        return (
            Route(f"POST {base}", "instances.insert", self.insert, "Instance"),
            Route(f"GET {base}", "instances.list", self.list),
            Route(f"GET {base} NAME", "instances.get", self.get),
            Route(f"DELETE {base} NAME", "instances.delete", self.delete),
            Route(
                f"POST {base} NAME setMetadata",
                "instances.setMetadata",
                self.set_metadata,
                "Metadata",
            ),
            Route(f"POST {base} NAME reset", "instances.reset", self.reset),
            Route(f"POST {base} NAME start", "instances.start", self.start),
            Route(f"POST {base} NAME stop", "instances.stop", self.stop),
            Route(
                f"GET {base} NAME serialPort", "instances.getSerialPortOutput", self.get_serial_port
            ),
            Route(
                f"GET {base} NAME getGuestAttributes",
                "instances.getGuestAttributes",
                self.get_guest_attributes,
            ),
            Route("GET aggregated instances", "instances.aggregatedList", self.list_all),
        )

    def get(self, call: Call) -> Document:
        """Answer get."""
        return self.store.get(call.path).document()

    def list(self, call: Call) -> Document:
        """Answer list."""
        return answer_list(call, f"{_KIND}List", self.store.listed(call.collection + "/"))

    def list_all(self, call: Call) -> Document:
        """Answer the aggregated list."""
        documents = self.store.listed(f"projects/{call.project}/")
        unreachable = self._context.fault_plan.unreachable
        return answer_aggregated(call, f"{_KIND}AggregatedList", documents, unreachable)

    def get_serial_port(self, call: Call) -> Document:
        """Answer getSerialPortOutput."""
        contents = self.store.get(call.path).serial_output
        start = call.integer("start", 0)
        return {
            "kind": "compute#serialPortOutput",
            "contents": contents[start:],
            "start": str(start),
            "next": str(len(contents)),
        }

    def get_guest_attributes(self, call: Call) -> Document:
        """Answer getGuestAttributes for a whole namespace, ``queryPath=NAMESPACE/``."""
        query = call.request.argument("queryPath")
        found = [
            {"namespace": namespace, "key": key, "value": value}
            for (namespace, key), value in self.store.get(call.path).guest_attributes.items()
            if f"{namespace}/{key}".startswith(query)
        ]
        if not found:
            raise NOT_FOUND.refused(resource=f"{call.path}/guestAttributes/{query}")
        return {
            "kind": "compute#guestAttributes",
            "queryPath": query,
            "queryValue": {"items": found},
        }

    def insert(self, call: Call) -> Operation:
        """Begin the insert of a VM that belongs to no group."""
        check_name(call)
        properties = self._properties(call)
        for reference in call.body.get("resourcePolicies") or ():
            path = links.find_path(reference, call.project) or reference
            if "workloadPolicy" in self._policies.store.get(path).document():
                raise WORKLOAD_POLICY_ON_VM.refused(value=reference)
        order = read_order(call.project, call.place, properties)
        check_free(self.store, call)
        self._context.supply.check_count("instances", call.project, len(self.store))
        missing = self._context.supply.find_missing(order)
        if missing is not None:
            raise Refused(missing.http, "invalid", missing.message, log=missing.log)
        instance = self.make(call.path, properties, order, Ownership())
        operation = self._context.operations.begin_for(call, instance.id)
        instance.create(operation)
        return operation

    def make(
        self,
        path: str,
        properties: Document,
        order: Order,
        ownership: Ownership,
        *,
        instance_id: str = "",
    ) -> Instance:
        """Create a VM object; an empty ``instance_id`` means a new one."""
        return Instance(
            self._context,
            self.store,
            path,
            properties,
            order,
            ownership,
            address=self._next_address(),
            instance_id=instance_id,
        )

    def _properties(self, call: Call) -> Document:
        """The body, completed from the source template if there is one. Raises `Refused`."""
        body = call.body
        source = call.request.argument("sourceInstanceTemplate")
        if source:
            path = links.find_path(source, call.project) or source
            template = self._templates.store.get(path).document()["properties"]
            body = {**template, **{key: value for key, value in body.items() if value}}
        call.caller.demand_act_as(body.get("serviceAccounts"))
        return complete_properties(body, call.project, "resource")

    def delete(self, call: Call) -> Operation:
        """Begin a delete, which also ends an insert that still runs."""
        instance = self.store.get(call.path)
        if instance.leaving:
            raise NOT_READY.refused(resource=call.path)
        operation = self._context.operations.begin_for(call, instance.id)
        instance.delete(operation)
        return operation

    def set_metadata(self, call: Call) -> Operation:
        """Begin to replace the whole metadata; it shows when the operation is DONE."""
        instance = self.store.get_idle(call.path)
        call.caller.demand_act_as(instance.properties.get("serviceAccounts"))
        items = read_metadata(call.body, "metadata")
        current = links.metadata_fingerprint(instance.metadata)
        if call.body.get("fingerprint") != current:
            raise METADATA_FINGERPRINT.refused()
        operation = self._context.operations.begin_for(
            call, instance.id, changed_keys=_changed_keys(instance.metadata, items)
        )
        instance.busy = operation

        def settle(error: OperationError | None) -> None:
            instance.release(operation)
            if error is None:
                instance.set_metadata(items)

        self._context.operations.settle_later(operation, settle)
        return operation

    def reset(self, call: Call) -> Operation:
        """Begin a hard reset: the VM agent boots again."""
        instance = self._running(call)
        operation = instance.busy = self._context.operations.begin_for(call, instance.id)
        instance.power_off()

        def settle(error: OperationError | None) -> None:  # noqa: ARG001 - it boots either way
            if instance.release(operation) and instance.status == "RUNNING":
                instance.power_on()

        self._context.operations.settle_later(operation, settle)
        return operation

    def stop(self, call: Call) -> Operation:
        """Begin a stop."""
        instance = self._running(call)
        operation = self._context.operations.begin_for(call, instance.id)
        instance.stop(operation)
        return operation

    def start(self, call: Call) -> Operation:
        """Begin a start; a VM that runs is left as it is."""
        instance = self.store.get_idle(call.path)
        operation = self._context.operations.begin_for(call, instance.id)
        instance.start(operation)
        return operation

    def _running(self, call: Call) -> Instance:
        instance = self.store.get_idle(call.path)
        if instance.status != "RUNNING":
            raise VM_IS_DOWN.refused(resource=call.path)
        return instance

    def _next_address(self) -> str:
        self._addresses += 1
        return f"10.128.{self._addresses // 256 % 256}.{self._addresses % 256}"


def _changed_keys(old: dict[str, str], new: dict[str, str]) -> dict[str, list[str]]:
    """The keys that a write adds, changes and removes, as in the audit log."""
    changes = {
        "added": [key for key in new if key not in old],
        "modified": [key for key in new if key in old and new[key] != old[key]],
        "deleted": [key for key in old if key not in new],
    }
    return {change: keys for change, keys in changes.items() if keys}
