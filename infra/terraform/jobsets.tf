# Slices for JobSets: two additional steps and, with GKE's node pools, their settings and grants. Nothing here is
# created while jobset_provider is empty.

locals {
  jobset_steps = var.jobset_provider == "" ? [] : ["provision_slice", "release_slice"]

  # The cluster in which node pools are created: a list of one item, or an empty list.
  node_pools         = var.jobset_provider == "gke" ? var.node_pools[*] : []
  node_pool_projects = toset([for pools in local.node_pools : coalesce(pools.project_id, var.project_id)])

  # Steps that need the settings of JobSets. The sweep triggers the steps of JobSets, too.
  jobset_readers = setunion(local.jobset_steps, length(local.jobset_steps) == 0 ? [] : ["sweep"])
  jobset_environment = length(local.jobset_steps) == 0 ? {} : merge(
    {
      JOBSET_PROVIDER                  = var.jobset_provider
      JOBSET_SUSPENDED_RELEASE_MINUTES = tostring(var.jobset_suspended_release_minutes)
      JOBSET_LOST_REBUILD_MINUTES      = var.jobset_lost_rebuild_minutes == null ? "" : tostring(var.jobset_lost_rebuild_minutes)
    },
    [
      for pools in local.node_pools : {
        GCP_PROJECT_ID                = one(local.node_pool_projects)
        GCP_CLUSTER_LOCATION          = pools.location
        GCP_CLUSTER                   = pools.cluster
        GCP_ZONE                      = pools.zone
        GCP_NODE_SERVICE_ACCOUNT      = pools.service_account
        GCP_NODE_TAGS                 = join(",", pools.tags)
        GCP_POD_TO_NODE_LABELS        = join(",", pools.pod_to_node_labels)
        GCP_NODE_ADDITIONAL_NETWORKS  = join(",", [for one in pools.additional_networks : "${one.network}:${one.subnetwork}"])
        GCP_NODE_SECONDARY_DISK       = pools.secondary_disk
        GCP_NODE_DISK_TYPE            = pools.disk_type
        GCP_NODE_BOOT_DISK_KMS_KEY    = pools.boot_disk_kms_key
        GCP_NODE_SECURE_BOOT          = tostring(pools.secure_boot)
        GCP_NODE_CONFIDENTIAL_STORAGE = tostring(pools.confidential_storage)
        GCP_FORCE_ON_DEMAND           = tostring(pools.force_on_demand)
        GKE_MAX_PODS_PER_NODE         = tostring(pools.max_pods_per_node)
      }
    ]...
  )
}

# Service accounts of Nodes: a step that creates node pools must be able to act as them.

locals {
  node_service_account_users = {
    for pair in setproduct(
      toset(flatten([for pools in local.node_pools : concat([pools.service_account], pools.more_service_accounts)])),
      [for step in local.jobset_steps : step if length(local.permissions[step].node_service_account) > 0],
    ) : join("/", pair) => { account = pair[0], step = pair[1] }
  }
}

resource "google_service_account_iam_member" "node" {
  for_each = local.node_service_account_users

  service_account_id = "projects/-/serviceAccounts/${each.value.account}"
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.step[each.value.step].member

  depends_on = [time_sleep.accounts]
}
