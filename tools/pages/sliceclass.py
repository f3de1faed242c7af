"""Render the template in the CustomResourceDefinition of TPUSliceClasses, and the page of that kind.

The template has the fields of a TPUNodeGroup's spec, from `shared.node_groups.spec`, without those that
follow from the Pod. All else in the file is written by hand.
"""

from __future__ import annotations

from shared.node_groups import spec
from tools.pages import crd, tpunodegroup
from tools.pages.crd import Schema
from tools.pages.markdown import ROOT

CRD = ROOT / "infra" / "chart" / "manifests" / "jobsets" / "class-crd.yaml"
FROM_THE_POD = frozenset(
    {
        *("nodeCount", "minNodeCount", "topology", "targetSizePolicyMode"),
        *("instanceTemplateURI", "instanceConfig.machineType"),
    }
)
"""The fields of a TPUNodeGroup's spec that no template has."""
_BEGIN = "# rendered by make pages from shared/node_groups/spec.py: change that\n"
_INDENT = 20 * " "
_DESCRIPTIONS = {
    "": "The fields of a TPUNodeGroup's spec, without those that follow from the Pod.",
    "instanceConfig": "Configuration of the VMs.",
}


def render() -> str:
    """Return the text of the file with the rendered part."""
    part = {"spec": render_template(crd.render_schema(spec.SPEC))}
    part["spec"]["required"] = ["instanceConfig"]
    return crd.replace_part(CRD, _BEGIN, part, _INDENT, _INDENT)


def render_page() -> str:
    """Return docs/reference/tpusliceclass.md."""
    return tpunodegroup.render_page(render(), "class-crd.yaml and shared/node_groups/spec.py")


def render_template(schema: Schema, path: str = "") -> Schema:
    """The schema of a template with the fields of ``schema``: without defaults, and without rules
    across fields, which are those of objects with fields."""
    found = {key: value for key, value in schema.items() if key != "default"}
    if path in _DESCRIPTIONS:
        found["description"] = _DESCRIPTIONS[path]
    if "items" in schema:
        found["items"] = render_template(schema["items"], f"{path}[]")
    if "properties" in schema:
        found.pop("x-kubernetes-validations", None)
        paths = {name: f"{path}.{name}".lstrip(".") for name in schema["properties"]}
        kept = {name: at for name, at in paths.items() if at not in FROM_THE_POD}
        found["required"] = [name for name in schema.get("required", ()) if name in kept]
        found["properties"] = {
            name: render_template(schema["properties"][name], at) for name, at in kept.items()
        }
        if not found["required"]:
            del found["required"]
    return found
