# For each step a topic, and a subscription that pushes to the step's function.

locals {
  ack_deadline_seconds  = 120
  max_delivery_attempts = 10

  # Google's own account that delivers, counts attempts and forwards dead letters.
  pubsub_agent = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
}

resource "google_pubsub_topic" "step" {
  for_each = local.slugs

  project = var.project_id
  name    = "${local.topic_prefix}${each.value}"
  labels  = var.labels

  depends_on = [time_sleep.apis]
}

resource "google_pubsub_subscription" "step" {
  for_each = local.slugs

  project = var.project_id
  name    = google_pubsub_topic.step[each.key].name
  topic   = google_pubsub_topic.step[each.key].id
  labels  = var.labels

  # For a push this is how long a request may take.
  ack_deadline_seconds = local.ack_deadline_seconds

  push_config {
    push_endpoint = google_cloudfunctions2_function.step[each.key].service_config[0].uri

    oidc_token {
      service_account_email = google_service_account.pusher.email
      audience              = local.push_audiences[each.key]
    }
  }

  retry_policy {
    minimum_backoff = "2s"
    maximum_backoff = "600s"
  }

  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead_letters.id
    max_delivery_attempts = local.max_delivery_attempts
  }

  # Never: by default a subscription that is unused for 31 days is deleted.
  expiration_policy {
    ttl = ""
  }

  # A push before the permission to call the function takes effect would only be rejected.
  depends_on = [google_cloud_run_service_iam_member.pusher]
}

# Dead letters: messages that a step has not acknowledged in ten attempts. It could not decode them, or did not work.
resource "google_pubsub_topic" "dead_letters" {
  project = var.project_id
  name    = "${local.topic_prefix}dead-letters"
  labels  = var.labels

  depends_on = [time_sleep.apis]
}

resource "google_pubsub_subscription" "dead_letters" {
  project = var.project_id
  name    = google_pubsub_topic.dead_letters.name
  topic   = google_pubsub_topic.dead_letters.id
  labels  = var.labels

  ack_deadline_seconds       = 60
  message_retention_duration = "2678400s" # 31 days, the longest there is

  expiration_policy {
    ttl = ""
  }
}

# Without these two, forwarding to the dead letters silently does not happen.
resource "google_pubsub_topic_iam_member" "dead_letters" {
  project = var.project_id
  topic   = google_pubsub_topic.dead_letters.name
  role    = "roles/pubsub.publisher"
  member  = local.pubsub_agent
}

resource "google_pubsub_subscription_iam_member" "step" {
  for_each = local.slugs

  project      = var.project_id
  subscription = google_pubsub_subscription.step[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = local.pubsub_agent
}
