"""An API server (local/kube) that enforces the CustomResourceDefinition, for tests of groups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import yaml

from local.base.clock import VirtualClock
from local.base.http import Request, Response
from local.kube import ADMIN, KubeApi
from tests.support.builders import DATA, merge

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[2]
CRD: Manifest = yaml.safe_load((ROOT / "infra/chart/manifests/base/crd.yaml").read_text())
ROWS: Manifest = yaml.safe_load((DATA / "spec.yaml").read_text())
NAMESPACE: Manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
GROUPS = "/apis/tpu.google.com/v1alpha1/namespaces/default/tpunodegroups"


def group(**change: Any) -> Manifest:
    """Return the example of tpu-operator's README with a merge patch applied to its spec."""
    manifest: Manifest = merge(ROWS["original_example"], {"spec": change})
    return manifest


class Server:
    """The API server, and the calls that the tests make about the objects of one definition, which are
    at ``path``."""

    def __init__(self, definition: Manifest = CRD, path: str = GROUPS) -> None:
        self._path = path
        self._api = KubeApi(VirtualClock(), random=Random(0), tokens={"admin": ADMIN})
        self._api.apply_manifests([definition, NAMESPACE])

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        text = None if body is None else json.dumps(body)
        named = {
            "authorization": "Bearer admin",
            "content-type": "application/json",
            "accept": "application/json",
            **headers,
        }
        return self._api.handle(Request.of(method, path, headers=named, body=text))

    def create(self, manifest: Manifest) -> Manifest:
        """Create the object and return it as it was stored."""
        response = self.call("POST", self._path, manifest)
        assert response.status == 201, response.body.decode()
        stored: Manifest = response.json()
        return stored

    def list_violations(self, manifest: Manifest) -> list[tuple[str, str]]:
        """List path and message of each violation of a new object, which is not stored."""
        response = self.call("POST", f"{self._path}?dryRun=All", manifest)
        return [] if response.status == 201 else list_violations(response)

    def replace(self, manifest: Manifest, subresource: str = "") -> Response:
        """Replace the stored object of this name."""
        path = f"{self._path}/{manifest['metadata']['name']}"
        metadata = {**self.call("GET", path).json()["metadata"], **manifest["metadata"]}
        return self.call("PUT", path + subresource, {**manifest, "metadata": metadata})


def list_violations(response: Response) -> list[tuple[str, str]]:
    """List path and message of each violation; the answer must have no other error."""
    status = response.json()
    assert (response.status, status["reason"]) == (422, "Invalid"), status
    return [(cause["field"], cause["message"]) for cause in status["details"]["causes"]]


def leaves_of(schema: Manifest, path: str) -> Iterator[tuple[str, Manifest]]:
    """The fields of a schema that are neither an object nor a list, by their paths."""
    for name, child in schema.get("properties", {}).items():
        yield from leaves_of(child, f"{path}.{name}")
    if "items" in schema:
        yield from leaves_of(schema["items"], f"{path}[]")
    if not schema.keys() & {"properties", "items"}:
        yield path, schema
