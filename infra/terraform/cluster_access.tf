# How the functions authenticate to the cluster's API server: by one of four methods.

locals {
  kubeconfig_secrets = var.cluster_access.kubeconfig_secrets

  # At most one of these is set. If none is, the functions use a kubeconfig.
  account_token = var.cluster_access.service_account_token
  id_token      = var.cluster_access.google_id_token
  access_token  = var.cluster_access.google_access_token

  audience = try(coalesce(local.id_token.audience, local.id_token.server), null)

  cluster_environment = merge(concat(
    [
      for _ in local.kubeconfig_secrets[*] : {
        KUBECONFIG = "/secrets/kubeconfig/kubeconfig"
      }
    ],
    [
      for cluster in local.account_token[*] : {
        CLUSTER_SERVER     = cluster.server
        CLUSTER_CA         = base64encode(cluster.ca_certificate)
        CLUSTER_TOKEN      = "service-account-token"
        CLUSTER_TOKEN_FILE = "/secrets/token/token"
      }
    ],
    [
      for cluster in local.id_token[*] : {
        CLUSTER_SERVER   = cluster.server
        CLUSTER_CA       = base64encode(cluster.ca_certificate)
        CLUSTER_TOKEN    = "google-id-token"
        CLUSTER_AUDIENCE = local.audience
      }
    ],
    [
      for cluster in local.access_token[*] : {
        CLUSTER_SERVER = cluster.server
        CLUSTER_CA     = base64encode(cluster.ca_certificate)
        CLUSTER_TOKEN  = "google-access-token"
      }
    ],
  )...)
}

# Secrets and their versions are created outside of Terraform, so that the state does not contain credentials.
resource "google_secret_manager_secret_iam_member" "kubeconfig" {
  for_each = local.kubeconfig_secrets == null ? {} : local.kubeconfig_secrets

  project   = var.project_id
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.step[each.key].member

  depends_on = [time_sleep.accounts]
}

# The token-writer in the cluster adds a version to each step's secret once an hour. A function is deployed only if its
# secret has a version, so the first one is a text, which the token-writer keeps. The state has no token.

locals {
  writer_subject = "system:serviceaccount:${local.namespace}:token-writer"
  token_secrets  = local.account_token == null ? {} : { for step, slug in local.slugs : step => "${local.topic_prefix}token-${slug}" }
  writer_secrets = { for step, secret in google_secret_manager_secret.token : step => secret.secret_id }
}

resource "google_secret_manager_secret" "token" {
  for_each = local.token_secrets

  project   = var.project_id
  secret_id = each.value
  labels    = var.labels

  replication {
    auto {}
  }

  depends_on = [time_sleep.apis]
}

resource "google_secret_manager_secret_version" "placeholder" {
  for_each = google_secret_manager_secret.token

  secret      = each.value.id
  secret_data = "the token-writer has not run yet"

  lifecycle {
    ignore_changes = all
  }
}

resource "google_secret_manager_secret_iam_member" "token" {
  for_each = local.writer_secrets

  project   = var.project_id
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.step[each.key].member

  depends_on = [time_sleep.accounts]
}

resource "google_project_iam_custom_role" "token_writer" {
  count = local.account_token == null ? 0 : 1

  project     = var.project_id
  role_id     = replace("${var.name_prefix}_token_writer", "-", "_")
  title       = "${var.name_prefix} token-writer"
  description = "Permissions of the token-writer of tpu-functions on the secrets of the functions' tokens"
  permissions = keys(local.permissions.token_writer.secrets)

  depends_on = [time_sleep.apis]
}

resource "google_secret_manager_secret_iam_member" "token_writer" {
  for_each = local.writer_secrets

  project   = var.project_id
  secret_id = each.value
  role      = google_project_iam_custom_role.token_writer[0].name
  member    = "principal://iam.googleapis.com/${google_iam_workload_identity_pool.relay[0].name}/subject/${local.writer_subject}"
}

# GKE's DNS-based endpoint admits accounts with this permission. RBAC limits what they may do in the cluster.
resource "google_project_iam_custom_role" "gke" {
  count = local.access_token == null ? 0 : 1

  project     = local.access_token.project_id
  role_id     = replace("${var.name_prefix}_gke", "-", "_")
  title       = "${var.name_prefix} gke"
  description = "Connection of tpu-functions to the cluster's API server"
  permissions = keys(local.permissions.cluster_project)

  depends_on = [time_sleep.apis]
}

resource "google_project_iam_member" "gke" {
  for_each = local.access_token == null ? {} : local.slugs

  project = local.access_token.project_id
  role    = google_project_iam_custom_role.gke[0].name
  member  = google_service_account.step[each.key].member

  depends_on = [time_sleep.accounts]
}

# The users as which the API server authenticates the steps. RBAC binds roles to them.

locals {
  oidc_prefix = "gcp:"

  users = {
    for step, account in google_service_account.step :
    local.slugs[step] => "${local.id_token == null ? "" : local.oidc_prefix}${account.email}"
    if local.kubeconfig_secrets == null && local.account_token == null
  }

  # Any Google account can get a token for this audience, so only the steps' accounts are admitted: by unique
  # id, because an e-mail can be reused by a later account.
  authentication_configuration = local.id_token == null ? null : yamlencode({
    apiVersion = "apiserver.config.k8s.io/v1"
    kind       = "AuthenticationConfiguration"
    jwt = [{
      issuer        = { url = "https://accounts.google.com", audiences = [local.audience] }
      claimMappings = { username = { claim = "email", prefix = local.oidc_prefix } }
      claimValidationRules = [
        {
          expression = "claims.email_verified == true"
          message    = "the e-mail must be verified"
        },
        {
          expression = "claims.sub in ${jsonencode(sort([for account in google_service_account.step : account.unique_id]))}"
          message    = "not an account of ${var.name_prefix}"
        },
      ]
    }]
  })
}
