# The settings of main.tf for deploy.sh: copy this file to DIR/gke-jobsets.tfvars, then run ./deploy.sh --dir DIR gke-jobsets

project_id  = "my-gcp-project"
region      = "us-central1"
name_prefix = "research"

cluster_access = {
  google_access_token = {
    server         = "https://10.128.0.2"
    ca_certificate = <<-PEM
      -----BEGIN CERTIFICATE-----
      masterAuth.clusterCaCertificate of the cluster, decoded
      -----END CERTIFICATE-----
    PEM
    project_id     = "my-gcp-project"
  }
}
relay_identity = {
  gke_workload_identity = { project_id = "my-gcp-project" }
}
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
