# The settings of main.tf for deploy.sh: copy this file to DIR/tpu.tfvars, then run ./deploy.sh --dir DIR tpu

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
    # The output of `kubectl get --raw /openid/v1/jwks`.
    jwks = <<-JSON
      {"keys": []}
    JSON
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
