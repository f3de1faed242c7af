# Log sinks publish the audit log entries that a step needs to its topic: those of Compute Engine from each served
# project, those of node pools from the cluster's project. A step without a filter has no sink.

locals {
  filters = {
    for name in fileset("${path.module}/filters", "*.txt") :
    trimsuffix(name, ".txt") => file("${path.module}/filters/${name}")
  }
  sinks = {
    for pair in setunion(
      setproduct(local.served_projects, setsubtract(local.steps, local.jobset_steps)),
      setproduct(local.node_pool_projects, local.jobset_steps),
    ) : join("/", pair) => { project = pair[0], step = pair[1] }
    if contains(keys(local.filters), pair[1])
  }
}

resource "google_logging_project_sink" "step" {
  for_each = local.sinks

  project     = each.value.project
  name        = "${var.name_prefix}-${local.slugs[each.value.step]}"
  description = "Triggers for ${each.value.step} of ${var.name_prefix} in ${var.project_id}"
  destination = "pubsub.googleapis.com/${google_pubsub_topic.step[each.value.step].id}"
  filter      = local.filters[each.value.step]

  unique_writer_identity = true

  depends_on = [time_sleep.apis]
}

resource "google_pubsub_topic_iam_member" "sink" {
  for_each = local.sinks

  project = var.project_id
  topic   = google_pubsub_topic.step[each.value.step].name
  role    = "roles/pubsub.publisher"
  member  = google_logging_project_sink.step[each.key].writer_identity
}
