# Changes on Google Cloud take effect with a delay: an API that was just enabled returns that it is not enabled,
# a new service account is unknown to some services for a minute, a grant usually takes two minutes, sometimes
# seven or more. Each time_sleep waits once, when one of its resources is created.
#
# Two delays need no wait, because they have no lasting effect: Pub/Sub delivers messages again that Cloud Run
# rejects before run.invoker takes effect, and the sweep makes up for entries that a new sink could not publish.

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

# The grants that a function's build or start needs.
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
    { for step, secret in google_secret_manager_secret_iam_member.token : "token of ${step}" => secret.id },
  )
}
