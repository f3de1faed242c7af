# The sweep's job. Once a minute, the sweep triggers the steps for groups whose progress causes no event.

resource "google_cloud_scheduler_job" "sweep" {
  project     = var.project_id
  region      = coalesce(var.scheduler_region, var.region)
  name        = "${var.name_prefix}-sweep"
  description = "Triggers the sweep of ${var.name_prefix}"
  schedule    = "* * * * *"
  time_zone   = "Etc/UTC"

  # Cloud Scheduler publishes as its service agent. A failed publish is followed by the next one in a minute.
  pubsub_target {
    topic_name = google_pubsub_topic.step["sweep"].id
    data       = base64encode(jsonencode({ version = 1, kind = "Sweep" }))
  }

  # A pause stays until somebody resumes the job. Otherwise the next apply would end it, as at a restore (docs/backups.md).
  lifecycle {
    ignore_changes = [paused]
  }

  depends_on = [time_sleep.apis]
}
