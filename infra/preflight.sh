#!/usr/bin/env bash
# What deploy.sh reads and checks before it changes anything; it is sourced, not run. What is missing is
# collected, and said at once with what mends it. Works in bash 3.2: arrays, which that cannot take empty,
# are strings of words.
# shellcheck disable=SC2034,SC2154  # deploy.sh reads some of these variables, and sets others

missing='' misses=0 refused='' has_settings=false
miss() { missing+=$'\n'"  - $1"$'\n'"      $2"$'\n' misses=$((misses + 1)); }

has() { command -v "$1" >/dev/null; }

stop_if_missing() {
  [ -z "$refused" ] || printf 'deploy.sh: %s\n' "$refused" >&2
  if [ "$misses" -eq 0 ] && [ -z "$refused" ]; then return; fi
  [ "$misses" -ne 0 ] || exit 1
  printf 'deploy.sh: %d thing(s) missing; nothing was changed\n%s' "$misses" "$missing" >&2
  exit 1
}

check_tools() {
  local tool
  for tool in gcloud terraform kubectl curl; do
    has "$tool" || miss "$tool is not installed" "install $tool, and put it on PATH"
  done
  [ "$builder" != docker ] || docker info >/dev/null 2>&1 || miss "docker does not answer" "start it, or leave --docker out"
  [ -f "infra/terraform/$cluster.tfvars" ] ||
    miss "there is no infra/terraform/$cluster.tfvars" \
      "copy an example, and fill it in: cp infra/terraform/examples/self-managed-id-token/cluster.tfvars infra/terraform/$cluster.tfvars"
  if [ -f "infra/terraform/$cluster.tfvars" ] && has terraform && has kubectl; then has_settings=true; fi
  context=none
  if has kubectl; then context=$(kubectl config current-context 2>/dev/null) || context=none; fi
}

read_settings() {
  local asked answer
  say "Settings of $cluster"
  if ! tf init -no-color -input=false >"$temporary/init" 2>&1; then
    miss "terraform init failed: $(grep -m 1 -A 4 'Error: ' "$temporary/init" | tr -s '\n│╷╵ ' ' ' || tail -n 1 "$temporary/init")" \
      "terraform -chdir=infra/terraform init says more"
    has_settings=false
    return
  fi
  if [ "$(tf workspace show)" != "$cluster" ]; then tf workspace select -or-create "$cluster" >/dev/null; fi
  asked='var.project_id, var.region, var.name_prefix, var.jobset_provider'
  asked+=', join(" ", distinct(concat([var.project_id], var.projects, [for pools in var.node_pools[*] : coalesce(pools.project_id, var.project_id)])))'
  asked+=', join(" ", values(coalesce(var.cluster_access.kubeconfig_secrets, {})))'
  asked+=', var.relay_identity.workload_identity_federation == null ? "" : "federation"'
  asked+=', join(" ", flatten([for pools in var.node_pools[*] : [coalesce(pools.project_id, var.project_id), pools.location, pools.cluster]]))'
  asked+=', var.join_approval'
  # Warnings come before the answer. A setting that is refused is answered all the same, as an error apart.
  if ! answer=$(tf console -no-color -var-file="$cluster.tfvars" <<<"join(\"|\", [$asked])" 2>"$temporary/console") ||
    grep -q '^Error: ' "$temporary/console"; then
    refused="infra/terraform/$cluster.tfvars: Terraform refuses it"$'\n'"$(sed -n '/^Error: /,$p' "$temporary/console")"
    has_settings=false
    return
  fi
  answer=$(tail -n 1 <<<"$answer" | sed 's/^"\(.*\)"$/\1/')
  IFS='|' read -r project region prefix jobsets projects secrets federation pools approval <<<"$answer"
  resources=$(tf state list -no-color 2>"$temporary/state") || grep -q '^No state file was found' "$temporary/state" ||
    fail "terraform state list failed: $(cat "$temporary/state")"
  resources=$(grep -v '^data\.' <<<"$resources" || true)
  overlay=infra/kubernetes/overlays/$cluster
  echo "project $project, region $region, TPUs in $projects, context $context"
  for answer in $projects; do
    [ -z "$(placeholder "$answer")" ] || echo "note: $answer$(placeholder "$answer")"
  done
}

# The names that the examples have: somebody may have left one in place.
placeholder() { # PROJECT
  case $1 in
    my-gcp-project | my-tpu-project | my-other-tpu-project)
      echo " is the name in the examples; is it yours? infra/terraform/$cluster.tfvars has it" ;;
  esac
}

check_cloud() {
  local one secret apis rights has_account=true
  # By a file that only its owner reads: what stands on a command line, everybody on the machine sees.
  (umask 077; gcloud auth print-access-token 2>/dev/null | sed 's/^/Authorization: Bearer /' >"$temporary/header") ||
    { miss "gcloud has no account" "gcloud auth login"; has_account=false; }
  gcloud auth application-default print-access-token >/dev/null 2>&1 ||
    { miss "Terraform has no credentials" "gcloud auth application-default login"; has_account=false; }
  # Without them, nothing else of the cloud can be asked; without settings, nobody knows about what.
  if ! $has_account || ! $has_settings; then return 0; fi
  account=$(gcloud config get account 2>/dev/null || true)
  for one in $projects; do
    if ! gcloud projects describe "$one" >/dev/null 2>&1; then
      example=$(placeholder "$one" | sed 's/^ /: it /')
      miss "project $one is not there, or not for you to see$example" "gcloud projects describe $one"
      continue
    fi
    name_needs "$one"
    check_apis "$one" "$apis"
    check_permissions "$one" "$rights"
  done
  [ "$mode" != destroy ] || return 0
  for secret in $secrets; do
    [ -n "$(gcloud secrets versions list "$secret" --project="$project" --filter=state=ENABLED --limit=1 --format='value(name)' 2>/dev/null)" ] ||
      miss "secret $secret is not there, or has no kubeconfig in it" "docs/install.md, Kubeconfigs"
  done
}

# Sets apis and rights: what the module and the images need in a project. Only rights that can be asked for
# on a project. What was made is deleted by the right of that name, and there less is needed.
name_needs() { # PROJECT
  apis=compute rights="resourcemanager.projects.setIamPolicy iam.roles.create logging.sinks.create"
  if [ "$1" = "$project" ]; then
    apis+=" serviceusage cloudresourcemanager iam"
    rights+=" cloudfunctions.functions.create run.services.setIamPolicy pubsub.topics.create pubsub.topics.setIamPolicy"
    rights+=" pubsub.subscriptions.create iam.serviceAccounts.create iam.serviceAccounts.setIamPolicy"
    rights+=" storage.buckets.create storage.buckets.setIamPolicy cloudscheduler.jobs.create"
    rights+=" artifactregistry.repositories.create artifactregistry.repositories.setIamPolicy"
    [ -z "$federation" ] || rights+=" iam.workloadIdentityPools.create"
    [ -z "$secrets" ] || rights+=" secretmanager.secrets.setIamPolicy"
  fi
  if [ "$mode" = destroy ]; then
    apis=${apis#compute} rights=${rights//.create/.delete}
  elif [ "$1" = "$project" ]; then
    rights+=" iam.serviceAccounts.actAs serviceusage.services.enable"
    [ -n "$images" ] || [ "$builder" = docker ] || rights+=" cloudbuild.builds.create"
  fi
}

check_apis() { # PROJECT "API ..."
  local one enabled
  [ -n "$2" ] || return 0
  enabled=$(gcloud services list --enabled --project="$1" --format='value(config.name)' 2>"$temporary/gcloud") || {
    miss "project $1: its APIs cannot be listed: $(head -n 1 "$temporary/gcloud")" "$(grant "$1" roles/serviceusage.serviceUsageViewer)"
    return
  }
  for one in $2; do
    grep -qx "$one.googleapis.com" <<<"$enabled" ||
      miss "project $1: the API $one.googleapis.com is off" "gcloud services enable $one.googleapis.com --project=$1"
  done
}

check_permissions() { # PROJECT "PERMISSION ..."
  local one answer why granted='' unknown=''
  # One that Google does not know makes it refuse the whole question: then each is asked for alone.
  granted=$(ask_permissions "$1" "$2" 2>/dev/null) || for one in $2; do
    if answer=$(ask_permissions "$1" "$one" 2>"$temporary/curl"); then granted+=$answer; else unknown+=" $one"; fi
  done
  if [ "$unknown" = " $2" ]; then
    why=$(head -n 1 "$temporary/curl")
    miss "project $1: your rights cannot be asked for: $why" "gcloud projects get-iam-policy $1"
    return
  fi
  [ -z "$unknown" ] || echo "project $1: whether you have these rights cannot be asked:$unknown"
  for one in $2; do
    case "$unknown " in *" $one "*) continue ;; esac
    grep -q "\"$one\"" <<<"$granted" || miss "project $1: you lack $one" "$(grant "$1" "$(role_with "$one")")"
  done
}

ask_permissions() { # PROJECT "PERMISSION ..."
  local comma='", "' base=${CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER:-https://cloudresourcemanager.googleapis.com/}
  curl --silent --show-error --fail --header "@$temporary/header" --header 'Content-Type: application/json' \
    --data "{\"permissions\": [\"${2// /$comma}\"]}" "${base}v1/projects/$1:testIamPermissions"
}

grant() { # PROJECT ROLE
  local member=user:${account:-YOU}
  case $member in *.gserviceaccount.com) member=serviceAccount:$account ;; esac
  echo "gcloud projects add-iam-policy-binding $1 --member=$member --role=$2"
}

role_with() { # PERMISSION
  case $1 in
    resourcemanager.projects.*) echo roles/resourcemanager.projectIamAdmin ;;
    iam.roles.*) echo roles/iam.roleAdmin ;;
    iam.serviceAccounts.actAs) echo roles/iam.serviceAccountUser ;;
    iam.serviceAccounts.*) echo roles/iam.serviceAccountAdmin ;;
    iam.workloadIdentityPools.*) echo roles/iam.workloadIdentityPoolAdmin ;;
    logging.*) echo roles/logging.configWriter ;;
    serviceusage.*) echo roles/serviceusage.serviceUsageAdmin ;;
    cloudbuild.*) echo roles/cloudbuild.builds.editor ;;
    *) echo "roles/${1%%.*}.admin" ;; # of Artifact Registry, Cloud Run, Pub/Sub and the others
  esac
}

check_cluster() {
  local version
  version=$(kubectl get --raw /version 2>"$temporary/kubectl") || {
    miss "the cluster does not answer: $(head -n 1 "$temporary/kubectl")" "kubectl config use-context CONTEXT$(if_gone)"
    return
  }
  minor=$(sed -n 's/.*"minor": *"\([0-9]*\).*/\1/p' <<<"$version")
  case $version in *-gke.*) is_gke=true ;; *) is_gke=false ;; esac
  $has_settings || return 0
  check_context
  if [ "$mode" = destroy ]; then check_nothing_left; check_overlay; else check_pulls; check_approval "$version"; fi
  [ "$minor" -ge 30 ] || echo "Kubernetes 1.$minor has no ValidatingAdmissionPolicies: rights on Secrets and Nodes stay wide (SECURITY.md)"
  kubectl auth can-i '*' '*' --all-namespaces >/dev/null 2>&1 ||
    miss "you are no administrator of the cluster" "kubectl create clusterrolebinding you-admin --clusterrole=cluster-admin --user=YOU"
  [ -z "$jobsets" ] || [ "$mode" = destroy ] || kubectl get customresourcedefinitions jobsets.jobset.x-k8s.io >/dev/null 2>&1 ||
    miss "JobSet is not in the cluster, and jobset_provider is $jobsets" "https://jobset.sigs.k8s.io/docs/installation"
  ! kubectl get customresourcedefinitions workloadpolicies.tpu.google.com >/dev/null 2>&1 ||
    echo "tpu-operator is in this cluster: its groups are left alone (docs/migrate-from-tpu-operator.md)"
}

# GKE's kubelets pull from Artifact Registry as their Nodes' account. Others do not, and what they are set up
# with nobody can ask them: that the relay has run from there before is proof, else it must be said.
check_pulls() {
  local from=${relay_image:-$region-docker.pkg.dev/} runs
  from=${from%%/*}
  case $from in *-docker.pkg.dev | gcr.io | *.gcr.io) ;; *) return 0 ;; esac
  if $is_gke || $nodes_pull; then return 0; fi
  runs=$(kubectl --namespace=tpu-functions get deployment relay --ignore-not-found \
    --output=jsonpath='{.status.availableReplicas} {.spec.template.spec.containers[0].image}' 2>/dev/null || true)
  case $runs in [1-9]*" $from/"*) return 0 ;; esac
  if has_pull_secret; then
    if [ ! -f "$overlay/kustomization.yaml" ] || grep -q image-pull-secret "$overlay/kustomization.yaml"; then return 0; fi
    miss "the Secret tpu-functions-images is there, and $overlay has no component that uses it" \
      "add ../../components/image-pull-secret as the last of its components"
    return
  fi
  miss "nothing says how Nodes of this cluster pull images from $from, which wants credentials" \
    "docs/install.md, Images: a Secret tpu-functions-images; or a credential provider, and --nodes-pull; or other --images"
}

# Every bootstrap token is in system:bootstrappers, too: what that may, ours may. No VM joins GKE by a token.
check_approval() { # VERSION
  local may
  case $1 in *-gke.*) return 0 ;; esac
  if [ "$approval" = external ]; then
    echo "join_approval is external: who holds a VM's token can become any Node (docs/decisions/one-token-one-vm.md)"
    return
  fi
  may=$(kubectl auth can-i create certificatesigningrequests.certificates.k8s.io --subresource=nodeclient --as=system:bootstrap:aaaaaa \
    --as-group=system:bootstrappers --as-group=system:bootstrappers:tpu-functions --as-group=system:authenticated 2>/dev/null) || true
  case $may in
    no*) return 0 ;;
    yes*) ;;
    *) miss "it cannot be asked whether the cluster approves what bootstrap tokens ask for" "kubectl auth can-i create certificatesigningrequests.certificates.k8s.io --subresource=nodeclient --as=system:bootstrap:aaaaaa --as-group=system:bootstrappers"
      return 0 ;;
  esac
  miss "the cluster approves what our bootstrap tokens ask for by itself, so that each fits every Node" \
      "take system:bootstrappers out of the ClusterRoleBindings to system:certificates.k8s.io:certificatesigningrequests:nodeclient, or set join_approval = \"external\""
}

has_pull_secret() { kubectl --namespace=tpu-functions get secret tpu-functions-images >/dev/null 2>&1; }

if_gone() {
  [ "$mode" != destroy ] ||
    echo "; if the cluster is gone for good, or never had it: terraform -chdir=infra/terraform destroy -var-file=$cluster.tfvars (docs/install.md, A cluster that is gone)"
}

# Whose the cluster of kubectl's context is, its relay's settings say.
check_context() {
  local whose one
  whose=$(kubectl --namespace=tpu-functions get configmaps --selector=app.kubernetes.io/component=relay \
    --output=jsonpath='{range .items[*]}{.data.PUBSUB_PROJECT}/{.data.TOPIC_PREFIX}{"\n"}{end}' 2>"$temporary/kubectl") || {
    miss "context $context does not say whose it is: $(head -n 1 "$temporary/kubectl")" "kubectl config use-context CONTEXT"
    return
  }
  whose=$(grep -v '^/' <<<"$whose" | sort -u) || true
  for one in $whose; do
    [ "$one" = "$project/$prefix-" ] ||
      miss "context $context is the cluster of project ${one%/*} with the prefix ${one#*/}, and $cluster is project $project with the prefix $prefix-" \
        "kubectl config use-context CONTEXT"
  done
  [ "$mode" != destroy ] || [ -n "$whose" ] || [ -z "$resources" ] ||
    miss "context $context is no cluster of tpu-functions, and Terraform has $(wc -l <<<"$resources" | tr -d ' ') resource(s) of $cluster" \
      "kubectl config use-context CONTEXT$(if_gone)"
}

# What cannot be asked ends the run: kubectl or gcloud has said why.
check_nothing_left() {
  local found home location name
  found=$(kubectl get customresourcedefinitions tpunodegroups.tpu.google.com --ignore-not-found --output=name)
  [ -z "$found" ] || found=$(kubectl get tpunodegroups --all-namespaces --no-headers -o custom-columns=:.metadata.namespace,:.metadata.name)
  [ -z "$found" ] || miss "there are TPUNodeGroups, whose slices nobody would delete: $(awk '{printf "%s/%s ", $1, $2}' <<<"$found")" \
    "kubectl delete tpunodegroups --all --all-namespaces"
  [ "$jobsets" = gke ] || return 0
  read -r home location name <<<"$pools"
  # GKE is asked: a pool that is being made, or has failed, has no Nodes and costs all the same.
  found=$(gcloud container node-pools list --project="$home" --location="$location" --cluster="$name" --format='value(name,config.labels)' |
    awk '/google.com\/nodepool-manager=tpu-provisioner/ {print $1}')
  [ -z "$found" ] || miss "there are node pools of JobSets, which nobody would delete: $(tr '\n' ' ' <<<"$found")" \
    "delete the JobSets that they were made for, and wait until they are gone"
}

# What is to be deleted from the cluster must be known before Terraform's part is gone.
check_overlay() {
  local found mend="bring it back from version control, or have it made anew: ./deploy.sh $cluster"
  if [ -f "$overlay/kustomization.yaml" ]; then
    kubectl kustomize "$overlay" >"$temporary/manifests" 2>"$temporary/kubectl" ||
      miss "$overlay cannot be rendered: $(head -n 1 "$temporary/kubectl")" "$mend"
  else
    found=$(list_ours namespaces,customresourcedefinitions)
    [ -z "$found" ] || miss "there is no $overlay, and tpu-functions is in the cluster" "$mend"
  fi
}

list_ours() { # KINDS
  kubectl get "$1" --all-namespaces --selector=app.kubernetes.io/part-of=tpu-functions \
    --output=jsonpath='{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}' | sed 's, /, ,'
}
