# A GKE cluster with JobSet, in which each Job gets a node pool. The functions authenticate to its API server with
# access tokens, the relay uses Workload Identity Federation for GKE. The cluster's kubeconfig has the address and
# the CA, which this command writes:
#
#   gcloud container clusters describe my-cluster --location=us-central1 \
#     --format='value(masterAuth.clusterCaCertificate)' | base64 --decode > gke-ca.crt

terraform {
  required_version = ">= 1.9"
}

provider "google" {}

variable "ca_certificate_file" {
  description = "File with the cluster's CA."
  type        = string
  default     = "gke-ca.crt"
}

module "tpu_functions" {
  source = "../.."

  project_id  = "my-gcp-project"
  region      = "us-central1"
  name_prefix = "research"

  cluster_access = {
    google_access_token = {
      server         = "https://10.128.0.2"
      ca_certificate = file(var.ca_certificate_file)
      project_id     = "my-gcp-project"
    }
  }
  relay_identity = {
    gke_workload_identity = { project_id = "my-gcp-project" }
  }
  # For the private endpoint, whose authorized networks must include this subnet.
  vpc_egress = {
    direct = { network = "default", subnetwork = "default" }
  }

  jobset_provider = "gke"
  node_pools = {
    location        = "us-central1"
    cluster         = "my-cluster"
    zone            = "us-central1-c"
    service_account = "tpu-nodes@my-gcp-project.iam.gserviceaccount.com"
  }
}

output "values" {
  description = "The values of infra/chart for the cluster."
  value       = module.tpu_functions.values
}
