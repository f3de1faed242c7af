"""The startup script around the join: packages, reboots, kernel, containerd and kubelet."""

from __future__ import annotations

import pytest

from tests.unit.shared.node_groups.startup.vm import STAND_INS, Vm

pytestmark = pytest.mark.processes


def lines(text: str) -> list[str]:
    return text.splitlines()


# --- reboots ---


@pytest.mark.conformance("boot-script-reboot")
def test_a_joined_vm_that_reboots_is_not_changed(vm: Vm) -> None:
    vm.inject()
    vm.boot().finish()
    before = vm.calls
    boot = vm.boot()
    assert boot.finish() == 0
    assert boot.lines == [
        "tpu-functions: joined: before this boot; the kubelet uses its own certificate"
    ]
    assert [call.split()[0] for call in vm.calls[len(before) :]] == ["curl"]


def test_a_joined_vm_needs_no_metadata_server(vm: Vm) -> None:
    vm.put("etc/kubernetes/kubelet.conf")
    assert vm.boot(GCE_METADATA_HOST="127.0.0.1:1").finish() == 0


EXPIRED = (
    "tpu-functions: joined: before this boot, but the kubelet's certificate has expired: run kubeadm "
    "reset --force, delete the Node, and reset the VM"
)
OPENSSL: dict[str, tuple[str, bool]] = {
    "it has expired": ('[[ -r ${*: -1} ]] && echo "Certificate will expire"; exit 1', True),
    "it has not": ('echo "Certificate will not expire"', False),
    "it cannot be read": ('echo "Could not open file" >&2; exit 1', False),
}


@pytest.mark.parametrize("openssl, has_expired", OPENSSL.values(), ids=OPENSSL)
def test_a_certificate_that_has_expired_while_the_vm_was_down_is_reported(
    vm: Vm, openssl: str, has_expired: bool
) -> None:
    vm.put("etc/kubernetes/kubelet.conf")
    vm.put("var/lib/kubelet/pki/kubelet-client-current.pem")
    vm.install("openssl", openssl)
    boot = vm.boot()
    assert boot.finish() == 0
    assert (boot.lines == [EXPIRED]) is has_expired
    assert vm.calls_of("openssl x509 -noout -checkend 0 -in ") != []
    assert vm.calls_of("kubeadm") == []


def test_an_interrupted_attempt_is_reset_before_the_next(vm: Vm) -> None:
    vm.put("etc/kubernetes/bootstrap-kubelet.conf")
    vm.inject()
    assert vm.boot().finish() == 0
    kubeadm = [call.split()[1] for call in vm.calls_of("kubeadm")]
    assert kubeadm == ["version", "reset", "join"]


def test_a_fresh_vm_is_not_reset(vm: Vm) -> None:
    vm.inject()
    vm.boot().finish()
    assert vm.calls_of("kubeadm reset") == []


def test_a_second_run_ends_while_the_first_is_in_progress(vm: Vm) -> None:
    first = vm.boot()
    first.wait_for("waiting")
    second = vm.boot()
    assert second.finish() == 3
    assert second.lines == [
        "tpu-functions: gave-up: another run of this script is in progress on this VM"
    ]
    vm.inject()
    assert first.finish() == 0


# --- packages ---


def test_an_image_with_all_packages_needs_no_egress(vm: Vm) -> None:
    vm.inject()
    assert vm.boot().finish() == 0
    assert (vm.egress, vm.calls_of("apt-get")) == ([], [])


def remove(vm: Vm, *names: str) -> None:
    """Remove these from the image; apt-get can install them."""
    for name in names:
        vm.install(name, into=vm.state / "packages")
        (vm.bin / name).unlink()


def installed(vm: Vm) -> list[str]:
    (call,) = vm.calls_of("apt-get -o")
    return call.split()[8:]


def test_all_packages_are_installed_on_an_image_without_them(vm: Vm) -> None:
    remove(vm, "containerd", "kubelet", "kubeadm")
    vm.inject()
    boot = vm.boot()
    assert boot.finish() == 0
    assert boot.lines[0] == "tpu-functions: installing: containerd kubelet=1.31.* kubeadm=1.31.*"
    assert installed(vm) == ["containerd", "kubelet=1.31.*", "kubeadm=1.31.*"]
    assert vm.calls_of("apt-mark") == ["apt-mark hold kubelet kubeadm"]


def test_packages_are_installed_from_the_repository_of_the_minor_version(vm: Vm) -> None:
    remove(vm, "kubeadm")
    vm.inject()
    vm.boot().finish()
    url = "https://pkgs.k8s.io/core:/stable:/v1.31/deb/"
    assert vm.text("etc/apt/sources.list.d/kubernetes.list") == (
        f"deb [signed-by=/etc/apt/keyrings/kubernetes.asc] {url} /\n"
    )
    (fetched,) = vm.egress
    assert fetched.endswith(f"{url}Release.key")


def test_apt_can_read_the_repository_and_its_key_with_any_umask(vm: Vm) -> None:
    remove(vm, "kubeadm")
    vm.inject()
    vm.boot(umask=0o077).finish()
    files = ("etc/apt/keyrings/kubernetes.asc", "etc/apt/sources.list.d/kubernetes.list")
    assert {(vm.root / file).stat().st_mode & 0o777 for file in files} == {0o644}


def test_only_missing_packages_are_installed(vm: Vm) -> None:
    remove(vm, "kubeadm")
    vm.inject()
    vm.boot().finish()
    assert installed(vm) == ["kubeadm=1.31.*"]


@pytest.mark.parametrize("version", ["v1.30.9", "v1.32.0", "v1.3.1"])
def test_a_package_of_another_minor_version_is_replaced(vm: Vm, version: str) -> None:
    vm.install("kubelet", f"echo Kubernetes {version}")
    vm.install("kubelet", into=vm.state / "packages")
    vm.inject()
    assert vm.boot().finish() == 0
    assert installed(vm) == ["kubelet=1.31.*"]


def test_the_script_ends_with_an_error_on_an_image_without_apt_get(vm: Vm) -> None:
    remove(vm, "kubeadm", "apt-get")
    boot = vm.boot()
    assert boot.finish() == 2
    assert boot.lines == [
        "tpu-functions: gave-up: the image lacks kubeadm=1.31.*, and apt-get to install them"
    ]


def test_a_failed_installation_is_retried(vm: Vm) -> None:
    remove(vm, "kubeadm")
    fails_once = (
        '[[ -e $SCRATCH/again ]] || { touch "$SCRATCH/again"; echo "E: no route"; exit 100; }\n'
    )
    vm.install(
        "apt-get", fails_once + 'case "$*" in *install*) cp "$SCRATCH"/packages/* "$BIN" ;; esac'
    )
    vm.install("touch", ': >"$1"')
    vm.inject()
    boot = vm.boot()
    assert boot.finish() == 0
    assert boot.lines[1].startswith(
        "tpu-functions: waiting: for packages or services: their setup failed"
    )
    assert "E: no route\n" in vm.log


# --- kernel, containerd, kubelet ---


def test_the_kernel_is_configured_for_this_boot_and_later_ones(vm: Vm) -> None:
    vm.put("etc/fstab", "LABEL=root / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n")
    vm.inject()
    vm.boot().finish()
    assert lines(vm.text("etc/modules-load.d/tpu-functions.conf")) == ["overlay", "br_netfilter"]
    assert lines(vm.text("etc/sysctl.d/90-tpu-functions.conf")) == [
        "net.ipv4.ip_forward = 1",
        "net.bridge.bridge-nf-call-iptables = 1",
        "net.bridge.bridge-nf-call-ip6tables = 1",
    ]
    assert lines(vm.text("etc/fstab"))[1] == "# /swapfile none swap sw 0 0"
    calls = [call for call in vm.calls if call.split()[0] in ("modprobe", "sysctl", "swapoff")]
    assert calls == ["modprobe --all overlay br_netfilter", "sysctl --system", "swapoff --all"]


ROUTES = """\
fd200001000000000000000000000000 40 {0} 00 {0} 00000400 00000001 00000000 00000001     ens5
{0} 00 {0} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003     ens4
{0} 00 {0} 00 {0} ffffffff 00000001 00000000 00200200       lo
""".format("0" * 32)
FORWARDING = [f"-net.ipv6.conf.{name}.forwarding = 1" for name in ("all", "default")]
IPV6: dict[str, tuple[str, str, list[str]]] = {
    "an address of IPv6": ("fd20:1::10", ROUTES, ["-net.ipv6.conf.ens4.accept_ra = 2", *FORWARDING]),
    "one with a port, and no routes": ("[fd20:1::10]:443", "", FORWARDING),
    "an address of IPv4": ("10.128.0.2:443", ROUTES, []),
    "a name": ("api.example.com", ROUTES, []),
}  # fmt: skip


@pytest.mark.parametrize("endpoint, routes, settings", IPV6.values(), ids=IPV6)
def test_ipv6_is_forwarded_only_if_the_api_server_has_an_address_of_it(
    vm: Vm, endpoint: str, routes: str, settings: list[str]
) -> None:
    """kubeadm's preflight requires it then."""
    if routes:
        vm.put("proc/net/ipv6_route", routes)
    # A kernel without IPv6: kubeadm's error names it.
    vm.install("sysctl", '[[ ! -e "$TNG_ROOT/etc/sysctl.d/91-tpu-functions-ipv6.conf" ]]')
    vm.inject(change={"kubeadm-control-plane-ip": endpoint})
    boot = vm.boot()
    assert boot.finish() == 0
    file = vm.root / "etc/sysctl.d/91-tpu-functions-ipv6.conf"
    assert (lines(file.read_text()) if file.exists() else []) == settings
    calls = [call for call in vm.calls if call.startswith(("sysctl", "kubeadm join"))]
    assert [call.split()[0] for call in calls] == ["sysctl"] * (2 if settings else 1) + ["kubeadm"]


def test_containerd_is_configured_to_use_systemd_cgroups(vm: Vm) -> None:
    vm.inject()
    vm.boot().finish()
    assert vm.text("etc/containerd/config.toml") == "  SystemdCgroup = true\n"
    assert "systemctl restart containerd" in vm.calls


def test_a_containerd_with_systemd_cgroups_is_not_changed(vm: Vm) -> None:
    vm.put("etc/containerd/config.toml", "# custom\nSystemdCgroup = true\n")
    vm.put(LIMITS, "# custom\n")
    vm.inject()
    vm.boot().finish()
    assert vm.text("etc/containerd/config.toml").startswith("# custom")
    assert vm.text(LIMITS) == "# custom\n"
    assert "systemctl restart containerd" not in vm.calls


LIMITS = "etc/systemd/system/containerd.service.d/90-tpu-functions.conf"


def test_containers_can_lock_as_much_memory_as_libtpu_maps(vm: Vm) -> None:
    vm.put("etc/containerd/config.toml", "SystemdCgroup = true\n")
    vm.inject()
    vm.boot().finish()
    assert lines(vm.text(LIMITS)) == ["[Service]", "LimitMEMLOCK=infinity"]
    assert vm.calls_of("systemctl")[:2] == [
        "systemctl daemon-reload",
        "systemctl restart containerd",
    ]


@pytest.mark.parametrize(
    "minor, version, code",
    [("1.37", "1.7.28", 0), ("1.38", "1.7.28", 2), ("1.38", "v1.7.28", 2), ("1.38", "v2.1.4", 0)],
)
def test_an_image_with_a_containerd_that_kubeadm_rejects_is_unusable(
    vm: Vm, minor: str, version: str, code: int
) -> None:
    vm.have_kubernetes(minor)
    old = f'[[ $1 != --version ]] || echo "containerd github.com/containerd/containerd {version} 0"'
    vm.install("containerd", old + "\n" + STAND_INS["containerd"])
    vm.inject()
    boot = vm.boot()
    assert boot.finish() == code
    if code:
        assert boot.lines[-1] == (
            f"tpu-functions: gave-up: the image has containerd {version}, and Kubernetes {minor} needs "
            "containerd 2"
        )


def test_the_kubelet_starts_at_later_boots(vm: Vm) -> None:
    vm.inject()
    vm.boot().finish()
    assert "systemctl enable kubelet" in vm.calls


# --- the script itself ---


def test_an_unexpected_failure_is_reported_before_the_script_ends(vm: Vm) -> None:
    vm.put("run", "a file where a directory should be")
    boot = vm.boot()
    assert boot.finish() == 1
    assert boot.lines[-1].startswith("tpu-functions: gave-up: line ")
