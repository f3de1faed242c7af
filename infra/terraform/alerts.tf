# What nobody sees in the cluster. Made only where somebody is to be told.

locals {
  alerts = length(var.notification_channels) > 0
}

resource "google_monitoring_alert_policy" "dead_letters" {
  count = local.alerts ? 1 : 0

  project               = var.project_id
  display_name          = "${var.name_prefix}: dead letters"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "A message is in the dead letters"

    condition_threshold {
      filter = join(" AND ", [
        "resource.type = \"pubsub_subscription\"",
        "resource.labels.subscription_id = \"${google_pubsub_subscription.dead_letters.name}\"",
        "metric.type = \"pubsub.googleapis.com/subscription/num_undelivered_messages\"",
      ])
      comparison      = "COMPARISON_GT"
      threshold_value = 0
      duration        = "0s"

      aggregations {
        alignment_period   = "60s"
        per_series_aligner = "ALIGN_MAX"
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "A message was refused ten times: nobody could read it. Look at it with `gcloud pubsub subscriptions pull ${google_pubsub_subscription.dead_letters.name} --project=${var.project_id}`; the attribute `CloudPubSubDeadLetterSourceSubscription` names the step, whose log says why."
  }

  depends_on = [google_project_service.this]
}

resource "google_monitoring_alert_policy" "inbox" {
  count = local.alerts ? 1 : 0

  project               = var.project_id
  display_name          = "${var.name_prefix}: messages are waiting"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "A step has not taken a message for 15 minutes"

    condition_threshold {
      filter = join(" AND ", [
        "resource.type = \"pubsub_subscription\"",
        "resource.labels.subscription_id = one_of(${join(", ", [for inbox in google_pubsub_subscription.inbox : jsonencode(inbox.name)])})",
        "metric.type = \"pubsub.googleapis.com/subscription/oldest_unacked_message_age\"",
      ])
      comparison      = "COMPARISON_GT"
      threshold_value = 900
      duration        = "0s"

      aggregations {
        alignment_period   = "60s"
        per_series_aligner = "ALIGN_MAX"
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "The function answers with errors, or not at all: usually it cannot reach the API server, or its settings are wrong. The subscription has the function's name; its log has the reason."
  }

  depends_on = [google_project_service.this]
}

# A step that cannot do its work acknowledges what the sweep will tell again: no message waits then.
resource "google_monitoring_alert_policy" "failing" {
  count = local.alerts ? 1 : 0

  project               = var.project_id
  display_name          = "${var.name_prefix}: a step fails"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "A step has warned in each five minutes of the last fifteen"

    condition_threshold {
      filter = join(" AND ", [
        "resource.type = \"cloud_run_revision\"",
        "resource.labels.service_name = one_of(${join(", ", [for function in google_cloudfunctions2_function.step : jsonencode(function.name)])})",
        "metric.type = \"logging.googleapis.com/log_entry_count\"",
        "metric.labels.severity = one_of(\"WARNING\", \"ERROR\")",
      ])
      comparison      = "COMPARISON_GT"
      threshold_value = 0
      duration        = "900s"

      aggregations {
        alignment_period     = "300s"
        per_series_aligner   = "ALIGN_SUM"
        cross_series_reducer = "REDUCE_SUM"
        group_by_fields      = ["resource.labels.service_name"]
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "The service has the function's name. `decision` and `note` in its log say what does not answer or what is refused: `gcloud logging read 'severity>=WARNING AND resource.type=\"cloud_run_revision\"' --project=${var.project_id} --limit=20`. Slices are neither made nor deleted by that step meanwhile."
  }

  depends_on = [google_project_service.this]
}

# A leaked slice costs money until somebody deletes it. It is told after two looks, an hour apart: report_leaks
# remembers nothing, and a person may be deleting it just now.
resource "google_logging_metric" "leaked_slices" {
  count = local.alerts ? 1 : 0

  project     = var.project_id
  name        = "${var.name_prefix}-leaked-slices"
  description = "Slices on Compute Engine whose TPUNodeGroup is gone, as report_leaks finds them once an hour"
  filter = join(" AND ", [
    "resource.type=\"cloud_run_revision\"",
    "resource.labels.service_name=\"${google_cloudfunctions2_function.step["report_leaks"].name}\"",
    "jsonPayload.decision=\"LeakedSlice\"",
  ])

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"

    labels {
      key         = "slice"
      value_type  = "STRING"
      description = "The name of its resources"
    }
  }

  label_extractors = {
    slice = "EXTRACT(jsonPayload.slice)"
  }

  depends_on = [google_project_service.this]
}

resource "google_monitoring_alert_policy" "leaked_slices" {
  count = local.alerts ? 1 : 0

  project               = var.project_id
  display_name          = "${var.name_prefix}: a slice is leaked"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "A slice without a TPUNodeGroup was found in two looks"

    condition_threshold {
      filter = join(" AND ", [
        "resource.type = \"cloud_run_revision\"",
        "metric.type = \"logging.googleapis.com/user/${google_logging_metric.leaked_slices[0].name}\"",
      ])
      comparison      = "COMPARISON_GT"
      threshold_value = 1
      duration        = "0s"

      aggregations {
        alignment_period     = "7500s"
        per_series_aligner   = "ALIGN_SUM"
        cross_series_reducer = "REDUCE_SUM"
        group_by_fields      = ["metric.labels.slice"]
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "Its TPUNodeGroup is gone, and its VMs are billed. The log line names all that is left and the commands that delete it: `gcloud logging read 'jsonPayload.decision=\"LeakedSlice\"' --project=${var.project_id} --freshness=3h --format='value(jsonPayload.note)'`."
  }
}
