"""Stand-ins for the binaries ``kubeadm`` and ``kubelet``, for a VM agent that runs the real script.

``join --config FILE`` joins over TLS and writes a kubelet.conf; ``kubelet`` reads it and runs until
it is killed. The paths are those of the real programs, under ``--root``.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml

from local.vm.conversation import Certificate, Conversation, Identity, run_conversation
from local.vm.kubeadm import JoinFailed, join, parse_join_configuration
from local.vm.kubelet import KubeletBehaviour, Node, run_kubelet
from local.vm.transport import send_https

T = TypeVar("T")

KUBELET_CONF = "etc/kubernetes/kubelet.conf"
CA_FILE = "etc/kubernetes/pki/ca.crt"
NODE_FILE = "var/lib/kubelet/node.json"


def main(arguments: list[str] | None = None) -> int:
    """Run one of the binaries; returns its exit code."""
    parsed = _parser().parse_args(arguments)
    commands = {"join": _join, "kubelet": _kubelet}
    try:
        commands[parsed.command](parsed)
    except JoinFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubeadm", description="Stand-ins for VM software")
    parser.add_argument("--root", type=Path, required=True, help="the root of the VM's files")
    parser.add_argument("--connect", help="the API server to connect to")
    parser.add_argument("--chips", type=int, default=0, help="TPU chips of the machine")
    parser.add_argument("--kubelet-version", default="v1.31.4", help="the kubelet's version")
    parser.add_argument("--behaviour", type=json.loads, default={}, help="KubeletBehaviour as JSON")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("join").add_argument("--config", type=Path, required=True)
    commands.add_parser("kubelet")
    return parser


def _join(parsed: argparse.Namespace) -> None:
    read = parse_join_configuration(parsed.config.read_text(), chips=parsed.chips)
    node = replace(read.node, kubelet_version=parsed.kubelet_version)
    configuration = replace(read, node=node)
    identity = _run(join(configuration, _now), parsed.connect)
    _write(parsed.root / CA_FILE, identity.ca_pem)
    _write(parsed.root / NODE_FILE, json.dumps(asdict(configuration.node)))
    _write(parsed.root / KUBELET_CONF, render_kubeconfig(identity))
    subprocess.run(["systemctl", "start", "kubelet"], check=True)


def _kubelet(parsed: argparse.Namespace) -> None:
    identity = parse_kubeconfig((parsed.root / KUBELET_CONF).read_text())
    node = Node(**json.loads((parsed.root / NODE_FILE).read_text()))
    _run(run_kubelet(identity, node, KubeletBehaviour(**parsed.behaviour), _now), parsed.connect)


def _run(conversation: Conversation[T], connect: str | None) -> T:
    """Run a conversation over TLS, in real time."""
    return run_conversation(
        conversation, lambda step: send_https(step, lambda server: connect or server), time.sleep
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)


def render_kubeconfig(identity: Identity) -> str:
    """Render a kubelet.conf from an identity with a certificate."""
    assert isinstance(identity.credential, Certificate)
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "default",
                "cluster": {
                    "server": identity.server,
                    "certificate-authority-data": _encode(identity.ca_pem),
                },
            }
        ],
        "users": [
            {
                "name": "kubelet",
                "user": {
                    "client-certificate-data": _encode(identity.credential.cert_pem),
                    "client-key-data": _encode(identity.credential.key_pem),
                },
            }
        ],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "kubelet"}}],
        "current-context": "default",
    }
    return yaml.safe_dump(document)


def parse_kubeconfig(text: str) -> Identity:
    """Parse a kubelet.conf that `render_kubeconfig` has written."""
    document = yaml.safe_load(text)
    cluster = document["clusters"][0]["cluster"]
    user = document["users"][0]["user"]
    return Identity(
        cluster["server"],
        _decode(cluster["certificate-authority-data"]),
        Certificate(_decode(user["client-certificate-data"]), _decode(user["client-key-data"])),
    )


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> str:
    return base64.b64decode(text).decode()


if __name__ == "__main__":
    sys.exit(main())
