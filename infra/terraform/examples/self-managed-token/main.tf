# A self-managed cluster, as kubeadm sets it up: the token-writer in the cluster writes the functions' tokens, and
# the relay and the token-writer use Workload Identity Federation. No flag of the API server and no VM changes.
#
#   kubectl get --raw /openid/v1/jwks > jwks.json

terraform {
  required_version = ">= 1.9"
}

provider "google" {}

variable "ca_certificate_file" {
  description = "File with the cluster's CA: /etc/kubernetes/pki/ca.crt of a kubeadm control plane."
  type        = string
  default     = "ca.crt"
}

variable "jwks_file" {
  description = "File with the cluster's public keys."
  type        = string
  default     = "jwks.json"
}

module "tpu_functions" {
  source = "../.."

  project_id  = "my-gcp-project"
  region      = "us-central1"
  name_prefix = "research"

  cluster_access = {
    service_account_token = {
      server         = "https://10.128.0.2:6443"
      ca_certificate = file(var.ca_certificate_file)
    }
  }
  relay_identity = {
    workload_identity_federation = {
      issuer = "https://kubernetes.default.svc.cluster.local"
      jwks   = file(var.jwks_file)
    }
  }
  vpc_egress = {
    direct = { network = "default", subnetwork = "default" }
  }
  vm_service_accounts = ["tpu-vm@my-gcp-project.iam.gserviceaccount.com"]
}

output "values" {
  description = "The values of infra/chart for the cluster."
  value       = module.tpu_functions.values
}
