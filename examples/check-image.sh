#!/usr/bin/env bash
# Checks whether an image can become a Node by `bootstrapKubernetes` (docs/own-image.md). Run it as root on a VM of the
# image: sudo bash check-image.sh 1.33
# Each line is an answer; "missing" needs another image, "added" is done by the startup script at the first boot.
# shellcheck disable=SC2329 # check calls them
set -uo pipefail

if [[ ! ${1:-} =~ ^1\.[0-9]{2}$ ]]; then
  echo "usage: check-image.sh MINOR, the minor version of the cluster, as in 1.33" >&2
  exit 2
fi
minor=$1 status=0

missing() {
  status=1
  printf 'missing  %s\n' "$1"
}

# check FINDING TEXT COMMAND...: "ok" if the command succeeds.
check() {
  local finding=$1 text=$2
  shift 2
  if "$@" >/dev/null 2>&1; then
    printf 'ok       %s\n' "$text"
  elif [[ $finding == missing ]]; then
    missing "$text"
  else
    printf '%-8s %s\n' "$finding" "$text"
  fi
}

has_version() { # has_version PROGRAM ARGUMENT...
  [[ $("$@" 2>/dev/null) =~ (Kubernetes\ )?v"$minor". ]]
}

unlimited_memory() {
  [[ $(systemctl show containerd --property=LimitMEMLOCK --value) == infinity ]]
}

containerd_2() {
  [[ $(containerd --version 2>/dev/null) =~ \ v?[2-9][0-9]*\. ]]
}

for program in bash curl systemctl modprobe sysctl swapoff sed grep date; do
  check missing "$program" command -v "$program"
done
check missing "Google's guest agent, which runs startup scripts" systemctl cat google-startup-scripts.service
check missing "kernel module overlay" modprobe --dry-run overlay
check missing "kernel module br_netfilter" modprobe --dry-run br_netfilter

packages=added
command -v apt-get >/dev/null || packages=missing
check "$packages" "containerd" command -v containerd
check "$packages" "kubelet of Kubernetes $minor" has_version kubelet --version
check "$packages" "kubeadm of Kubernetes $minor" has_version kubeadm version -o short
if ((${minor#1.} >= 38)) && command -v containerd >/dev/null; then
  check missing "containerd 2, which Kubernetes $minor needs" containerd_2
fi
check added "containerd without a limit of locked memory" unlimited_memory
if [[ -s /etc/kubernetes/kubelet.conf ]]; then
  missing "a fresh image: /etc/kubernetes/kubelet.conf says that it has joined already"
fi
exit "$status"
