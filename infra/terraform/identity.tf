# Which installation this is, and in which cluster: deploy.sh compares both before it changes anything.

# The identity of this installation. deploy.sh writes it to the annotation tpu-functions.dev/installation-id of the
# cluster's Namespace kube-system. The functions write nothing in the cloud if their cluster has another one or none.
resource "terraform_data" "installation" {
  input = coalesce(var.installation_id, uuid())

  lifecycle {
    ignore_changes = [input]
  }
}

# The cluster of this installation, as deploy.sh has seen it: it compares kubectl's context with it.
resource "terraform_data" "cluster" {
  input = var.cluster_identity

  # Without deploy.sh the variable is empty, and the record stays as it is.
  lifecycle {
    ignore_changes = [input]
  }
}

output "installation_id" {
  description = "The id of this installation: the functions' setting INSTALLATION_ID, and the annotation `tpu-functions.dev/installation-id` of the cluster's Namespace kube-system, which deploy.sh writes."
  value       = terraform_data.installation.output
}

output "cluster_identity" {
  description = "The cluster in which deploy.sh has installed: the uid of its Namespace kube-system and the addresses of its API servers, separated by spaces."
  value       = terraform_data.cluster.output
}
