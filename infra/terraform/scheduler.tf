# The sweep: once a minute it triggers the steps for groups that wait for something without an event.

resource "google_cloud_scheduler_job" "sweep" {
  project     = var.project_id
  region      = coalesce(var.scheduler_region, var.region)
  name        = "${var.name_prefix}-sweep"
  description = "Triggers the sweep of ${var.name_prefix}"
  schedule    = "* * * * *"
  time_zone   = "Etc/UTC"

  # Cloud Scheduler publishes as its own service agent. What it cannot publish comes again in a minute.
  pubsub_target {
    topic_name = google_pubsub_topic.step["sweep"].id
    data       = base64encode(jsonencode({ version = 1, kind = "Sweep" }))
  }

  depends_on = [time_sleep.apis]
}
