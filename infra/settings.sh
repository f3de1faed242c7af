#!/usr/bin/env bash
# The folder DIR of deploy.sh, which sources this file: where its files are, what a first run writes, and what Terraform
# reads from settings and state.
# shellcheck disable=SC2034,SC2154  # deploy.sh reads some of these variables, and sets others

# An upgrade replaces the release's folder, so that these files are outside of it.
find_settings() {
  local names
  has_settings=false
  [ -n "$dir" ] || suggest_move
  [ -n "$dir" ] || fail "add --dir DIR, a folder of yours for the settings; a first run writes them"
  case $dir/ in "$PWD"/*) fail "--dir $dir is in the folder of the release, which an upgrade replaces: choose another" ;; esac
  if [ -z "$cluster" ]; then
    names=$(list_clusters)
    [ -n "$names" ] || suggest_move
    case $names in '' | *' '*) fail "name the cluster: $command CLUSTER${names:+; there are settings of $names}" ;; esac
    cluster=$names
  fi
  [[ $cluster =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || fail "CLUSTER must be letters, digits, '-', '_' and '.', the first one a letter or digit, not $cluster"
  [ "$cluster" != default ] ||
    fail "CLUSTER cannot be default: Terraform keeps the local state of this workspace in the folder of the release, which an upgrade replaces. Choose another name"
  settings=$dir/$cluster.tfvars backend=$dir/backend.tf deployed=$dir/$cluster.deployed.yaml values=$dir/$cluster.yaml
  [ -f "$values" ] || values=''
  [ -f "$settings" ] || suggest_move
}

list_clusters() {
  local file names=''
  for file in "$dir"/*.tfvars; do
    file=${file##*/} && [ "$file" = '*.tfvars' ] || names+=${names:+ }${file%.tfvars}
  done
  echo "$names"
}

# Former releases had settings, values and state in their folder. Those of another cluster may be left there.
suggest_move() {
  local to=${dir:-$HOME/tpu-functions} local_state=$'terraform {\n  backend "local" {}\n}\n' moves='' left=''
  compgen -G "infra/terraform/${cluster:-*}.tfvars" >/dev/null || return 0
  if [ ! -f "$to/backend.tf" ]; then
    [ -f infra/terraform/backend.tf ] || moves=" && printf '$local_state' >$(printf %q "$to/backend.tf")"
  elif ! { cat infra/terraform/backend.tf 2>/dev/null || printf %s "$local_state"; } | diff - "$to/backend.tf" >/dev/null; then
    fail "the settings of ${cluster:-a cluster} are in infra/terraform, and $to/backend.tf may name another state than theirs: choose a new folder with --dir"
  fi
  add_move "$to/terraform.tfstate.d" infra/terraform/terraform.tfstate.d/*
  add_move "$to" infra/terraform/*.tfvars infra/terraform/backend.tf infra/values/*.yaml
  case $moves in *"mv -n "*) ;; *) return 0 ;; esac
  [ -z "$left" ] || left=$'\n'"Not moved, because files of these names are there already:$left. Compare them, and delete those that are not needed"
  fail "settings, values and state are in a folder of yours now, so that an upgrade finds them. Move them once, here to $(printf %q "$to"):"$'\n'"  ${moves# && }"$'\n'"Then run this with --dir $(printf %q "$to")$left"
}

# Prepends the command that moves files to a folder to moves, and adds those that it has already to left.
add_move() { # FOLDER FILE ...
  local folder=$1 file found=''
  shift
  for file in "$@"; do
    if [ "$file" = infra/values/example.yaml ] || [ ! -e "$file" ]; then continue; fi
    if [ -e "$folder/${file##*/}" ]; then left+=" $file"; else found+=" $(printf %q "$file")"; fi
  done
  folder=$(printf %q "$folder")
  [ -z "$found" ] || moves=" && mkdir -p $folder && mv -n$found $folder$moves"
}

# Somebody must read what a first run writes, so that it ends before it installs.
is_first_run() { [ "$mode" = install ] && ! $is_confirmed && { [ ! -f "$settings" ] || [ ! -f "$backend" ]; }; }

check_files() {
  local file
  for file in "$settings" "$backend"; do
    [ -f "$file" ] || add_problem "$file does not exist$(describe_clusters)" "$command $cluster writes it"
  done
  if [ -f "$settings" ] && [ -f "$backend" ] && is_installed terraform && is_installed kubectl; then has_settings=true; fi
}

describe_clusters() { list_clusters | sed 's/^./; there are settings of &/'; }

write_files() {
  [ -f "$settings" ] || [ -z "$(list_clusters)" ] || confirm "$settings does not exist$(describe_clusters). Write settings of $cluster?"
  mkdir -p "$dir"
  [ -f "$settings" ] || write_settings
  [ -f "$backend" ] || write_backend
  print_heading "Nothing else was changed. Check these files, and run this again"
}

# The settings of an example, with what is configured on this machine and in the cluster.
write_settings() {
  local example=self-managed-token installations server issuer region
  installations=$(list_installations)
  [ -z "$installations" ] || fail "context $context has the installation of $installations already: copy its settings to $dir (docs/install.md, Upgrade)"
  project=$(gcloud config get project 2>/dev/null) && [ -n "$project" ] || fail "gcloud has no project: gcloud config set project PROJECT"
  region=$(gcloud config get compute/region 2>/dev/null) && [ -n "$region" ] || fail "gcloud has no region, for the functions: gcloud config set compute/region REGION"
  ! $is_gke || example=gke-jobsets
  # A valid prefix of 3 to 13 characters, whatever the name of the cluster.
  prefix=$(tr A-Z._ a-z-- <<<"$cluster" | sed -E 's/^[0-9-]+/tpu-&/; s/-+/-/g; s/-$//; s/^(gcp-|.{1,2}$)/tpu-&/; s/^(.{13}).*/\1/; s/-$//')
  server=$(kubectl config view --minify --output='jsonpath={.clusters[0].cluster.server}')
  issuer=$(kubectl get --raw /.well-known/openid-configuration | sed 's/.*"issuer": *"\([^"]*\)".*/\1/')
  kubectl get --raw /openid/v1/jwks | sed 's/^/      /' >"$temporary/jwks" && echo >>"$temporary/jwks"
  kubectl --namespace=kube-system get configmap kube-root-ca.crt --output='jsonpath={.data.ca\.crt}' | sed 's/^/      /' >"$temporary/ca"
  {
    echo "# The settings of $cluster for deploy.sh. infra/terraform/README.md describes these and all others."
    sed -e 1d -e "s,my-gcp-project,$project,g" -e "/^region/s,us-central1,$region," -e "/^name_prefix/s,research,$prefix," \
      -e "s,\( server *= \).*,\1\"$server\" # as the functions reach it through vpc_egress," -e "s,\( issuer *= \).*,\1\"$issuer\"," \
      -e "/<<-PEM/r $temporary/ca" -e '/<<-PEM/,/PEM$/{/PEM/!d;}' -e "/<<-JSON/r $temporary/jwks" -e '/<<-JSON/,/JSON$/{/JSON/!d;}' \
      -e 's/^vm_service_accounts/# &/' "infra/terraform/examples/$example/cluster.tfvars"
  } >"$settings"
  print_heading "$settings was written"
  echo "Project $project, region $region, cluster $context at $server: the functions must reach this address, through vpc_egress if it is private."
  case $server in *.gke.goog | *.gke.goog:*) echo "Replace ca_certificate: the certificate of GKE's DNS-based endpoint is signed by Google Trust Services, not by the cluster's CA (docs/cluster-access.md, GKE)." ;; esac
  [ "$prefix" = "$cluster" ] || echo "The names of all resources begin with $prefix (name_prefix), because $cluster is no valid prefix."
  ! $is_gke || echo "Replace the location, the name, the zone and the service account in node_pools."
}

write_backend() {
  local project region bucket
  project=$(read_setting project_id) region=$(read_setting region)
  { [ -n "$project" ] && [ -n "$region" ]; } || fail "$settings has no project_id or no region: add it"
  bucket=$project-tpu-functions-state
  cat >"$backend" <<END
# Where Terraform keeps its state of the clusters in this folder. Create the bucket, unless it exists:
#
#   gcloud storage buckets create gs://$bucket --project=$project --location=$region --uniform-bucket-level-access --public-access-prevention
#   gcloud storage buckets update gs://$bucket --versioning
#
# To keep the state in this folder, where nobody else has it, replace the lines from backend to } by: backend "local" {}
terraform {
  backend "gcs" {
    bucket = "$bucket"
    prefix = "tpu-functions"
  }
}
END
  print_heading "$backend was written. Create the bucket of the state, unless it exists:"
  sed -n 's/^#   /  /p' "$backend"
}

# A setting of one line, before Terraform can read the file. Within braces, such as those of node_pools, are others.
read_setting() { # NAME
  awk -v setting="^[ \t]*$1[ \t]*=[ \t]*\"" '!depth && $0 ~ setting { split($0, parts, "\""); print parts[2] }
    { sub(/#.*/, ""); depth += gsub(/[{[(]/, "") - gsub(/[])}]/, "") }' "$settings"
}

read_settings() {
  local expressions answer name
  lock_folder
  print_heading "Settings of $cluster"
  if ! initialize_terraform >"$temporary/init" 2>&1; then
    add_problem "terraform init failed: $(grep -m 1 -A 4 'Error: ' "$temporary/init" | tr -s '\n│╷╵ ' ' ' || tail -n 1 "$temporary/init")" \
      "terraform -chdir=infra/terraform init shows the whole error; $backend says where the state is, and how to create its bucket"
    has_settings=false
    return
  fi
  if [ "$(tf workspace show)" != "$cluster" ]; then tf workspace select -or-create "$cluster" >/dev/null; fi
  expressions='var.project_id, var.region, var.name_prefix, var.jobset_provider'
  expressions+=', join(" ", distinct(concat([var.project_id], var.projects, [for pools in var.node_pools[*] : coalesce(pools.project_id, var.project_id)])))'
  expressions+=', join(" ", values(coalesce(var.cluster_access.kubeconfig_secrets, {})))'
  expressions+=', var.relay_identity.workload_identity_federation == null ? "" : "federation"'
  expressions+=', join(" ", flatten([for pools in var.node_pools[*] : [coalesce(pools.project_id, var.project_id), pools.location, pools.cluster]]))'
  expressions+=', coalesce(var.scheduler_region, var.region)'
  expressions+=', var.join_approval, var.slice_workloads, var.cluster_access.service_account_token == null ? "" : "tokens"'
  # Warnings precede the answer. A rejected setting causes an answer, too, and an error on stderr.
  if ! answer=$(tf console -no-color -var-file="$settings" <<<"join(\"|\", [$expressions])" 2>"$temporary/console") ||
    grep -q '^Error: ' "$temporary/console"; then
    rejection="$settings: Terraform rejects it"$'\n'"$(sed -n '/^Error: /,$p' "$temporary/console")"
    has_settings=false
    return
  fi
  # Terraform ignores unknown variables with a warning.
  sed -n 's/.*does not declare a variable named "\([^"]*\)".*/\1/p' <<<"$answer" | while read -r name; do
    echo "note: $settings sets $name, which is not a setting: correct its name or delete it (infra/terraform/README.md)"
  done
  answer=$(tail -n 1 <<<"$answer" | sed 's/^"\(.*\)"$/\1/')
  if [ "$answer" = '(known after apply)' ]; then
    rejection="$settings: a required setting is missing or misspelled: project_id, region, cluster_access and relay_identity are required (infra/terraform/README.md)"
    has_settings=false
    return
  fi
  IFS='|' read -r project region prefix jobsets projects secrets federation pools sweep_region approval workloads tokens <<<"$answer"
  resources=$(tf state list -no-color 2>"$temporary/state") || grep -q '^No state file was found' "$temporary/state" ||
    fail "terraform state list failed: $(cat "$temporary/state")"
  resources=$(grep -v '^data\.' <<<"$resources" || true)
  read_state
  echo "project $project, region $region, TPUs in $projects, context $context"
  for answer in $projects; do
    [ -z "$(describe_placeholder "$answer")" ] || echo "note: $answer$(describe_placeholder "$answer")"
  done
}

# Backend and workspace are in the module's folder: a second run would change those of the first, which would go on with
# the state and the outputs of another cluster. A link is created by one run only, and names it.
lock_folder() {
  local other
  if ! ln -s $$ infra/terraform/.running 2>/dev/null; then
    other=$(readlink infra/terraform/.running) || fail "infra/terraform must be writable: Terraform keeps there which state it works on"
    ! kill -0 "$other" 2>/dev/null ||
      fail "another run (process $other) uses this folder of the release, in which Terraform keeps which state it works on: wait until it ends, or use another copy of the release. If process $other is none: rm infra/terraform/.running"
    ln -sfn $$ infra/terraform/.running
  fi
  has_lock=true
}

# Terraform reads the place of its state from the module's folder only, in which the last run may have been for another
# DIR. A local state is in DIR, too. Terraform itself says which backend it has read, in whichever spelling.
initialize_terraform() {
  cp "$backend" infra/terraform/backend_override.tf || return # otherwise init reads the state of another DIR
  tf_init || return
  case $(cd infra/terraform && tr -d ' \n' <"${TF_DATA_DIR:-.terraform}/terraform.tfstate") in
    *'"type":"local"'*'"workspace_dir":null'*) tf_init "-backend-config=workspace_dir=$dir/terraform.tfstate.d" ;;
  esac
}

tf_init() { TF_WORKSPACE=default tf init -no-color -input=false -reconfigure "$@"; } # FLAG ...

# What the state remembers of an installation. An interrupted destroy has deleted the outputs, which is no error to
# `output -raw`, but perhaps not these resources.
read_state() {
  installation_id=$(read_record terraform_data.installation)
  recorded=$(read_record terraform_data.cluster)
  state_settings=$(tf output -json relay_settings 2>/dev/null |
    sed -n 's/.*"PUBSUB_PROJECT": *"\([^"]*\)", *"TOPIC_PREFIX": *"\([^"]*\)".*/\1\/\2/p') || true
  read_slices
}

# The kind of slices, and where node pools are: those of the last run, because the settings may have been edited since.
read_slices() {
  local provider=''
  slices=$jobsets slice_pools=$pools
  if ! has_resource 'google_pubsub_topic.step["release_slice"]'; then return 0; fi
  tf output -raw tool_environment >"$temporary/tool-settings" 2>/dev/null || true
  provider=$(read_tool_setting JOBSET_PROVIDER)
  [ -n "$provider" ] || return 0
  slices=$provider slice_pools="$(read_tool_setting GCP_PROJECT_ID) $(read_tool_setting GCP_CLUSTER_LOCATION) $(read_tool_setting GCP_CLUSTER)"
}

# Whether the last run has given slices to other workloads than JobSets.
had_workloads() { tf output -raw values 2>/dev/null | awk '/"?workloads"?: "?all/ {found = 1} END {exit !found}'; }

read_tool_setting() { sed -n "s/^export $1='\(.*\)'$/\1/p" "$temporary/tool-settings"; } # NAME

read_record() { ! has_resource "$1" || tf state show -no-color "$1" | sed -n 's/^ *output *= "\(.*\)"$/\1/p'; } # ADDRESS
has_resource() { grep -qxF "$1" <<<"$resources"; } # ADDRESS
count_resources() { grep -c . <<<"$resources" || true; }
is_new() { ! grep -vq '^terraform_data\.\|^$' <<<"$resources"; }

# The project names of the examples, which a user may have forgotten to replace.
describe_placeholder() { # PROJECT
  case $1 in
    my-gcp-project | my-tpu-project | my-other-tpu-project)
      echo " is the name in the examples; check $settings" ;;
  esac
}
