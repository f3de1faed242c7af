# Settings that the validation rules of variables.tf reject, before any resource is planned.

mock_provider "google" {}
mock_provider "archive" {}
mock_provider "time" {}

variables {
  project_id = "my-project"
  region     = "us-central1"
  cluster_access = {
    google_id_token = { server = "https://10.128.0.2:6443", ca_certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----" }
  }
  relay_identity = { key_file = true }
}

run "project_id_rejects_a_project_number" {
  command = plan

  variables {
    project_id = "123456789012"
  }

  expect_failures = [var.project_id]
}

run "region_rejects_a_zone" {
  command = plan

  variables {
    region = "us-central1-c"
  }

  expect_failures = [var.region]
}

run "name_prefix_rejects_more_than_13_characters" {
  command = plan

  variables {
    name_prefix = "a-longer-prefix"
  }

  expect_failures = [var.name_prefix]
}

run "name_prefix_rejects_the_reserved_prefix_gcp" {
  command = plan

  variables {
    name_prefix = "gcp-research"
  }

  expect_failures = [var.name_prefix]
}

run "cluster_access_rejects_two_methods" {
  command = plan

  variables {
    cluster_access = {
      google_id_token     = { server = "https://10.0.0.1", ca_certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----" }
      google_access_token = { server = "https://10.0.0.1", ca_certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----", project_id = "p" }
    }
  }

  expect_failures = [var.cluster_access]
}

run "cluster_access_rejects_no_method" {
  command = plan

  variables {
    cluster_access = {}
  }

  expect_failures = [var.cluster_access]
}

run "service_account_token_rejects_a_vm_service_account" {
  command = plan

  variables {
    cluster_access = { service_account_token = { server = "https://10.0.0.1", ca_certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----" } }
    relay_identity = { vm_service_account = "vm@my-project.iam.gserviceaccount.com" }
  }

  expect_failures = [var.cluster_access]
}

run "kubeconfig_secrets_rejects_missing_steps" {
  command = plan

  variables {
    cluster_access = { kubeconfig_secrets = { sweep = "a" } }
  }

  expect_failures = [var.cluster_access]
}

run "cluster_access_rejects_a_ca_certificate_in_base64" {
  command = plan

  variables {
    cluster_access = { google_id_token = { server = "https://10.0.0.1", ca_certificate = "LS0tLS1CRUdJTg==" } }
  }

  expect_failures = [var.cluster_access]
}

run "cluster_access_rejects_the_ca_certificate_of_the_examples" {
  command = plan

  variables {
    cluster_access = { google_id_token = { server = "https://10.0.0.1", ca_certificate = "-----BEGIN CERTIFICATE-----\nthe content of /etc/kubernetes/pki/ca.crt of the control plane\n-----END CERTIFICATE-----" } }
  }

  expect_failures = [var.cluster_access]
}

run "cluster_access_rejects_a_server_without_https" {
  command = plan

  variables {
    cluster_access = { google_id_token = { server = "10.0.0.1:6443", ca_certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----" } }
  }

  expect_failures = [var.cluster_access]
}

run "relay_identity_rejects_no_identity" {
  command = plan

  variables {
    relay_identity = {}
  }

  expect_failures = [var.relay_identity]
}

run "relay_identity_rejects_two_identities" {
  command = plan

  variables {
    relay_identity = { key_file = true, vm_service_account = "vm@my-project.iam.gserviceaccount.com" }
  }

  expect_failures = [var.relay_identity]
}

run "relay_identity_rejects_jwks_that_is_not_json" {
  command = plan

  variables {
    relay_identity = { workload_identity_federation = { issuer = "https://kubernetes.default.svc", jwks = "jwks.json" } }
  }

  expect_failures = [var.relay_identity]
}

run "relay_identity_rejects_jwks_without_keys" {
  command = plan

  variables {
    relay_identity = { workload_identity_federation = { issuer = "https://kubernetes.default.svc", jwks = "{\"keys\": []}" } }
  }

  expect_failures = [var.relay_identity]
}

run "vpc_egress_rejects_both_direct_and_connector" {
  command = plan

  variables {
    vpc_egress = { direct = { subnetwork = "a" }, connector = "projects/p/locations/us-central1/connectors/c" }
  }

  expect_failures = [var.vpc_egress]
}

run "extra_permissions_rejects_an_unknown_step" {
  command = plan

  variables {
    extra_permissions = { relay = ["compute.images.useReadOnly"] }
  }

  expect_failures = [var.extra_permissions]
}

run "extra_permissions_rejects_a_role" {
  command = plan

  variables {
    extra_permissions = { tear_down = ["roles/compute.admin"] }
  }

  expect_failures = [var.extra_permissions]
}

run "max_instances_rejects_a_value_below_min_instances" {
  command = plan

  variables {
    min_instances = 3
    max_instances = 2
  }

  expect_failures = [var.max_instances]
}

run "runtime_rejects_python_310" {
  command = plan

  variables {
    runtime = "python310"
  }

  expect_failures = [var.runtime]
}

run "jobset_provider_rejects_an_unknown_provider" {
  command = plan

  variables {
    jobset_provider = "compute"
  }

  expect_failures = [var.jobset_provider]
}

run "slice_workloads_is_rejected_without_jobset_provider" {
  command = plan

  variables {
    slice_workloads = true
  }

  expect_failures = [var.slice_workloads]
}

run "node_pools_is_rejected_without_jobset_provider_gke" {
  command = plan

  variables {
    node_pools = { location = "us-east5", cluster = "c", service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "node_pools_is_required_with_jobset_provider_gke" {
  command = plan

  variables {
    jobset_provider = "gke"
  }

  expect_failures = [var.node_pools]
}

run "node_pools_rejects_a_zone_of_another_region" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5-a", cluster = "c", zone = "us-central1-c", service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "node_pools_rejects_a_service_account_that_is_not_an_email" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", service_account = "default" }
  }

  expect_failures = [var.node_pools]
}

run "node_pools_rejects_an_empty_cluster_name" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "", service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "node_pools_rejects_a_project_name_as_project_id" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", project_id = "My Project", service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "pod_to_node_labels_rejects_labels_under_google_com" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", pod_to_node_labels = ["team", "cloud.google.com/gke-spot"], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "pod_to_node_labels_rejects_labels_under_tpu_functions_dev" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", pod_to_node_labels = ["tpu-functions.dev/release-after"], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "pod_to_node_labels_rejects_two_labels_in_one_item" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", pod_to_node_labels = ["team,google.com/x"], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "additional_networks_rejects_an_empty_subnetwork" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", additional_networks = [{ network = "n", subnetwork = "" }], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "additional_networks_rejects_two_networks_in_one_item" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", additional_networks = [{ network = "n", subnetwork = "s,n2:s2" }], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "max_pods_per_node_rejects_more_than_256" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", service_account = "nodes@p.iam.gserviceaccount.com", max_pods_per_node = 500 }
  }

  expect_failures = [var.node_pools]
}

run "jobset_lost_rebuild_minutes_rejects_a_fraction" {
  command = plan

  variables {
    jobset_lost_rebuild_minutes = 0.5
  }

  expect_failures = [var.jobset_lost_rebuild_minutes]
}

run "jobset_suspended_release_minutes_rejects_a_negative_number" {
  command = plan

  variables {
    jobset_suspended_release_minutes = -1
  }

  expect_failures = [var.jobset_suspended_release_minutes]
}

run "kubeconfig_secrets_rejects_jobset_steps_without_jobset_provider" {
  command = plan

  variables {
    cluster_access = { kubeconfig_secrets = {
      create_resources = "a", inject_token = "b", label_node = "c", tear_down = "d", sweep = "e", provision_slice = "f", release_slice = "g", report_leaks = "h", approve_join = "i"
    } }
  }

  expect_failures = [var.cluster_access]
}

run "projects_rejects_a_project_number" {
  command = plan

  variables {
    projects = ["123456789012"]
  }

  expect_failures = [var.projects]
}

run "kubeconfig_secrets_rejects_full_resource_names" {
  command = plan

  variables {
    cluster_access = {
      kubeconfig_secrets = {
        for step in ["approve_join", "create_resources", "inject_token", "label_node", "report_leaks", "sweep", "tear_down"] :
        step => "projects/my-project/secrets/kubeconfig"
      }
    }
  }

  expect_failures = [var.cluster_access]
}

run "relay_identity_rejects_an_http_issuer" {
  command = plan

  variables {
    relay_identity = { workload_identity_federation = { issuer = "http://kubernetes.default.svc" } }
  }

  expect_failures = [var.relay_identity]
}

run "relay_identity_rejects_a_pool_id_below_4_characters" {
  command = plan

  variables {
    relay_identity = { workload_identity_federation = { issuer = "https://kubernetes.default.svc", pool_id = "a" } }
  }

  expect_failures = [var.relay_identity]
}

run "relay_identity_rejects_a_user_as_vm_service_account" {
  command = plan

  variables {
    relay_identity = { vm_service_account = "somebody@example.com" }
  }

  expect_failures = [var.relay_identity]
}

run "vpc_egress_rejects_a_short_connector_name" {
  command = plan

  variables {
    vpc_egress = { connector = "my-connector" }
  }

  expect_failures = [var.vpc_egress]
}

run "shared_vpc_subnets_rejects_a_full_subnet_name" {
  command = plan

  variables {
    shared_vpc_subnets = [{ project_id = "host-project", region = "us-central1", name = "regions/us-central1/subnetworks/tpus" }]
  }

  expect_failures = [var.shared_vpc_subnets]
}

run "vm_service_accounts_rejects_a_user" {
  command = plan

  variables {
    vm_service_accounts = ["somebody@example.com"]
  }

  expect_failures = [var.vm_service_accounts]
}

run "node_join_timeout_seconds_rejects_zero" {
  command = plan

  variables {
    node_join_timeout_seconds = 0
  }

  expect_failures = [var.node_join_timeout_seconds]
}

run "concurrency_rejects_more_than_80" {
  command = plan

  variables {
    concurrency = 81
  }

  expect_failures = [var.concurrency]
}

run "min_instances_rejects_a_negative_number" {
  command = plan

  variables {
    min_instances = -1
  }

  expect_failures = [var.min_instances]
}

run "available_memory_rejects_a_number_without_a_unit" {
  command = plan

  variables {
    available_memory = "512"
  }

  expect_failures = [var.available_memory]
}

run "ingress_settings_rejects_an_unknown_value" {
  command = plan

  variables {
    ingress_settings = "INTERNAL"
  }

  expect_failures = [var.ingress_settings]
}

run "notification_channels_rejects_an_email" {
  command = plan

  variables {
    notification_channels = ["oncall@example.com"]
  }

  expect_failures = [var.notification_channels]
}

run "relay_metrics_cluster_rejects_a_quotation_mark" {
  command = plan

  variables {
    relay_metrics_cluster = "research\"}"
  }

  expect_failures = [var.relay_metrics_cluster]
}

run "labels_rejects_capitals" {
  command = plan

  variables {
    labels = { Team = "research" }
  }

  expect_failures = [var.labels]
}

run "push_verification_rejects_an_unknown_value" {
  command = plan

  variables {
    push_verification = "none"
  }

  expect_failures = [var.push_verification]
}

run "image_readers_rejects_allUsers" {
  command = plan

  variables {
    image_readers = ["allUsers"]
  }

  expect_failures = [var.image_readers]
}

run "join_approval_rejects_an_unknown_value" {
  command = plan

  variables {
    join_approval = "kubeadm"
  }

  expect_failures = [var.join_approval]
}
