# The audit log of Compute Engine and GKE: what concerns a step goes to the step's inbox. A step
# without a filter learns nothing from the log.

locals {
  filters = {
    for name in fileset("${path.module}/filters", "*.txt") :
    trimsuffix(name, ".txt") => file("${path.module}/filters/${name}")
    if contains(local.steps, trimsuffix(name, ".txt"))
  }
  sinks = {
    for pair in setproduct(local.served_projects, keys(local.filters)) :
    join("/", pair) => { project = pair[0], step = pair[1] }
  }
}

resource "google_logging_project_sink" "step" {
  for_each = local.sinks

  project     = each.value.project
  name        = "${var.name_prefix}-${local.slugs[each.value.step]}"
  description = "Occasions for ${each.value.step} of ${var.name_prefix} in ${var.project_id}"
  destination = "pubsub.googleapis.com/${google_pubsub_topic.inbox[each.value.step].id}"
  filter      = local.filters[each.value.step]

  unique_writer_identity = true

  depends_on = [google_project_service.this]
}

resource "google_pubsub_topic_iam_member" "sink" {
  for_each = local.sinks

  project = var.project_id
  topic   = google_pubsub_topic.inbox[each.value.step].name
  role    = "roles/pubsub.publisher"
  member  = google_logging_project_sink.step[each.key].writer_identity
}
