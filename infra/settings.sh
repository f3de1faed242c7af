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
    case $names in '' | *' '*) fail "name the cluster: $command CLUSTER${names:+; there are settings of $names}" ;; esac
    cluster=$names
  fi
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

# Former releases had settings, values and state in their folder.
suggest_move() {
  local file found='' target state=''
  target=$(printf %q "${dir:-$HOME/tpu-functions}")
  for file in infra/terraform/*.tfvars infra/terraform/backend.tf infra/terraform/terraform.tfstate.d infra/values/*.yaml; do
    [ "$file" = infra/values/example.yaml ] || [ ! -e "$file" ] || found+=" $file"
  done
  case $found in *.tfvars*) ;; *) return 0 ;; esac
  case $found in *backend.tf*) ;; *) state=" && printf 'terraform {\n  backend \"local\" {}\n}\n' >$target/backend.tf" ;; esac
  fail "settings, values and state are in a folder of yours now, so that an upgrade finds them. Move them once, here to $target:"$'\n'"  mkdir -p $target && mv -n$found $target$state"$'\n'"Then run this with --dir $target"
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
  server=$(kubectl config view --minify --output='jsonpath={.clusters[0].cluster.server}')
  issuer=$(kubectl get --raw /.well-known/openid-configuration | sed 's/.*"issuer": *"\([^"]*\)".*/\1/')
  kubectl get --raw /openid/v1/jwks | sed 's/^/      /' >"$temporary/jwks" && echo >>"$temporary/jwks"
  kubectl --namespace=kube-system get configmap kube-root-ca.crt --output='jsonpath={.data.ca\.crt}' | sed 's/^/      /' >"$temporary/ca"
  {
    echo "# The settings of $cluster for deploy.sh. infra/terraform/README.md describes these and all others."
    sed -e 1d -e "s,my-gcp-project,$project,g" -e "/^region/s,us-central1,$region," -e "/^name_prefix/s,research,$cluster," \
      -e "s,\( server *= \).*,\1\"$server\" # as the functions reach it through vpc_egress," -e "s,\( issuer *= \).*,\1\"$issuer\"," \
      -e "/<<-PEM/r $temporary/ca" -e '/<<-PEM/,/PEM$/{/PEM/!d;}' -e "/<<-JSON/r $temporary/jwks" -e '/<<-JSON/,/JSON$/{/JSON/!d;}' \
      -e 's/^vm_service_accounts/# &/' "infra/terraform/examples/$example/cluster.tfvars"
  } >"$settings"
  print_heading "$settings was written"
  echo "Project $project, region $region, cluster $context at $server: the functions must reach this address, through vpc_egress if it is private."
  ! $is_gke || echo "Replace the location, the name, the zone and the service account in node_pools."
}

write_backend() {
  local project region bucket
  project=$(sed -n 's/^project_id *= *"\(.*\)".*/\1/p' "$settings") region=$(sed -n 's/^region *= *"\(.*\)".*/\1/p' "$settings")
  bucket=$project-tpu-functions-state
  cat >"$backend" <<END
# Where Terraform keeps its state of the clusters in this folder. Create the bucket once:
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
  print_heading "$backend was written"
  sed -n 's/^#   /  /p' "$backend"
}

read_settings() {
  local expressions answer name
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
  IFS='|' read -r project region prefix jobsets projects secrets federation pools approval workloads tokens <<<"$answer"
  resources=$(tf state list -no-color 2>"$temporary/state") || grep -q '^No state file was found' "$temporary/state" ||
    fail "terraform state list failed: $(cat "$temporary/state")"
  resources=$(grep -v '^data\.' <<<"$resources" || true)
  read_state
  echo "project $project, region $region, TPUs in $projects, context $context"
  for answer in $projects; do
    [ -z "$(describe_placeholder "$answer")" ] || echo "note: $answer$(describe_placeholder "$answer")"
  done
}

# Terraform reads the place of its state from the module's folder only, in which the last run may have been for another
# DIR. A local state is in DIR, too.
initialize_terraform() {
  local folder=''
  cp "$backend" infra/terraform/backend_override.tf
  ! grep -q '^ *backend "local" {}' "$backend" || folder=-backend-config=workspace_dir=$dir/terraform.tfstate.d
  TF_WORKSPACE=default tf init -no-color -input=false -reconfigure ${folder:+"$folder"}
}

# What the state remembers of an installation. An interrupted destroy has deleted the outputs, which is no error to
# `output -raw`, but perhaps not these resources.
read_state() {
  installation_id=$(read_record terraform_data.installation)
  recorded=$(read_record terraform_data.cluster)
  state_settings=$(tf output -json relay_settings 2>/dev/null |
    sed -n 's/.*"PUBSUB_PROJECT": *"\([^"]*\)", *"TOPIC_PREFIX": *"\([^"]*\)".*/\1\/\2/p') || true
}

read_record() { ! has_resource "$1" || tf state show -no-color "$1" | sed -n 's/^ *output *= "\(.*\)"$/\1/p'; } # ADDRESS
has_resource() { grep -qxF "$1" <<<"$resources"; } # ADDRESS
is_new() { ! grep -vq '^terraform_data\.\|^$' <<<"$resources"; }

# The project names of the examples, which a user may have forgotten to replace.
describe_placeholder() { # PROJECT
  case $1 in
    my-gcp-project | my-tpu-project | my-other-tpu-project)
      echo " is the name in the examples; check $settings" ;;
  esac
}
