"""The Python client's typed calls against the embedded server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch

from local.tests.contract.kubernetes.definitions import WIDGETS
from local.tests.contract.kubernetes.serving import served

GROUP = ("cases.example.com", "v1", "default", "widgets")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory: Path = tmp_path_factory.mktemp("client")
    with served(directory) as kubeconfig:
        connected = config.new_client_from_config(str(kubeconfig))
        client.ApiextensionsV1Api(connected).create_custom_resource_definition(WIDGETS)
        yield connected
        connected.close()


def test_nodes_are_read_as_models(api: Any) -> None:
    core = client.CoreV1Api(api)
    core.create_node({"metadata": {"name": "bare"}})
    core.patch_node_status(
        "bare",
        {
            "status": {
                "capacity": {"google.com/tpu": "4"},
                "conditions": [{"type": "Ready", "status": "True"}],
            }
        },
    )
    (node,) = core.list_node(label_selector="!none", field_selector="metadata.name=bare").items
    assert node.status.capacity == {"google.com/tpu": "4"}
    assert node.status.node_info.kubelet_version == ""


def test_every_list_can_be_read_as_models(api: Any) -> None:
    core, rbac = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api)
    core.create_namespaced_pod(
        "default", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    )
    assert len(core.list_namespace().items) == 4
    assert len(rbac.list_cluster_role().items) > 10
    assert core.list_pod_for_all_namespaces().items[0].status.phase == "Pending"
    definitions = client.ApiextensionsV1Api(api).list_custom_resource_definition().items
    assert [one.metadata.name for one in definitions] == ["widgets.cases.example.com"]


def test_custom_objects_can_be_created_changed_and_deleted(api: Any) -> None:
    custom = client.CustomObjectsApi(api)
    body = {
        "apiVersion": "cases.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"size": 3},
    }
    created = custom.create_namespaced_custom_object(*GROUP, body)
    custom.patch_namespaced_custom_object_status(*GROUP, "w", {"status": {"ready": True}})
    custom.patch_namespaced_custom_object(*GROUP, "w", {"spec": {"size": 4}})
    with pytest.raises(client.ApiException) as stale:
        custom.replace_namespaced_custom_object(*GROUP, "w", {**created, "spec": {"size": 5}})
    assert stale.value.status == 409
    now = custom.get_namespaced_custom_object(*GROUP, "w")
    assert (now["spec"]["size"], now["status"]) == (4, {"ready": True})
    custom.delete_namespaced_custom_object(*GROUP, "w")
    with pytest.raises(client.ApiException) as absent:
        custom.get_namespaced_custom_object(*GROUP, "w")
    assert absent.value.status == 404


def test_a_watch_from_a_list_ends_at_its_timeout(api: Any) -> None:
    core = client.CoreV1Api(api)
    version = core.list_namespaced_config_map("default").metadata.resource_version
    core.create_namespaced_config_map("default", {"metadata": {"name": "seen"}})
    core.delete_namespaced_config_map("seen", "default")
    events = watch.Watch().stream(
        core.list_namespaced_config_map,
        "default",
        resource_version=version,
        timeout_seconds=1,
        _request_timeout=(5, 10),
    )
    assert [(event["type"], event["object"].metadata.name) for event in events] == [
        ("ADDED", "seen"),
        ("DELETED", "seen"),
    ]


def test_the_dynamic_client_works(api: Any, tmp_path: Path) -> None:
    from kubernetes.dynamic import DynamicClient

    dynamic = DynamicClient(api, cache_file=str(tmp_path / "cache"))
    widgets = dynamic.resources.get(api_version="cases.example.com/v1", kind="Widget")
    widgets.create(
        body={
            "apiVersion": "cases.example.com/v1",
            "kind": "Widget",
            "metadata": {"name": "found"},
            "spec": {"size": 3},
        },
        namespace="default",
    )
    assert widgets.get(name="found", namespace="default").spec.size == 3
