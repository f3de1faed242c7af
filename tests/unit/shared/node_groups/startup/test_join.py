# ruff: noqa: E501  (a table reads best with a row on a line)
"""The startup script joins a VM once, when it has its token, and reports its state."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest

from local.tests.vm.machine import MetadataThread
from tests.unit.shared.node_groups.startup.vm import OTHER_TOKEN, PIN, TOKEN, Vm

pytestmark = pytest.mark.processes

VM_NAME = "tng-train-0a1b2c3d-x1y2"
JOINING = f"tpu-functions: joining: 10.128.0.2:6443 as {VM_NAME}, try {{}} with this token"
JOINED = f"tpu-functions: joined: 10.128.0.2:6443 as {VM_NAME}"
NO_TOKEN = (
    "tpu-functions: waiting: for a bootstrap token in the metadata of this VM (kubeadm-join-token)"
)
FAILED = "tpu-functions: failed: kubeadm join: error execution phase preflight: no"


def waits(vm: Vm) -> list[str]:
    """Return the waiting requests to the metadata server."""
    return [path for path in vm.metadata.server.paths if "wait_for_change" in path]


# --- a token exists ---


def test_a_vm_with_its_token_joins(vm: Vm) -> None:
    vm.inject()
    boot = vm.boot()
    assert boot.finish() == 0
    assert boot.lines == [JOINING.format(1), JOINED]


def test_a_vm_joins_once(vm: Vm) -> None:
    vm.inject()
    vm.boot().finish()
    assert len(vm.calls_of("kubeadm join")) == 1


@pytest.mark.parametrize(
    "version, api",
    [
        ("1.28", "kubeadm.k8s.io/v1beta3"),
        ("1.30", "kubeadm.k8s.io/v1beta3"),
        ("1.31", "kubeadm.k8s.io/v1beta4"),
        ("1.37", "kubeadm.k8s.io/v1beta4"),
        ("1.38", "kubeadm.k8s.io/v1beta4"),
    ],
)
def test_the_configuration_has_the_api_version_of_the_kubeadm_minor(
    vm: Vm, version: str, api: str
) -> None:
    vm.have_kubernetes(version)
    vm.inject()
    assert vm.boot().finish() == 0
    (configuration,) = vm.configurations
    assert configuration["apiVersion"] == api
    driver = kubelet_arguments(configuration).get("cgroup-driver")
    assert driver == (None if version == "1.38" else "systemd")


def kubelet_arguments(configuration: dict[str, Any]) -> dict[str, str]:
    arguments = configuration["nodeRegistration"]["kubeletExtraArgs"]
    if isinstance(arguments, dict):
        return arguments
    return {argument["name"]: argument["value"] for argument in arguments}


def test_the_configuration_has_the_values_of_the_metadata_and_the_slice(vm: Vm) -> None:
    vm.slice |= {
        "node_labels": {"cloud.google.com/gke-tpu-topology": "2x2x2", "a": "b"},
        "node_taints": ["google.com/tpu=present:NoSchedule", "x:NoExecute"],
        "topology_manager_policy": "restricted",
    }
    vm.inject()
    vm.boot().finish()
    (configuration,) = vm.configurations
    registration = configuration.pop("nodeRegistration")
    assert configuration == {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": "10.128.0.2:6443",
                "token": TOKEN,
                "caCertHashes": [PIN],
            }
        },
    }
    assert registration == {
        "name": VM_NAME,
        "criSocket": "unix:///run/containerd/containerd.sock",
        "kubeletExtraArgs": [
            {"name": "cgroup-driver", "value": "systemd"},
            {"name": "provider-id", "value": f"gce://my-project/us-central1-c/{VM_NAME}"},
            {"name": "node-labels", "value": "a=b,cloud.google.com/gke-tpu-topology=2x2x2"},
            {
                "name": "register-with-taints",
                "value": "google.com/tpu=present:NoSchedule,x:NoExecute",
            },
            {"name": "topology-manager-policy", "value": "restricted"},
        ],
    }


def test_a_slice_without_labels_and_taints_has_no_flags_for_them(vm: Vm) -> None:
    vm.slice |= {"node_labels": {}, "node_taints": []}
    vm.inject()
    vm.boot().finish()
    assert sorted(kubelet_arguments(vm.configurations[0])) == ["cgroup-driver", "provider-id"]


@pytest.mark.parametrize(
    "endpoint, api_server",
    [
        ("10.0.0.2", "10.0.0.2:6443"),
        ("10.0.0.2:443", "10.0.0.2:443"),
        ("k8s.example.com", "k8s.example.com:6443"),
        ("k8s.example.com:8443", "k8s.example.com:8443"),
        ("fd00::2", "[fd00::2]:6443"),
        ("[fd00::2]", "[fd00::2]:6443"),
        ("[fd00::2]:443", "[fd00::2]:443"),
    ],
)
def test_the_port_is_6443_unless_the_endpoint_names_one(
    vm: Vm, endpoint: str, api_server: str
) -> None:
    vm.inject(change={"kubeadm-control-plane-ip": endpoint})
    assert vm.boot().finish() == 0
    (configuration,) = vm.configurations
    assert configuration["discovery"]["bootstrapToken"]["apiServerEndpoint"] == api_server


# --- waiting ---


@pytest.mark.conformance("boot-script-wait")
def test_a_vm_without_a_token_waits_for_one(vm: Vm) -> None:
    boot = vm.boot()
    assert boot.wait_for("waiting") == NO_TOKEN
    vm.inject()
    assert boot.finish() == 0
    assert boot.lines == [NO_TOKEN, JOINING.format(1), JOINED]


def test_a_vm_waits_at_the_metadata_server_and_does_not_poll(vm: Vm) -> None:
    boot = vm.boot()
    boot.wait_for("waiting")
    vm.inject()
    boot.finish()
    first, second, *others = waits(vm)
    assert "last_etag=0&" in first
    assert "timeout_sec=300" in second
    assert others == []


def test_a_change_of_other_metadata_is_ignored(vm: Vm) -> None:
    boot = vm.boot()
    boot.wait_for("waiting")
    vm.metadata.do(lambda: vm.machine.metadata.update({"ssh-keys": "user:key"}))
    vm.inject()
    boot.finish()
    assert boot.lines == [NO_TOKEN, JOINING.format(1), JOINED]


@pytest.mark.parametrize("status", [503, 429, 500])
def test_a_metadata_server_that_answers_with_an_error_is_retried(vm: Vm, status: int) -> None:
    vm.inject()
    vm.metadata.server.refusals.extend([("/attributes/", status)] * 3)
    boot = vm.boot()
    assert boot.finish() == 0
    assert boot.lines == [
        "tpu-functions: waiting: for the metadata server, which does not answer",
        JOINING.format(1),
        JOINED,
    ]


def test_a_metadata_server_that_refuses_connections_is_retried(vm: Vm) -> None:
    vm.inject()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    boot = vm.boot(GCE_METADATA_HOST=f"127.0.0.1:{port}")
    boot.wait_for("waiting: for the metadata server")
    late = MetadataThread(vm.machine, port)
    assert boot.finish() == 0
    late.stop()


def test_a_value_that_cannot_be_read_does_not_count_as_absent(vm: Vm) -> None:
    boot = vm.boot()
    boot.wait_for("waiting")

    def inject_and_fail() -> None:
        vm.machine.metadata.update(vm.join_data())
        vm.metadata.server.refusals.append(("attributes/kubeadm-join-token", 503))

    vm.metadata.do(inject_and_fail)
    assert boot.finish() == 0
    assert boot.lines == [
        NO_TOKEN,
        "tpu-functions: waiting: for the metadata server, which does not answer",
        JOINING.format(1),
        JOINED,
    ]


UNUSABLE = [
    ({"kubeadm-join-token": "nonsense"}, "for a usable token: kubeadm-join-token is not of the form [a-z0-9]{6}.[a-z0-9]{16}"),
    ({"kubeadm-ca-hash": "sha256:short"}, "for a usable CA pin: kubeadm-ca-hash is not sha256:<64 hex digits>"),
    *(
        ({"kubeadm-join-token-expires": expires}, "for a usable expiry: kubeadm-join-token-expires is not a time")
        for expires in ("soon-ish", "tomorrow", "1 hour", "2026-13-01T00:00:00Z", "2099-01-01", "2099-01-01T00:00:00Z + 1 day")
    ),
    *(
        (
            {"kubeadm-control-plane-ip": endpoint},
            "for a usable address: kubeadm-control-plane-ip is not a host or host:port",
        )
        for endpoint in ("https://10.0.0.2", "a b", "x'y", "10.0.0.2:port", "[fd00::2", "a\nb: c")
    ),
    ({"kubeadm-ca-hash": ""}, "for the rest of the metadata (kubeadm-join-token-expires, -control-plane-ip, -ca-hash)"),
    ({"kubeadm-join-token-expires": "2020-01-01T00:00:00Z"}, "for another token: this one expired at 2020-01-01T00:00:00Z"),
]  # fmt: skip


@pytest.mark.parametrize("change, reason", UNUSABLE)
def test_unusable_metadata_is_reported_and_the_script_waits_for_a_change(
    vm: Vm, change: dict[str, str], reason: str
) -> None:
    vm.inject(change=change)
    boot = vm.boot()
    assert boot.wait_for("waiting") == f"tpu-functions: waiting: {reason}"
    assert vm.calls_of("kubeadm join") == []
    vm.inject(OTHER_TOKEN)
    assert boot.finish() == 0


# --- an attempt fails ---


def test_a_failed_attempt_is_reset_and_retried(vm: Vm) -> None:
    vm.outcomes("fails")
    vm.inject()
    boot = vm.boot()
    assert boot.finish() == 0
    assert boot.lines == [JOINING.format(1), FAILED, JOINING.format(2), JOINED]
    kubeadm = [
        call.split(" --config")[0] for call in vm.calls_of("kubeadm") if "version" not in call
    ]
    assert kubeadm == ["kubeadm join", "kubeadm reset --force", "kubeadm join"]


def used_tokens(vm: Vm) -> list[str]:
    return [each["discovery"]["bootstrapToken"]["token"] for each in vm.configurations]


def test_a_token_is_retried_until_it_expires(vm: Vm) -> None:
    vm.outcomes(*["fails"] * 4)
    vm.inject()
    boot = vm.boot()
    assert boot.finish() == 0
    assert used_tokens(vm) == [TOKEN] * 5
    assert boot.lines[-2:] == [JOINING.format(5), JOINED]


def test_a_new_token_is_used_immediately(vm: Vm) -> None:
    vm.outcomes("fails", "fails")
    vm.inject()
    boot = vm.boot(TNG_BACKOFF_S="1000")
    boot.wait_for("failed")
    vm.metadata.do(lambda: vm.machine.metadata.update({"ssh-keys": "user:key"}))
    vm.inject(OTHER_TOKEN)
    boot.wait_for("failed")
    vm.inject()
    assert boot.finish() == 0
    assert used_tokens(vm) == [TOKEN, OTHER_TOKEN, TOKEN]
    assert boot.lines == [JOINING.format(1), FAILED] * 2 + [JOINING.format(1), JOINED]


def test_a_token_that_expires_during_an_attempt_is_not_retried(vm: Vm) -> None:
    vm.outcomes("outlives-token")
    vm.inject()
    boot = vm.boot()
    assert "for another token: this one expired at" in boot.wait_for("waiting")
    vm.inject(OTHER_TOKEN, lifetime=timedelta(days=1))
    assert boot.finish() == 0
    assert len(vm.configurations) == 2


def test_a_node_whose_kubelet_has_its_certificate_is_not_reset(vm: Vm) -> None:
    vm.outcomes("joins-late")
    vm.inject()
    boot = vm.boot()
    assert boot.finish() == 0
    assert boot.lines == [JOINING.format(1), JOINED]
    assert vm.calls_of("kubeadm reset") == []
    assert vm.calls_of("systemctl")[-2:] == ["systemctl stop kubelet", "systemctl start kubelet"]


# --- secrets ---


def test_only_root_can_read_the_configuration(vm: Vm) -> None:
    vm.inject()
    vm.boot().finish()
    assert (vm.state / "modes").read_text().split() == ["600"]


def test_the_configuration_is_deleted_after_kubeadm_fails(vm: Vm) -> None:
    vm.outcomes("fails")
    vm.inject()
    vm.boot(TNG_BACKOFF_S="1000").wait_for("failed")
    assert list((vm.root / "run/tpu-functions").iterdir()) == []


@pytest.mark.parametrize("outcomes", [(), ("leaks", "leaks"), ("joins-late",)])
def test_the_token_is_in_no_file_line_or_attribute_after_the_join(
    vm: Vm, outcomes: tuple[str, ...]
) -> None:
    vm.outcomes(*outcomes)
    vm.inject()
    boot = vm.boot()
    assert boot.finish() == 0
    assert TOKEN.partition(".")[2] not in vm.read_everything() + "\n".join(boot.lines)


def test_the_token_is_on_no_command_line(vm: Vm) -> None:
    vm.outcomes("fails")
    vm.inject()
    vm.boot().finish()
    assert TOKEN.partition(".")[2] not in "\n".join(vm.calls)


# --- log and guest attribute ---


def test_the_log_has_each_state_and_the_output_of_kubeadm(vm: Vm) -> None:
    vm.outcomes("fails")
    vm.inject()
    vm.boot().finish()
    assert "error execution phase preflight: no\n" in vm.log
    assert f"Z joined: 10.128.0.2:6443 as {VM_NAME}\n" in vm.log


def test_the_guest_attribute_is_the_state(vm: Vm) -> None:
    boot = vm.boot()
    boot.wait_for("waiting")
    vm.inject()
    boot.finish()
    assert vm.join_state == f"joined: 10.128.0.2:6443 as {VM_NAME}"


def test_a_vm_joins_without_guest_attributes(vm: Vm) -> None:
    del vm.machine.metadata["enable-guest-attributes"]
    vm.inject()
    assert vm.boot().finish() == 0
    assert vm.join_state == ""
