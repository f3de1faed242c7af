# The settings of main.tf for deploy.sh: copy this file to DIR/research.tfvars, then run ./deploy.sh --dir DIR research

project_id  = "my-gcp-project"
region      = "us-central1"
name_prefix = "research"

cluster_access = {
  google_id_token = {
    server         = "https://10.128.0.2:6443"
    ca_certificate = <<-PEM
      -----BEGIN CERTIFICATE-----
      the content of /etc/kubernetes/pki/ca.crt of the control plane
      -----END CERTIFICATE-----
    PEM
  }
}
relay_identity = {
  vm_service_account = "research-cluster@my-gcp-project.iam.gserviceaccount.com"
}
vpc_egress = {
  direct = { network = "default", subnetwork = "default" }
}
vm_service_accounts = ["tpu-vm@my-gcp-project.iam.gserviceaccount.com"]
