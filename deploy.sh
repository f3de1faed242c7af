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
#   --images REPOSITORY:TAG  where the images relay and inject-env are; without it, Cloud Build makes them
#   --docker                 build and push them with docker instead
#   --yes                    do not ask
set -euo pipefail

main() {
  read_arguments "$@"
  cd "$(dirname "$0")"
  temporary=$(mktemp -d) && trap 'rm -rf "$temporary"' EXIT
  check_tools
  read_settings
  check_cloud
  check_cluster
  stop_if_missing
  "$mode"
}

read_arguments() {
  mode=install images='' builder=cloud-build assumes_yes=false cluster=''
  while [ $# -gt 0 ]; do
    case $1 in
      --dry-run) mode=show_plan ;;
      --destroy) mode=destroy ;;
      --images) images=${2:?--images needs REPOSITORY:TAG}; shift ;;
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

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'deploy.sh: %s\n' "$*" >&2 && exit 1; }
tf() { terraform -chdir=infra/terraform "$@"; }
setting() { tf console -var-file="$cluster.tfvars" <<<"$1" | sed 's/^"\(.*\)"$/\1/'; }

missing=() # said at once, with what mends it
miss() { missing+=("$1"$'\n'"      $2"); }

stop_if_missing() {
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  printf 'deploy.sh: %d thing(s) missing; nothing was changed\n' "${#missing[@]}" >&2
  printf '\n  - %s\n' "${missing[@]}" >&2
  exit 1
}

check_tools() {
  local tool
  for tool in gcloud terraform kubectl curl; do
    command -v "$tool" >/dev/null || miss "$tool is not installed" "install $tool, and put it on PATH"
  done
  [ "$builder" != docker ] || docker info >/dev/null 2>&1 || miss "docker does not answer" "start it, or leave --docker out"
  [ -f "infra/terraform/$cluster.tfvars" ] ||
    miss "there is no infra/terraform/$cluster.tfvars" "begin with one of infra/terraform/examples"
  stop_if_missing
}

read_settings() {
  say "Settings of $cluster"
  tf init -input=false >"$temporary/init" || fail "terraform init failed: $(tail -n 20 "$temporary/init")"
  if [ "$(tf workspace show)" != "$cluster" ]; then tf workspace select -or-create "$cluster" >/dev/null; fi
  project=$(setting var.project_id) region=$(setting var.region)
  prefix=$(setting var.name_prefix) jobsets=$(setting var.jobset_provider)
  read -ra projects <<<"$(setting 'join(" ", distinct(concat([var.project_id], var.projects, [for pools in var.node_pools[*] : coalesce(pools.project_id, var.project_id)])))')"
  read -ra secrets <<<"$(setting 'join(" ", values(coalesce(var.cluster_access.kubeconfig_secrets, {})))')"
  overlay=infra/kubernetes/overlays/$cluster
  echo "project $project, region $region, TPUs in ${projects[*]}, context $(kubectl config current-context)"
}

check_cloud() {
  local one apis secret
  # By a file that only its owner reads: what stands on a command line, everybody on the machine sees.
  (umask 077; gcloud auth print-access-token 2>/dev/null | sed 's/^/Authorization: Bearer /' >"$temporary/header") ||
    miss "gcloud has no account" "gcloud auth login"
  gcloud auth application-default print-access-token >/dev/null 2>&1 ||
    miss "Terraform has no credentials" "gcloud auth application-default login"
  [ ${#missing[@]} -eq 0 ] || return 0 # without them, nothing else of the cloud can be asked
  for one in "${projects[@]}"; do
    gcloud projects describe "$one" >/dev/null 2>&1 ||
      { miss "project $one is not there, or not for you to see" "gcloud projects describe $one"; continue; }
    apis=$(gcloud services list --enabled --project="$one" --format='value(config.name)')
    check_api "$one" compute "$apis"
    check_permissions "$one" resourcemanager.projects.setIamPolicy iam.roles.create logging.sinks.create
  done
  apis=$(gcloud services list --enabled --project="$project" --format='value(config.name)' 2>/dev/null || true)
  for one in serviceusage cloudresourcemanager iam; do check_api "$project" "$one" "$apis"; done
  [ -n "$images" ] || check_api "$project" artifactregistry "$apis"
  [ -n "$images" ] || [ "$builder" = docker ] || check_api "$project" cloudbuild "$apis"
  check_permissions "$project" cloudfunctions.functions.create pubsub.topics.create iam.serviceAccounts.create \
    storage.buckets.create cloudscheduler.jobs.create serviceusage.services.enable
  for secret in "${secrets[@]}"; do
    [ -n "$(gcloud secrets versions list "$secret" --project="$project" --filter=state=ENABLED --limit=1 --format='value(name)' 2>/dev/null)" ] ||
      miss "secret $secret is not there, or has no kubeconfig in it" "docs/install.md, Kubeconfigs"
  done
}

check_api() { # PROJECT API ENABLED
  grep -qx "$2.googleapis.com" <<<"$3" ||
    miss "project $1: the API $2.googleapis.com is off" "gcloud services enable $2.googleapis.com --project=$1"
}

check_permissions() { # PROJECT PERMISSION...
  local at=$1 one granted base=${CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER:-https://cloudresourcemanager.googleapis.com/}
  shift
  granted=$(curl --silent --show-error --fail --header "@$temporary/header" --header 'Content-Type: application/json' \
    --data "{\"permissions\": [$(printf '"%s",' "$@" | sed 's/,$//')]}" "${base}v1/projects/$at:testIamPermissions") ||
    { miss "project $at: your rights cannot be asked for" "gcloud projects get-iam-policy $at"; return; }
  for one in "$@"; do
    grep -q "\"$one\"" <<<"$granted" ||
      miss "project $at: you lack $one" "gcloud projects add-iam-policy-binding $at --member=user:YOU --role=ROLE"
  done
}

check_cluster() {
  local version
  version=$(kubectl get --raw /version 2>"$temporary/kubectl") ||
    { miss "the cluster does not answer: $(head -n 1 "$temporary/kubectl")" "kubectl config use-context CONTEXT"; return; }
  minor=$(sed -n 's/.*"minor": *"\([0-9]*\).*/\1/p' <<<"$version")
  if [ "$mode" = destroy ]; then check_nothing_left; fi
  [ "$minor" -ge 30 ] || echo "Kubernetes 1.$minor has no ValidatingAdmissionPolicies: rights on Secrets stay wide (SECURITY.md)"
  kubectl auth can-i '*' '*' --all-namespaces >/dev/null 2>&1 ||
    miss "you are no administrator of the cluster" "kubectl create clusterrolebinding you-admin --clusterrole=cluster-admin --user=YOU"
  [ -z "$jobsets" ] || [ "$mode" = destroy ] || kubectl get customresourcedefinitions jobsets.jobset.x-k8s.io >/dev/null 2>&1 ||
    miss "JobSet is not in the cluster, and jobset_provider is $jobsets" "https://jobset.sigs.k8s.io/docs/installation"
  ! kubectl get customresourcedefinitions workloadpolicies.tpu.google.com >/dev/null 2>&1 ||
    echo "tpu-operator is in this cluster: its groups are left alone (docs/migrate-from-tpu-operator.md)"
}

# What cannot be asked ends the run: kubectl or gcloud has said why.
check_nothing_left() {
  local found at
  found=$(kubectl get customresourcedefinitions tpunodegroups.tpu.google.com --ignore-not-found --output=name)
  [ -z "$found" ] || found=$(kubectl get tpunodegroups --all-namespaces --no-headers -o custom-columns=:.metadata.namespace,:.metadata.name)
  [ -z "$found" ] || miss "there are TPUNodeGroups, whose slices nobody would delete: $(awk '{printf "%s/%s ", $1, $2}' <<<"$found")" \
    "kubectl delete tpunodegroups --all --all-namespaces"
  [ "$jobsets" = gke ] || return 0
  read -ra at <<<"$(setting 'join(" ", flatten([for pools in var.node_pools[*] : [coalesce(pools.project_id, var.project_id), pools.location, pools.cluster]]))')"
  # GKE is asked: a pool that is being made, or has failed, has no Nodes and costs all the same.
  found=$(gcloud container node-pools list --project="${at[0]}" --location="${at[1]}" --cluster="${at[2]}" --format='value(name,config.labels)' |
    awk '/google.com\/nodepool-manager=tpu-provisioner/ {print $1}')
  [ -z "$found" ] || miss "there are node pools of JobSets, which nobody would delete: $(tr '\n' ' ' <<<"$found")" \
    "delete the JobSets that they were made for, and wait until they are gone"
}

confirm() {
  $assumes_yes && return
  read -rp "$1 [y/N] " || true
  [[ $REPLY == [yY]* ]] || fail "not confirmed; nothing was changed"
}

show_plan() {
  say "Google Cloud" && tf plan -input=false -var-file="$cluster.tfvars"
  say "Cluster"
  if [ -d "$overlay/deployed" ]; then
    kubectl diff --kustomize "$overlay" && echo "no change" || [ $? -eq 1 ] || fail "kubectl diff failed"
  else echo "$overlay would be made of Terraform's outputs, and applied"; fi
  say "Nothing was changed"
}

install() {
  say "Google Cloud" && tf plan -input=false -var-file="$cluster.tfvars" -out="$temporary/plan"
  confirm "Apply this to $project, and the manifests to $(kubectl config current-context)?"
  if [ -z "$images" ]; then build_images; fi
  tf apply -input=false "$temporary/plan"
  say "Cluster" && write_overlay
  kubectl apply --kustomize "$overlay"
  kubectl --namespace=tpu-functions rollout status deployment/relay --timeout=180s
  check_policy
  say "What Terraform says" && tf output
  check_path
  say "Installed, and at work"
}

build_images() {
  local name tag repository=$region-docker.pkg.dev/$project/tpu-functions
  say "Images" && tag=$(git describe --always --dirty 2>/dev/null || date +%Y%m%d%H%M%S) && images=$repository:$tag
  gcloud artifacts repositories describe tpu-functions --location="$region" --project="$project" >/dev/null 2>&1 ||
    gcloud artifacts repositories create tpu-functions --repository-format=docker --location="$region" --project="$project"
  if [ "$builder" = cloud-build ]; then
    gcloud builds submit --project="$project" --region="$region" --config=infra/cloudbuild.yaml \
      --ignore-file=infra/cloudbuild.gcloudignore --substitutions="_REPOSITORY=$repository,_TAG=$tag" .
  else for name in relay inject-env; do
    docker build --file "${name/inject-env/webhook}/Dockerfile" --tag "$repository/$name:$tag" . && docker push "$repository/$name:$tag"
  done; fi
}

# The overlay is the user's; the component in it is written anew each time, of Terraform's outputs.
write_overlay() {
  local name to=$overlay/deployed && mkdir -p "$to"
  { tf output -raw component && echo images:; } >"$to/kustomization.yaml"
  for name in relay inject-env; do
    printf '  - {name: tpu-functions-%s, newName: "%s/%s", newTag: "%s"}\n' $name "${images%:*}" $name "${images##*:}" >>"$to/kustomization.yaml"
  done
  [ -f "$overlay/kustomization.yaml" ] || { tf output -raw overlay >"$overlay/kustomization.yaml" && echo "$overlay is made; it is yours to change and to keep"; }
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
# log. The first call of a new instance may fail: it is asked three times.
check_path() {
  local id found=''
  for _ in {1..3}; do
    id=$(gcloud pubsub topics publish "$prefix-label-node" --project="$project" --format='value(messageIds[0])' \
      --message='{"version": 1, "kind": "TPUNodeGroup", "namespace": "default", "name": "smoke-check", "uid": "00000000-0000-0000-0000-000000000000", "cause": "Sync", "at": "'"$(date -u +%Y-%m-%dT%H:%M:%SZ)"'"}')
    for _ in {1..15}; do
      found=$(gcloud logging read "jsonPayload.message_id=\"$id\"" --project="$project" --freshness=1h --limit=1 --format='value(jsonPayload.decision,jsonPayload.note)')
      case $found in GroupGone*) echo "a message was handled, and the cluster asked"; return ;; ?*) break ;; *) sleep 4 ;; esac
    done
  done
  fail "all is there, but label_node cannot do its work: ${found:-"message $id left no line in its log"}"$'\n'"mend that (docs/cluster-access.md), and run this again; its log: gcloud logging read 'resource.labels.service_name:label-node' --project=$project --limit=20"
}

destroy() {
  confirm "Take tpu-functions away from $(kubectl config current-context) and from ${projects[*]}?"
  if [ -d "$overlay" ]; then kubectl delete --ignore-not-found --kustomize "$overlay"; fi
  tf destroy -input=false -auto-approve -var-file="$cluster.tfvars"
  say "Gone. $overlay, infra/terraform/$cluster.tfvars and the relay's images are left."
}

main "$@"
