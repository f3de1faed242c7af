# What is refused before anything is made, with a message that says what would be right.

mock_provider "google" {}
mock_provider "archive" {}
mock_provider "time" {}

variables {
  project_id = "my-project"
  region     = "us-central1"
  cluster_access = {
    google_id_token = { server = "https://10.128.0.2:6443", ca_certificate = "-----BEGIN CERTIFICATE-----" }
  }
  relay_identity = { key_file = true }
}

run "a_project_number" {
  command = plan

  variables {
    project_id = "123456789012"
  }

  expect_failures = [var.project_id]
}

run "a_zone_for_a_region" {
  command = plan

  variables {
    region = "us-central1-c"
  }

  expect_failures = [var.region]
}

run "a_long_prefix" {
  command = plan

  variables {
    name_prefix = "a-longer-prefix"
  }

  expect_failures = [var.name_prefix]
}

run "the_prefix_of_google" {
  command = plan

  variables {
    name_prefix = "gcp-research"
  }

  expect_failures = [var.name_prefix]
}

run "two_ways_into_the_cluster" {
  command = plan

  variables {
    cluster_access = {
      google_id_token     = { server = "https://10.0.0.1", ca_certificate = "-----BEGIN CERTIFICATE-----" }
      google_access_token = { server = "https://10.0.0.1", ca_certificate = "-----BEGIN CERTIFICATE-----", project_id = "p" }
    }
  }

  expect_failures = [var.cluster_access]
}

run "no_way_into_the_cluster" {
  command = plan

  variables {
    cluster_access = {}
  }

  expect_failures = [var.cluster_access]
}

run "secrets_for_some_steps" {
  command = plan

  variables {
    cluster_access = { kubeconfig_secrets = { sweep = "a" } }
  }

  expect_failures = [var.cluster_access]
}

run "a_ca_in_base64" {
  command = plan

  variables {
    cluster_access = { google_id_token = { server = "https://10.0.0.1", ca_certificate = "LS0tLS1CRUdJTg==" } }
  }

  expect_failures = [var.cluster_access]
}

run "a_server_without_scheme" {
  command = plan

  variables {
    cluster_access = { google_id_token = { server = "10.0.0.1:6443", ca_certificate = "-----BEGIN CERTIFICATE-----" } }
  }

  expect_failures = [var.cluster_access]
}

run "no_identity_of_the_relay" {
  command = plan

  variables {
    relay_identity = {}
  }

  expect_failures = [var.relay_identity]
}

run "two_identities_of_the_relay" {
  command = plan

  variables {
    relay_identity = { key_file = true, vm_service_account = "vm@my-project.iam.gserviceaccount.com" }
  }

  expect_failures = [var.relay_identity]
}

run "keys_that_are_no_json" {
  command = plan

  variables {
    relay_identity = { workload_identity_federation = { issuer = "https://kubernetes.default.svc", jwks = "jwks.json" } }
  }

  expect_failures = [var.relay_identity]
}

run "two_ways_to_the_vpc" {
  command = plan

  variables {
    vpc_egress = { direct = { subnetwork = "a" }, connector = "projects/p/locations/us-central1/connectors/c" }
  }

  expect_failures = [var.vpc_egress]
}

run "permissions_of_no_step" {
  command = plan

  variables {
    extra_permissions = { relay = ["compute.images.useReadOnly"] }
  }

  expect_failures = [var.extra_permissions]
}

run "a_role_for_a_permission" {
  command = plan

  variables {
    extra_permissions = { tear_down = ["roles/compute.admin"] }
  }

  expect_failures = [var.extra_permissions]
}

run "fewer_at_most_than_at_least" {
  command = plan

  variables {
    min_instances = 3
    max_instances = 2
  }

  expect_failures = [var.max_instances]
}

run "an_old_python" {
  command = plan

  variables {
    runtime = "python310"
  }

  expect_failures = [var.runtime]
}

run "a_provider_of_slices_that_is_none" {
  command = plan

  variables {
    jobset_provider = "compute"
  }

  expect_failures = [var.jobset_provider]
}

run "node_pools_that_nobody_makes" {
  command = plan

  variables {
    node_pools = { location = "us-east5", cluster = "c", service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "node_pools_of_no_cluster" {
  command = plan

  variables {
    jobset_provider = "gke"
  }

  expect_failures = [var.node_pools]
}

run "node_pools_in_a_zone_of_another_region" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5-a", cluster = "c", zone = "us-central1-c", service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "node_pools_without_an_account" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", service_account = "default" }
  }

  expect_failures = [var.node_pools]
}

run "node_pools_of_a_cluster_without_a_name" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "", service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "node_pools_of_a_project_without_an_id" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", project_id = "My Project", service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "nodes_with_labels_of_the_platform" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", pod_to_node_labels = ["team", "cloud.google.com/gke-spot"], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "nodes_with_labels_of_ours" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", pod_to_node_labels = ["tpu-functions.dev/release-after"], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "nodes_with_two_labels_in_one" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", pod_to_node_labels = ["team,google.com/x"], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "nodes_in_half_a_network" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", additional_networks = [{ network = "n", subnetwork = "" }], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "nodes_in_two_networks_in_one" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", additional_networks = [{ network = "n", subnetwork = "s,n2:s2" }], service_account = "nodes@p.iam.gserviceaccount.com" }
  }

  expect_failures = [var.node_pools]
}

run "nodes_with_too_many_pods" {
  command = plan

  variables {
    jobset_provider = "gke"
    node_pools      = { location = "us-east5", cluster = "c", service_account = "nodes@p.iam.gserviceaccount.com", max_pods_per_node = 500 }
  }

  expect_failures = [var.node_pools]
}

run "half_a_minute" {
  command = plan

  variables {
    jobset_lost_rebuild_minutes = 0.5
  }

  expect_failures = [var.jobset_lost_rebuild_minutes]
}

run "a_suspension_of_no_time" {
  command = plan

  variables {
    jobset_suspended_release_minutes = -1
  }

  expect_failures = [var.jobset_suspended_release_minutes]
}

run "secrets_for_steps_of_jobsets_that_are_not_there" {
  command = plan

  variables {
    cluster_access = { kubeconfig_secrets = {
      create_resources = "a", inject_token = "b", label_node = "c", tear_down = "d", sweep = "e", provision_slice = "f", release_slice = "g", report_leaks = "h", approve_join = "i"
    } }
  }

  expect_failures = [var.cluster_access]
}

run "a_served_project_by_number" {
  command = plan

  variables {
    projects = ["123456789012"]
  }

  expect_failures = [var.projects]
}

run "secrets_by_their_long_names" {
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

run "an_issuer_without_tls" {
  command = plan

  variables {
    relay_identity = { workload_identity_federation = { issuer = "http://kubernetes.default.svc" } }
  }

  expect_failures = [var.relay_identity]
}

run "a_pool_with_a_short_name" {
  command = plan

  variables {
    relay_identity = { workload_identity_federation = { issuer = "https://kubernetes.default.svc", pool_id = "a" } }
  }

  expect_failures = [var.relay_identity]
}

run "an_account_of_a_person" {
  command = plan

  variables {
    relay_identity = { vm_service_account = "somebody@example.com" }
  }

  expect_failures = [var.relay_identity]
}

run "a_connector_by_its_short_name" {
  command = plan

  variables {
    vpc_egress = { connector = "my-connector" }
  }

  expect_failures = [var.vpc_egress]
}

run "a_subnet_by_its_long_name" {
  command = plan

  variables {
    shared_vpc_subnets = [{ project_id = "host-project", region = "us-central1", name = "regions/us-central1/subnetworks/tpus" }]
  }

  expect_failures = [var.shared_vpc_subnets]
}

run "vms_that_run_as_a_person" {
  command = plan

  variables {
    vm_service_accounts = ["somebody@example.com"]
  }

  expect_failures = [var.vm_service_accounts]
}

run "a_join_in_no_time" {
  command = plan

  variables {
    node_join_timeout_seconds = 0
  }

  expect_failures = [var.node_join_timeout_seconds]
}

run "more_at_once_than_an_instance_has_threads_for" {
  command = plan

  variables {
    concurrency = 81
  }

  expect_failures = [var.concurrency]
}

run "fewer_instances_than_none" {
  command = plan

  variables {
    min_instances = -1
  }

  expect_failures = [var.min_instances]
}

run "memory_without_a_unit" {
  command = plan

  variables {
    available_memory = "512"
  }

  expect_failures = [var.available_memory]
}

run "an_ingress_that_is_none" {
  command = plan

  variables {
    ingress_settings = "INTERNAL"
  }

  expect_failures = [var.ingress_settings]
}

run "a_channel_by_its_address" {
  command = plan

  variables {
    notification_channels = ["oncall@example.com"]
  }

  expect_failures = [var.notification_channels]
}

run "a_cluster_name_that_ends_a_query" {
  command = plan

  variables {
    relay_metrics_cluster = "research\"}"
  }

  expect_failures = [var.relay_metrics_cluster]
}

run "a_label_with_capitals" {
  command = plan

  variables {
    labels = { Team = "research" }
  }

  expect_failures = [var.labels]
}

run "a_verification_of_nobody" {
  command = plan

  variables {
    push_verification = "none"
  }

  expect_failures = [var.push_verification]
}

run "an_image_reader_that_is_no_account" {
  command = plan

  variables {
    image_readers = ["allUsers"]
  }

  expect_failures = [var.image_readers]
}

run "an_approval_that_is_none" {
  command = plan

  variables {
    join_approval = "kubeadm"
  }

  expect_failures = [var.join_approval]
}
