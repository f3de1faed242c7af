#!/usr/bin/env bash
# The checks that deploy.sh makes before it changes anything; it sources this file. All problems are collected and
# reported together, each with a remedy. Works in bash 3.2, where empty arrays fail with `set -u`: lists are strings
# of words.
# shellcheck disable=SC2034,SC2154  # deploy.sh reads some of these variables, and sets others

problems='' problem_count=0 rejection='' installed='' annotation_key=tpu-functions.dev/installation-id pool_label=google.com/nodepool-manager=tpu-provisioner
add_problem() { # PROBLEM REMEDY
  problems+=$'\n'"  - $1"$'\n'"      $2"$'\n' problem_count=$((problem_count + 1))
}

is_installed() { command -v "$1" >/dev/null; }

stop_on_problems() {
  [ -z "$rejection" ] || printf 'deploy.sh: %s\n' "$rejection" >&2
  if [ "$problem_count" -eq 0 ] && [ -z "$rejection" ]; then return; fi
  [ "$problem_count" -ne 0 ] || exit 1
  printf 'deploy.sh: %d problem(s); nothing was changed\n%s' "$problem_count" "$problems" >&2
  exit 1
}

check_tools() {
  local tool
  for tool in gcloud terraform kubectl helm curl; do
    is_installed "$tool" || add_problem "$tool is not installed" "install $tool, and put it on PATH"
  done
  ! is_installed helm || [[ $(helm template --help) == *--take-ownership* ]] || add_problem "helm is older than 3.17" "install a newer one"
  [ "$builder" != docker ] || docker info >/dev/null 2>&1 || add_problem "docker does not answer" "start it, or omit --docker"
  is_first_run || check_files
  context=none
  if is_installed kubectl; then context=$(kubectl config current-context 2>/dev/null) || context=none; fi
  # Whoever switches the current context during a run does not switch that of the run. Variables of helm's would lead helm alone to
  # another cluster.
  [ "$context" = none ] || printf "apiVersion: v1\nkind: Config\ncurrent-context: '%s'\n" "$context" >"$temporary/context"
  [ "$context" = none ] || export KUBECONFIG=$temporary/context:${KUBECONFIG:-$HOME/.kube/config} HELM_KUBECONTEXT=$context
  unset HELM_KUBEAPISERVER
}

check_cloud() {
  local one secret apis permissions has_account=true
  # The token is in a file that only its owner can read: a command line is visible to all users of the machine.
  (umask 077; gcloud auth print-access-token 2>/dev/null | sed 's/^/Authorization: Bearer /' >"$temporary/header") ||
    { add_problem "gcloud has no account" "gcloud auth login"; has_account=false; }
  gcloud auth application-default print-access-token >/dev/null 2>&1 ||
    { add_problem "Terraform has no credentials" "gcloud auth application-default login"; has_account=false; }
  # The other checks need credentials and settings, and are about changes on Google Cloud.
  if ! $has_account || ! $has_settings || [ "$mode" = uninstall ]; then return 0; fi
  account=$(gcloud config get account 2>/dev/null || true)
  for one in $projects; do
    if ! gcloud projects describe "$one" >/dev/null 2>&1; then
      example=$(describe_placeholder "$one" | sed 's/^ /: it /')
      add_problem "project $one does not exist, or you cannot read it$example" "gcloud projects describe $one"
      continue
    fi
    set_requirements "$one"
    check_apis "$one" "$apis"
    check_permissions "$one" "$permissions"
    if [ "$problem_count" -ne 0 ]; then continue; elif [ "$one" = "$project" ]; then check_prefix; elif ! is_removal; then check_sinks "$one"; fi
  done
  ! is_removal || return 0
  for secret in $secrets; do
    [ -n "$(gcloud secrets versions list "$secret" --project="$project" --filter=state=ENABLED --limit=1 --format='value(name)' 2>/dev/null)" ] ||
      add_problem "secret $secret does not exist, or has no enabled version" "docs/install.md, Kubeconfigs"
  done
}

# Sets apis and permissions: the APIs and permissions that the module and the images need in a project, as far as
# they can be tested on a project. --destroy needs fewer, with `delete` instead of `create`.
set_requirements() { # PROJECT
  apis=compute permissions="resourcemanager.projects.setIamPolicy iam.roles.create logging.sinks.create"
  if [ "$1" = "$project" ]; then
    apis+=" serviceusage cloudresourcemanager iam"
    permissions+=" logging.logMetrics.create cloudfunctions.functions.create run.services.setIamPolicy pubsub.topics.create pubsub.topics.setIamPolicy"
    permissions+=" pubsub.subscriptions.create iam.serviceAccounts.create iam.serviceAccounts.setIamPolicy"
    permissions+=" storage.buckets.create storage.buckets.setIamPolicy cloudscheduler.jobs.create"
    permissions+=" artifactregistry.repositories.create artifactregistry.repositories.setIamPolicy"
    [ -z "$federation" ] || permissions+=" iam.workloadIdentityPools.create"
    [ -z "$secrets$tokens" ] || permissions+=" secretmanager.secrets.setIamPolicy"
    [ -z "$tokens" ] || permissions+=" secretmanager.secrets.create secretmanager.versions.add secretmanager.versions.access"
  fi
  if [ "$mode" = destroy ]; then apis=${apis#compute} permissions=${permissions//.create/.delete}
  else
    permissions+=" serviceusage.services.enable"
    [ "$1" != "$project" ] || permissions+=" iam.serviceAccounts.actAs logging.logEntries.list"
    [ "$1" != "$project" ] || [ -n "$images" ] || [ "$builder" = docker ] || permissions+=" cloudbuild.builds.create"
  fi
}

# Names are unique in a project. Without this check Terraform would fail in the middle, beside the other installation.
check_prefix() {
  local found
  if has_resource 'google_service_account.step["label_node"]'; then return 0; fi
  found=$(gcloud iam service-accounts list --project="$project" --filter="email~^$prefix-label-node@" --format='value(email)' 2>"$temporary/gcloud") || {
    add_problem "project $project: it cannot be checked whether another installation has the prefix $prefix: $(head -n 1 "$temporary/gcloud")" \
      "$(render_grant "$project" roles/iam.serviceAccountViewer)"
    return
  }
  [ -z "$found" ] || add_problem "project $project has another installation with prefix $prefix: $found is not in Terraform's state of $cluster" \
    "set another name_prefix in $settings; or run it where the state of that installation is (docs/install.md, Upgrade)"
}

# So are the names of sinks and roles in a served project.
check_sinks() { # PROJECT
  local found
  if grep -qF "google_logging_project_sink.step[\"$1/" <<<"$resources"; then return 0; fi
  found=$(gcloud logging sinks list --project="$1" --filter="name~^$prefix-(label-node|provision-slice)\$" --format='value(destination)' 2>"$temporary/gcloud") || {
    add_problem "project $1: it cannot be checked whether another installation with the prefix $prefix serves it: $(head -n 1 "$temporary/gcloud")" \
      "$(render_grant "$1" roles/logging.configWriter)"
    return
  }
  [ -z "$found" ] || add_problem "project $1 is served by another installation with prefix $prefix: a log sink exports to $(head -n 1 <<<"$found")" \
    "set another name_prefix in $settings"
}

check_apis() { # PROJECT "API ..."
  local one enabled
  [ -n "$2" ] || return 0
  enabled=$(gcloud services list --enabled --project="$1" --format='value(config.name)' 2>"$temporary/gcloud") || {
    add_problem "project $1: its APIs cannot be listed: $(head -n 1 "$temporary/gcloud")" "$(render_grant "$1" roles/serviceusage.serviceUsageViewer)"
    return
  }
  for one in $2; do
    grep -qx "$one.googleapis.com" <<<"$enabled" ||
      add_problem "project $1: the API $one.googleapis.com is disabled" "gcloud services enable $one.googleapis.com --project=$1"
  done
}

check_permissions() { # PROJECT "PERMISSION ..."
  local one answer why granted='' unknown=''
  # Google rejects a request with an unknown permission as a whole: then each permission is tested separately.
  granted=$(test_permissions "$1" "$2" 2>/dev/null) || for one in $2; do
    if answer=$(test_permissions "$1" "$one" 2>"$temporary/curl"); then granted+=$answer; else unknown+=" $one"; fi
  done
  if [ "$unknown" = " $2" ]; then
    why=$(head -n 1 "$temporary/curl")
    add_problem "project $1: your permissions cannot be checked: $why" "gcloud projects get-iam-policy $1"
    return
  fi
  [ -z "$unknown" ] || echo "project $1: these permissions cannot be checked:$unknown"
  for one in $2; do
    case "$unknown " in *" $one "*) continue ;; esac
    grep -q "\"$one\"" <<<"$granted" || add_problem "project $1: you lack $one" "$(render_grant "$1" "$(find_role "$one")")"
  done
}

test_permissions() { # PROJECT "PERMISSION ..."
  local comma='", "' base=${CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER:-https://cloudresourcemanager.googleapis.com/}
  curl --silent --show-error --fail --header "@$temporary/header" --header 'Content-Type: application/json' \
    --data "{\"permissions\": [\"${2// /$comma}\"]}" "${base}v1/projects/$1:testIamPermissions"
}

render_grant() { # PROJECT ROLE
  local member=user:${account:-YOU}
  case $member in *.gserviceaccount.com) member=serviceAccount:$account ;; esac
  echo "gcloud projects add-iam-policy-binding $1 --member=$member --role=$2"
}

find_role() { # PERMISSION
  case $1 in
    resourcemanager.projects.*) echo roles/resourcemanager.projectIamAdmin ;;
    iam.roles.*) echo roles/iam.roleAdmin ;;
    iam.serviceAccounts.actAs) echo roles/iam.serviceAccountUser ;;
    iam.serviceAccounts.*) echo roles/iam.serviceAccountAdmin ;;
    iam.workloadIdentityPools.*) echo roles/iam.workloadIdentityPoolAdmin ;;
    logging.logEntries.list) echo roles/logging.viewer ;;
    logging.*) echo roles/logging.configWriter ;;
    serviceusage.*) echo roles/serviceusage.serviceUsageAdmin ;;
    cloudbuild.*) echo roles/cloudbuild.builds.editor ;;
    *) echo "roles/${1%%.*}.admin" ;; # of Artifact Registry, Cloud Run, Pub/Sub and the others
  esac
}

check_cluster() {
  local version before=$problem_count
  version=$(kubectl get --raw /version 2>"$temporary/kubectl") || {
    add_problem "the cluster does not answer: $(head -n 1 "$temporary/kubectl")" "kubectl config use-context CONTEXT$(suggest_destroy)"
    return
  }
  minor=$(sed -n 's/.*"minor": *"\([0-9]*\).*/\1/p' <<<"$version")
  case $version in *-gke.*) is_gke=true ;; *) is_gke=false ;; esac
  $has_settings || return 0
  check_context
  [ "$problem_count" -eq "$before" ] || return 0 # the other answers would be about another cluster
  kubectl auth can-i '*' '*' --all-namespaces >/dev/null 2>&1 ||
    add_problem "you are not an administrator of the cluster" "kubectl create clusterrolebinding you-admin --clusterrole=cluster-admin --user=YOU"
  if is_removal; then check_nothing_left; else check_requirements "$version"; fi
  ! kubectl get customresourcedefinitions workloadpolicies.tpu.google.com >/dev/null 2>&1 ||
    echo "tpu-operator is installed in this cluster; its groups are not changed (docs/migrate-from-tpu-operator.md)"
}

# What an installation needs of the cluster.
check_requirements() { # VERSION
  check_image_pulls
  check_join_approval "$1"
  [ "$minor" -ge 30 ] || add_problem "Kubernetes 1.$minor has no ValidatingAdmissionPolicies, which restrict permissions on Secrets and Nodes" "upgrade the cluster to 1.30 or newer"
  [ -z "$jobsets" ] || [ "$workloads" = true ] || kubectl get customresourcedefinitions jobsets.jobset.x-k8s.io >/dev/null 2>&1 ||
    add_problem "jobset_provider is $jobsets, but JobSet is not installed in the cluster" "https://jobset.sigs.k8s.io/docs/installation"
  if is_installed helm; then check_release; check_values; fi
  check_provider
  ! $is_gke || [ "$jobsets" = gke ] ||
    echo "this cluster is on GKE: no VM of a TPUNodeGroup can join it by kubeadm; for slices of JobSets, set jobset_provider = \"gke\" (docs/install.md, A cluster)"
}

# The functions that release slices of workloads would be deleted, look for slices of the other provider, or not handle the
# workloads. An installed TPU Provisioner takes node pools over again.
check_provider() {
  local home location name left='' setting="jobset_provider = \"$jobsets\"" marks=$pool_label selector=tpu-functions.dev/jobset-name
  if ! has_resource 'google_pubsub_topic.step["release_slice"]'; then return 0; fi
  if [ "$jobsets" = "$slices" ]; then
    if [ "$workloads" = true ] || ! had_workloads; then return 0; fi
    setting="slice_workloads = false" marks=tpu-functions.dev/unit= selector=tpu-functions.dev/unit-kind
  fi
  if [ "$slices" = gke ]; then
    if [ "$jobsets" = gke ] || ! has_tpu_provisioner; then read_pools; left=$(list_pools "$marks"); fi
  elif [ -n "$(kubectl get customresourcedefinitions tpunodegroups.tpu.google.com --ignore-not-found --output=name)" ]; then
    left=$(kubectl get tpunodegroups --all-namespaces --selector="$selector" --output=name)
  fi
  [ -z "$left" ] || add_problem "slices of workloads exist, and with $setting nobody would release them: $(tr '\n' ' ' <<<"$left")" \
    "restore ${setting%% *}, and delete the workloads; change it when the slices are gone"
}

# helm refuses to work on a release whose last run has not ended. A release names the oldest one to which it can go back.
check_release() {
  local status oldest
  status=$(read_release_status)
  case $status in pending-*)
    add_problem "the release tpu-functions is $status: helm is still running, or it was interrupted" \
      "if it does not run: kubectl --namespace=tpu-functions delete secrets --selector=owner=helm,name=tpu-functions,status=$status" ;;
  esac
  release=$(sed -n 's/^appVersion: //p' infra/chart/Chart.yaml)
  installed=$(read_metadata appVersion) # helm's own labels have a version, too
  [ -n "$installed" ] || [ -z "$(list_installations)" ] || installed='before the chart'
  oldest=$(read_metadata tpu-functions.dev/oldest-downgrade)
  [ -z "$oldest" ] || ! is_older "$release" "${oldest%%:*}" ||
    add_problem "version $installed is installed, from which there is no way back to $release: ${oldest#*: }" "use the release ${oldest%%:*}, or a newer one"
}

# Without this check helm would reject them after Terraform's changes. The values that follow from the settings are those of
# the last run, which another version may have written: values that are valid without them are accepted.
check_values() {
  if [ -z "$values" ] || { [ -f "$deployed" ] && render_values "--values=$deployed"; } || render_values; then return 0; fi
  add_problem "$values: $(sed -n -e '/^Use --debug/d' -e '/^Error: /,$p' "$temporary/helm" | sed 's/^Error: //' | tr -s '\n ' ' ')" \
    "correct it (docs/kubernetes-manifests.md)"
}

render_values() { # [FLAG]
  helm template tpu-functions infra/chart --namespace=tpu-functions --set-string="project=$project" "$@" "--values=$values" >/dev/null 2>"$temporary/helm"
}

read_metadata() { # KEY
  helm get metadata tpu-functions --namespace=tpu-functions --output=json 2>/dev/null | sed -n 's,.*"'"$1"'": *"\([^"]*\)".*,\1,p' || true
}

rank='function rank(version,  part) { split(version, part, /[.-]/); return (part[1] * 1000 + part[2]) * 1000 + part[3] }'
is_older() { awk -v one="$1" -v other="$2" "$rank"' BEGIN { exit rank(one) >= rank(other) }'; } # VERSION VERSION

read_release_status() {
  helm status tpu-functions --namespace=tpu-functions --output=json 2>/dev/null | sed -n 's/.*"status": *"\([a-z-]*\)".*/\1/p' || true
}

# GKE's kubelets pull from Artifact Registry with their Nodes' account. The setup of other kubelets cannot be
# read: a relay that runs from that registry proves that they can pull; otherwise the user must say so.
check_image_pulls() {
  local from=${relay_image:-$region-docker.pkg.dev/} runs
  ! $is_release || return 0
  from=${from%%/*}
  case $from in *-docker.pkg.dev | gcr.io | *.gcr.io) ;; *) return 0 ;; esac
  if $is_gke || $nodes_pull; then return 0; fi
  runs=$(kubectl --namespace=tpu-functions get deployment relay --ignore-not-found \
    --output=jsonpath='{.status.availableReplicas} {.spec.template.spec.containers[0].image}' 2>/dev/null || true)
  case $runs in [1-9]*" $from/"*) return 0 ;; esac
  ! has_pull_secret || return 0
  add_problem "the Nodes of this cluster need credentials to pull images from $from" \
    "pass the --images of the last run; or create the Secret tpu-functions-images; or set up a credential provider and pass --nodes-pull; or use other --images (docs/install.md, Images)"
}

# Each bootstrap token is also in the group system:bootstrappers and has its permissions. VMs cannot join GKE with
# a token.
check_join_approval() { # VERSION
  local may
  case $1 in *-gke.*) return 0 ;; esac
  if [ "$approval" = external ]; then
    echo "join_approval is external: the holder of a VM's token can become any Node (docs/decisions/one-token-one-vm.md)"
    return
  fi
  may=$(kubectl auth can-i create certificatesigningrequests.certificates.k8s.io --subresource=nodeclient --as=system:bootstrap:aaaaaa \
    --as-group=system:bootstrappers --as-group=system:bootstrappers:tpu-functions --as-group=system:authenticated 2>/dev/null) || true
  case $may in
    no*) return 0 ;;
    yes*) ;;
    *) add_problem "it cannot be checked whether the cluster approves the requests of bootstrap tokens" "kubectl auth can-i create certificatesigningrequests.certificates.k8s.io --subresource=nodeclient --as=system:bootstrap:aaaaaa --as-group=system:bootstrappers"
      return 0 ;;
  esac
  add_problem "the cluster approves the requests of all bootstrap tokens, so that each token fits every Node" \
      "remove system:bootstrappers from the ClusterRoleBindings to system:certificates.k8s.io:certificatesigningrequests:nodeclient, or set join_approval = \"external\""
}

has_pull_secret() { kubectl --namespace=tpu-functions get secret tpu-functions-images >/dev/null 2>&1; }

suggest_destroy() {
  [ "$mode" != destroy ] ||
    echo "; if the cluster no longer exists, or never had tpu-functions: terraform -chdir=infra/terraform destroy -var-file=$(printf %q "$settings") (docs/install.md, A cluster that is gone)"
}

# State, settings and kubectl's context must belong to one installation. Only the first difference is reported: the
# others follow from it.
check_context() {
  local installations one
  if ! read_cluster; then
    add_problem "it cannot be checked which cluster context $context is: $(head -n 1 "$temporary/kubectl")" \
      "kubectl get namespace kube-system --output=yaml; kubectl --namespace=default get endpointslices kubernetes"
    return
  fi
  installations=$(list_installations 2>"$temporary/kubectl") || {
    add_problem "the relay's settings in context $context cannot be read: $(head -n 1 "$temporary/kubectl")" "kubectl config use-context CONTEXT"
    return
  }
  if [ "${state_settings:-$project/$prefix-}" != "$project/$prefix-" ]; then
    add_problem "$settings is project $project with prefix $prefix-, but Terraform's state of $cluster is project ${state_settings%/*} with prefix ${state_settings#*/}" \
      "restore project_id and name_prefix; an installation with others needs another name than $cluster"
    return
  fi
  for one in $installations; do
    [ "$one" = "$project/$prefix-" ] && continue
    add_problem "context $context has the installation of project ${one%/*} with prefix ${one#*/}, but $cluster is project $project with prefix $prefix-" \
      "kubectl config use-context CONTEXT"
    return
  done
  if [ -n "$installations" ] && ! $is_restored && grep -q '^No state file was found' "$temporary/state"; then
    add_problem "context $context has the installation, but Terraform has no state of $cluster here" \
      "correct $backend, or copy it, or terraform.tfstate.d, from where the state is (docs/install.md, Upgrade)"
    return
  fi
  # The first upgrade to a version with ids may have been interrupted.
  [ -n "$installation_id" ] || [ -z "$installations" ] || is_new || installation_id=$annotation
  difference=$(describe_difference "$installations")
  [ -z "$difference" ] || $is_restored ||
    add_problem "$difference" "kubectl config use-context CONTEXT; if this is the cluster of $cluster, restored or rebuilt: $command --restored $cluster (docs/backups.md)$(suggest_destroy)"
  # Chosen here, because the cluster needs it before the functions do.
  [ -n "$installation_id" ] || installation_id=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  export TF_VAR_installation_id=$installation_id TF_VAR_cluster_identity="$uid $addresses"
}

# The relay's settings in the cluster name the installation that it belongs to.
list_installations() {
  kubectl --namespace=tpu-functions get configmaps --selector=app.kubernetes.io/component=relay \
    --output=jsonpath='{range .items[*]}{.data.PUBSUB_PROJECT}/{.data.TOPIC_PREFIX}{"\n"}{end}' | sed '/^\//d' | sort -u
}

# Sets uid, annotation and addresses: API servers publish theirs (assumed, not seen on GKE).
read_cluster() {
  local seen
  seen=$(kubectl get namespace kube-system --output='jsonpath={.metadata.uid}|{.metadata.annotations.tpu-functions\.dev/installation-id}' 2>"$temporary/kubectl") || return 1
  uid=${seen%%|*} annotation=${seen#*|}
  [ -n "$uid" ] || { echo "Namespace kube-system has no uid" >"$temporary/kubectl" && return 1; }
  addresses=$(kubectl --namespace=default get endpointslices kubernetes --ignore-not-found \
    --output=jsonpath='{.endpoints[*].addresses[*]}' 2>"$temporary/kubectl") || return 1
}

# A copy of a cluster has the same uid and annotation, but its API servers have other addresses.
describe_difference() { # INSTALLATIONS
  read -r recorded_uid recorded_addresses <<<"$recorded"
  if [ "${recorded_uid:-$uid}" != "$uid" ]; then
    echo "context $context is another cluster than that of $cluster: the uid of Namespace kube-system is $uid, not $recorded_uid"
  elif [ "${annotation:-$installation_id}" != "$installation_id" ]; then
    echo "the cluster of context $context belongs to installation $annotation, but $cluster is ${installation_id:-not installed yet}"
  elif [ -n "$addresses" ] && [ -n "$recorded_addresses" ] &&
    ! grep -qxF "$(tr ' ' '\n' <<<"$recorded_addresses")" <<<"$(tr ' ' '\n' <<<"$addresses")"; then
    echo "the cluster of context $context may be a copy of that of $cluster: its API server has the address $addresses, not $recorded_addresses"
  elif [ -z "$1$annotation$recorded" ] && ! is_new; then
    echo "context $context has no installation, but Terraform has $(count_resources) resource(s) of $cluster"
  fi
}

# A failing call ends the run: kubectl or gcloud has printed the reason.
check_nothing_left() {
  local found home location name remedy
  found=$(kubectl get customresourcedefinitions tpunodegroups.tpu.google.com --ignore-not-found --output=name)
  [ -z "$found" ] || found=$(kubectl get tpunodegroups --all-namespaces --no-headers -o custom-columns=:.metadata.namespace,:.metadata.name)
  if [ -n "$found" ]; then
    add_problem "TPUNodeGroups exist, and nothing would delete their slices: $(awk '{printf "%s/%s ", $1, $2}' <<<"$found")" \
      "kubectl delete tpunodegroups --all --all-namespaces"
  else check_leaks; fi
  [ "$slices" = gke ] || return 0
  if [ "$jobsets" != gke ] && has_tpu_provisioner; then return 0; fi
  read_pools
  found=$(list_pools "$pool_label")
  [ -z "$found" ] || add_problem "node pools of JobSets exist, and nothing would delete them: $(tr '\n' ' ' <<<"$found")" \
    "delete their JobSets, and wait until the node pools are gone"
  # Nobody releases node pools of which somebody has replaced the labels.
  remedy="gcloud container node-pools delete NAME --project=$home --location=$location --cluster=$name"
  found=$(grep -v "$pool_label" "$temporary/pools" | awk '$NF ~ /^(ct|tpu)/ {print $1}' | grep -E -e '-[0-9a-f]{16}$' || true)
  [ -z "$found" ] || add_problem "TPU node pools have the names of slices and not their labels, and nobody would report them: $(tr '\n' ' ' <<<"$found")" \
    "$remedy"
}

# Read from GKE: a pool that is being created, or has failed, has no Nodes but is billed.
read_pools() {
  read -r home location name <<<"$slice_pools"
  gcloud container node-pools list --project="$home" --location="$location" --cluster="$name" \
    --format='value(name,config.labels,config.machineType)' >"$temporary/pools"
}

list_pools() { grep -F "$1" "$temporary/pools" | cut -f 1 || true; } # LABEL

has_tpu_provisioner() { [ -n "$(kubectl get deployments --namespace=tpu-provisioner-system --output=name)" ]; }

# The functions report slices that have lost their groups, also in projects that the settings no longer have. The caller may
# lack permissions on Compute Engine.
check_leaks() {
  local one found served
  served=$(sed -n 's,^google_logging_project_sink\.step\["\([^/]*\)/.*,\1,p' <<<"$resources")
  for one in $(tr ' ' '\n' <<<"$projects $served" | sort -u); do
    found=$(gcloud compute instance-groups managed list --project="$one" --filter="name~^tng- AND description~$uid" --format='value(name)' 2>"$temporary/gcloud") ||
      { echo "note: project $one: it cannot be checked whether slices are left: $(head -n 1 "$temporary/gcloud")"; continue; }
    [ -z "$found" ] || add_problem "project $one has slices whose TPUNodeGroups are gone, and nobody would report them: $(tr '\n' ' ' <<<"$found")" \
      "unless they are of a cluster that was copied from this one or to it (docs/backups.md), delete them: kubectl tng leaks prints the commands"
  done
}

list_own_objects() { # KINDS
  kubectl get "$1" --all-namespaces --selector=app.kubernetes.io/part-of=tpu-functions \
    --output=jsonpath='{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}' | sed 's, /, ,'
}
