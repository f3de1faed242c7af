# A topic for each step, and a subscription that pushes to the step's function.

locals {
  ack_deadline_seconds  = 120
  max_delivery_attempts = 10

  # Pub/Sub's service agent, which delivers messages, counts attempts and forwards dead letters.
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

  # For a push, the timeout of the request.
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

  # Pushes are rejected until the permission to call the function takes effect.
  depends_on = [google_cloud_run_service_iam_member.pusher]
}

# Dead letters: messages that a step has not acknowledged in ten attempts, because it cannot decode them or fails.
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
  message_retention_duration = "2678400s" # 31 days, the maximum

  expiration_policy {
    ttl = ""
  }
}

# Without these two grants, Pub/Sub forwards no dead letters, and reports no error.
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
