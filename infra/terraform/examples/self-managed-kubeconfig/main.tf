# A cluster whose API server cannot have an OIDC issuer: the functions use kubeconfigs from Secret Manager, the
# relay uses Workload Identity Federation. The TPUs are in two projects, on a Shared VPC.
#
# Before the first apply, create a kubeconfig for each step, with a token of the ServiceAccount of the same name
# in the namespace tpu-functions, and store it:
#
#   for step in create-resources inject-token label-node tear-down approve-join sweep report-leaks; do
#     gcloud secrets create tpu-functions-$step --replication-policy=automatic --data-file=kubeconfig-$step
#   done
#   kubectl get --raw /openid/v1/jwks > jwks.json

terraform {
  required_version = ">= 1.9"
}

provider "google" {}

variable "jwks_file" {
  description = "File with the cluster's public keys."
  type        = string
  default     = "jwks.json"
}

module "tpu_functions" {
  source = "../.."

  project_id = "my-gcp-project"
  region     = "us-central1"
  projects   = ["my-tpu-project", "my-other-tpu-project"]

  cluster_access = {
    kubeconfig_secrets = {
      create_resources = "tpu-functions-create-resources"
      inject_token     = "tpu-functions-inject-token"
      label_node       = "tpu-functions-label-node"
      tear_down        = "tpu-functions-tear-down"
      sweep            = "tpu-functions-sweep"
      approve_join     = "tpu-functions-approve-join"
      report_leaks     = "tpu-functions-report-leaks"
    }
  }
  relay_identity = {
    workload_identity_federation = {
      issuer = "https://kubernetes.default.svc.cluster.local"
      jwks   = file(var.jwks_file)
    }
  }
  vpc_egress = {
    direct = {
      network    = "projects/my-network-project/global/networks/shared"
      subnetwork = "projects/my-network-project/regions/us-central1/subnetworks/serverless"
    }
  }
  shared_vpc_subnets = [
    { project_id = "my-network-project", region = "us-central1", name = "tpu" },
  ]
  notification_channels = ["projects/my-gcp-project/notificationChannels/1234567890"]
}

output "values" {
  description = "The values of infra/chart for the cluster."
  value       = module.tpu_functions.values
}

output "kubeconfig_commands" {
  description = "For each step, the command that replaces its kubeconfig."
  value       = module.tpu_functions.kubeconfig_commands
}
