"""The CRDs that the cases need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from local import jobsets

GROUP = "cases.example.com"


def crd(plural: str, kind: str, version: dict[str, Any], **names: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, **names},
            "versions": [{"name": "v1", "served": True, "storage": True, **version}],
        },
    }


_WIDGET_SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 1000},
        "color": {"type": "string", "maxLength": 10, "enum": ["red", "blue"], "default": "red"},
        "code": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
        "note": {"type": "string", "nullable": True, "default": "none"},
        "limit": {"x-kubernetes-int-or-string": True},
        "since": {"type": "string", "format": "date-time"},
        "until": {"type": "string", "format": "date-time"},
        "zone": {
            "type": "string",
            "maxLength": 20,
            "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "zone cannot be changed"}
            ],
        },
        "owner": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "default": "nobody"},
                "mail": {"type": "string"},
            },
        },
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
        "tags": {
            "type": "array",
            "maxItems": 3,
            "items": {"type": "string", "maxLength": 10},
            "x-kubernetes-list-type": "set",
        },
        "parts": {
            "type": "array",
            "maxItems": 5,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "maxLength": 20},
                    "count": {"type": "integer"},
                },
            },
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "either": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    },
    "x-kubernetes-validations": [
        {
            "rule": "self.size < 100 || self.color == 'blue'",
            "messageExpression": "'a ' + self.color + ' widget is at most 99 in size'",
            "fieldPath": ".size",
        },
        {
            "rule": "!has(oldSelf.code) || (has(self.code) && self.code == oldSelf.code)",
            "message": "code cannot be changed once it is set",
            "reason": "FieldValueForbidden",
        },
        {
            "rule": "!has(self.since) || !has(self.until) || self.since < self.until",
            "message": "since must come before until",
        },
    ],
}

WIDGETS = crd(
    "widgets",
    "Widget",
    {
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {
                "name": "Ready",
                "type": "string",
                "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
            },
            {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "selectableFields": [{"jsonPath": ".spec.color"}],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": "Widget is what the cases are about.",
                "required": ["spec"],
                "properties": {
                    "spec": _WIDGET_SPEC,
                    "status": {
                        "type": "object",
                        "properties": {
                            "ready": {"type": "boolean"},
                            "conditions": {
                                "type": "array",
                                "x-kubernetes-list-type": "map",
                                "x-kubernetes-list-map-keys": ["type"],
                                "items": {
                                    "type": "object",
                                    "required": ["type", "status"],
                                    "properties": {
                                        "type": {"type": "string"},
                                        "status": {"type": "string"},
                                    },
                                },
                            },
                        },
                    },
                },
            }
        },
    },
    shortNames=["wd"],
    categories=["all", "cases"],
)

GADGETS = crd(
    "gadgets",
    "Gadget",
    {
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
                    "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
                },
            }
        }
    },
)
"""Without a status subresource, and without printer columns."""

_JOBSET = yaml.safe_load(Path(jobsets.__file__).with_name("crd.yaml").read_text(encoding="utf-8"))
JOBSETS: dict[str, Any] = {
    **_JOBSET,
    "metadata": {"name": f"jobsets.{GROUP}"},
    "spec": {**_JOBSET["spec"], "group": GROUP},
}
"""JobSet's CRD in the group of the cases, because a real server may have the original."""

ALL = (WIDGETS, GADGETS, JOBSETS)
