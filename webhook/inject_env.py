"""inject_env: an admission webhook that adds TPU environment variables to workloads.

It concerns workloads that request TPUs. It adds variables that are missing, updates those that it has
injected before, and removes those that no longer follow from the workload. An annotation on a Pod
template, or on a Pod that it changes, lists the injected variables with digests. The template also gets
the label ``tpu-functions.dev/inject: enabled``, if it is not marked so already, for the webhook to
review its Pods, too.

Values that users have set are kept. Two kinds of them count as not set: an empty value, and
``localhost`` in a variable that names hosts, if the slice has several.

A workload or its Pod template opts out by the label or annotation ``tpu-functions.dev/inject:
disabled``. The webhook copies a workload's ``disabled`` to its template as a label, for the reviews of
the Pods. So if the workload is marked ``enabled``, a label ``disabled`` of its template counts as an old
copy and is replaced, also if a user has written it; only an annotation counts there. What was injected
before ``disabled``, or before the last mark was removed, is removed from a template.

Problems of a workload, such as contradictions between it and its slice, are warnings, or rejections by a
setting. If nothing at all is injected because of problems, an annotation on the template says which.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from webhook.tpu_env.admission import (
    AdmissionRequest,
    AdmissionResponse,
    Object,
    Operation,
    escape,
    set_keys,
)
from webhook.tpu_env.container_env import build_container_envs, note_injected, without_injected
from webhook.tpu_env.variables import LISTS, Environment, Ports, Value, decide_variables
from webhook.tpu_env.workloads import (
    INJECTED,
    NOT_INJECTED,
    NOTHING,
    FieldPath,
    Workers,
    Workload,
    read_tpu_workload,
)

INJECT = "tpu-functions.dev/inject"
MARKS = (INJECT, "gke-tpu-env-injector.aaronbatilo.dev/inject")
"""Keys of the label or annotation that says whether to inject. The API server sends only workloads that
are marked, on themselves or on their template or namespace, or have variables of this webhook, which are
removed if no mark is left (infra/chart/manifests/inject-env/webhook.yaml). The second key is
gke-tpu-env-injector's, whose manifests keep working. It knows no value but ``enabled``."""
ENABLED, DISABLED = "enabled", "disabled"
_STILL_MARKED = (
    "the workload is not marked any more, but its Pod template or namespace is, and injection "
    f"continues; to end it and remove the variables, mark the workload {INJECT}: {DISABLED}"
)
_FIXED = (
    "TPU_WORKER_ID",
    "TPU_TOPOLOGY",
    "TPU_ACCELERATOR_TYPE",
    "TPU_HOST_BOUNDS",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
)
"""Variables with exactly one correct value."""


@dataclass(frozen=True)
class InjectionSettings:
    """The settings of the webhook.

    ``is_strict``: reject a workload with problems instead of warning about them. An update is not
    rejected for problems that the stored object has already: its controller must be able to write it.
    """

    is_strict: bool
    ports: Ports = field(default_factory=Ports)


def inject(
    request: AdmissionRequest, settings: InjectionSettings, *, is_namespace_marked: bool = False
) -> AdmissionResponse:
    """The patch that adds missing variables to a workload, and warnings about its problems."""
    workload = read_tpu_workload(request.target) if _is_injectable(request) else None
    if workload is None:
        return AdmissionResponse()
    own, stored = request.target["metadata"], read_tpu_workload(request.old)
    workload = replace(workload, stored=stored.metadata if stored else {})
    if workload.has_template and _is_marked(own, (INJECT,), DISABLED):
        patch = (*_take_back(workload), *_mark_template(workload, DISABLED))
        return AdmissionResponse(patch=patch)
    was_injected = INJECTED in (workload.stored.get("annotations") or {})
    is_marked = is_namespace_marked or _has_mark(own, workload)
    if _has_opted_out(workload, own) or (was_injected and not is_marked):
        return AdmissionResponse(patch=tuple(_take_back(workload)))
    environment, problems = _find_environment(workload, settings)
    if problems and settings.is_strict:
        known = _list_stored_problems(
            request, stored, workload, settings, is_namespace_marked=is_namespace_marked
        )
        added = [problem for problem in problems if problem not in known]
        if added:
            return AdmissionResponse(refusal="; ".join(added))
    patch = tuple(build_patch(workload, environment))
    was_marked = _is_marked(request.old.get("metadata") or {}, MARKS, ENABLED)
    still = was_marked and not _is_marked(own, MARKS, ENABLED)
    notices = (*environment.notices, *((_STILL_MARKED,) if still else ()))
    return AdmissionResponse(patch=patch, warnings=(*problems, *notices))


def _find_environment(
    workload: Workload, settings: InjectionSettings
) -> tuple[Environment, tuple[str, ...]]:
    """The variables of a workload, and its problems."""
    environment = decide_variables(without_injected(workload), settings.ports)
    return environment, (*environment.problems, *_find_contradictions(workload, environment))


def _list_stored_problems(
    request: AdmissionRequest,
    stored: Workload | None,
    workload: Workload,
    settings: InjectionSettings,
    *,
    is_namespace_marked: bool,
) -> tuple[str, ...]:
    """The problems that the stored workload of an update has, if it was reviewed: not if it has opted
    out, and not if only the update marks it. In a marked namespace its mark may be this review's own,
    in a second call."""
    if stored is None:
        return ()
    own = request.old["metadata"]
    has_opted_out = _is_marked(own, (INJECT,), DISABLED) or _has_opted_out(stored, own)
    is_newly_marked = _has_mark(request.target["metadata"], workload) and not _has_mark(own, stored)
    if has_opted_out or (is_newly_marked and not is_namespace_marked):
        return ()
    return _find_environment(stored, settings)[1]


def _has_mark(own: Object, workload: Workload) -> bool:
    """Whether a workload or its template is marked ``enabled``. ``own``: the workload's metadata."""
    return _is_marked(own, MARKS, ENABLED) or _is_marked(workload.metadata, MARKS, ENABLED)


def _is_injectable(request: AdmissionRequest) -> bool:
    """Whether the workload can be changed. Containers of existing Pods cannot; existing Jobs, whose
    templates cannot either, are not sent to the webhook. Nothing is injected into a subresource.

    What is being deleted is left alone: in strict mode, a refusal would keep its finalizers from being
    removed.
    """
    target = request.target
    is_changeable = target.get("kind") != "Pod" or request.operation == "CREATE"
    is_deleting = (target.get("metadata") or {}).get("deletionTimestamp")
    return is_changeable and not request.sub_resource and not is_deleting


def _has_opted_out(workload: Workload, own: Object) -> bool:
    """Whether the Pod or the Pod template is marked ``disabled``. ``own``: the workload's metadata.

    A label of a template may be the copy from an earlier review (`_mark_template`): it does not count if
    the workload is marked ``enabled`` now. An annotation is the user's.
    """
    if _is_marked(workload.metadata, (INJECT,), DISABLED, ("annotations",)):
        return True
    is_overruled = workload.has_template and _is_marked(own, MARKS, ENABLED)
    return not is_overruled and _is_marked(workload.metadata, (INJECT,), DISABLED)


def _is_marked(
    metadata: Object,
    marks: Sequence[str],
    word: str,
    kinds: Sequence[str] = ("labels", "annotations"),
) -> bool:
    texts = [metadata.get(kind) or {} for kind in kinds]
    return any(text.get(mark) == word for text in texts for mark in marks)


def _find_contradictions(workload: Workload, environment: Environment) -> tuple[str, ...]:
    """Contradictions between the user's own values and the slice, each once.

    They are looked for in the entries after the patch, which replaces what counts as not set and what
    was injected before.
    """
    found = (
        problem
        for container in build_container_envs(workload, environment)
        for entry in container.entries()
        if entry["name"] in container.wanted and "valueFrom" not in entry
        for problem in _check_value(
            entry["name"], str(entry.get("value") or ""), container.wanted[entry["name"]]
        )
    )
    return tuple(dict.fromkeys(found))


def _check_value(name: str, given: str, wanted: Value) -> Iterator[str]:
    if "$(" in given or name == "TPU_NAME":
        return  # it refers to another variable, whose value is not known here; or any value is right
    if isinstance(wanted, FieldPath):
        yield f"{name} is {given} in all Pods, but each Pod needs its own value; leave it out"
    elif name in LISTS:
        entries, count = len(given.split(",")), len(wanted.split(","))
        if entries != count:
            yield f"{name} has {entries} entries for {count} workers"
        if name == "TPU_WORKER_HOSTNAMES" and ":" in given:
            yield f"{name} has ports, but TPU libraries add their own; leave the ports out"
    elif name in _FIXED and given != wanted:
        yield f"{name} is {given} and should be {wanted}; leave it out"


def build_patch(workload: Workload, environment: Environment) -> Iterator[Operation]:
    """The operations that add missing variables and update injected ones. An annotation says what is
    injected, also of a Pod that is changed; a template's says why nothing is."""
    envs = build_container_envs(workload, environment)
    changes = [change for env in envs for change in env.patch()]
    yield from changes
    base = f"{workload.path}/metadata"
    if not workload.has_template:
        # The API server calls again when another webhook has changed the Pod.
        if changes:
            note = {INJECTED: note_injected(envs)}
            yield from set_keys(workload.metadata, base, "annotations", note)
        return
    # With this mark the webhook also reviews the template's Pods, and the admission policy of
    # infra/chart/manifests/inject-env rejects those that it could not review. If the template has
    # the label ``disabled`` here, it is the copy of a former mark: the workload is marked ``enabled``
    # now, otherwise it would have opted out.
    has_old_copy = _is_marked(workload.metadata, (INJECT,), DISABLED)
    if has_old_copy or not _is_marked(workload.metadata, MARKS, ENABLED):
        yield from _mark_template(workload, ENABLED)
    both = (workload.metadata, workload.stored)
    has_note = any(INJECTED in (one.get("annotations") or {}) for one in both)
    reasons = (*environment.problems, *environment.doubts)
    if environment.variables:
        note = {INJECTED: note_injected(envs)}
        yield from set_keys(workload.metadata, base, "annotations", note)
    elif workload.workers is None and not reasons and (envs or not has_note):
        yield from set_keys(workload.metadata, base, "annotations", {INJECTED: NOTHING})
    elif envs and INJECTED in (workload.metadata.get("annotations") or {}):
        yield {"op": "remove", "path": f"{base}/annotations/{escape(INJECTED)}"}
    # If a Pod has this annotation, `read_tpu_workload` reports it as the Pod's problem, so that nothing
    # is injected there either.
    if reasons and not environment.variables:
        reason = {NOT_INJECTED: "; ".join(reasons)}
        yield from set_keys(workload.metadata, base, "annotations", reason)
    elif NOT_INJECTED in (workload.metadata.get("annotations") or {}):
        yield {"op": "remove", "path": f"{base}/annotations/{escape(NOT_INJECTED)}"}


def _take_back(workload: Workload) -> Iterator[Operation]:
    """Remove from a template what was injected before; nothing from a Pod."""
    if not workload.has_template:
        return
    known = replace(workload, workers=workload.workers or Workers("", (), None))
    for env in build_container_envs(known, Environment({}, ())):
        yield from env.patch()
    for key in (INJECTED, NOT_INJECTED):
        if key in (workload.metadata.get("annotations") or {}):
            yield {"op": "remove", "path": f"{workload.path}/metadata/annotations/{escape(key)}"}


def _mark_template(workload: Workload, word: str) -> Iterator[Operation]:
    base = f"{workload.path}/metadata"
    if not workload.metadata:
        yield {"op": "add", "path": base, "value": {}}
    yield from set_keys(workload.metadata, base, "labels", {INJECT: word})
