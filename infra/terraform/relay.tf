# The relay's Google identity, by one of four methods, and the topics to which it may publish.

locals {
  namespace     = "tpu-functions"
  relay_account = "relay"
  relay_subject = "system:serviceaccount:${local.namespace}:${local.relay_account}"

  federation = var.relay_identity.workload_identity_federation
  gke_pool   = try("${var.relay_identity.gke_workload_identity.project_id}.svc.id.goog", null)

  # The relay publishes as its Kubernetes ServiceAccount, as its VM's service account, or as its own.
  relay_has_account = local.gke_pool != null || var.relay_identity.key_file
  relay_members = concat(
    [
      for pool in google_iam_workload_identity_pool.relay :
      "principal://iam.googleapis.com/${pool.name}/subject/${local.relay_subject}"
    ],
    [for email in var.relay_identity.vm_service_account[*] : "serviceAccount:${email}"],
    google_service_account.relay[*].member,
  )
}

resource "google_pubsub_topic_iam_member" "relay" {
  for_each = setintersection(keys(local.permissions.relay.topics), local.steps)

  project = var.project_id
  topic   = google_pubsub_topic.step[each.key].name
  role    = "roles/pubsub.publisher"
  member  = one(local.relay_members)

  depends_on = [time_sleep.accounts]
}

# Workload Identity Federation: the relay exchanges a token of the cluster for Google's. No key is needed.

resource "google_iam_workload_identity_pool" "relay" {
  count = local.federation == null ? 0 : 1

  project                   = var.project_id
  workload_identity_pool_id = coalesce(local.federation.pool_id, "${var.name_prefix}-cluster")
  display_name              = var.name_prefix
  description               = "The cluster whose relay publishes to ${var.name_prefix}"

  depends_on = [time_sleep.apis]
}

resource "google_iam_workload_identity_pool_provider" "relay" {
  count = local.federation == null ? 0 : 1

  project                            = var.project_id
  workload_identity_pool_id          = google_iam_workload_identity_pool.relay[0].workload_identity_pool_id
  workload_identity_pool_provider_id = "cluster"
  description                        = "ServiceAccount tokens of the cluster"

  attribute_mapping   = { "google.subject" = "assertion.sub" }
  attribute_condition = local.account_token == null ? "assertion.sub == '${local.relay_subject}'" : "assertion.sub in ['${local.relay_subject}', '${local.writer_subject}']"

  oidc {
    issuer_uri = local.federation.issuer
    # Without it, Google fetches the keys from the issuer, which must be reachable from the internet.
    jwks_json = local.federation.jwks
  }
}

# The relay's own service account: for a key that the user creates, or for Workload Identity Federation for GKE.

resource "google_service_account" "relay" {
  count = local.relay_has_account ? 1 : 0

  project      = var.project_id
  account_id   = "${var.name_prefix}-relay"
  display_name = "relay of tpu-functions"

  depends_on = [time_sleep.apis]
}

resource "google_service_account_iam_member" "relay" {
  for_each = toset(local.gke_pool[*])

  service_account_id = google_service_account.relay[0].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${each.value}[${local.namespace}/${local.relay_account}]"

  depends_on = [time_sleep.accounts]
}
