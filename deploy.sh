#!/usr/bin/env bash
# Installs, upgrades or uninstalls tpu-functions for one cluster, or shows what would change.
#
#   ./deploy.sh CLUSTER              install or upgrade; asks before it changes anything
#   ./deploy.sh --dry-run CLUSTER    check everything and show the plan; change nothing
#   ./deploy.sh --destroy CLUSTER    uninstall; only if no TPUNodeGroups and no node pools of JobSets exist
#
# You choose the name CLUSTER. Its settings are in infra/terraform/CLUSTER.tfvars; the cluster is kubectl's
# current context. The first run creates the overlay infra/kubernetes/overlays/CLUSTER, for you to change;
# each run writes the folder `deployed` in it. Terraform's state is in a workspace of that name; to keep it
# elsewhere, add infra/terraform/backend.tf.
#
#   --images REPOSITORY:TAG  the images relay and inject-env; without it, Cloud Build builds them. By digest,
#                            one option each: REPOSITORY/relay@sha256:..., REPOSITORY/inject-env@sha256:...
#   --docker                 build and push them with docker instead
#   --nodes-pull             the Nodes can pull from Artifact Registry (docs/install.md, Images)
#   --restored               the cluster was restored or rebuilt: it may differ from what the state remembers
#   --yes                    do not ask
set -euo pipefail

main() {
  read_arguments "$@"
  cd "$(dirname "$0")"
  # shellcheck source=infra/preflight.sh
  . infra/preflight.sh
  temporary=$(mktemp -d) overlay_copy='' && trap 'rm -rf "$temporary" ${overlay_copy:+"$overlay_copy"}' EXIT
  check_tools
  if $has_settings; then read_settings; fi
  if is_installed gcloud; then check_cloud; fi
  if is_installed kubectl; then check_cluster; fi
  stop_on_problems
  "$mode"
}

read_arguments() {
  mode=install images='' relay_image='' inject_env_image='' builder=cloud-build nodes_pull=false is_restored=false is_confirmed=false cluster=''
  while [ $# -gt 0 ]; do
    case $1 in
      --dry-run) mode=show_plan ;;
      --destroy) mode=destroy ;;
      --images) parse_images "${2:?--images needs REPOSITORY:TAG}"; shift ;;
      --nodes-pull) nodes_pull=true ;;
      --docker) builder=docker ;;
      --restored) is_restored=true ;;
      --yes) is_confirmed=true ;;
      -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p;}' "$0"; exit ;;
      -*) fail "unknown option $1; see ./deploy.sh --help" ;;
      *) [ -z "$cluster" ] || fail "one cluster at a time, not $cluster and $1"; cluster=$1 ;;
    esac
    shift
  done
  [ -n "$cluster" ] || fail "name the cluster: ./deploy.sh CLUSTER, with settings in infra/terraform/CLUSTER.tfvars"
  ! $is_restored || [ "$mode" != destroy ] || fail "--restored installs: run ./deploy.sh --restored $cluster first, then --destroy"
  [[ $cluster =~ ^[a-z][a-z0-9-]*$ ]] || fail "CLUSTER must be lower-case letters, digits and hyphens, not $cluster"
}

# A digest identifies one image: the relay's, unless the name ends with /inject-env.
parse_images() { # REPOSITORY:TAG or REPOSITORY[/NAME]@DIGEST
  images+=${images:+ }$1
  [[ ! ${1%[:@]*} =~ [[:upper:]] ]] || fail "--images $1: image names are lower-case; replace OWNER by the repository's owner in lower case"
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

print_heading() { printf '\n== %s\n' "$*"; }
fail() { printf 'deploy.sh: %s\n' "$*" >&2 && exit 1; }
tf() { terraform -chdir=infra/terraform "$@"; }

confirm() {
  $is_confirmed && return
  read -rp "$1 [y/N] " || true
  [[ $REPLY == [yY]* ]] || fail "not confirmed; nothing was changed"
}

# Cluster and state are bound to each other by the id in both, and by the cluster's identity in the state.
plan() { # FLAG ...
  local record=''
  [ "$recorded" = "$TF_VAR_cluster_identity" ] || record=-replace=terraform_data.cluster
  tf plan -input=false -var-file="$cluster.tfvars" ${record:+"$record"} "$@"
}

annotate_cluster() { kubectl annotate namespace kube-system --overwrite "$annotation_key=$installation_id"; }

show_plan() {
  print_heading "Google Cloud" && plan
  print_heading "Cluster"
  if [ -z "$resources" ] || ! tf output -raw component 2>/dev/null | grep Component >/dev/null; then
    echo "$overlay would be created from Terraform's outputs and applied"
  elif [ -z "$(kubectl get namespace tpu-functions --ignore-not-found --output=name)" ]; then echo "all of $overlay would be applied"
  else diff_overlay; fi
  print_heading "Nothing was changed"
}

# Compares the cluster with a copy of the overlay in the same folder, so that relative paths stay valid.
diff_overlay() {
  overlay_copy=$(mktemp -d infra/kubernetes/overlays/.dry-run.XXXXXX)
  if [ -d "$overlay" ]; then cp -R "$overlay/." "$overlay_copy"; fi
  write_overlay "$overlay_copy"
  echo "compared with Terraform's current outputs, without the changes planned above; images: ${images:-"the current ones, but an installation would build new ones"}"
  kubectl diff --kustomize "$overlay_copy" && echo "no change" || [ $? -eq 1 ] || fail "kubectl diff failed"
}

install() {
  [ -z "$difference" ] || { echo "$difference" &&
    confirm "Is it the cluster of $cluster, and does no other cluster run with the same TPUNodeGroups (docs/backups.md)?"; }
  print_heading "Google Cloud" && plan -out="$temporary/plan"
  confirm "Apply this to $project, and the manifests to $context?"
  # Functions that run already compare the annotation as soon as they are updated.
  is_new || annotate_cluster
  tf apply -input=false "$temporary/plan"
  if [ -z "$images" ]; then build_images; fi
  print_heading "Cluster"
  ! is_new || annotate_cluster
  [ -f "$overlay/kustomization.yaml" ] || echo "$overlay is created: change it as you need, and keep it in version control"
  write_overlay "$overlay"
  check_images
  kubectl apply --kustomize "$overlay"
  write_tool_settings
  check_rollouts
  check_policy
  print_class
  print_heading "Terraform's outputs" && tf output
  check_label_node
  print_heading "Installed; all checks succeeded"
}

# kubectl tng finds its settings in the cluster.
write_tool_settings() {
  tf output -raw tool_environment | sed -E "s/^export ([A-Z_]+)='(.*)'$/\1=\2/" >"$temporary/tool-settings"
  kubectl --namespace=tpu-functions create configmap kubectl-tng --from-env-file="$temporary/tool-settings" \
    --dry-run=client --output=yaml | kubectl apply --filename=-
}

# Deploys the digests that were built: the tag is unique to this run, and used only to find them.
build_images() {
  local name digest repository tag
  print_heading "Images"
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
    [[ $digest == sha256:* ]] || fail "$repository/$name:$tag was built, but the registry returned no digest (${digest:-no answer}); run this again"
    if [ $name = relay ]; then relay_image=$repository/$name@$digest; else inject_env_image=$repository/$name@$digest; fi
  done
}

# The overlay belongs to the user; each run writes its folder `deployed` from Terraform's outputs.
write_overlay() { # FOLDER
  local name to=$1/deployed && mkdir -p "$to"
  tf output -raw component >"$temporary/component"
  list_images "$to/kustomization.yaml" >"$temporary/images"
  { remove_policies <"$temporary/component" | remove_device_plugin && echo images: && cat "$temporary/images"; } >"$to/kustomization.yaml"
  if [ ! -f "$1/kustomization.yaml" ]; then
    tf output -raw overlay >"$temporary/overlay"
    if has_pull_secret; then add_component ../../components/image-pull-secret <"$temporary/overlay"
    else cat "$temporary/overlay"; fi >"$1/kustomization.yaml"
  fi
}

# An image without an option keeps its current name.
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

# `deployed` sets the images of the components that are listed before it.
check_images() {
  local unnamed
  kubectl kustomize "$overlay" >"$temporary/rendered"
  unnamed=$(sed -n 's/^[ -]*image: tpu-functions-\([a-z-]*\)$/\1/p' "$temporary/rendered" | head -n 1)
  [ -z "$unnamed" ] || ! grep -q "{name: tpu-functions-$unnamed," "$overlay/deployed/kustomization.yaml" ||
    fail "$overlay has no image for $unnamed: list its component before deployed in $overlay/kustomization.yaml"
  [ -z "$unnamed" ] || fail "$overlay includes $unnamed, but no image is given for it: add --images REPOSITORY/$unnamed@sha256:..."
}

# Removes the admission policies for Kubernetes before 1.30, by a component that is listed last.
remove_policies() {
  if [ "$minor" -ge 30 ]; then cat; else add_component ../../../components/without-admission-policies; fi
}

# Removes the device plugin on GKE, which has its own, with a DaemonSet of the same name.
remove_device_plugin() {
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

# A Pod waits for a missing Secret without a time limit, so the error names the Secret.
check_rollouts() {
  local name found why
  for name in relay token-writer inject-env; do
    found=$(kubectl --namespace=tpu-functions get deployment "$name" --ignore-not-found --output=name)
    [ -n "$found" ] || continue
    # The token-writer is ready when each step has a token, for which its grants must have taken effect.
    kubectl --namespace=tpu-functions rollout status "deployment/$name" --timeout="$([ $name = token-writer ] && echo 600 || echo 180)s" && continue
    why="kubectl --namespace=tpu-functions describe pods --selector=app.kubernetes.io/name=$name shows the reason"
    case $(read_pods "$name" '{..waiting.reason}') in *ImagePull*) why="its Node cannot pull its image (docs/install.md, Images)" ;; esac
    case $(read_pods "$name" '{..conditions[?(@.status=="False")].reason}') in
      *Unschedulable*) why="no Node can run its Pod. If all Nodes are control planes or TPU VMs, list the component control-plane-taint last in $overlay/kustomization.yaml" ;;
    esac
    [ "$name" != relay ] || ! grep -qs relay-key-secret "$overlay/kustomization.yaml" ||
      kubectl --namespace=tpu-functions get secret relay-google-key >/dev/null 2>&1 ||
      why="its Secret relay-google-key is missing (docs/install.md, After the first run)"
    [ "$name" != token-writer ] || why+="; kubectl --namespace=tpu-functions logs deployment/token-writer names each step's error (docs/reference/token-writer.md)"
    [ "$name" != inject-env ] || kubectl --namespace=tpu-functions get secret inject-env-tls >/dev/null 2>&1 ||
      why="its Secret inject-env-tls is missing (docs/injection.md, Switch it on)"
    fail "$name is not ready: $why; fix that, and run this again"
  done
}

read_pods() { # NAME JSONPATH
  kubectl --namespace=tpu-functions get pods --selector="app.kubernetes.io/name=$1" --output=jsonpath="$2" || true
}

# The policy must reject a Secret that is not a bootstrap token, although inject_token may create Secrets.
check_policy() {
  [ "$minor" -ge 30 ] || return 0
  local tries answer as
  as=$(tf output -raw inject_token_user)
  for tries in {1..30}; do
    answer=$(kubectl --namespace=kube-system create secret generic tpu-functions-check --dry-run=server --as="$as" 2>&1) && answer="the Secret was accepted"
    if grep -q 'ValidatingAdmissionPolicy' <<<"$answer"; then echo "the admission policy on Secrets has effect"; return; fi
    sleep 1
  done
  fail "the admission policy on Secrets has no effect after $tries attempts: $answer; see kubectl get validatingadmissionpolicies, and run this again"
}

# For this release, slices are also made from the templates in the ConfigMap jobsets, or from node_pools.
print_class() {
  local class='' key name default removals='' ask=(kubectl --namespace=tpu-functions get configmap jobsets)
  [ -n "$jobsets" ] && [ -z "$(kubectl get tpusliceclasses --output=name 2>/dev/null)" ] || return 0
  if [ "$jobsets" = gke ]; then class=$(tf output -raw slice_class)
  else
    for key in $("${ask[@]}" --output=go-template='{{range $key, $_ := .data}}{{println $key}}{{end}}'); do
      case $key in
        template) name=default default=$'\n  isDefault: true' ;;
        template.?*) name=${key#template.} default='' ;;
        *) continue ;;
      esac
      class+=${class:+$'\n---\n'}$'apiVersion: tpu-functions.dev/v1alpha1\nkind: TPUSliceClass\nmetadata:\n  name: '$name$'\nspec:'$default$'\n  template:\n'
      class+=$("${ask[@]}" --output=go-template="{{index .data \"$key\"}}" | sed '/^apiVersion:/d; /^kind:/d; s/^/    /')
      removals+=${removals:+, }"{\"op\": \"remove\", \"path\": \"/data/$key\"}"
    done
    [ -n "$class" ] || return 0
  fi
  print_heading "The next release makes slices from TPUSliceClasses only, and there is none. Apply this (docs/reference/tpusliceclass.md):"
  echo "$class"
  [ "$jobsets" = gke ] || echo "Then delete the template: kubectl -n tpu-functions patch configmap jobsets --type=json -p '[$removals]'"
}

# Sends label_node a message about an absent group: its log line shows that it has called the cluster. An
# error is retried twice, because the first call of a new instance may fail. A missing line or a 403 is
# retried for ten minutes, in which a grant has effect.
check_label_node() {
  local id found='' try
  for try in {1..10}; do
    id=$(gcloud pubsub topics publish "$prefix-label-node" --project="$project" --format='value(messageIds[0])' \
      --message='{"version": 1, "kind": "TPUNodeGroup", "namespace": "default", "name": "smoke-check", "uid": "00000000-0000-0000-0000-000000000000", "cause": "Resync", "at": "'"$(date -u +%Y-%m-%dT%H:%M:%SZ)"'"}')
    for _ in {1..15}; do
      found=$(gcloud logging read "jsonPayload.message_id=\"$id\"" --project="$project" --freshness=1h --limit=1 --format='value(jsonPayload.decision,jsonPayload.note)')
      case $found in GroupGone*) echo "label_node has handled a message and called the cluster"; return ;; ?*) break ;; *) sleep 4 ;; esac
    done
    case $found in
      PushRefused* | CannotStart*) break ;;
      '') echo "no answer yet, attempt $try of 10: no log line" && sleep 5 ;;
      *' 403 '*) echo "no answer yet, attempt $try of 10: $found" && sleep 60 ;;
      *) [ "$try" -lt 3 ] || break ;;
    esac
  done
  fail "everything is installed, but label_node does not work: ${found:-"its log has no line for message $id"}"$'\n'"fix that (docs/cluster-access.md), and run this again; its log: gcloud logging read 'resource.labels.service_name:label-node' --project=$project --limit=20"
}

# Deletes Terraform's resources first: no group needs the functions any more, and an interrupted run can be
# repeated while the objects are in the cluster.
destroy() {
  local left kinds=namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts
  print_heading "Google Cloud" && tf plan -destroy -input=false -var-file="$cluster.tfvars" -out="$temporary/plan"
  print_heading "Cluster" && echo "then all objects of $overlay are deleted from $context"
  confirm "Uninstall tpu-functions from $context and from $projects?"
  check_nothing_left # again: groups may have been created before the confirmation
  stop_on_problems
  kubectl annotate namespace kube-system "$annotation_key-"
  tf apply -input=false "$temporary/plan"
  if [ -s "$temporary/manifests" ]; then kubectl delete --ignore-not-found --filename="$temporary/manifests"; fi
  kinds+=,deployments,daemonsets,services,configmaps,mutatingwebhookconfigurations
  [ "$minor" -lt 30 ] || kinds+=,validatingadmissionpolicies,validatingadmissionpolicybindings
  left=$(list_own_objects "$kinds")
  print_heading "Uninstalled. $overlay and infra/terraform/$cluster.tfvars remain."
  [ -z "$left" ] || printf 'These objects remain in the cluster, because the overlay does not have them; delete what is not needed:\n%s\n' "$left"
}

main "$@"
