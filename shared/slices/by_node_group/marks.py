"""The labels and annotations by which a TPUNodeGroup names its unit: written here, and read here."""

from shared.base.documents import Document, read_mapping, read_text, read_texts
from shared.base.names import JOBSET_KIND, JOBSET_LABEL, UNIT_KIND_LABEL
from shared.base.slice_names import JOB_LABEL, slice_name
from shared.slices.classes import Place, parse_place
from shared.slices.units import Unit

JOB_KEY_LABEL = "tpu-functions.dev/job-key"
_MAX_LABEL = 63


def owner_label(owner: str) -> str:
    """The value of `JOBSET_LABEL` for an owner: labels are shorter than names may be."""
    return owner[:_MAX_LABEL].rstrip("-.")


def write_marks(unit: Unit) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and annotations of a unit's group. `JOBSET_LABEL` is on all slices, so that each
    version of this system finds them."""
    labels = {JOBSET_LABEL: unit.owner, JOB_KEY_LABEL: unit.key}
    if unit.kind != JOBSET_KIND:
        labels |= {JOBSET_LABEL: owner_label(unit.owner), UNIT_KIND_LABEL: unit.kind}
        return labels, {JOB_LABEL: unit.id}
    if len(unit.id) <= _MAX_LABEL:
        return {**labels, JOB_LABEL: unit.id}, {}
    return labels, {JOB_LABEL: unit.id}


def read_unit(metadata: Document) -> Unit | None:
    """The unit of a group; ``None`` if it was not created for one.

    Its labels do not prove that, because users can write them: the name must follow from them.
    """
    labels, annotations = read_texts(metadata, "labels"), read_texts(metadata, "annotations")
    owner, key = labels.get(JOBSET_LABEL, ""), labels.get(JOB_KEY_LABEL, "")
    id_ = labels.get(JOB_LABEL) or annotations.get(JOB_LABEL, "")
    if not (owner and key and id_) or metadata["name"] != slice_name(owner, key):
        return None
    namespace = read_text(metadata, "namespace")
    kind, *rest = id_.split("/", 2)
    if not rest:
        return Unit(JOBSET_KIND, namespace, owner, id_)
    unit = Unit(kind, namespace, rest[0], rest[1] if len(rest) > 1 else "")
    return unit if (unit.key, unit.slice_name) == (key, metadata["name"]) else None


def read_place(spec: Document) -> Place:
    """The candidate that a group's spec names."""
    config, zone = read_mapping(spec, "instanceConfig"), read_text(spec, "nodeLocation")
    return parse_place({**config, "zone": zone, "project": read_text(spec, "project")})
