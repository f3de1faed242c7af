#!/bin/bash
# Joins this TPU VM to its Kubernetes cluster. Compute Engine runs it at every boot.
#
# It waits until tpu-functions has written a bootstrap token to the VM's metadata, and then runs
# `kubeadm join`. It reports each change of state on the serial console, in
# /var/log/tpu-functions-startup.log and in the guest attribute tpu-functions/join-state. See
# docs/reference/startup-script.md.
set -Eeuo pipefail

readonly KUBERNETES_MINOR=@KUBERNETES_MINOR@
readonly PROJECT=@PROJECT@
readonly ZONE=@ZONE@
readonly NODE_LABELS=@NODE_LABELS@
readonly NODE_TAINTS=@NODE_TAINTS@
readonly TOPOLOGY_MANAGER_POLICY=@TOPOLOGY_MANAGER_POLICY@

readonly ROOT="${TNG_ROOT:-}" # the root of the file system; set in tests only
readonly METADATA="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
readonly REPOSITORY="https://pkgs.k8s.io/core:/stable:/v$KUBERNETES_MINOR/deb/"
readonly LOG="$ROOT/var/log/tpu-functions-startup.log"
readonly KUBELET_CONF="$ROOT/etc/kubernetes/kubelet.conf"
readonly CERTIFICATE="$ROOT/var/lib/kubelet/pki/kubelet-client-current.pem"
readonly JOIN_CONFIG="$ROOT/run/tpu-functions/join.yaml"
readonly CHANGE_TIMEOUT_S=300 # then the metadata server answers without a change
readonly MAX_DELAY_S=60 MIN_PAUSE_S=20 MAX_PAUSE_S=200

readonly EXIT_FAILED=1 EXIT_UNUSABLE_IMAGE=2 EXIT_RUNNING_ALREADY=3

export DEBIAN_FRONTEND=noninteractive

# --- State ---

STATE=""

# report STATE TEXT: reports a change of state; a repeated line is reported once.
report() {
  local line="$1: $2"
  [[ $line != "$STATE" ]] || return 0
  STATE=$line
  printf 'tpu-functions: %s\n' "$line"
  printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$line" >>"$LOG"
  # Best effort: guest attributes may be disabled, and the log has the line, too.
  metadata --max-time 5 --request PUT --data-raw "$line" \
    "$METADATA/guest-attributes/tpu-functions/join-state" >/dev/null 2>&1 || true
}

give_up() {
  report gave-up "$2"
  exit "$1"
}

quietly() {
  "$@" >>"$LOG" 2>&1
}

DELAY_S=1

# Exponential backoff with jitter: the VMs of a slice retry at the same time.
back_off() {
  sleep "${TNG_BACKOFF_S:-$((DELAY_S + RANDOM % (DELAY_S / 2 + 1)))}"
  DELAY_S=$((DELAY_S * 2 < MAX_DELAY_S ? DELAY_S * 2 : MAX_DELAY_S))
}

# --- Metadata server ---

# metadata CURL_ARGUMENT...
metadata() {
  curl --silent --show-error --fail --noproxy '*' --header 'Metadata-Flavor: Google' "$@"
}

ETAG=0

# wait_for_change SECONDS: returns when the VM's attributes differ from those of ETAG, or after SECONDS;
# fails if the server does not answer. The attributes include the token, so the answer is dropped.
wait_for_change() {
  local headers line value
  headers=$(metadata --max-time $(($1 + 30)) --dump-header - --output /dev/null \
    "$METADATA/attributes/?recursive=true&wait_for_change=true&last_etag=$ETAG&timeout_sec=$1" \
    2>/dev/null) || return 1
  ETAG=0
  while IFS=$': \r' read -r line value _; do
    [[ ${line,,} != etag ]] || ETAG=$value
  done <<<"$headers"
}

# get_value PATH: prints a value of the metadata server; nothing if it is absent.
get_value() {
  local answer
  answer=$(curl --silent --noproxy '*' --header 'Metadata-Flavor: Google' --max-time 10 \
    --write-out '\n%{http_code}' "$METADATA/$1") || return 1
  case ${answer##*$'\n'} in
    200) printf '%s' "${answer%$'\n'*}" ;;
    404) ;;
    *) return 1 ;;
  esac
}

VM="" TOKEN="" EXPIRES="" ENDPOINT="" CA_HASH=""

read_metadata() {
  VM=$(get_value name) && [[ -n $VM ]] || return 1
  TOKEN=$(get_value attributes/kubeadm-join-token) || return 1
  EXPIRES=$(get_value attributes/kubeadm-join-token-expires) || return 1
  ENDPOINT=$(get_value attributes/kubeadm-control-plane-ip) || return 1
  CA_HASH=$(get_value attributes/kubeadm-ca-hash) || return 1
}

# api_server TEXT: prints host:port of "host", "host:port", "::1", "[::1]" or "[::1]:port".
api_server() {
  local host='[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?' ipv6='[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*'
  if [[ $1 =~ ^($host|\[$ipv6\])$ ]]; then
    printf '%s:6443' "$1"
  elif [[ $1 =~ ^($host|\[$ipv6\]):[0-9]{1,5}$ ]]; then
    printf '%s' "$1"
  elif [[ $1 =~ ^$ipv6$ ]]; then
    printf '[%s]:6443' "$1"
  else
    return 1
  fi
}

# is_time TEXT: true for RFC 3339; date alone also takes "tomorrow", which never comes.
is_time() {
  [[ $1 =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(Z|[+-][0-9]{2}:[0-9]{2})$ ]] && date -u -d "$1" >/dev/null 2>&1
}

is_expired() {
  (($(date -u -d "$EXPIRES" +%s) <= $(date -u +%s)))
}

# Prints what the metadata lack for a join; nothing if they are complete.
find_obstacle() {
  if [[ -z $TOKEN ]]; then
    printf 'for a bootstrap token in the metadata of this VM (kubeadm-join-token)'
  elif [[ -z $EXPIRES || -z $ENDPOINT || -z $CA_HASH ]]; then
    printf 'for the rest of the metadata (kubeadm-join-token-expires, -control-plane-ip, -ca-hash)'
  elif [[ ! $TOKEN =~ ^[a-z0-9]{6}\.[a-z0-9]{16}$ ]]; then
    printf 'for a usable token: kubeadm-join-token is not of the form [a-z0-9]{6}.[a-z0-9]{16}'
  elif [[ ! $CA_HASH =~ ^sha256:[0-9a-f]{64}$ ]]; then
    printf 'for a usable CA pin: kubeadm-ca-hash is not sha256:<64 hex digits>'
  elif ! api_server "$ENDPOINT" >/dev/null; then
    printf 'for a usable address: kubeadm-control-plane-ip is not a host or host:port'
  elif ! is_time "$EXPIRES"; then
    printf 'for a usable expiry: kubeadm-join-token-expires is not a time'
  elif is_expired; then
    printf 'for another token: this one expired at %s' "$EXPIRES"
  fi
}

# Reads the metadata immediately, and then after each change.
wait_for_token() {
  local obstacle
  ETAG=0
  while true; do
    if wait_for_change "$CHANGE_TIMEOUT_S" && read_metadata; then
      DELAY_S=1
      obstacle=$(find_obstacle)
      [[ -n $obstacle ]] || return 0
      report waiting "$obstacle"
    else
      report waiting "for the metadata server, which does not answer"
      ETAG=0
      back_off
    fi
  done
}

# --- What kubeadm needs ---

list_missing_packages() {
  command -v containerd >/dev/null || echo containerd
  [[ $(kubelet --version 2>/dev/null) == "Kubernetes v$KUBERNETES_MINOR."* ]] ||
    echo "kubelet=$KUBERNETES_MINOR.*"
  [[ $(kubeadm version -o short 2>/dev/null) == "v$KUBERNETES_MINOR."* ]] ||
    echo "kubeadm=$KUBERNETES_MINOR.*"
}

add_repository() {
  local key=/etc/apt/keyrings/kubernetes.asc list=$ROOT/etc/apt/sources.list.d/kubernetes.list
  mkdir -p "$ROOT${key%/*}" "${list%/*}" &&
    quietly curl --silent --show-error --fail --location --max-time 60 \
      --output "$ROOT$key" "${REPOSITORY}Release.key" &&
    echo "deb [signed-by=$key] $REPOSITORY /" >"$list" &&
    chmod 0644 "$ROOT$key" "$list" # apt reads them as another user
}

install_packages() {
  local -a packages
  mapfile -t packages < <(list_missing_packages)
  ((${#packages[@]} > 0)) || return 0
  command -v apt-get >/dev/null ||
    give_up "$EXIT_UNUSABLE_IMAGE" "the image lacks ${packages[*]}, and apt-get to install them"
  report installing "${packages[*]}"
  # Unattended upgrades may hold apt's lock for minutes after the first boot.
  add_repository &&
    quietly apt-get update &&
    quietly apt-get -o DPkg::Lock::Timeout=600 install --yes --no-install-recommends \
      --allow-change-held-packages --allow-downgrades "${packages[@]}" &&
    quietly apt-mark hold kubelet kubeadm
}

set_up_kernel() {
  local modules=$ROOT/etc/modules-load.d/tpu-functions.conf settings=$ROOT/etc/sysctl.d/90-tpu-functions.conf
  mkdir -p "${modules%/*}" "${settings%/*}" &&
    printf '%s\n' overlay br_netfilter >"$modules" &&
    printf '%s = 1\n' net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables \
      net.bridge.bridge-nf-call-ip6tables >"$settings" &&
    quietly modprobe --all overlay br_netfilter &&
    quietly sysctl --system &&
    quietly swapoff --all &&
    { [[ ! -e $ROOT/etc/fstab ]] ||
      sed -i -E 's/^[^#].*[[:space:]]swap[[:space:]].*/# &/' "$ROOT/etc/fstab"; }
}

# If the API server's address is one of IPv6, kubeadm requires that the kernel forwards IPv6. An interface
# that forwards ignores router advertisements, which renew the default route, unless its accept_ra is 2.
# Only an interface with a default route gets that, and gets it first: on theirs, Pods could advertise
# routes. Not tested on Compute Engine. What this kernel lacks ("-") is left to kubeadm's error.
set_up_ipv6() {
  local settings=$ROOT/etc/sysctl.d/91-tpu-functions-ipv6.conf target length device
  [[ $(api_server "$ENDPOINT") == \[* ]] || return 0
  {
    while read -r target length _ _ _ _ _ _ _ device; do
      [[ ! $target$length =~ ^0+$ || $device == lo ]] ||
        printf -- '-net.ipv6.conf.%s.accept_ra = 2\n' "$device"
    done <"$ROOT/proc/net/ipv6_route"
    printf -- '-net.ipv6.conf.%s.forwarding = 1\n' all default
  } >"$settings" 2>>"$LOG"
  quietly sysctl --system || true
}

# kubeadm rejects containerd 1 from Kubernetes 1.38 on. No newer image makes good for it at a later try.
check_containerd() {
  local version
  ((${KUBERNETES_MINOR#*.} >= 38)) || return 0
  read -r _ _ version _ < <(containerd --version)
  [[ ${version#v} != 1.* ]] || give_up "$EXIT_UNUSABLE_IMAGE" \
    "the image has containerd $version, and Kubernetes $KUBERNETES_MINOR needs containerd 2"
}

# containerd must use the kubelet's cgroup driver, systemd. Its limit of locked memory is that of its
# containers: with less than libtpu maps, JAX fails with "Couldn't mmap: Resource temporarily unavailable".
set_up_containerd() {
  local config=$ROOT/etc/containerd/config.toml
  local unit=$ROOT/etc/systemd/system/containerd.service.d/90-tpu-functions.conf is_changed=""
  if ! containerd config dump 2>/dev/null | grep -q 'SystemdCgroup = true'; then
    mkdir -p "${config%/*}" &&
      containerd config default |
      sed 's/SystemdCgroup = false/SystemdCgroup = true/' >"$config" || return 1
    is_changed=1
  fi
  if [[ ! -e $unit ]]; then
    mkdir -p "${unit%/*}" &&
      printf '[Service]\nLimitMEMLOCK=infinity\n' >"$unit" &&
      quietly systemctl daemon-reload || return 1
    is_changed=1
  fi
  [[ -z $is_changed ]] || quietly systemctl restart containerd || return 1
  quietly systemctl enable --now containerd
}

prepare() {
  install_packages &&
    check_containerd &&
    set_up_kernel &&
    set_up_containerd &&
    quietly systemctl enable kubelet # kubeadm starts it now, but not after a reboot
}

# --- Joining ---

has_joined() {
  [[ -s $KUBELET_CONF ]]
}

# Whether the kubelet's certificate has expired, while the VM was down; false on an image without openssl.
has_expired() {
  [[ $(openssl x509 -noout -checkend 0 -in "$CERTIFICATE" 2>/dev/null) == "Certificate will expire" ]]
}

# quote TEXT: prints a single-quoted YAML scalar.
quote() {
  printf "'%s'" "${1//\'/\'\'}"
}

# kubeadm before 1.31 knows v1beta3 only; later versions deprecate and then remove it.
config_version() {
  if ((${KUBERNETES_MINOR#*.} < 31)); then echo v1beta3; else echo v1beta4; fi
}

# kubelet_argument NAME VALUE: prints an entry of kubeletExtraArgs; nothing if the value is empty.
kubelet_argument() {
  [[ -n $2 ]] || return 0
  case $(config_version) in
    v1beta3) printf '    %s: %s\n' "$1" "$(quote "$2")" ;;
    *) printf '    - name: %s\n      value: %s\n' "$1" "$(quote "$2")" ;;
  esac
}

render_join_config() {
  cat <<EOF
apiVersion: kubeadm.k8s.io/$(config_version)
kind: JoinConfiguration
discovery:
  bootstrapToken:
    apiServerEndpoint: $(quote "$(api_server "$ENDPOINT")")
    token: $(quote "$TOKEN")
    caCertHashes:
    - $(quote "$CA_HASH")
nodeRegistration:
  name: $(quote "$VM")
  criSocket: unix:///run/containerd/containerd.sock
  kubeletExtraArgs:
EOF
  # The kubelet asks containerd 2 for its cgroup driver, and loses the flag with Kubernetes 1.38.
  ((${KUBERNETES_MINOR#*.} >= 38)) || kubelet_argument cgroup-driver systemd
  kubelet_argument provider-id "gce://$PROJECT/$ZONE/$VM"
  kubelet_argument node-labels "$NODE_LABELS"
  kubelet_argument register-with-taints "$NODE_TAINTS"
  kubelet_argument topology-manager-policy "$TOPOLOGY_MANAGER_POLICY"
}

remove_join_config() {
  rm -f "$JOIN_CONFIG"
}

# Prints kubeadm's output without the token; the exit status is kubeadm's.
run_kubeadm_join() {
  local output status=0
  (umask 077 && mkdir -p "${JOIN_CONFIG%/*}" && render_join_config >"$JOIN_CONFIG")
  output=$(kubeadm join --config "$JOIN_CONFIG" 2>&1) || status=$?
  remove_join_config
  printf '%s\n' "${output//"${TOKEN#*.}"/<secret>}"
  return "$status"
}

# Undoes an attempt, unless the kubelet has its certificate: a node that has joined is never reset.
reset_node() {
  quietly systemctl stop kubelet || true
  if has_joined; then
    quietly systemctl start kubelet
  else
    quietly kubeadm reset --force || true
  fi
}

has_leftovers() {
  [[ -e $ROOT/etc/kubernetes/bootstrap-kubelet.conf || -e $ROOT/etc/kubernetes/pki/ca.crt ]]
}

TRIED="" TRIES=0 PAUSE_S=$MIN_PAUSE_S

try_to_join() {
  local output reason
  [[ $TOKEN == "$TRIED" ]] || TRIED=$TOKEN TRIES=0 PAUSE_S=$MIN_PAUSE_S
  TRIES=$((TRIES + 1))
  report joining "$(api_server "$ENDPOINT") as $VM, try $TRIES with this token"
  set_up_ipv6
  if output=$(run_kubeadm_join); then
    printf '%s\n' "$output" >>"$LOG"
    return 0
  fi
  printf '%s\n' "$output" >>"$LOG"
  reset_node
  has_joined && return 0
  reason=$(grep -m 1 '^error' <<<"$output" || tail -n 1 <<<"$output")
  report failed "kubeadm join: ${reason:0:400}"
  return 1
}

# Waits before the next attempt with this token, longer each time; ends when there is another token.
pause() {
  local end=$((SECONDS + ${TNG_BACKOFF_S:-PAUSE_S + RANDOM % (PAUSE_S / 2)}))
  PAUSE_S=$((PAUSE_S * 2 < MAX_PAUSE_S ? PAUSE_S * 2 : MAX_PAUSE_S))
  while [[ $TOKEN == "$TRIED" ]] && ((SECONDS < end)); do
    if ! wait_for_change $((end - SECONDS)) || ! read_metadata; then
      ETAG=0
      back_off
    fi
  done
}

main() {
  mkdir -p "${LOG%/*}" "$ROOT/run"
  if has_joined; then
    if has_expired; then
      report joined "before this boot, but the kubelet's certificate has expired: run kubeadm reset --force, \
delete the Node, and reset the VM"
    else
      report joined "before this boot; the kubelet uses its own certificate"
    fi
    return 0
  fi
  exec {lock}>"$ROOT/run/tpu-functions.lock"
  flock --nonblock "$lock" ||
    give_up "$EXIT_RUNNING_ALREADY" "another run of this script is in progress on this VM"
  until prepare; do
    report waiting "for packages or services: their setup failed (see $LOG) and is retried"
    back_off
  done
  ! has_leftovers || reset_node
  until
    wait_for_token
    try_to_join
  do pause; done
  report joined "$(api_server "$ENDPOINT") as $VM"
}

trap 'give_up "$EXIT_FAILED" "line $LINENO failed with $?"' ERR
trap remove_join_config EXIT
main
