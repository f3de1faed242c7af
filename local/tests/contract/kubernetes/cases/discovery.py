# ruff: noqa: E501  (a table reads best with a row on a line)
"""Health, version and discovery."""

from __future__ import annotations

from local.tests.contract.kubernetes.cases.objects import (
    MAPS,
    config_map,
)
from local.tests.contract.kubernetes.dialogue import (
    ANYTHING,
    Step,
    case,
    containing,
    get,
    put,
)

DISCOVERY = (
    case("the health endpoints answer", Step("GET", "/healthz"), Step("GET", "/readyz"), Step("GET", "/livez")),
    case("the version endpoint returns the version", get("/version").has({"major": "1", "gitVersion": ANYTHING})),
    case("the core group is listed at /api", get("/api").has({"kind": "APIVersions", "versions": ["v1"]})),
    case("API groups are listed at /apis", get("/apis").has({"kind": "APIGroupList", "groups": ANYTHING})),
    case(
        "a group version lists its resources",
        get("/apis/cases.example.com/v1").has(
            {
                "kind": "APIResourceList",
                "groupVersion": "cases.example.com/v1",
                "resources": lambda found: (
                    {one["name"]: one.get("shortNames") for one in found}
                    == {
                        "widgets": ["wd"],
                        "widgets/status": None,
                        "gadgets": None,
                    }
                ),
            }
        ),
    ),
    case("OpenAPI v3 documents are listed by group version", get("/openapi/v3").has({"paths.apis/cases~example~com/v1.serverRelativeURL": containing("?hash=")})),
    case("a verb that a resource does not have is MethodNotAllowed", put(MAPS, config_map()).gives(405, reason="MethodNotAllowed")),
    case(
        "an established CRD lists its stored versions",
        get(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.cases.example.com"
        ).has(
            {
                "status.storedVersions": ["v1"],
                "status.acceptedNames.singular": "widget",
                "status.conditions": lambda found: (
                    {"NamesAccepted", "Established"}
                    <= {one["type"] for one in found if one["status"] == "True"}
                ),
            }
        ),
    ),
)  # fmt: skip
