# How the functions get into the cluster, in one of three ways.

locals {
  kubeconfig_secrets = var.cluster_access.kubeconfig_secrets
  kubeconfig_folder  = "/secrets/kubeconfig"

  # One of these is set, or none: then it is a kubeconfig.
  id_token     = var.cluster_access.google_id_token
  access_token = var.cluster_access.google_access_token

  audience = try(coalesce(local.id_token.audience, local.id_token.server), null)

  cluster_environment = merge(concat(
    [
      for _ in local.kubeconfig_secrets[*] : {
        KUBECONFIG = "${local.kubeconfig_folder}/kubeconfig"
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

# The secrets and their versions are made outside: what is in them must not come into the state.
resource "google_secret_manager_secret_iam_member" "kubeconfig" {
  for_each = local.kubeconfig_secrets == null ? {} : local.kubeconfig_secrets

  project   = var.project_id
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.step[each.key].member

  depends_on = [time_sleep.accounts]
}

# GKE's DNS-based endpoint lets in whoever has this right; what they may do there, RBAC says.
resource "google_project_iam_custom_role" "gke" {
  count = local.access_token == null ? 0 : 1

  project     = local.access_token.project_id
  role_id     = replace("${var.name_prefix}_gke", "-", "_")
  title       = "${var.name_prefix} gke"
  description = "Connecting tpu-functions to the cluster's API server"
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

# Whom the API server sees: the names that RBAC binds.

locals {
  oidc_prefix = "gcp:"

  users = {
    for step, account in google_service_account.step :
    local.slugs[step] => "${local.id_token == null ? "" : local.oidc_prefix}${account.email}"
    if local.kubeconfig_secrets == null
  }

  # Anybody can have Google make a token for this audience: only these accounts are let in, by their
  # unique ids, because an e-mail can be given to another account later.
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
