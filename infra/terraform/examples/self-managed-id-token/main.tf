# A self-managed cluster whose API server trusts Google's ID tokens, and whose relay runs on a VM that has
# a service account. It needs no secrets. After the apply:
#
#   terraform output -raw authentication_configuration   # for the API server's --authentication-config

terraform {
  required_version = ">= 1.9"
}

provider "google" {}

variable "ca_certificate_file" {
  description = "File with the cluster's CA: /etc/kubernetes/pki/ca.crt of a kubeadm control plane."
  type        = string
  default     = "ca.crt"
}

module "tpu_functions" {
  source = "../.."

  project_id  = "my-gcp-project"
  region      = "us-central1"
  name_prefix = "research"

  cluster_access = {
    google_id_token = {
      server         = "https://10.128.0.2:6443"
      ca_certificate = file(var.ca_certificate_file)
    }
  }
  relay_identity = {
    vm_service_account = "research-cluster@my-gcp-project.iam.gserviceaccount.com"
  }
  vpc_egress = {
    direct = { network = "default", subnetwork = "default" }
  }
  vm_service_accounts = ["tpu-vm@my-gcp-project.iam.gserviceaccount.com"]
}

output "authentication_configuration" {
  description = "The file for the API server's --authentication-config."
  value       = module.tpu_functions.authentication_configuration
}

output "values" {
  description = "The values of infra/chart for the cluster."
  value       = module.tpu_functions.values
}
