# The functions: one for each step, all from one archive, each with its own service account.

locals {
  repository = "${path.module}/../.."

  # The only files that are deployed.
  source_files = setunion(
    ["main.py", "requirements.txt"],
    fileset(local.repository, "{functions,shared}/**/*.{py,sh}"),
  )

  # Settings that both the functions and kubectl tng read.
  installation_environment = {
    INSTALLATION_ID           = terraform_data.installation.output
    PUBSUB_PROJECT            = var.project_id
    TOPIC_PREFIX              = local.topic_prefix
    PROJECTS                  = join(",", local.served_projects)
    NODE_JOIN_TIMEOUT_SECONDS = tostring(var.node_join_timeout_seconds)
    JOIN_APPROVAL             = var.join_approval
  }

  function_names = { for step, slug in local.slugs : step => "${var.name_prefix}-${slug}" }

  # The address that Cloud Run derives from names. It can be a setting of the function itself; the function's
  # attribute uri cannot.
  push_audiences = {
    for step, name in local.function_names :
    step => "https://${name}-${data.google_project.this.number}.${var.region}.run.app"
  }
}

data "archive_file" "source" {
  type             = "zip"
  output_path      = "${path.root}/.terraform/${var.name_prefix}-source.zip"
  output_file_mode = "0644"

  dynamic "source" {
    for_each = local.source_files

    content {
      filename = source.value
      content  = file("${local.repository}/${source.value}")
    }
  }
}

resource "google_storage_bucket" "source" {
  project  = var.project_id
  name     = "${var.project_id}-${var.name_prefix}-source"
  location = var.region
  labels   = var.labels

  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  # All content is also in the repository.
  force_destroy = true

  depends_on = [time_sleep.apis]
}

resource "google_storage_bucket_object" "source" {
  bucket = google_storage_bucket.source.name
  # The name changes with the content, so that the functions are deployed again.
  name   = "source-${data.archive_file.source.output_md5}.zip"
  source = data.archive_file.source.output_path

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_cloudfunctions2_function" "step" {
  for_each = local.slugs

  project     = var.project_id
  location    = var.region
  name        = local.function_names[each.key]
  description = "${each.key} of tpu-functions"
  labels      = var.labels

  build_config {
    runtime         = var.runtime
    entry_point     = each.key
    service_account = google_service_account.builder.id

    # Not gcf-artifacts, which all functions of the project share: the builder may write only to this repository.
    docker_repository = google_artifact_registry_repository.images.id

    # Google's builder compiles the source, and then sets the time of each file to 1980, so that Python would compile it
    # again at each cold start. With this variable, Python compares hashes in place of times (py_compile).
    environment_variables = { SOURCE_DATE_EPOCH = "315619200" }

    source {
      storage_source {
        bucket = google_storage_bucket.source.name
        object = google_storage_bucket_object.source.name
      }
    }
  }

  service_config {
    service_account_email          = google_service_account.step[each.key].email
    ingress_settings               = var.ingress_settings
    all_traffic_on_latest_revision = true

    # More than one request at a time needs a whole CPU.
    available_cpu                    = "1"
    available_memory                 = var.available_memory
    max_instance_request_concurrency = var.concurrency
    min_instance_count               = var.min_instances
    max_instance_count               = var.max_instances

    # A step observes at most three times and makes calls for 30 seconds after each. The limit is below the ack
    # deadline, after which Pub/Sub would deliver the message again.
    timeout_seconds = 100

    environment_variables = merge(local.cluster_environment, local.installation_environment, {
      # With fewer threads, requests would wait inside the instance until their deadline.
      THREADS = tostring(var.concurrency)
      # Otherwise each thread keeps the memory in which it has read a large list.
      MALLOC_ARENA_MAX     = "2"
      PUSH_AUDIENCE        = local.push_audiences[each.key]
      PUSH_SERVICE_ACCOUNT = google_service_account.pusher.email
      PUSH_VERIFICATION    = var.push_verification
    }, contains(local.jobset_readers, each.key) ? local.jobset_environment : {})

    dynamic "secret_volumes" {
      for_each = merge(
        local.kubeconfig_secrets == null ? {} : { kubeconfig = local.kubeconfig_secrets[each.key] },
        local.account_token == null ? {} : { token = local.token_secrets[each.key] },
      )

      content {
        mount_path = "/secrets/${secret_volumes.key}"
        project_id = var.project_id
        secret     = secret_volumes.value

        versions {
          version = "latest"
          path    = secret_volumes.key
        }
      }
    }

    vpc_connector                 = local.connector
    vpc_connector_egress_settings = local.connector == null ? null : "PRIVATE_RANGES_ONLY"

    direct_vpc_egress = local.direct_egress == null ? null : "VPC_EGRESS_PRIVATE_RANGES_ONLY"

    dynamic "direct_vpc_network_interface" {
      for_each = local.direct_egress[*]

      content {
        network    = direct_vpc_network_interface.value.network
        subnetwork = direct_vpc_network_interface.value.subnetwork
        tags       = direct_vpc_network_interface.value.tags
      }
    }
  }

  # Builds and starts fail before these permissions take effect.
  depends_on = [time_sleep.permissions, google_secret_manager_secret_version.placeholder]
}
