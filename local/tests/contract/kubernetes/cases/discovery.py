"""What a server says of itself."""

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
    case("it is alive", Step("GET", "/healthz"), Step("GET", "/readyz"), Step("GET", "/livez")),
    case("it says its version", get("/version").has({"major": "1", "gitVersion": ANYTHING})),
    case("the core group is old", get("/api").has({"kind": "APIVersions", "versions": ["v1"]})),
    case(
        "groups are listed",
        get("/apis").has({"kind": "APIGroupList", "groups": ANYTHING}),
    ),
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
    case(
        "OpenAPI is told by group version",
        get("/openapi/v3").has(
            {"paths.apis/cases~example~com/v1.serverRelativeURL": containing("?hash=")}
        ),
    ),
    case(
        "a verb that a resource lacks is not allowed",
        put(MAPS, config_map()).gives(405, reason="MethodNotAllowed"),
    ),
    case(
        "a CRD is established and says what it stores",
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
)
