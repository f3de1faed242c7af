# The plan of the whole module with mock providers: the resources and outputs of each cluster_access,
# relay_identity and jobset_provider. validation.tftest.hcl has the settings that are rejected.

mock_provider "google" {
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
  mock_resource "google_logging_project_sink" {
    defaults = { writer_identity = "serviceAccount:service-123456789012@gcp-sa-logging.iam.gserviceaccount.com" }
  }
  mock_resource "google_iam_workload_identity_pool" {
    defaults = { name = "projects/123456789012/locations/global/workloadIdentityPools/tpu-functions" }
  }
  mock_resource "google_iam_workload_identity_pool_provider" {
    defaults = { name = "projects/123456789012/locations/global/workloadIdentityPools/tpu-functions/providers/cluster" }
  }
  mock_resource "google_service_account" {
    defaults = { name = "projects/my-project/serviceAccounts/mocked@my-project.iam.gserviceaccount.com", email = "mocked@my-project.iam.gserviceaccount.com", member = "serviceAccount:mocked@my-project.iam.gserviceaccount.com", unique_id = "117" }
  }
}

mock_provider "archive" {}
mock_provider "time" {}

variables {
  project_id = "my-project"
  region     = "us-central1"
  cluster_access = {
    google_id_token = { server = "https://10.128.0.2:6443", ca_certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n" }
  }
  relay_identity = { vm_service_account = "tpu-vms@my-project.iam.gserviceaccount.com" }
}

run "cluster_access_google_id_token_with_the_relay_as_its_vm" {
  assert {
    condition = google_cloudfunctions2_function.step["sweep"].service_config[0].environment_variables == tomap({
      CLUSTER_SERVER            = "https://10.128.0.2:6443"
      CLUSTER_CA                = base64encode("-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n")
      CLUSTER_TOKEN             = "google-id-token"
      CLUSTER_AUDIENCE          = "https://10.128.0.2:6443"
      INSTALLATION_ID           = terraform_data.installation.output
      PUBSUB_PROJECT            = "my-project"
      TOPIC_PREFIX              = "tpu-functions-"
      PROJECTS                  = "my-project"
      NODE_JOIN_TIMEOUT_SECONDS = "900"
      JOIN_APPROVAL             = "approve_join"
      PUSH_AUDIENCE             = "https://tpu-functions-sweep-123456789012.us-central1.run.app"
      PUSH_SERVICE_ACCOUNT      = "mocked@my-project.iam.gserviceaccount.com"
      PUSH_VERIFICATION         = "platform"
      MALLOC_ARENA_MAX          = "2"
      THREADS                   = "8"
    })
    error_message = "The environment must have exactly the settings that the functions read."
  }

  assert {
    condition     = output.inject_token_user == "gcp:mocked@my-project.iam.gserviceaccount.com"
    error_message = "The user of inject_token must have the prefix of the AuthenticationConfiguration."
  }

  assert {
    condition     = yamldecode(output.authentication_configuration).jwt[0].issuer.audiences == ["https://10.128.0.2:6443"]
    error_message = "The AuthenticationConfiguration must have the audience of the functions' tokens."
  }

  assert {
    condition     = yamldecode(output.authentication_configuration).jwt[0].claimValidationRules[1].expression == "claims.sub in [\"117\",\"117\",\"117\",\"117\",\"117\",\"117\",\"117\"]"
    error_message = "The AuthenticationConfiguration must admit the steps' service accounts and no others."
  }

  assert {
    condition = keys(google_logging_project_sink.step) == [
      "my-project/create_resources", "my-project/inject_token", "my-project/label_node", "my-project/tear_down",
    ]
    error_message = "Each step that has a filter must have a log sink, and no other step."
  }

  assert {
    condition = keys(google_project_iam_custom_role.step) == [
      "my-project/approve_join", "my-project/create_resources", "my-project/inject_token", "my-project/label_node", "my-project/report_leaks", "my-project/tear_down",
    ]
    error_message = "Each step that calls Compute Engine must have a custom role, and no other step."
  }

  assert {
    condition = (
      startswith(google_logging_metric.invocations.filter, "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=(\"tpu-functions-approve-join\" OR \"tpu-functions-create-resources\" OR \"tpu-functions-")
      && endswith(google_logging_metric.duration.filter, "\") AND jsonPayload.step:* AND jsonPayload.decision:* AND jsonPayload.milliseconds>=0")
    )
    error_message = "The log-based metrics must select the log lines of the functions."
  }

  assert {
    condition = { for key, role in google_project_iam_custom_role.named : key => join(",", sort(role.permissions)) } == {
      "my-project/inject_token" = "compute.instances.setMetadata"
      "my-project/report_leaks" = "compute.instanceTemplates.get"
      "my-project/tear_down"    = "compute.instanceTemplates.delete,compute.instanceTemplates.get"
    }
    error_message = "Permissions on VMs and templates whose name begins with tng- must be in separate roles."
  }

  assert {
    condition = alltrue([
      for member in google_project_iam_member.named :
      member.condition[0].expression == "resource.name.extract(\"/instances/{name}\").startsWith(\"tng-\") || resource.name.extract(\"/instanceTemplates/{name}\").startsWith(\"tng-\")"
    ]) && !contains(google_project_iam_custom_role.step["my-project/inject_token"].permissions, "compute.instances.setMetadata")
    error_message = "The separate roles must be granted with a condition on the name prefix tng-, and their permissions must not be in the unconditional role."
  }

  assert {
    condition     = length(google_project_service.this) == 10 && length(google_monitoring_alert_policy.this) == 0 && length(google_logging_metric.alerts) == 0 && length(google_monitoring_alert_policy.sweep_absent) == 0 && length(google_monitoring_alert_policy.relay_down) == 0
    error_message = "Only the APIs for these settings must be enabled, and no alerts be created."
  }

  assert {
    condition     = google_project_iam_member.builder_copies.condition[0].expression == "resource.name.startsWith(\"projects/_/buckets/gcf-v2-sources-123456789012-us-central1\")"
    error_message = "The builder must be able to read only the source buckets of Cloud Functions."
  }

  assert {
    condition     = output.image_repository == "us-central1-docker.pkg.dev/my-project/tpu-functions" && output.image_sources == "gs://my-project-tpu-functions-source/images" && output.image_builder == "projects/my-project/serviceAccounts/mocked@my-project.iam.gserviceaccount.com"
    error_message = "The outputs for deploy.sh must name the repository, bucket and builder of this installation."
  }

  assert {
    condition     = length(google_artifact_registry_repository_iam_member.reader) == 0
    error_message = "Without image_readers, the repository must have no readers."
  }

  assert {
    condition     = length(google_service_account.relay) == 0 && output.relay_member == "serviceAccount:tpu-vms@my-project.iam.gserviceaccount.com"
    error_message = "The relay must publish as the service account of its VM, without one of its own."
  }
}

run "cluster_access_kubeconfig_secrets_with_workload_identity_federation" {
  variables {
    projects = ["tpu-one", "tpu-two"]
    cluster_access = {
      kubeconfig_secrets = {
        create_resources = "a"
        inject_token     = "b"
        label_node       = "c"
        tear_down        = "d"
        sweep            = "e"
        approve_join     = "i"
        report_leaks     = "h"
      }
    }
    relay_identity = {
      workload_identity_federation = { issuer = "https://kubernetes.default.svc", jwks = "{\"keys\": [{}]}" }
    }
    shared_vpc_subnets    = [{ project_id = "net-host", region = "us-central1", name = "tpu" }]
    vm_service_accounts   = ["tpu-vms@tpu-one.iam.gserviceaccount.com"]
    extra_permissions     = { create_resources = ["compute.images.useReadOnly"] }
    notification_channels = ["projects/my-project/notificationChannels/1"]
    relay_metrics_cluster = "research"
    image_readers         = ["nodes-of-cluster@my-project.iam.gserviceaccount.com"]
    push_verification     = "signature"
    vpc_egress            = { connector = "projects/my-project/locations/us-central1/connectors/c" }
  }

  assert {
    condition     = google_cloudfunctions2_function.step["label_node"].service_config[0].environment_variables["KUBECONFIG"] == "/secrets/kubeconfig/kubeconfig"
    error_message = "KUBECONFIG must be the file in the secret's volume."
  }

  assert {
    condition     = google_cloudfunctions2_function.step["label_node"].service_config[0].secret_volumes[0].secret == "c"
    error_message = "Each step must mount its own secret."
  }

  assert {
    condition     = alltrue([for name in ["CLUSTER_SERVER", "CLUSTER_CA", "CLUSTER_TOKEN"] : !contains(keys(google_cloudfunctions2_function.step["sweep"].service_config[0].environment_variables), name)])
    error_message = "With a kubeconfig, the environment must not have CLUSTER_* settings."
  }

  assert {
    condition     = output.tool_environment == <<-END
      export INSTALLATION_ID='${terraform_data.installation.output}'
      export JOIN_APPROVAL='approve_join'
      export NODE_JOIN_TIMEOUT_SECONDS='900'
      export PROJECTS='tpu-one,tpu-two'
      export PUBSUB_PROJECT='my-project'
      export TOPIC_PREFIX='tpu-functions-'
    END
    error_message = "tool_environment must have the settings of the functions for kubectl tng."
  }

  assert {
    condition     = length(google_logging_project_sink.step) == 8 && google_cloudfunctions2_function.step["sweep"].service_config[0].environment_variables["PROJECTS"] == "tpu-one,tpu-two"
    error_message = "Each served project must have its sinks, and be in PROJECTS."
  }

  assert {
    condition     = contains(google_project_iam_custom_role.step["tpu-two/create_resources"].permissions, "compute.images.useReadOnly") && !contains(google_project_iam_custom_role.step["tpu-two/tear_down"].permissions, "compute.images.useReadOnly")
    error_message = "An extra permission must be granted to its step only."
  }

  assert {
    condition     = keys(google_service_account_iam_member.vm) == ["tpu-vms@tpu-one.iam.gserviceaccount.com/create_resources", "tpu-vms@tpu-one.iam.gserviceaccount.com/inject_token"]
    error_message = "Only steps that create VMs or write their metadata may act as the VMs' service account."
  }

  assert {
    condition     = keys(google_compute_subnetwork_iam_member.user) == ["net-host/us-central1/tpu/agent-of-tpu-one", "net-host/us-central1/tpu/agent-of-tpu-two", "net-host/us-central1/tpu/create_resources"]
    error_message = "create_resources and the service agents that create VMs must be able to use a shared subnet."
  }

  assert {
    condition     = output.relay_member == "principal://iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/tpu-functions/subject/system:serviceaccount:tpu-functions:relay"
    error_message = "The relay must publish as its ServiceAccount in the cluster."
  }

  assert {
    condition     = yamldecode(output.values).identity.google.audience == "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/tpu-functions/providers/cluster" && length(yamldecode(output.values).identity.users) == 0 && output.inject_token_user == "system:serviceaccount:tpu-functions:inject-token"
    error_message = "The values must have the audience and no users."
  }

  assert {
    condition     = output.kubeconfig_commands["sweep"] == "gcloud secrets versions add e --project=my-project --data-file=kubeconfig-sweep"
    error_message = "kubeconfig_commands must have the command for each step's secret."
  }

  assert {
    condition     = keys(google_monitoring_alert_policy.this) == ["dead_letters", "failing", "idle_slices", "leaked_slices", "other_installation", "refused_joins", "sinks", "unseen_leaks", "waiting"] && keys(google_logging_metric.alerts) == ["idle_slices", "leaked_slices", "other_installation", "refused_joins", "unseen_leaks"] && length(google_monitoring_alert_policy.sweep_absent) == 1
    error_message = "With notification_channels, all alert policies and their metrics must be created."
  }

  assert {
    condition     = google_monitoring_alert_policy.this["leaked_slices"].severity == "CRITICAL" && can(regex("Runbook: https://github.com/[^/]+/tpu-functions/blob/v[0-9.]+/docs/operate.md#leaked-slices$", google_monitoring_alert_policy.this["leaked_slices"].documentation[0].content)) && google_monitoring_alert_policy.sweep_absent[0].severity == "CRITICAL" && google_monitoring_alert_policy.relay_down[0].severity == "WARNING"
    error_message = "An alert must have its severity and the address of its runbook."
  }

  assert {
    condition     = strcontains(google_monitoring_alert_policy.this["sinks"].conditions[0].condition_threshold[0].filter, "resource.labels.name = one_of(\"tpu-functions-create-resources\", \"tpu-functions-inject-token\", \"tpu-functions-label-node\", \"tpu-functions-tear-down\")")
    error_message = "The alert on sinks must name each sink once, also if several projects have it."
  }

  assert {
    condition     = google_monitoring_alert_policy.relay_down[0].conditions[0].condition_prometheus_query_language[0].query == "absent(tpu_functions_relay_groups{cluster=\"research\",namespace=\"tpu-functions\"}) or max(tpu_functions_relay_watch_without_contact_seconds{cluster=\"research\",namespace=\"tpu-functions\"}) > 255"
    error_message = "The alert relay_down must cover absent metrics and lost contact with the API server."
  }

  assert {
    condition     = google_artifact_registry_repository_iam_member.reader["nodes-of-cluster@my-project.iam.gserviceaccount.com"].role == "roles/artifactregistry.reader"
    error_message = "Nodes must have only the role for pulling images."
  }

  assert {
    condition     = google_cloudfunctions2_function.step["sweep"].service_config[0].environment_variables["PUSH_VERIFICATION"] == "signature"
    error_message = "PUSH_VERIFICATION must have the value of push_verification."
  }

  assert {
    condition     = google_cloudfunctions2_function.step["sweep"].service_config[0].vpc_connector_egress_settings == "PRIVATE_RANGES_ONLY" && google_cloudfunctions2_function.step["sweep"].service_config[0].direct_vpc_egress == null
    error_message = "Only private ranges must use the connector, without direct egress."
  }
}

run "cluster_access_service_account_token" {
  variables {
    cluster_access = {
      service_account_token = { server = "https://10.128.0.2:6443", ca_certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n" }
    }
    relay_identity = {
      workload_identity_federation = { issuer = "https://kubernetes.default.svc", jwks = "{\"keys\": [{}]}" }
    }
    jobset_provider       = "tpu-node-group"
    notification_channels = ["projects/my-project/notificationChannels/1"]
  }

  assert {
    condition = { for name, value in google_cloudfunctions2_function.step["sweep"].service_config[0].environment_variables : name => value if startswith(name, "CLUSTER_") } == {
      CLUSTER_SERVER     = "https://10.128.0.2:6443"
      CLUSTER_CA         = base64encode("-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n")
      CLUSTER_TOKEN      = "service-account-token"
      CLUSTER_TOKEN_FILE = "/secrets/token/token"
    }
    error_message = "The functions must read the token from the secret's volume."
  }

  assert {
    condition = [for volume in google_cloudfunctions2_function.step["label_node"].service_config[0].secret_volumes : join(" ", [volume.mount_path, volume.secret, volume.versions[0].version, volume.versions[0].path])] == [
      "/secrets/token tpu-functions-token-label-node latest token",
    ]
    error_message = "Each step must mount the newest version of its own secret."
  }

  assert {
    condition     = keys(google_secret_manager_secret.token) == keys(google_cloudfunctions2_function.step) && keys(google_secret_manager_secret_version.placeholder) == keys(google_secret_manager_secret.token)
    error_message = "Each step must have a secret with a first version."
  }

  assert {
    condition = (
      google_secret_manager_secret_iam_member.token["sweep"].role == "roles/secretmanager.secretAccessor"
      && keys(google_secret_manager_secret_iam_member.token_writer) == keys(google_secret_manager_secret.token)
      && google_secret_manager_secret_iam_member.token_writer["sweep"].member == "principal://iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/tpu-functions/subject/system:serviceaccount:tpu-functions:token-writer"
      && join(",", sort(google_project_iam_custom_role.token_writer[0].permissions)) == "secretmanager.versions.add,secretmanager.versions.destroy,secretmanager.versions.list"
    )
    error_message = "A step must read its secret, and the token-writer write and not read it."
  }

  assert {
    condition     = google_iam_workload_identity_pool_provider.relay[0].attribute_condition == "assertion.sub in ['system:serviceaccount:tpu-functions:relay', 'system:serviceaccount:tpu-functions:token-writer']"
    error_message = "The provider must admit the relay and the token-writer alone."
  }

  assert {
    condition = (
      yamldecode(output.values).tokenWriter.enabled && yamldecode(output.values).slices.provider == "tpu-node-group"
      && join(",", yamldecode(output.values).tokenWriter.steps) == "approve-join,create-resources,inject-token,label-node,provision-slice,release-slice,report-leaks,sweep,tear-down"
      && length(yamldecode(output.values).identity.users) == 0 && yamldecode(output.values).identity.google.audience != ""
    )
    error_message = "The values must have the token-writer with its settings, and no Google identities of the steps."
  }

  assert {
    condition     = yamldecode(output.values).tokenWriter.audience == "https://kubernetes.default.svc"
    error_message = "The policy must allow the audience of the API server, which is its issuer."
  }

  assert {
    condition     = output.inject_token_user == "system:serviceaccount:tpu-functions:inject-token"
    error_message = "The user of inject_token must be its ServiceAccount."
  }

  assert {
    condition     = length(google_monitoring_alert_policy.tokens) == 1 && google_monitoring_alert_policy.tokens[0].conditions[0].condition_absent[0].duration == "10800s"
    error_message = "With notification_channels, a token that is not renewed for three hours must be reported."
  }

  assert {
    condition     = strcontains(google_monitoring_alert_policy.tokens[0].conditions[0].condition_absent[0].filter, "metric.labels.secret = one_of(\"tpu-functions-token-approve-join\", ")
    error_message = "The alert on tokens must not cover the secrets of steps that were removed."
  }
}

run "cluster_access_google_access_token_with_gke_workload_identity" {
  variables {
    name_prefix = "research"
    cluster_access = {
      google_access_token = { server = "https://34.1.2.3", ca_certificate = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n", project_id = "gke-home" }
    }
    relay_identity = { gke_workload_identity = { project_id = "gke-home" } }
    vpc_egress     = { direct = { subnetwork = "default" } }
  }

  assert {
    condition     = google_cloudfunctions2_function.step["sweep"].service_config[0].environment_variables["CLUSTER_TOKEN"] == "google-access-token" && !contains(keys(google_cloudfunctions2_function.step["sweep"].service_config[0].environment_variables), "CLUSTER_AUDIENCE")
    error_message = "With an access token, the environment must not have CLUSTER_AUDIENCE."
  }

  assert {
    condition     = yamldecode(output.values).identity.google.serviceAccount == "mocked@my-project.iam.gserviceaccount.com" && yamldecode(output.values).identity.users.tear-down == "mocked@my-project.iam.gserviceaccount.com"
    error_message = "The ConfigMap installation must have e-mails without a prefix: GKE uses them as user names."
  }

  assert {
    condition     = google_service_account_iam_member.relay["gke-home.svc.id.goog"].member == "serviceAccount:gke-home.svc.id.goog[tpu-functions/relay]"
    error_message = "The ServiceAccount relay must be able to impersonate the relay's service account."
  }

  assert {
    condition     = length(google_project_iam_member.gke) == 7 && google_project_iam_custom_role.gke[0].project == "gke-home"
    error_message = "All steps must have the permission to connect to the cluster."
  }

  assert {
    condition     = google_cloudfunctions2_function.step["sweep"].service_config[0].direct_vpc_network_interface[0].subnetwork == "default" && google_cloudfunctions2_function.step["sweep"].service_config[0].direct_vpc_egress == "VPC_EGRESS_PRIVATE_RANGES_ONLY"
    error_message = "Only private ranges must use direct egress."
  }

  assert {
    condition     = google_pubsub_topic.step["label_node"].name == "research-label-node" && google_project_iam_custom_role.step["my-project/label_node"].role_id == "research_label_node" && google_storage_bucket.source.name == "my-project-research-source"
    error_message = "All names must begin with the prefix."
  }
}

run "relay_identity_key_file_creates_a_service_account" {
  variables {
    relay_identity = { key_file = true }
  }

  assert {
    condition     = output.relay_key_command == "gcloud iam service-accounts keys create key.json --iam-account=mocked@my-project.iam.gserviceaccount.com --project=my-project"
    error_message = "relay_key_command must create the key of the relay's service account."
  }

  assert {
    condition     = length(google_service_account_iam_member.relay) == 0
    error_message = "No member may impersonate the relay's service account."
  }
}

run "join_approval_is_approve_join_by_default" {
  assert {
    condition     = alltrue([for step in google_cloudfunctions2_function.step : step.service_config[0].environment_variables["JOIN_APPROVAL"] == "approve_join"])
    error_message = "By default, JOIN_APPROVAL must be approve_join for each step."
  }
}

run "join_approval_external_permits_the_group_of_kubeadm" {
  variables {
    join_approval = "external"
  }

  assert {
    condition     = alltrue([for step in google_cloudfunctions2_function.step : step.service_config[0].environment_variables["JOIN_APPROVAL"] == "external"])
    error_message = "JOIN_APPROVAL must be external for each step."
  }

  assert {
    condition     = yamldecode(output.values).joinApproval == "external"
    error_message = "The values must permit tokens of kubeadm's group."
  }
}

run "no_resource_for_jobsets_is_planned_by_default" {
  assert {
    condition     = length(google_cloudfunctions2_function.step) == 7 && length(google_pubsub_topic.step) == 7 && length(google_pubsub_topic_iam_member.relay) == 4 && !contains(keys(google_pubsub_topic_iam_member.step), "sweep/provision_slice")
    error_message = "Without jobset_provider, no function, topic or grant for JobSets must be planned."
  }

  assert {
    condition     = yamldecode(output.values).slices.workloads == "none" && !contains(keys(yamldecode(output.values)), "devicePlugin")
    error_message = "Without jobset_provider, workloads must get no slices."
  }
}

run "jobset_provider_tpu_node_group" {
  variables {
    jobset_provider             = "tpu-node-group"
    jobset_lost_rebuild_minutes = 20
  }

  assert {
    condition = {
      for name, value in google_cloudfunctions2_function.step["provision_slice"].service_config[0].environment_variables : name => value
      if length(regexall("^(JOBSET|GCP|GKE)_", name)) > 0
      } == {
      JOBSET_PROVIDER                  = "tpu-node-group"
      JOBSET_SUSPENDED_RELEASE_MINUTES = "5"
      JOBSET_LOST_REBUILD_MINUTES      = "20"
    }
    error_message = "The environment must have exactly the settings of JobSets that the steps read."
  }

  assert {
    condition     = strcontains(output.tool_environment, "export JOBSET_PROVIDER='tpu-node-group'\n")
    error_message = "tool_environment must have the settings of JobSets."
  }

  assert {
    condition     = google_cloudfunctions2_function.step["sweep"].service_config[0].environment_variables["JOBSET_PROVIDER"] == "tpu-node-group" && !contains(keys(google_cloudfunctions2_function.step["tear_down"].service_config[0].environment_variables), "JOBSET_PROVIDER")
    error_message = "Of the other steps, only the sweep must have JOBSET_PROVIDER."
  }

  assert {
    condition     = length(google_cloudfunctions2_function.step) == 9 && length(google_pubsub_subscription.step) == 9 && length(google_cloud_run_service_iam_member.pusher) == 9
    error_message = "The two additional steps must each have a function and a subscription."
  }

  assert {
    condition     = setsubtract(keys(google_pubsub_topic_iam_member.relay), ["approve_join", "create_resources", "label_node", "tear_down"]) == toset(["provision_slice", "release_slice"])
    error_message = "The relay must be able to publish to the two additional topics."
  }

  assert {
    condition = alltrue([
      for pair in ["sweep/provision_slice", "sweep/release_slice", "provision_slice/provision_slice", "release_slice/release_slice"] :
      contains(keys(google_pubsub_topic_iam_member.step), pair)
    ])
    error_message = "The sweep must be able to publish to both topics, and each step to its own."
  }

  assert {
    condition     = length(google_logging_project_sink.step) == 4 && length(google_project_iam_custom_role.step) == 7 && length(google_service_account_iam_member.node) == 0 && length(google_project_service.this) == 10
    error_message = "With tpu-node-group, no additional sinks and APIs must be planned, and one role."
  }

  assert {
    condition     = toset(google_project_iam_custom_role.step["my-project/provision_slice"].permissions) == toset(["compute.instanceGroupManagers.get"]) && output.slice_class == null
    error_message = "With tpu-node-group, provision_slice must be able to read MIGs, and nothing else; the class follows from the ConfigMap."
  }

  assert {
    condition     = yamldecode(output.values).slices == { workloads = "jobsets", provider = "tpu-node-group" }
    error_message = "The values must have the provider."
  }

  assert {
    condition     = yamldecode(output.values).identity.users.provision-slice == "gcp:mocked@my-project.iam.gserviceaccount.com"
    error_message = "The values must have the users of the two steps."
  }

  assert {
    condition     = length(regexall("117", yamldecode(output.authentication_configuration).jwt[0].claimValidationRules[1].expression)) == 9
    error_message = "The AuthenticationConfiguration must also admit the accounts of the two steps."
  }
}

run "slice_workloads_gives_slices_to_all_workloads" {
  variables {
    jobset_provider = "tpu-node-group"
    slice_workloads = true
  }

  assert {
    condition     = yamldecode(output.values).slices.workloads == "all"
    error_message = "With slice_workloads, all workloads must get slices."
  }

  assert {
    condition     = length(google_cloudfunctions2_function.step) == 9 && length(google_pubsub_topic.step) == 9 && length(google_project_iam_custom_role.step) == 7
    error_message = "With slice_workloads, Terraform must plan nothing more than with jobset_provider."
  }
}

run "jobset_provider_gke" {
  variables {
    projects = ["tpu-one"]
    cluster_access = {
      kubeconfig_secrets = {
        create_resources = "a"
        inject_token     = "b"
        label_node       = "c"
        tear_down        = "d"
        sweep            = "e"
        approve_join     = "i"
        report_leaks     = "h"
        provision_slice  = "f"
        release_slice    = "g"
      }
    }
    jobset_provider = "gke"
    node_pools = {
      project_id            = "gke-home"
      location              = "us-east5"
      cluster               = "research"
      zone                  = "us-east5-ai1b"
      service_account       = "tpu-nodes@gke-home.iam.gserviceaccount.com"
      more_service_accounts = ["other-nodes@gke-home.iam.gserviceaccount.com"]
      tags                  = ["tpu", "internal"]
      pod_to_node_labels    = ["team", "example.com/team"]
      additional_networks   = [{ network = "dcn", subnetwork = "dcn-a" }, { network = "gpu", subnetwork = "gpu-a" }]
      confidential_storage  = true
    }
  }

  assert {
    condition = {
      for name, value in google_cloudfunctions2_function.step["release_slice"].service_config[0].environment_variables : name => value
      if length(regexall("^(JOBSET|GCP|GKE)_", name)) > 0
      } == {
      JOBSET_PROVIDER                  = "gke"
      JOBSET_SUSPENDED_RELEASE_MINUTES = "5"
      JOBSET_LOST_REBUILD_MINUTES      = ""
      GCP_PROJECT_ID                   = "gke-home"
      GCP_CLUSTER_LOCATION             = "us-east5"
      GCP_CLUSTER                      = "research"
      GCP_ZONE                         = "us-east5-ai1b"
      GCP_NODE_SERVICE_ACCOUNT         = "tpu-nodes@gke-home.iam.gserviceaccount.com"
      GCP_NODE_TAGS                    = "tpu,internal"
      GCP_POD_TO_NODE_LABELS           = "team,example.com/team"
      GCP_NODE_ADDITIONAL_NETWORKS     = "dcn:dcn-a,gpu:gpu-a"
      GCP_NODE_SECONDARY_DISK          = ""
      GCP_NODE_DISK_TYPE               = ""
      GCP_NODE_BOOT_DISK_KMS_KEY       = ""
      GCP_NODE_SECURE_BOOT             = "true"
      GCP_NODE_CONFIDENTIAL_STORAGE    = "true"
      GCP_FORCE_ON_DEMAND              = "false"
      GKE_MAX_PODS_PER_NODE            = "15"
    }
    error_message = "The environment must have exactly the settings of node pools."
  }

  assert {
    condition = setsubtract(keys(google_logging_project_sink.step), [
      "tpu-one/create_resources", "tpu-one/inject_token", "tpu-one/label_node", "tpu-one/tear_down",
    ]) == toset(["gke-home/provision_slice", "gke-home/release_slice"])
    error_message = "The sinks for node pools must be in the cluster's project."
  }

  assert {
    condition = toset(google_project_iam_custom_role.step["gke-home/provision_slice"].permissions) == toset(["container.clusters.get", "container.clusters.update"]) && [
      for name in keys(google_project_iam_custom_role.step) : name if endswith(name, "_slice")
    ] == ["gke-home/provision_slice", "gke-home/release_slice"]
    error_message = "The two steps must have the permissions for node pools, only in the cluster's project."
  }

  assert {
    condition = keys(google_service_account_iam_member.node) == [
      "other-nodes@gke-home.iam.gserviceaccount.com/provision_slice", "tpu-nodes@gke-home.iam.gserviceaccount.com/provision_slice",
    ]
    error_message = "Only provision_slice may act as the Nodes' service accounts."
  }

  assert {
    condition     = contains(keys(google_project_service.this), "gke-home/container.googleapis.com") && !contains(keys(google_project_service.this), "gke-home/compute.googleapis.com")
    error_message = "The GKE API, and not Compute Engine's, must be enabled in the cluster's project."
  }

  assert {
    condition     = yamldecode(output.values).slices == { workloads = "jobsets", provider = "gke" } && yamldecode(output.values).devicePlugin.enabled == false
    error_message = "With gke, the values must have the provider and no device plugin."
  }

  assert {
    condition = yamldecode(output.slice_class).kind == "TPUSliceClass" && jsonencode(yamldecode(output.slice_class).spec) == jsonencode({
      isDefault = true
      nodePool = {
        zone                = "us-east5-ai1b"
        serviceAccount      = "tpu-nodes@gke-home.iam.gserviceaccount.com"
        tags                = ["tpu", "internal"]
        podToNodeLabels     = ["team", "example.com/team"]
        additionalNetworks  = [{ network = "dcn", subnetwork = "dcn-a" }, { network = "gpu", subnetwork = "gpu-a" }]
        secureBoot          = true
        confidentialStorage = true
        maxPodsPerNode      = 15
      }
    })
    error_message = "The class must have the settings of node_pools, without those that are empty."
  }
}
