# The permissions of the steps, from permissions.yaml, which has the purpose of each.

resource "google_service_account" "step" {
  for_each = local.slugs

  project      = var.project_id
  account_id   = local.function_names[each.key]
  display_name = "${each.key} of tpu-functions"

  depends_on = [time_sleep.apis]
}

# One role for each step: for Compute Engine in each served project, for node pools in the cluster's project.

locals {
  serves_slices = var.jobset_provider == "tpu-node-group"
  step_permissions = {
    for step in local.steps : step => setunion(
      keys(local.permissions[step][local.serves_slices && contains(local.jobset_steps, step) ? "served" : "project"]),
      lookup(var.extra_permissions, step, []),
    )
  }
  step_roles = {
    for pair in setunion(
      setproduct(local.served_projects, local.serves_slices ? local.steps : setsubtract(local.steps, local.jobset_steps)),
      setproduct(local.node_pool_projects, local.jobset_steps),
    ) : join("/", pair) => { project = pair[0], step = pair[1] }
    if length(local.step_permissions[pair[1]]) > 0
  }
}

resource "google_project_iam_custom_role" "step" {
  for_each = local.step_roles

  project     = each.value.project
  role_id     = replace("${var.name_prefix}_${each.value.step}", "-", "_")
  title       = "${var.name_prefix} ${local.slugs[each.value.step]}"
  description = "Permissions of ${each.value.step} of tpu-functions on ${contains(local.jobset_steps, each.value.step) && !local.serves_slices ? "GKE" : "Compute Engine"}"
  permissions = local.step_permissions[each.value.step]

  depends_on = [time_sleep.apis]
}

resource "google_project_iam_member" "step" {
  for_each = local.step_roles

  project = each.value.project
  role    = google_project_iam_custom_role.step[each.key].name
  member  = google_service_account.step[each.value.step].member

  depends_on = [time_sleep.accounts]
}

# Separate roles for permissions only on VMs and instance templates whose name begins with tng-. They are granted
# with a condition on the name. Such a condition grants nothing for lists and MIGs, whose names IAM does not know.

locals {
  # resource.name also has the project and the zone.
  is_own_name = join(" || ", [
    for kind in ["instances", "instanceTemplates"] : "resource.name.extract(\"/${kind}/{name}\").startsWith(\"tng-\")"
  ])
  named_roles = {
    for key, role in local.step_roles : key => role
    if length(local.permissions[role.step].named) > 0
  }
}

resource "google_project_iam_custom_role" "named" {
  for_each = local.named_roles

  project     = each.value.project
  role_id     = replace("${var.name_prefix}_${each.value.step}_named", "-", "_")
  title       = "${var.name_prefix} ${local.slugs[each.value.step]}, by name"
  description = "Permissions of ${each.value.step} of tpu-functions on VMs and templates whose name begins with tng-"
  permissions = keys(local.permissions[each.value.step].named)

  depends_on = [time_sleep.apis]
}

resource "google_project_iam_member" "named" {
  for_each = local.named_roles

  project = each.value.project
  role    = google_project_iam_custom_role.named[each.key].name
  member  = google_service_account.step[each.value.step].member

  condition {
    title      = "${var.name_prefix} names"
    expression = local.is_own_name
  }

  depends_on = [time_sleep.accounts]
}

# Service accounts of VMs: a step that creates the VMs or writes their metadata must be able to act as them.

locals {
  vm_service_account_users = {
    for pair in setproduct(
      toset(var.vm_service_accounts),
      [for step in local.steps : step if length(local.permissions[step].vm_service_account) > 0],
    ) : join("/", pair) => { account = pair[0], step = pair[1] }
  }
}

resource "google_service_account_iam_member" "vm" {
  for_each = local.vm_service_account_users

  service_account_id = "projects/-/serviceAccounts/${each.value.account}"
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.step[each.value.step].member

  depends_on = [time_sleep.accounts]
}

# Steps publish triggers to each other's topics.

locals {
  step_publishers = merge([
    for step in local.steps : {
      for topic in keys(local.permissions[step].topics) :
      "${step}/${topic}" => { step = step, topic = topic } if contains(local.steps, topic)
    }
  ]...)
}

resource "google_pubsub_topic_iam_member" "step" {
  for_each = local.step_publishers

  project = var.project_id
  topic   = google_pubsub_topic.step[each.value.topic].name
  role    = "roles/pubsub.publisher"
  member  = google_service_account.step[each.value.step].member

  depends_on = [time_sleep.accounts]
}

# Pub/Sub calls the functions as this account; no other account may call them.

resource "google_service_account" "pusher" {
  project      = var.project_id
  account_id   = "${var.name_prefix}-pusher"
  display_name = "Pub/Sub's pushes to tpu-functions"

  depends_on = [time_sleep.apis]
}

resource "google_cloud_run_service_iam_member" "pusher" {
  for_each = local.slugs

  project  = var.project_id
  location = var.region
  service  = google_cloudfunctions2_function.step[each.key].name
  role     = "roles/run.invoker"
  member   = google_service_account.pusher.member

  depends_on = [time_sleep.accounts]
}

resource "google_service_account_iam_member" "pusher" {
  service_account_id = google_service_account.pusher.name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = local.pubsub_agent

  depends_on = [time_sleep.accounts]
}

# Cloud Build builds the functions and, for deploy.sh, the images as this account. Projects whose default
# accounts have no permissions, the default in newer organizations, can build, too.

resource "google_service_account" "builder" {
  project      = var.project_id
  account_id   = "${var.name_prefix}-builder"
  display_name = "Builds of tpu-functions"

  depends_on = [time_sleep.apis]
}

resource "google_project_iam_member" "builder" {
  project = var.project_id
  role    = "roles/logging.logWriter"
  member  = google_service_account.builder.member

  depends_on = [time_sleep.accounts]
}

# Cloud Functions copies the archive into a bucket that it creates with the first function of a region. The grant
# must exist before the bucket, so it is on the project, with a condition.
resource "google_project_iam_member" "builder_copies" {
  project = var.project_id
  role    = "roles/storage.objectViewer"
  member  = google_service_account.builder.member

  condition {
    title      = "${var.name_prefix} sources"
    expression = "resource.name.startsWith(\"projects/_/buckets/gcf-v2-sources-${data.google_project.this.number}-${var.region}\")"
  }

  depends_on = [time_sleep.accounts]
}

resource "google_storage_bucket_iam_member" "builder" {
  bucket = google_storage_bucket.source.name
  role   = "roles/storage.objectViewer"
  member = google_service_account.builder.member

  depends_on = [time_sleep.accounts]
}

resource "google_artifact_registry_repository_iam_member" "builder" {
  project    = var.project_id
  location   = var.region
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.writer"
  member     = google_service_account.builder.member

  depends_on = [time_sleep.accounts]
}
