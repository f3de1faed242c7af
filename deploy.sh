#!/usr/bin/env bash
# Installs tpu-functions for one cluster, upgrades it, shows what would change, or takes it away.
#
#   ./deploy.sh CLUSTER              install or upgrade; asks before it changes anything
#   ./deploy.sh --dry-run CLUSTER    check everything and show the plan; change nothing
#   ./deploy.sh --destroy CLUSTER    take it away; refuses while there are TPUNodeGroups or JobSets' node pools
#
# CLUSTER is a name of yours. Its settings are infra/terraform/CLUSTER.tfvars; the cluster is the
# current context of kubectl. Its overlay, infra/kubernetes/overlays/CLUSTER, is made when it is missing
# and then yours, but for the folder `deployed` in it, which each run writes. Terraform's state is in a
# workspace of that name; put a backend of yours into infra/terraform/backend.tf.
#
#   --images REPOSITORY:TAG  where the images relay and inject-env are; without it, Cloud Build makes them. By
#                            digest, each alone: REPOSITORY/relay@sha256:..., REPOSITORY/inject-env@sha256:...
#   --docker                 build and push them with docker instead
#   --nodes-pull             the Nodes of a cluster of yours can pull from Artifact Registry (docs/install.md, Images)
#   --yes                    do not ask
set -euo pipefail

main() {
  read_arguments "$@"
  cd "$(dirname "$0")"
  # shellcheck source=infra/preflight.sh
  . infra/preflight.sh
  temporary=$(mktemp -d) beside='' && trap 'rm -rf "$temporary" ${beside:+"$beside"}' EXIT
  check_tools
  if $has_settings; then read_settings; fi
  if has gcloud; then check_cloud; fi
  if has kubectl; then check_cluster; fi
  stop_if_missing
  "$mode"
}

read_arguments() {
  mode=install images='' relay_image='' inject_env_image='' builder=cloud-build nodes_pull=false assumes_yes=false cluster=''
  while [ $# -gt 0 ]; do
    case $1 in
      --dry-run) mode=show_plan ;;
      --destroy) mode=destroy ;;
      --images) name_images "${2:?--images needs REPOSITORY:TAG}"; shift ;;
      --nodes-pull) nodes_pull=true ;;
      --docker) builder=docker ;;
      --yes) assumes_yes=true ;;
      -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p;}' "$0"; exit ;;
      -*) fail "unknown option $1; see ./deploy.sh --help" ;;
      *) [ -z "$cluster" ] || fail "one cluster at a time, not $cluster and $1"; cluster=$1 ;;
    esac
    shift
  done
  [ -n "$cluster" ] || fail "name the cluster: ./deploy.sh CLUSTER, with settings in infra/terraform/CLUSTER.tfvars"
  [[ $cluster =~ ^[a-z][a-z0-9-]*$ ]] || fail "CLUSTER must be lower-case letters, digits and hyphens, not $cluster"
}

# A digest is one image's: the relay's, if its name does not say otherwise.
name_images() { # REPOSITORY:TAG or REPOSITORY[/NAME]@DIGEST
  images+=${images:+ }$1
  [[ ! ${1%[:@]*} =~ [[:upper:]] ]] || fail "--images $1: names of images have no capitals; OWNER is the repository's owner, in lower case"
  case $1 in
    *@*)
      [[ $1 =~ @sha256:[0-9a-f]{64}$ ]] || fail "--images $1: a digest is sha256: and 64 hexadecimal digits"
      case ${1%@*} in
        */inject-env) inject_env_image=$1 ;;
        */relay) relay_image=$1 ;;
        *) relay_image=${1%@*}/relay@${1#*@} ;;
      esac ;;
    *)
      [[ ${1##*/} == *?:?* ]] || fail "--images $1: it must be REPOSITORY:TAG, or REPOSITORY/relay@sha256:..."
      relay_image=${1%:*}/relay:${1##*:} inject_env_image=${1%:*}/inject-env:${1##*:} ;;
  esac
}

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'deploy.sh: %s\n' "$*" >&2 && exit 1; }
tf() { terraform -chdir=infra/terraform "$@"; }

confirm() {
  $assumes_yes && return
  read -rp "$1 [y/N] " || true
  [[ $REPLY == [yY]* ]] || fail "not confirmed; nothing was changed"
}

show_plan() {
  say "Google Cloud" && tf plan -input=false -var-file="$cluster.tfvars"
  say "Cluster"
  if [ -z "$resources" ] || ! tf output -raw component 2>/dev/null | grep Component >/dev/null; then
    echo "$overlay would be made of Terraform's outputs, and applied"
  elif [ -z "$(kubectl get namespace tpu-functions --ignore-not-found --output=name)" ]; then echo "all of $overlay would be applied"
  else show_difference; fi
  say "Nothing was changed"
}

# Of an overlay beside the real one, as this run would write it; what it refers to is as far from there.
show_difference() {
  beside=$(mktemp -d infra/kubernetes/overlays/.dry-run.XXXXXX)
  if [ -d "$overlay" ]; then cp -R "$overlay/." "$beside"; fi
  write_overlay "$beside"
  echo "with Terraform's outputs as they are now, and ${images:-"the images as they are now: new ones would be built"}"
  kubectl diff --kustomize "$beside" && echo "no change" || [ $? -eq 1 ] || fail "kubectl diff failed"
}

install() {
  say "Google Cloud" && tf plan -input=false -var-file="$cluster.tfvars" -out="$temporary/plan"
  confirm "Apply this to $project, and the manifests to $context?"
  tf apply -input=false "$temporary/plan"
  if [ -z "$images" ]; then build_images; fi
  say "Cluster"
  [ -f "$overlay/kustomization.yaml" ] || echo "$overlay is made; it is yours to change and to keep"
  write_overlay "$overlay"
  check_images
  kubectl apply --kustomize "$overlay"
  check_rollouts
  check_policy
  say "Terraform's outputs" && tf output
  check_path
  say "Installed, and at work"
}

# What was built is what rolls out: the tag is this run's alone, and only finds the digest.
build_images() {
  local name digest repository tag
  say "Images"
  repository=$(tf output -raw image_repository)
  tag=$(git describe --always --dirty 2>/dev/null || echo untracked)-$(date -u +%Y%m%d%H%M%S)
  if [ "$builder" = cloud-build ]; then
    gcloud builds submit --project="$project" --region="$region" --config=infra/cloudbuild.yaml \
      --ignore-file=infra/cloudbuild.gcloudignore --service-account="$(tf output -raw image_builder)" \
      --gcs-source-staging-dir="$(tf output -raw image_sources)" --substitutions="_REPOSITORY=$repository,_TAG=$tag" .
  else for name in relay inject-env; do
    docker build --file "${name/inject-env/webhook}/Dockerfile" --tag "$repository/$name:$tag" .
    docker push "$repository/$name:$tag"
  done; fi
  for name in relay inject-env; do
    digest=$(gcloud artifacts docker images describe "$repository/$name:$tag" --project="$project" --format='value(image_summary.digest)')
    [[ $digest == sha256:* ]] || fail "$repository/$name:$tag was built, and the registry does not say its digest: ${digest:-nothing}"
    if [ $name = relay ]; then relay_image=$repository/$name@$digest; else inject_env_image=$repository/$name@$digest; fi
  done
}

# The overlay is the user's; the component in it is written from Terraform's outputs each time.
write_overlay() { # FOLDER
  local name to=$1/deployed && mkdir -p "$to"
  tf output -raw component >"$temporary/component"
  list_images "$to/kustomization.yaml" >"$temporary/images"
  { without_policies <"$temporary/component" | without_device_plugin && echo images: && cat "$temporary/images"; } >"$to/kustomization.yaml"
  if [ ! -f "$1/kustomization.yaml" ]; then
    tf output -raw overlay >"$temporary/overlay"
    if has_pull_secret; then add_component ../../components/image-pull-secret <"$temporary/overlay"
    else cat "$temporary/overlay"; fi >"$1/kustomization.yaml"
  fi
}

# An image that is not named stays what it is.
list_images() { # FILE
  local name image
  for name in relay inject-env; do
    image=$relay_image
    [ $name = relay ] || image=$inject_env_image
    case $image in
      *@*) printf '  - {name: tpu-functions-%s, newName: "%s", digest: "%s"}\n' $name "${image%@*}" "${image#*@}" ;;
      ?*) printf '  - {name: tpu-functions-%s, newName: "%s", newTag: "%s"}\n' $name "${image%:*}" "${image##*:}" ;;
      *) grep -s "{name: tpu-functions-$name," "$1" || true ;;
    esac
  done
}

# The images in `deployed` are given to what comes before it.
check_images() {
  local unnamed
  kubectl kustomize "$overlay" >"$temporary/rendered"
  unnamed=$(sed -n 's/^[ -]*image: tpu-functions-\([a-z-]*\)$/\1/p' "$temporary/rendered" | head -n 1)
  [ -z "$unnamed" ] || ! grep -q "{name: tpu-functions-$unnamed," "$overlay/deployed/kustomization.yaml" ||
    fail "$overlay gives $unnamed no image: list its component before deployed in $overlay/kustomization.yaml"
  [ -z "$unnamed" ] || fail "$overlay has $unnamed, and no image is named for it: --images REPOSITORY/$unnamed@sha256:... as well"
}

# Before Kubernetes 1.30 there are none: their component comes last of those that Terraform names.
without_policies() {
  if [ "$minor" -ge 30 ]; then cat; else add_component ../../../components/without-admission-policies; fi
}

# GKE has a device plugin of its own, whose DaemonSet has the same name.
without_device_plugin() {
  if $is_gke && ! grep -q /without-device-plugin "$temporary/component"; then
    add_component ../../../components/without-device-plugin
  else cat; fi
}

add_component() { # FOLDER
  awk -v last="- $1" '
    listing && !/^-/ { print last; listing = 0; done = 1 }
    /^"?components"?:/ { listing = 1 }
    { print }
    END { if (listing) print last; else if (!done) print "components:\n" last }'
}

# A Pod whose Secret is missing waits for it, for ever.
check_rollouts() {
  local name found why
  for name in relay inject-env; do
    found=$(kubectl --namespace=tpu-functions get deployment "$name" --ignore-not-found --output=name)
    [ -n "$found" ] || continue
    kubectl --namespace=tpu-functions rollout status "deployment/$name" --timeout=180s && continue
    why="kubectl --namespace=tpu-functions describe pods --selector=app.kubernetes.io/name=$name says why"
    kubectl --namespace=tpu-functions get pods --selector="app.kubernetes.io/name=$name" --output=jsonpath='{..waiting.reason}' |
      grep -v ImagePull >/dev/null || why="its Node cannot pull its image (docs/install.md, Images)"
    [ "$name" = relay ] || kubectl --namespace=tpu-functions get secret inject-env-tls >/dev/null 2>&1 ||
      why="its Secret inject-env-tls is missing (docs/injection.md, Switch it on)"
    fail "$name has not become ready: $why; mend that, and run this again"
  done
}

# A Secret of another type than a bootstrap token's must be refused, also to those who may create Secrets.
check_policy() {
  [ "$minor" -ge 30 ] || return 0
  local tries answer as
  as=$(tf output -raw inject_token_user)
  for tries in {1..30}; do
    answer=$(kubectl --namespace=kube-system create secret generic tpu-functions-check --dry-run=server --as="$as" 2>&1) && answer="it was let through"
    if grep -q 'ValidatingAdmissionPolicy' <<<"$answer"; then echo "the policy on Secrets is in force"; return; fi
    sleep 1
  done
  fail "the policy on Secrets is not in force after $tries tries: $answer"
}

# A message to label_node about a group that is not there: the step must ask the cluster, and say so in its
# log. The first call of a new instance may fail: it is asked three times. Where there is no line at all, or
# a 403, a grant may not have taken effect, which takes up to ten minutes.
check_path() {
  local id found='' try
  for try in {1..10}; do
    id=$(gcloud pubsub topics publish "$prefix-label-node" --project="$project" --format='value(messageIds[0])' \
      --message='{"version": 1, "kind": "TPUNodeGroup", "namespace": "default", "name": "smoke-check", "uid": "00000000-0000-0000-0000-000000000000", "cause": "Resync", "at": "'"$(date -u +%Y-%m-%dT%H:%M:%SZ)"'"}')
    for _ in {1..15}; do
      found=$(gcloud logging read "jsonPayload.message_id=\"$id\"" --project="$project" --freshness=1h --limit=1 --format='value(jsonPayload.decision,jsonPayload.note)')
      case $found in GroupGone*) echo "a message was handled, and the cluster asked"; return ;; ?*) break ;; *) sleep 4 ;; esac
    done
    case $found in
      PushRefused* | CannotStart*) break ;;
      '' | *' 403 '*) echo "no answer yet, try $try of 10: ${found:-no line in the log}" && sleep 5 ;;
      *) [ "$try" -lt 3 ] || break ;;
    esac
  done
  fail "all is there, but label_node cannot do its work: ${found:-"message $id left no line in its log"}"$'\n'"mend that (docs/cluster-access.md), and run this again; its log: gcloud logging read 'resource.labels.service_name:label-node' --project=$project --limit=20"
}

# Terraform's part first: no group needs the functions any more, and as long as the cluster has its part,
# an end half-way can be repeated.
destroy() {
  local left kinds=namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts
  say "Google Cloud" && tf plan -destroy -input=false -var-file="$cluster.tfvars" -out="$temporary/plan"
  say "Cluster" && echo "then all that $overlay names is deleted from $context"
  confirm "Take tpu-functions away from $context and from $projects?"
  check_nothing_left # once more: who had to confirm may have taken a while
  stop_if_missing
  tf apply -input=false "$temporary/plan"
  if [ -s "$temporary/manifests" ]; then kubectl delete --ignore-not-found --filename="$temporary/manifests"; fi
  kinds+=,deployments,daemonsets,services,configmaps,mutatingwebhookconfigurations
  [ "$minor" -lt 30 ] || kinds+=,validatingadmissionpolicies,validatingadmissionpolicybindings
  left=$(list_ours "$kinds")
  say "Gone. $overlay and infra/terraform/$cluster.tfvars are left."
  [ -z "$left" ] || printf 'Left in the cluster, too, because the overlay does not name it; delete it if nobody needs it:\n%s\n' "$left"
}

main "$@"
