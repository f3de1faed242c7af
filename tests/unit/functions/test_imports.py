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
from shared.ports.gce.clients import Clients

def find_libraries():
    return [name for name in sys.modules if name.startswith(("google.cloud.", "kubernetes", "grpc"))]

imported = {}
for step in sys.argv[1:]:
    import_module(f"functions.{step}")
    imported[step] = find_libraries()
print(json.dumps(imported))
Clients("http://127.0.0.1:1").get("instances")
print("google.cloud.compute_v1.services.accelerator_types" in sys.modules)
from google.cloud import compute_v1
print(compute_v1.AcceleratorTypesClient.__name__)
"""


def test_a_step_imports_no_cloud_library_until_its_first_message_and_never_a_whole_one() -> None:
    """One process imports all steps, so that each library is attributed to the first step with it."""
    steps = [*STEPS, *SLICE_STEPS]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *steps], capture_output=True, text=True, check=True
    )
    imported, is_whole, rest = done.stdout.splitlines()
    assert json.loads(imported) == {step: [] for step in steps}
    assert is_whole == "False"
    assert rest == "AcceleratorTypesClient"


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


def test_the_gke_library_is_not_imported_before_the_first_call() -> None:
    program = (
        "import sys\n"
        "import main, shared.slices.by_node_pool.desired_pool\n"
        "from functions import provision_slice, release_slice\n"
        "from shared.ports.gke import GkeClient\n"
        "GkeClient('http://127.0.0.1:1')\n"
        "print(any(name.startswith('google.cloud.') for name in sys.modules))"
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
