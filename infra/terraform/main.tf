# Common definitions: the steps and their names, their permissions, and the APIs.

locals {
  # Each step has a function, a topic and a service account.
  slugs = {
    for step in concat(["create_resources", "inject_token", "label_node", "tear_down", "approve_join", "sweep", "report_leaks"], local.jobset_steps) :
    step => replace(step, "_", "-")
  }
  steps = toset(keys(local.slugs))

  topic_prefix = "${var.name_prefix}-"

  # The permissions of each step and of the relay, with scope and purpose.
  permissions = yamldecode(file("${path.module}/permissions.yaml"))

  served_projects = toset(length(var.projects) == 0 ? [var.project_id] : var.projects)
}

data "google_project" "this" {
  project_id = var.project_id
}

locals {
  apis_here = concat(
    [
      "artifactregistry.googleapis.com",
      "cloudbuild.googleapis.com",
      "cloudfunctions.googleapis.com",
      "cloudscheduler.googleapis.com",
      "iam.googleapis.com",
      "logging.googleapis.com",
      "pubsub.googleapis.com",
      "run.googleapis.com",
      "storage.googleapis.com",
    ],
    local.kubeconfig_secrets == null && local.account_token == null ? [] : ["secretmanager.googleapis.com"],
    local.federation == null ? [] : ["iamcredentials.googleapis.com", "sts.googleapis.com"],
    local.connector == null ? [] : ["vpcaccess.googleapis.com"],
    local.alerts ? ["monitoring.googleapis.com"] : [],
  )
  apis_served     = ["compute.googleapis.com", "iam.googleapis.com", "logging.googleapis.com"]
  apis_node_pools = ["container.googleapis.com", "iam.googleapis.com", "logging.googleapis.com"]

  apis = {
    for pair in setunion(
      setproduct([var.project_id], local.apis_here),
      setproduct(local.served_projects, local.apis_served),
      setproduct(local.node_pool_projects, local.apis_node_pools),
    ) : join("/", pair) => { project = pair[0], service = pair[1] }
  }
}

resource "google_project_service" "this" {
  for_each = local.apis

  project = each.value.project
  service = each.value.service

  # Other software in the project may use it.
  disable_on_destroy = false
}
