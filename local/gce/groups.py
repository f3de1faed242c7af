"""The methods on zonal managed instance groups."""

from __future__ import annotations

from datetime import datetime, timedelta

from local.gce import links
from local.gce.calls import Call, Route
from local.gce.context import Context
from local.gce.group import Group
from local.gce.group_checks import (
    check_fields,
    check_mode,
    check_new_size,
    check_template,
    find_size_error,
    refuse_order,
)
from local.gce.instances import Instances
from local.gce.listing import answer_aggregated, answer_list, matching, paginate
from local.gce.operation import Operation
from local.gce.policies import Policies
from local.gce.records import check_free, check_name
from local.gce.refusals import (
    BAD_VALUE,
    GROUP_IN_USE,
    NOT_FOUND,
    NOT_READY,
    REQUIRED,
    OperationError,
)
from local.gce.schema import Document
from local.gce.store import Store
from local.gce.templates import Templates, check_region_of_template

_KIND = "compute#instanceGroupManager"


class Groups:
    """All managed instance groups."""

    def __init__(
        self, context: Context, policies: Policies, templates: Templates, instances: Instances
    ) -> None:
        self._context = context
        self._policies = policies
        self._templates = templates
        self._instances = instances
        self.store: Store[Group] = Store(context)
        self._lately_used: dict[str, tuple[datetime, str]] = {}

    def routes(self) -> tuple[Route, ...]:
        """The methods about managed instance groups."""
        base, verb = "zones instanceGroupManagers", "instanceGroupManagers"
        named = f"{base} NAME"
        return (
            Route(f"POST {base}", f"{verb}.insert", self.insert, "InstanceGroupManager"),
            Route(f"GET {base}", f"{verb}.list", self.list),
            Route(f"GET {named}", f"{verb}.get", self.get),
            Route(f"DELETE {named}", f"{verb}.delete", self.delete),
            Route(f"POST {named} resize", f"{verb}.resize", self.resize),
            Route(
                f"POST {named} listManagedInstances",
                f"{verb}.listManagedInstances",
                self.list_managed_instances,
            ),
            Route(f"GET {named} listErrors", f"{verb}.listErrors", self.list_errors),
            Route("GET aggregated instanceGroupManagers", f"{verb}.aggregatedList", self.list_all),
        )

    # reads

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

    def list_managed_instances(self, call: Call) -> Document:
        """Answer listManagedInstances, in one page unless the group is PAGINATED."""
        group = self.store.get(call.path)
        refuse_order(call)
        found = matching(call, group.members.documents())
        if group.settings.get("listManagedInstancesResults") != "PAGINATED":
            return {"managedInstances": found} if found else {}
        page, token = paginate(call, found)
        return {"managedInstances": page, **({"nextPageToken": token} if token else {})}

    def list_errors(self, call: Call) -> Document:
        """Answer listErrors, latest first."""
        errors = self.store.get(call.path).members.errors
        refuse_order(call)
        page, token = paginate(call, errors[::-1])
        answer: Document = {"items": page} if page else {}
        return {**answer, "nextPageToken": token} if token else answer

    def find_user(self, path: str) -> str:
        """Find a group that uses a template or policy, or has used it a moment ago."""
        for group in self.store:
            if group.uses(path):
                return group.path
        until, user = self._lately_used.get(path, (datetime.min, ""))
        return user if user and self._context.clock.now() < until else ""

    def retry_creation(self) -> None:
        """Let the groups that wait retry, because the supply has changed."""
        for group in self.store:
            group.members.retry_creation()

    # insert

    def insert(self, call: Call) -> Operation:
        """Begin an insert. Its operation ends when the group exists; its VMs come later."""
        check_name(call)
        settings, topology = self._checked(call, call.body)
        call.caller.demand("compute.instances.create", f"projects/{call.project}")
        check_free(self.store, call)
        self._context.supply.check_count("instanceGroupManagers", call.project, len(self.store))
        group_id = links.numeric_id(self._context.random)
        group = Group(
            self._context,
            self._templates,
            self._instances,
            call.path,
            group_id,
            settings,
            topology,
        )
        group.busy = self._context.operations.begin_for(call, group.id)
        self.store.put(group)

        def settle(error: OperationError | None) -> None:
            group.busy = None
            group.readable = error is None
            if error is None:
                group.resize(group.target_size)
            else:
                self.store.drop(group)

        self._context.operations.settle_later(group.busy, settle, find_size_error(group))
        return group.busy

    def _checked(self, call: Call, body: Document) -> tuple[Document, str]:
        """Validate a new group; returns settings and topology. Raises `Refused`."""
        check_fields(body, call, self._context.supply.most_vms)
        template, properties = self._find_template(call, body)
        policy, topology = self._find_policy(call, body)
        settings = {**body, "instanceTemplate": links.url(template)}
        if policy:
            settings["resourcePolicies"] = {"workloadPolicy": links.url(policy)}
        check_mode(
            settings, topology, takes_config=self._context.timings.bulk_takes_all_instances_config
        )
        check_template(settings, properties)
        return settings, topology

    def _find_template(self, call: Call, body: Document) -> tuple[str, Document]:
        versions = body.get("versions") or [{}]
        reference = body.get("instanceTemplate") or versions[0].get("instanceTemplate")
        if not reference:
            raise REQUIRED.refused(field="resource.instanceTemplate")
        path = self._context.path_of(reference, call.project, "resource.instanceTemplate")
        check_region_of_template(path, links.region_of(call.place))
        call.caller.demand("compute.instanceTemplates.useReadOnly", path)
        record = self._templates.find_for_group(path)
        if record is None:
            raise NOT_FOUND.refused(resource=path)
        if record.busy is not None:
            raise NOT_READY.refused(resource=path)
        return path, record.document()["properties"]

    def _find_policy(self, call: Call, body: Document) -> tuple[str, str]:
        """Find the path and the topology of the workload policy; both may be empty."""
        field = "resource.resourcePolicies.workloadPolicy"
        reference = (body.get("resourcePolicies") or {}).get("workloadPolicy")
        if not reference:
            return "", ""
        path = self._context.path_of(reference, call.project, field)
        region = path.split("/")[3]
        if region != links.region_of(call.place):
            why = "The resource policy must be in the region of the group."
            raise BAD_VALUE.refused(field=field, value=reference, why=why)
        policy = self._policies.store.get_idle(path).document().get("workloadPolicy")
        if policy is None:
            raise BAD_VALUE.refused(field=field, value=reference, why="It is no workload policy.")
        call.caller.demand("compute.resourcePolicies.use", path)
        if policy.get("acceleratorTopologyMode") == "PROVISION_ONLY":
            return path, ""
        return path, policy.get("acceleratorTopology", "")

    # changes

    def delete(self, call: Call) -> Operation:
        """Begin a delete. Its operation ends after the deletion of the last VM."""
        group = self.store.get_idle(call.path)
        if group.backend_service:
            raise GROUP_IN_USE.refused(resource=group.path, user=group.backend_service)
        operation = group.busy = self._context.operations.begin_for(call, group.id)
        error = self._context.fault_plan.take_failure(call.route.verb)
        if error is not None:
            self._fail_delete(group, operation, error)
        else:
            group.dissolve(lambda: self._end_delete(group, operation))
        return operation

    def _fail_delete(self, group: Group, operation: Operation, error: OperationError) -> None:
        def settle(_: OperationError | None) -> None:
            group.busy = None

        self._context.operations.settle_later(operation, settle, error)

    def _end_delete(self, group: Group, operation: Operation) -> None:
        """Handle the deletion of a deleted group's last VM."""
        self._context.operations.settle_later(operation, lambda _: self._remove(group))

    def _remove(self, group: Group) -> None:
        lag = self._context.draw(self._context.timings.in_use_lag_s)
        until = self._context.clock.now() + timedelta(seconds=lag)
        for path in filter(None, (group.template, group.policy)):
            self._lately_used[path] = (until, group.path)
        self.store.drop(group)

    def resize(self, call: Call) -> Operation:
        """Begin to change the target size; the operation ends when that is recorded."""
        if not call.request.argument("size"):
            raise REQUIRED.refused(field="size")
        size = call.integer("size", 0)
        group = self.store.get_idle(call.path)
        check_new_size(group, size, self._context.supply.most_vms)
        operation = group.busy = self._context.operations.begin_for(call, group.id)

        def settle(error: OperationError | None) -> None:
            group.busy = None
            if error is None:
                group.resize(size)

        self._context.operations.settle_later(operation, settle)
        return operation
