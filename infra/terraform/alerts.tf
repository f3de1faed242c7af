# Alerts on failures that are not visible in the cluster. They are created only with notification_channels.
# CRITICAL wakes somebody: it costs money or training until it is fixed. WARNING waits for working hours.

locals {
  alerts = length(var.notification_channels) > 0

  chart    = yamldecode(file("${path.module}/../chart/Chart.yaml"))
  runbooks = "${local.chart.sources[0]}/blob/v${local.chart.version}/docs/operate.md"

  # Counts of log lines, by one of their fields. alert_policies has a condition on each.
  alert_metrics = {
    leaked_slices = {
      name        = "${var.name_prefix}-leaked-slices"
      description = "Slices on Compute Engine whose TPUNodeGroup is gone, and node pools that have lost their labels, as report_leaks finds them once an hour"
      step        = "report_leaks"
      decisions   = "\"LeakedSlice\""
      label       = "slice"
      meaning     = "The name of its resources, or of its node pool"
    }
    unseen_leaks = {
      name        = "${var.name_prefix}-unseen-leaks"
      description = "Runs of report_leaks that could not read all projects, zones and regions, and found no leak elsewhere"
      step        = "report_leaks"
      decisions   = "\"NotAllSeen\""
      label       = "decision"
      meaning     = "NotAllSeen"
    }
    idle_slices = {
      name        = "${var.name_prefix}-idle-slices"
      description = "Slices whose chips no Pod uses, as report_leaks finds them once an hour: TPUNodeGroups that were idle an hour before, too, and node pools"
      step        = "report_leaks"
      decisions   = "\"IdleSlice\""
      label       = "slice"
      meaning     = "The name of its resources, or of its node pool"
    }
    refused_joins = {
      name        = "${var.name_prefix}-refused-joins"
      description = "Requests for the certificates of Nodes that approve_join has denied, has left pending for two minutes, or that another approver has approved"
      step        = "approve_join"
      decisions   = "(\"JoinDenied\" OR \"JoinNotApproved\" OR \"JoinApprovedElsewhere\")"
      label       = "decision"
      meaning     = "What became of the request"
    }
    other_installation = {
      name        = "${var.name_prefix}-other-installation"
      description = "Runs of the sweep in a cluster whose annotation is not this installation's id"
      step        = "sweep"
      decisions   = "\"OtherInstallation\""
      label       = "decision"
      meaning     = "OtherInstallation"
    }
  }

  alert_policies = {
    dead_letters = {
      title     = "dead letters"
      severity  = "WARNING"
      condition = "A message is in the dead letters"
      filter = [
        "resource.type = \"pubsub_subscription\"",
        "resource.labels.subscription_id = \"${google_pubsub_subscription.dead_letters.name}\"",
        "metric.type = \"pubsub.googleapis.com/subscription/num_undelivered_messages\"",
      ]
      above    = 0
      duration = "0s"
      period   = "60s"
      aligner  = "ALIGN_MAX"
      reducer  = null
      group_by = null
      runbook  = "dead-letters"
      advice   = "A step did not acknowledge a message in ten attempts: it cannot decode the message, or the function failed during that time. `PUBSUB_PROJECT=${var.project_id} TOPIC_PREFIX=${local.topic_prefix} kubectl tng dead-letters list` shows the step and the reason. If the message can be decoded, fix the function, then replay the message."
    }

    # A sink drops entries that it cannot publish. Monitoring has the metrics of another project's sinks only if
    # that project is in this project's metrics scope.
    sinks = {
      title     = "a log sink fails"
      severity  = "WARNING"
      condition = "A sink could not publish entries of the audit log"
      filter = [
        "resource.type = \"logging_sink\"",
        "resource.labels.name = one_of(${join(", ", [for name in sort(distinct([for sink in google_logging_project_sink.step : sink.name])) : jsonencode(name)])})",
        "metric.type = \"logging.googleapis.com/exports/error_count\"",
      ]
      above    = 0
      duration = "0s"
      period   = "300s"
      aligner  = "ALIGN_SUM"
      reducer  = "REDUCE_SUM"
      group_by = ["resource.labels.name"]
      runbook  = "a-log-sink-fails"
      advice   = "The sink drops entries that it cannot publish. Slices then react up to a minute later, with the next sweep. Usually the sink's writer has no permission to publish to the step's topic: `terraform apply` grants it again. Errors in the first minutes after an installation need no action."
    }

    # A message that cannot be decoded is a dead letter after 17 minutes, which is another alert.
    waiting = {
      title     = "messages are waiting"
      severity  = "CRITICAL"
      condition = "A step has not acknowledged a message for 25 minutes"
      filter = [
        "resource.type = \"pubsub_subscription\"",
        "resource.labels.subscription_id = one_of(${join(", ", [for subscription in google_pubsub_subscription.step : jsonencode(subscription.name)])})",
        "metric.type = \"pubsub.googleapis.com/subscription/oldest_unacked_message_age\"",
      ]
      above    = 1500
      duration = "0s"
      period   = "60s"
      aligner  = "ALIGN_MAX"
      reducer  = null
      group_by = null
      runbook  = "messages-are-waiting"
      advice   = "The function returns errors, or does not respond: usually it cannot reach the API server, or its settings are wrong. The subscription has the function's name; its log has the reason."
    }

    # A failing step acknowledges messages that the sweep publishes again, so the alert on waiting messages does
    # not fire.
    failing = {
      title     = "a step fails"
      severity  = "CRITICAL"
      condition = "A step has logged warnings or errors in each of the last three intervals of five minutes"
      filter = [
        "resource.type = \"cloud_run_revision\"",
        "resource.labels.service_name = one_of(${join(", ", [for function in google_cloudfunctions2_function.step : jsonencode(function.name)])})",
        "metric.type = \"logging.googleapis.com/log_entry_count\"",
        "metric.labels.severity = one_of(\"WARNING\", \"ERROR\")",
      ]
      above    = 0
      duration = "900s"
      period   = "300s"
      aligner  = "ALIGN_SUM"
      reducer  = "REDUCE_SUM"
      group_by = ["resource.labels.service_name"]
      runbook  = "a-step-fails"
      advice   = "The service has the function's name. `decision` and `note` in its log name the API that does not respond, or the request that is rejected: `gcloud logging read 'severity>=WARNING AND log_id(\"run.googleapis.com/stdout\")' --project=${var.project_id} --limit=20`. Until this is fixed, the step creates and deletes no slices."
    }

    # A leaked slice is billed until it is deleted. The alert needs two runs, an hour apart: report_leaks has no
    # state, and a user may be deleting the slice during the first.
    leaked_slices = {
      title     = "a slice is leaked"
      severity  = "CRITICAL"
      condition = "A slice that nothing deletes was found in two runs"
      filter = [
        "resource.type = \"cloud_run_revision\"",
        "metric.type = \"logging.googleapis.com/user/${local.alert_metrics.leaked_slices.name}\"",
      ]
      above    = 1
      duration = "0s"
      period   = "7500s"
      aligner  = "ALIGN_SUM"
      reducer  = "REDUCE_SUM"
      group_by = ["metric.labels.slice"]
      runbook  = "leaked-slices"
      advice   = "Its VMs are billed, and nothing deletes them: its TPUNodeGroup is gone, or somebody has replaced the labels of its node pool, on which its workload may still run. `kubectl tng leaks`, with the context of the cluster, names all its remaining resources and the commands that delete them."
    }

    # A node pool has no status that could say since when it is idle, so two runs must find it.
    idle_slices = {
      title     = "a slice is idle"
      severity  = "WARNING"
      condition = "No Pod used a slice in two runs"
      filter = [
        "resource.type = \"cloud_run_revision\"",
        "metric.type = \"logging.googleapis.com/user/${local.alert_metrics.idle_slices.name}\"",
      ]
      above    = 1
      duration = "0s"
      period   = "7500s"
      aligner  = "ALIGN_SUM"
      reducer  = "REDUCE_SUM"
      group_by = ["metric.labels.slice"]
      runbook  = "tpuchipsidle"
      advice   = "Its VMs are billed, and no Pod holds a chip of its Nodes. Nothing deletes it for that. The line names it and its workload: `gcloud logging read 'jsonPayload.decision=\"IdleSlice\" AND resource.labels.service_name=\"${local.function_names["report_leaks"]}\"' --project=${var.project_id} --freshness=3h --format='value(jsonPayload.note)'`."
    }

    unseen_leaks = {
      title     = "leaks may be unseen"
      severity  = "WARNING"
      condition = "Two runs of report_leaks could not read all projects and zones"
      filter = [
        "resource.type = \"cloud_run_revision\"",
        "metric.type = \"logging.googleapis.com/user/${local.alert_metrics.unseen_leaks.name}\"",
      ]
      above    = 1
      duration = "0s"
      period   = "7500s"
      aligner  = "ALIGN_SUM"
      reducer  = "REDUCE_SUM"
      group_by = null
      runbook  = "leaked-slices"
      advice   = "A leaked slice there is not reported. The line names what was not seen, and why: `gcloud logging read 'jsonPayload.decision=\"NotAllSeen\" AND resource.labels.service_name=\"${local.function_names["report_leaks"]}\"' --project=${var.project_id} --freshness=3h --limit=1 --format='value(jsonPayload.note)'`."
    }

    # Normally a request is approved within seconds. Other cases mean that an attacker may have a token, or that
    # another approver is active in the cluster.
    refused_joins = {
      title     = "a join was not approved"
      severity  = "WARNING"
      condition = "A request for a Node's certificate was not approved by approve_join"
      filter = [
        "resource.type = \"cloud_run_revision\"",
        "metric.type = \"logging.googleapis.com/user/${local.alert_metrics.refused_joins.name}\"",
      ]
      above    = 0
      duration = "0s"
      period   = "300s"
      aligner  = "ALIGN_SUM"
      reducer  = "REDUCE_SUM"
      group_by = ["metric.labels.decision"]
      runbook  = "a-join-was-not-approved"
      advice   = "JoinDenied: with a VM's bootstrap token, something was requested that its kubelet does not request. The token is revoked. JoinNotApproved: a request has been pending for two minutes, because the VM cannot be read or does not exist, or a token could not be revoked: then the line names the Secret to delete. JoinApprovedElsewhere: the cluster itself approves requests by tpu-functions' tokens, so that each token can join as any Node. Once an hour for each VM and cause, a line names the VM that owns the token, the request and the reason: `gcloud logging read 'jsonPayload.decision:\"Join\" AND resource.labels.service_name=\"${local.function_names["approve_join"]}\"' --project=${var.project_id} --freshness=1h --format='value(jsonPayload.vm,jsonPayload.note)'`."
    }

    # The sweep's line alone is counted, so that there is one alert and not one for each step. deploy.sh may need
    # minutes between the deployment of the functions and the annotation.
    other_installation = {
      title     = "the cluster is another installation's"
      severity  = "CRITICAL"
      condition = "The sweep has read another installation's id in the cluster, or none, for ten minutes"
      filter = [
        "resource.type = \"cloud_run_revision\"",
        "metric.type = \"logging.googleapis.com/user/${local.alert_metrics.other_installation.name}\"",
      ]
      above    = 0
      duration = "600s"
      period   = "300s"
      aligner  = "ALIGN_SUM"
      reducer  = "REDUCE_SUM"
      group_by = null
      runbook  = "the-cluster-is-another-installations"
      advice   = "Nothing is created, changed or deleted on Google Cloud; each TPUNodeGroup says so. If the cluster was restored from a backup: `./deploy.sh --dir DIR --restored CLUSTER`. If it is a copy, its slices are the original's. The line names both ids: `gcloud logging read 'jsonPayload.decision=\"OtherInstallation\" AND resource.labels.service_name:sweep' --project=${var.project_id} --freshness=1h --limit=1 --format='value(jsonPayload.note)'`."
    }
  }
}

resource "google_logging_metric" "alerts" {
  for_each = { for name, metric in local.alert_metrics : name => metric if local.alerts }

  project     = var.project_id
  name        = each.value.name
  description = each.value.description
  filter = join(" AND ", [
    "resource.type=\"cloud_run_revision\"",
    "resource.labels.service_name=\"${google_cloudfunctions2_function.step[each.value.step].name}\"",
    "jsonPayload.decision=${each.value.decisions}",
  ])

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"

    labels {
      key         = each.value.label
      value_type  = "STRING"
      description = each.value.meaning
    }
  }

  label_extractors = { (each.value.label) = "EXTRACT(jsonPayload.${each.value.label})" }

  depends_on = [google_project_service.this]
}

resource "google_monitoring_alert_policy" "this" {
  for_each = { for name, policy in local.alert_policies : name => policy if local.alerts }

  project               = var.project_id
  display_name          = "${var.name_prefix}: ${each.value.title}"
  severity              = each.value.severity
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = each.value.condition

    condition_threshold {
      filter          = join(" AND ", each.value.filter)
      comparison      = "COMPARISON_GT"
      threshold_value = each.value.above
      duration        = each.value.duration

      aggregations {
        alignment_period     = each.value.period
        per_series_aligner   = each.value.aligner
        cross_series_reducer = each.value.reducer
        group_by_fields      = each.value.group_by
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "${each.value.advice} Runbook: ${local.runbooks}#${each.value.runbook}"
  }

  # Monitoring rejects a condition on a metric that does not exist.
  depends_on = [time_sleep.apis, google_logging_metric.alerts]
}

# The sweep runs once a minute. Without it, steps do not continue work for which there is no event.
resource "google_monitoring_alert_policy" "sweep_absent" {
  count = local.alerts ? 1 : 0

  project               = var.project_id
  display_name          = "${var.name_prefix}: the sweep does not run"
  severity              = "CRITICAL"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "No sweep has succeeded for five minutes"

    condition_absent {
      filter = join(" AND ", [
        "resource.type = \"cloud_run_revision\"",
        "resource.labels.service_name = \"${google_cloudfunctions2_function.step["sweep"].name}\"",
        "metric.type = \"run.googleapis.com/request_count\"",
        "metric.labels.response_code_class = \"2xx\"",
      ])
      duration = "300s"

      aggregations {
        alignment_period     = "60s"
        per_series_aligner   = "ALIGN_DELTA"
        cross_series_reducer = "REDUCE_SUM"
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "Slices that wait for capacity do not progress, and lost messages are not replaced. Either Cloud Scheduler does not publish (`gcloud scheduler jobs describe ${google_cloud_scheduler_job.sweep.name} --location=${google_cloud_scheduler_job.sweep.region} --project=${var.project_id}`: is it paused?), or the function fails (`gcloud logging read 'resource.labels.service_name=\"${google_cloudfunctions2_function.step["sweep"].name}\"' --project=${var.project_id} --limit=20`). Runbook: ${local.runbooks}#the-sweep-does-not-run"
  }

  depends_on = [time_sleep.apis]
}

# Secret Manager's audit log has each version that is added (Admin Activity, which is always on).
resource "google_logging_metric" "tokens" {
  count = local.alerts && local.account_token != null ? 1 : 0

  project     = var.project_id
  name        = "${var.name_prefix}-tokens"
  description = "Versions that were added to the secrets of the functions' tokens"
  filter = join(" AND ", [
    "log_id(\"cloudaudit.googleapis.com/activity\")",
    "protoPayload.methodName=\"google.cloud.secretmanager.v1.SecretManagerService.AddSecretVersion\"",
    "protoPayload.resourceName:\"/secrets/${local.topic_prefix}token-\"",
  ])

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"

    labels {
      key         = "secret"
      value_type  = "STRING"
      description = "The secret"
    }
  }

  label_extractors = { secret = "REGEXP_EXTRACT(protoPayload.resourceName, \"secrets/([^/]+)\")" }

  depends_on = [time_sleep.apis]
}

# Tokens are renewed each hour and valid for twelve hours.
resource "google_monitoring_alert_policy" "tokens" {
  count = local.alerts && local.account_token != null ? 1 : 0

  project               = var.project_id
  display_name          = "${var.name_prefix}: a token is not renewed"
  severity              = "WARNING"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "No token was written to a step's secret for three hours"

    condition_absent {
      filter = join(" AND ", [
        "resource.type = \"audited_resource\"",
        "metric.type = \"logging.googleapis.com/user/${google_logging_metric.tokens[0].name}\"",
        # Not those of steps that were removed: their series end, too.
        "metric.labels.secret = one_of(${join(", ", [for secret in values(local.token_secrets) : jsonencode(secret)])})",
      ])
      duration = "10800s"

      aggregations {
        alignment_period     = "300s"
        per_series_aligner   = "ALIGN_DELTA"
        cross_series_reducer = "REDUCE_SUM"
        group_by_fields      = ["metric.labels.secret"]
      }
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "The functions work with the last token until it expires, twelve hours after it was written; then they cannot reach the cluster. `kubectl --namespace=tpu-functions logs deployment/token-writer` says why. Runbook: ${local.runbooks}#a-token-is-not-renewed"
  }

  depends_on = [time_sleep.apis]
}

# The relay's metrics exist only if Managed Service for Prometheus scrapes them (the chart's value monitoring).
# Their label `cluster` has the cluster's name.
resource "google_monitoring_alert_policy" "relay_down" {
  count = local.alerts && var.relay_metrics_cluster != "" ? 1 : 0

  project               = var.project_id
  display_name          = "${var.name_prefix}: the relay is down"
  severity              = "WARNING"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "The relay has no metrics, or no contact with the API server, for five minutes"

    condition_prometheus_query_language {
      query = join(" or ", [
        "absent(tpu_functions_relay_groups{cluster=\"${var.relay_metrics_cluster}\",namespace=\"${local.namespace}\"})",
        "max(tpu_functions_relay_watch_without_contact_seconds{cluster=\"${var.relay_metrics_cluster}\",namespace=\"${local.namespace}\"}) > 255",
      ])
      duration            = "300s"
      evaluation_interval = "60s"

      # The metrics do not exist before the first scrape.
      disable_metric_validation = true
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = "Until it is up, only the sweep triggers the steps for changes in the cluster, up to a minute late. `kubectl --namespace=${local.namespace} describe pods --selector=app.kubernetes.io/name=relay` and the Pod's log show the reason. Runbook: ${local.runbooks}#tpurelayabsent"
  }

  depends_on = [time_sleep.apis]
}
