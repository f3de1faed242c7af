"""TPUNodeGroups that users apply, for tests."""

from __future__ import annotations

from typing import Any

from tests.support.builders import spec

V6E_IMAGE = "projects/my-gcp-project/global/images/my-v6e-image"


def manifest(name: str = "my-slice", namespace: str = "default", **change: Any) -> dict[str, Any]:
    """tpu-operator's README example (two hosts of tpu7x), changed by a JSON merge patch."""
    return {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "TPUNodeGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec(**change),
    }
