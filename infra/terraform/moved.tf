# Earlier addresses of resources. Without these, an upgrade would delete the resources and create them again:
# messages would be lost.

moved {
  from = google_pubsub_topic.inbox
  to   = google_pubsub_topic.step
}

moved {
  from = google_pubsub_subscription.inbox
  to   = google_pubsub_subscription.step
}

moved {
  from = google_pubsub_subscription_iam_member.inbox
  to   = google_pubsub_subscription_iam_member.step
}

moved {
  from = google_monitoring_alert_policy.this["inbox"]
  to   = google_monitoring_alert_policy.this["waiting"]
}

moved {
  from = time_sleep.rights
  to   = time_sleep.permissions
}
