output "service_accounts" {
  description = "For each step, the e-mail and unique id of its service account."
  value = {
    for step, account in google_service_account.step :
    step => { email = account.email, unique_id = account.unique_id }
  }
}

locals {
  relay_settings = {
    PUBSUB_PROJECT = var.project_id
    TOPIC_PREFIX   = local.topic_prefix
  }
}

output "values" {
  description = "The values of infra/chart that follow from the settings, for `helm upgrade --values`. deploy.sh writes them to a file."
  value = yamlencode(merge({
    project      = var.project_id
    topicPrefix  = local.topic_prefix
    joinApproval = var.join_approval
    slices = {
      workloads = var.slice_workloads ? "all" : var.jobset_provider == "" ? "none" : "jobsets"
      provider  = coalesce(var.jobset_provider, "tpu-node-group")
    }
    identity = {
      users = local.users
      google = {
        audience       = join("", [for provider in google_iam_workload_identity_pool_provider.relay : "//iam.googleapis.com/${provider.name}"])
        serviceAccount = join("", [for account in local.gke_pool == null ? [] : google_service_account.relay : account.email])
        keySecret      = var.relay_identity.key_file ? "relay-google-key" : ""
      }
    }
    tokenWriter = {
      enabled = local.account_token != null
      server  = join("", [for cluster in local.account_token[*] : cluster.server])
      ca      = join("", [for cluster in local.account_token[*] : base64encode(cluster.ca_certificate)])
      steps   = local.account_token == null ? [] : values(local.slugs)
      # An API server that is not kubeadm's has another issuer, and so another audience of its tokens.
      audience = join("", local.account_token == null ? [] : [for cluster in local.federation[*] : cluster.issuer])
    }
    # GKE has its own device plugin.
  }, var.jobset_provider == "gke" ? { devicePlugin = { enabled = false } } : {}))
}

output "inject_token_user" {
  description = "The Kubernetes user of inject_token, for `kubectl --as`."
  value       = lookup(local.users, "inject-token", "system:serviceaccount:${local.namespace}:inject-token")
}

output "slice_class" {
  description = "With jobset_provider `gke`: a TPUSliceClass with the settings of `node_pools`, to apply to the cluster. Without `node_pools.zone`, add candidates. Null otherwise."
  value = one([for pools in local.node_pools : yamlencode({
    apiVersion = "tpu-functions.dev/v1alpha1"
    kind       = "TPUSliceClass"
    metadata   = { name = "default" }
    spec = {
      isDefault = true
      nodePool = merge(
        {
          for name, value in {
            zone           = pools.zone
            serviceAccount = pools.service_account
            secondaryDisk  = pools.secondary_disk
            diskType       = pools.disk_type
            bootDiskKmsKey = pools.boot_disk_kms_key
          } : name => value if value != ""
        },
        {
          tags                = pools.tags
          podToNodeLabels     = pools.pod_to_node_labels
          additionalNetworks  = pools.additional_networks
          secureBoot          = pools.secure_boot
          confidentialStorage = pools.confidential_storage
          maxPodsPerNode      = pools.max_pods_per_node
        },
      )
    }
  })])
}

output "relay_settings" {
  description = "The relay's settings in the cluster."
  value       = local.relay_settings
}

output "tool_environment" {
  description = "The settings of `kubectl tng`, as lines for a shell."
  value = join("", [
    for name, value in merge(local.installation_environment, local.jobset_environment) :
    "export ${name}='${replace(value, "'", "'\\''")}'\n"
  ])
}

output "relay_member" {
  description = "The relay's Google identity as an IAM member."
  value       = one(local.relay_members)
}

output "relay_key_command" {
  description = "With `key_file`: the command that creates the relay's key, for a Secret. Null otherwise."
  value = one([
    for account in var.relay_identity.key_file ? google_service_account.relay : [] :
    "gcloud iam service-accounts keys create key.json --iam-account=${account.email} --project=${var.project_id}"
  ])
}

output "authentication_configuration" {
  description = "With `google_id_token`: the file for the API server's --authentication-config (from Kubernetes 1.34; from 1.30 with apiVersion apiserver.config.k8s.io/v1beta1). It admits only the steps' service accounts. Null otherwise."
  value       = local.authentication_configuration
}

output "kubeconfig_commands" {
  description = "With `kubeconfig_secrets`: for each step, the command that replaces its kubeconfig. It takes effect immediately, without a deployment."
  value = {
    for step, secret in local.kubeconfig_secrets == null ? {} : local.kubeconfig_secrets :
    step => "gcloud secrets versions add ${secret} --project=${var.project_id} --data-file=kubeconfig-${local.slugs[step]}"
  }
}

output "image_repository" {
  description = "The repository for the images of the relay and of inject-env."
  value       = "${var.region}-docker.pkg.dev/${var.project_id}/${google_artifact_registry_repository.images.repository_id}"
}

output "image_builder" {
  description = "The name of the service account with which Cloud Build builds these images."
  value       = google_service_account.builder.name
}

output "image_sources" {
  description = "The bucket folder with the sources of these images."
  value       = "gs://${google_storage_bucket.source.name}/images"
}

output "topics" {
  description = "For each step, the id of its topic."
  value       = { for step, topic in google_pubsub_topic.step : step => topic.id }
}

output "functions" {
  description = "For each step, the name of its function."
  value       = { for step, function in google_cloudfunctions2_function.step : step => function.name }
}

output "dead_letters_command" {
  description = "The command that lists dead letters."
  value       = "PUBSUB_PROJECT=${var.project_id} TOPIC_PREFIX=${local.topic_prefix} kubectl tng dead-letters list"
}
