# What Google has accepted takes effect later: an API that was just enabled answers that it has not been
# used, a new account is not known everywhere for a minute, a grant takes two minutes as a rule and seven
# or more at times. Each of these waits once, when something of it is made, and not again.
#
# Two things are not waited for, because they recover automatically: Pub/Sub delivers again what a function
# refuses before run.invoker has taken effect; what a new sink could not publish, the sweep finds.

resource "time_sleep" "apis" {
  create_duration = "60s"
  triggers        = { for name, api in google_project_service.this : name => api.id }
}

resource "time_sleep" "accounts" {
  create_duration = "60s"
  triggers = merge(
    { for step, account in google_service_account.step : step => account.unique_id },
    { builder = google_service_account.builder.unique_id, pusher = google_service_account.pusher.unique_id },
    { for account in google_service_account.relay : "relay" => account.unique_id },
  )
}

# What a build or a start of a function needs.
resource "time_sleep" "permissions" {
  create_duration = "120s"
  triggers = merge(
    {
      logs       = google_project_iam_member.builder.id
      copies     = google_project_iam_member.builder_copies.id
      sources    = google_storage_bucket_iam_member.builder.id
      repository = google_artifact_registry_repository_iam_member.builder.id
    },
    { for step, secret in google_secret_manager_secret_iam_member.kubeconfig : "secret of ${step}" => secret.id },
  )
}
