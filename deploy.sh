#!/usr/bin/env bash
# Installs, upgrades or uninstalls tpu-functions for one cluster, or shows what
# would change.
#
#   ./deploy.sh --dir DIR CLUSTER              install or upgrade, and ask before
#   ./deploy.sh --dir DIR --dry-run CLUSTER    check everything and show the plan
#   ./deploy.sh --dir DIR --uninstall CLUSTER  delete the chart in the cluster,
#                                              say what remains on Google Cloud
#   ./deploy.sh --dir DIR --destroy CLUSTER    delete everything
#
# The last two stop while TPUNodeGroups or node pools of JobSets exist, because
# nothing would delete their VMs.
#
# You choose DIR, a folder outside of the release's, and the name CLUSTER, which
# may be omitted if DIR has one cluster; the cluster is kubectl's current context.
# To upgrade, run the deploy.sh of the next release with the same DIR. A first run
# writes the first two files, and ends:
#
#   DIR/CLUSTER.tfvars         the settings
#   DIR/backend.tf             where Terraform keeps its state, in a workspace
#                              CLUSTER: in a bucket, or in DIR
#   DIR/CLUSTER.yaml           your values of the chart, if any
#   DIR/CLUSTER.deployed.yaml  the values that follow from the settings; each run
#                              writes them
#
#   --images REPOSITORY:TAG  the images relay and inject-env, instead of the
#                            release's; in a clone, instead of those that Cloud
#                            Build builds. By digest, one option each:
#                            REPOSITORY/relay@sha256:...,
#                            REPOSITORY/inject-env@sha256:...
#   --docker                 build and push them with docker
#   --nodes-pull             the Nodes can pull from Artifact Registry
#                            (docs/install.md, Images)
#   --restored               the cluster was restored or rebuilt: it may differ
#                            from what the state remembers
#   --yes                    do not ask
set -euo pipefail

main() {
  read_arguments "$@"
  [ -z "${KUBECONFIG:-}" ] || resolve_kubeconfig
  cd "$(dirname "$0")"
  # shellcheck source=infra/preflight.sh
  . infra/preflight.sh
  # shellcheck source=infra/settings.sh
  . infra/settings.sh
  # The chart of a release has the digests of its images.
  if [ -z "$images" ] && [ "$builder" != docker ] && [[ $(<infra/chart/values.yaml) == *$'\n  digests: {"'* ]]; then is_release=true images="the release's"; fi
  temporary=$(mktemp -d) && trap 'end $?' EXIT
  find_settings
  check_tools
  if $has_settings; then read_settings; fi
  if is_installed gcloud; then check_cloud; fi
  if is_installed kubectl; then check_cluster; fi
  stop_on_problems
  if is_first_run; then write_files; else "$mode"; fi
}

read_arguments() {
  mode=install dir='' images='' relay_image='' inject_env_image='' is_release=false builder=cloud-build nodes_pull=false
  is_restored=false is_confirmed=false is_begun=false has_lock=false cluster=''
  while [ $# -gt 0 ]; do
    case $1 in
      --dir) need_value "$1" "a folder" "${2:-}"; dir=$2; shift ;;
      --dry-run) mode=show_plan ;;
      --uninstall | --destroy) mode=${1#--} ;;
      --images) need_value "$1" REPOSITORY:TAG "${2:-}"; parse_images "$2"; shift ;;
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
  [ -z "$dir" ] || dir=$(resolve "$dir")
  command="./deploy.sh --dir $(printf %q "${dir:-DIR}")"
  ! $is_restored || ! is_removal || fail "--restored installs: run $command --restored $cluster first, then --$mode"
}

need_value() { # OPTION WHAT VALUE
  case $3 in '' | -*) fail "$1 needs $2${3:+, not $3}; see ./deploy.sh --help" ;; esac
}

# The absolute path of a folder; its last part need not exist.
resolve() { # FOLDER
  if [ -d "$1" ]; then (cd "$1" && pwd)
  else (cd "$(dirname "$1")" 2>/dev/null && echo "$PWD/$(basename "$1")") || fail "--dir $1: there is no folder $(dirname "$1")"; fi
}

# The paths of KUBECONFIG are relative to the caller's folder.
resolve_kubeconfig() {
  local file='' files=''
  while IFS= read -r -d : file; do
    case $file in '') continue ;; /*) ;; *) file=$PWD/$file ;; esac
    files+=${files:+:}$file
  done <<<"$KUBECONFIG:"
  export KUBECONFIG=$files
}

# A digest identifies one image: the relay's, unless the name ends with /inject-env.
parse_images() { # REPOSITORY:TAG or REPOSITORY[/NAME]@DIGEST
  images+=${images:+ }$1
  [[ ! ${1%[:@]*} =~ [[:upper:]] ]] || fail "--images $1: image names are lower-case"
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
is_removal() { [ "$mode" = uninstall ] || [ "$mode" = destroy ]; }
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
  tf plan -input=false -var-file="$settings" ${record:+"$record"} "$@"
}

annotate_cluster() { kubectl annotate namespace kube-system --overwrite "$annotation_key=$installation_id"; }

show_plan() {
  print_upgrade_notes
  print_heading "Google Cloud" && plan
  print_heading "Cluster"
  if [ -z "$resources" ] || ! tf output -raw values >/dev/null 2>&1; then echo "the chart would be installed with values from Terraform's outputs"
  else diff_chart; fi
  print_heading "Nothing was changed"
}

# Compares the release in the cluster with the chart and its values.
diff_chart() {
  write_values "$temporary/deployed.yaml"
  render_chart "$temporary/deployed.yaml" | hide_key >"$temporary/new"
  if ! helm get manifest tpu-functions --namespace=tpu-functions 2>/dev/null | hide_key >"$temporary/old"; then echo "all of the chart would be installed" && return; fi
  echo "compared with Terraform's current outputs, without the changes planned above; images: ${images:-"the current ones, but an installation would build new ones"}"
  diff -uB "$temporary/old" "$temporary/new" && echo "no change" || [ $? -eq 1 ] || fail "diff failed"
}

hide_key() { sed '/^ *tls\.key: /d'; }

install() {
  [ -z "$difference" ] || { echo "$difference" &&
    confirm "Is it the cluster of $cluster, and does no other cluster run with the same TPUNodeGroups (docs/backups.md)?"; }
  print_upgrade_notes
  print_heading "Google Cloud" && plan -out="$temporary/plan"
  confirm "Apply this to $project, and the manifests to $context?"
  [ -n "$installed" ] || is_begun=true
  # Functions that run already compare the annotation as soon as they are updated.
  is_new || annotate_cluster
  tf apply -input=false "$temporary/plan"
  if [ -z "$images" ]; then build_images; fi
  print_heading "Cluster"
  ! is_new || annotate_cluster
  write_values "$deployed"
  check_images
  kubectl apply --filename=infra/chart/manifests/namespace.yaml
  take_over
  helm upgrade --install tpu-functions infra/chart --namespace=tpu-functions --values="$deployed" ${values:+"--values=$values"} --take-ownership
  write_tool_settings
  check_rollouts
  check_policy
  print_class
  print_heading "Terraform's outputs" && tf output
  check_label_node
  report_pause
  is_begun=false
  print_heading "Installed; all checks succeeded"
  if [ "$jobsets" = gke ]; then echo "Next: apply a JobSet that requests TPUs (docs/jobsets.md)"
  else echo "Next: edit a group of examples/, kubectl apply it, and kubectl get tpunodegroups --watch (docs/install.md, A first group)"; fi
}

# A run that has failed, and was not an upgrade, says what is there now.
end() { # EXIT_CODE
  local status
  if $is_begun; then
    status=$(read_release_status)
    print_heading "The installation has not ended. There are now:"
    echo "$(tf state list -no-color 2>/dev/null | grep -vc '^data\.') resource(s) of Terraform in $projects, and the chart in $context: ${status:-not installed}"
    printf 'To continue, run this again. To delete it: %s --destroy %s\n' "$command" "$cluster"
  fi >&2
  rm -rf "$temporary"
  ! $has_lock || rm -f infra/terraform/.running
  exit "$1"
}

# What the changelog says under "Upgrading" about the versions after the installed one, up to this one.
print_upgrade_notes() {
  if [ -z "$installed" ] || [ "$installed" = "$release" ]; then return; fi
  print_heading "From version $installed to $release"
  if is_older "$release" "$installed"; then echo "This is an older version (docs/operate.md, Upgrades and rollbacks)" && return; fi
  awk -v from="$installed" -v to="$release" "$rank"'
    /^## / { version = $2 == "[Unreleased]" ? to : substr($2, 2, length($2) - 2); is_new = rank(version) > rank(from) && rank(version) <= rank(to) }
    /^##/ { is_note = is_new && $0 == "### Upgrading"; next }
    is_note' CHANGELOG.md
  echo "Decisions that this version makes differently: kubectl tng rehearse, by its own"
  echo "kubectl-tng (in a clone: make kubectl-tng)."
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

# The values that follow from the settings, from the cluster and from the images. Those of the user come after them.
write_values() { # FILE
  tf output -raw values >"$temporary/values"
  # GKE has a device plugin, with a DaemonSet of the same name.
  ! $is_gke || grep -q devicePlugin "$temporary/values" || echo "devicePlugin: {enabled: false}" >>"$temporary/values"
  {
    echo image:
    list_image relay "$relay_image"
    list_image injectEnv "$inject_env_image"
    ! has_pull_secret || echo "  pullSecrets: [tpu-functions-images]"
    $is_release || echo '  repository: unnamed' # no release has built the images of a clone
    echo '  tag: ""'
  } >>"$temporary/values"
  mv "$temporary/values" "$1"
}

# An image without an option keeps its current name, or is the release's.
list_image() { # KEY NAME
  if [ -n "$2" ]; then echo "  $1: \"$2\""; elif ! $is_release; then grep -s "^  $1: " "$deployed" || true; fi
}

# Asks the cluster for what the chart generates once.
render_chart() { # FILE
  helm template tpu-functions infra/chart --namespace=tpu-functions --no-hooks --dry-run=server --take-ownership --values="$1" ${values:+"--values=$values"}
}

check_images() {
  local unnamed
  unnamed=$(render_chart "$deployed" | sed -n 's,^ *\(- \)*image: unnamed/\([a-z-]*\):.*,\2,p' | head -n 1)
  [ -z "$unnamed" ] || fail "$unnamed is enabled, but no image is given for it: add --images REPOSITORY/$unnamed@sha256:..."
}

# What kubectl has applied, an installation before the first release of the chart, the ServiceAccounts of kubeconfigs or
# tpu-operator's CRD, becomes helm's with its fields, so that helm changes them, and removes those that the chart does not have.
# A refused `helm uninstall` is taken back.
take_over() {
  local status theirs
  status=$(read_release_status)
  if [ "$status" = uninstalling ]; then helm rollback tpu-functions --namespace=tpu-functions "$(helm history tpu-functions --namespace=tpu-functions --max=1 --output=json | sed -n 's/.*"revision": *\([0-9]*\).*/\1/p')"; fi
  [ -z "$status" ] || return 0
  theirs=$(kubectl --namespace=tpu-functions get deployment/relay serviceaccount/sweep --ignore-not-found --output=name)
  # helm keeps its own CRD at an uninstallation.
  theirs+=$(kubectl get customresourcedefinition tpunodegroups.tpu.google.com --ignore-not-found \
    --output=jsonpath='{.metadata.name}/{.metadata.annotations.meta\.helm\.sh/release-name}')
  case $theirs in '' | tpunodegroups.tpu.google.com/tpu-functions) return 0 ;; esac
  echo "the objects that kubectl has applied become helm's"
  render_chart "$deployed" | kubectl apply --server-side --force-conflicts --field-manager=helm --filename=- >/dev/null
  kubectl --namespace=tpu-functions delete configmaps --selector=app.kubernetes.io/component=relay --field-selector=metadata.name!=relay,metadata.name!=relay-google-credentials
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
      *Unschedulable*) why="no Node can run its Pod. If all Nodes are control planes or TPU VMs, set pods.onControlPlane: true in $dir/$cluster.yaml" ;;
    esac
    [ "$name" != relay ] || ! grep -q relay-google-key "$deployed" ||
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
  local class='' key name default removals='' ask='kubectl --namespace=tpu-functions get configmap jobsets'
  [ -n "$jobsets" ] && [ -z "$(kubectl get tpusliceclasses --output=name 2>/dev/null)" ] || return 0
  if [ "$jobsets" = gke ]; then class=$(tf output -raw slice_class)
  else
    for key in $($ask --output=go-template="{{range \$key, \$_ := .data}}{{println \$key}}{{end}}"); do
      case $key in
        template) name=default default=$'\n  isDefault: true' ;;
        template.?*) name=${key#template.} default='' ;;
        *) continue ;;
      esac
      class+=${class:+$'\n---\n'}$'apiVersion: tpu-functions.dev/v1alpha1\nkind: TPUSliceClass\nmetadata:\n  name: '$name$'\nspec:'$default$'\n  template:\n'
      class+=$($ask --output=go-template="{{index .data \"$key\"}}" | sed '/^apiVersion:/d; /^kind:/d; s/^/    /')
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

# Terraform keeps a pause: its end is for whoever paused.
report_pause() {
  if [ "$(gcloud scheduler jobs describe "$prefix-sweep" --location="$sweep_region" --project="$project" --format='value(state)')" = PAUSED ]; then
    echo "note: the sweep is paused; to resume it:"
    echo "  gcloud scheduler jobs resume $prefix-sweep --location=$sweep_region --project=$project"
  fi
}

# The permissions of the steps go last, and the tokens of their ServiceAccounts with them.
uninstall() {
  confirm "Delete the chart in $context? The functions stay, and have no permissions in the cluster."
  helm uninstall tpu-functions --namespace=tpu-functions --ignore-not-found --wait || fail "helm has not uninstalled the chart. To keep it: $command $cluster"
  kubectl --namespace=tpu-functions delete configmap kubectl-tng --ignore-not-found
  print_heading "Uninstalled. What remains:"
  echo "in the cluster: $(list_own_objects namespaces,customresourcedefinitions,secrets | tr '\n' ' ')"
  if is_new; then echo "on Google Cloud: nothing"
  else
    echo "on Google Cloud: $(count_resources) resource(s) of Terraform in $projects. The sweep fails each minute; to pause it:"
    echo "  gcloud scheduler jobs pause $prefix-sweep --location=$sweep_region --project=$project"
  fi
  echo "To delete all of it: $command --destroy $cluster"
}

# Deletes Terraform's resources first: no group needs the functions any more, and an interrupted run can be
# repeated while the objects are in the cluster.
destroy() {
  local left kinds=namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts
  print_heading "Google Cloud" && tf plan -destroy -input=false -var-file="$settings" -out="$temporary/plan"
  print_heading "Cluster" && echo "then all objects of the chart are deleted from $context"
  confirm "Uninstall tpu-functions from $context and from $projects?"
  check_nothing_left # again: groups may have been created before the confirmation
  stop_on_problems
  kubectl annotate namespace kube-system "$annotation_key-"
  tf apply -input=false "$temporary/plan"
  helm uninstall tpu-functions --namespace=tpu-functions --ignore-not-found --no-hooks --wait
  kubectl delete --ignore-not-found --filename=infra/chart/manifests/base/crd.yaml --filename=infra/chart/manifests/jobsets/class-crd.yaml
  kubectl delete --ignore-not-found --filename=infra/chart/manifests/namespace.yaml
  kinds+=,deployments,daemonsets,services,configmaps,mutatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings
  left=$(list_own_objects "$kinds")
  print_heading "Uninstalled. $dir remains$(sed -n 's/^[^#]*bucket *= *"\([^"]*\)".*/, and the bucket \1 of the state/p' "$backend")."
  [ -z "$federation" ] || echo "Google keeps the id of the workload identity pool for 30 days: to install again before, set another pool_id in $settings"
  [ -z "$left" ] || printf 'These objects remain in the cluster, because the chart does not have them; delete what is not needed:\n%s\n' "$left"
}

main "$@"
