"""A cold start imports only the services that a step uses, not the whole libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from shared.triggers.routes import SLICE_STEPS, STEPS

PROGRAM = """
import json
import sys
from importlib import import_module

import main
from shared.ports.kubernetes.connection import Connection
from shared.ports.errors import CallError
from shared.ports.gce.calls import Gce
from shared.ports.gce.clients import Clients
from shared.ports.gke import GkeClient

def find_libraries():
    return [name for name in sys.modules if name.startswith(("google.cloud.", "kubernetes", "grpc"))]

imported = {}
for step in sys.argv[1:]:
    import_module(f"functions.{step}")
    imported[step] = find_libraries()
print(json.dumps(imported))

CALLS = {
    Clients: lambda api: Gce(api, lambda: 1.0).find_mig("p", "z", "m"),
    GkeClient: lambda api: api.call("get_node_pool", {"name": "n"}, lambda: 1.0),
}
for client, call in CALLS.items():
    try:
        call(client("http://127.0.0.1:1"))
    except CallError as error:
        print(error.code, find_libraries())
"""


def test_a_step_imports_no_cloud_library_until_its_first_message_nor_for_calls_to_google() -> None:
    """One process imports all steps, so that each library is attributed to the first step with it."""
    steps = [*STEPS, *SLICE_STEPS]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *steps], capture_output=True, text=True, check=True
    )
    imported, *calls = done.stdout.splitlines()
    assert json.loads(imported) == {step: [] for step in steps}
    assert calls == ["unreachable []"] * 2


def test_the_kubernetes_models_are_never_imported() -> None:
    program = (
        "import sys\n"
        "from kubernetes.client.api_client import ApiClient\n"
        "from shared.ports.kubernetes import cluster\n"
        "print(any(name.startswith('kubernetes.client.models.v1') for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_garbage_collection_is_enabled_after_the_first_answer() -> None:
    program = (
        "import gc, json, base64, types, main\n"
        "seen, handle = [], main.handle\n"
        "main.handle = lambda *given: (seen.append(gc.isenabled()), handle(*given))[1]\n"
        'data = base64.b64encode(b\'{"version": 1, "kind": "Sweep"}\').decode()\n'
        "body = json.dumps({'message': {'data': data, 'messageId': '1'}}).encode()\n"
        "request = types.SimpleNamespace(headers={}, get_data=lambda: body)\n"
        "print([main.sweep(request)[1] for _ in range(2)])\n"
        "print(seen, gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PUBSUB_PROJECT": "my-gcp-project", "KUBECONFIG": "/nowhere"},
    )
    *_, answers, collected = done.stdout.splitlines()
    assert collected == "[False, True] True True"
    assert len(json.loads(answers)) == 2
