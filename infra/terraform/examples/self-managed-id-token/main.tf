# A cluster of one's own whose API server trusts Google's ID tokens, and whose relay runs on a VM that has
# a service account. No secret anywhere.
#
#   terraform apply -var-file=research.tfvars
#   terraform output -raw authentication_configuration   # for the API server's --authentication-config

terraform {
  required_version = ">= 1.9"
}

provider "google" {}

variable "project_id" {
  description = "Project of the functions and of the TPUs."
  type        = string
}

variable "name_prefix" {
  description = "What all names begin with, one for each cluster."
  type        = string
}

variable "api_server" {
  description = "Address of the API server."
  type        = string
}

variable "ca_certificate_file" {
  description = "File with the cluster's CA: /etc/kubernetes/pki/ca.crt of a kubeadm control plane."
  type        = string
}

variable "control_plane_service_account" {
  description = "E-mail of the service account of the VM that the relay runs on."
  type        = string
}

module "tpu_functions" {
  source = "../.."

  project_id  = var.project_id
  region      = "us-central1"
  name_prefix = var.name_prefix

  cluster_access = {
    google_id_token = {
      server         = var.api_server
      ca_certificate = file(var.ca_certificate_file)
    }
  }
  relay_identity = {
    vm_service_account = var.control_plane_service_account
  }
  vpc_egress = {
    direct = { network = "default", subnetwork = "default" }
  }
  vm_service_accounts = ["tpu-vm@${var.project_id}.iam.gserviceaccount.com"]
}

output "authentication_configuration" {
  description = "What the API server's --authentication-config holds."
  value       = module.tpu_functions.authentication_configuration
}

output "installation" {
  description = "Data of the overlay's ConfigMap installation."
  value       = module.tpu_functions.installation
}

output "relay_settings" {
  description = "Data of the overlay's ConfigMap relay."
  value       = module.tpu_functions.relay_settings
}
