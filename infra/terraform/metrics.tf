# Metrics of the functions. Prometheus cannot scrape their short-lived instances: each invocation
# writes one line with its outcome, from which Cloud Logging makes the metrics.

locals {
  invocations = join(" AND ", [
    "resource.type=\"cloud_run_revision\"",
    "resource.labels.service_name=(${join(" OR ", [for function in google_cloudfunctions2_function.step : jsonencode(function.name)])})",
    "jsonPayload.step:*",
    "jsonPayload.decision:*",
  ])

  invocation_labels = {
    step     = "The step"
    decision = "What it decided, as in its log line"
  }
}

resource "google_logging_metric" "invocations" {
  project     = var.project_id
  name        = "${var.name_prefix}-invocations"
  description = "Invocations of the functions, by step, decision and severity"
  filter      = local.invocations

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
    unit        = "1"

    dynamic "labels" {
      for_each = merge(local.invocation_labels, { severity = "WARNING: it has not done its work. ERROR: a bug, or a leaked slice" })
      content {
        key         = labels.key
        value_type  = "STRING"
        description = labels.value
      }
    }
  }

  label_extractors = {
    step     = "EXTRACT(jsonPayload.step)"
    decision = "EXTRACT(jsonPayload.decision)"
    severity = "EXTRACT(severity)"
  }

  depends_on = [time_sleep.apis]
}

# Tries and refusals of the candidates of TPUSliceClasses, of which a class has at most 16.
resource "google_logging_metric" "candidates" {
  project     = var.project_id
  name        = "${var.name_prefix}-slice-candidates"
  description = "Candidates of TPUSliceClasses that were tried, refused or given up, by decision and reason"
  filter      = "${local.invocations} AND jsonPayload.candidate:* AND (jsonPayload.decision=\"Creating\" OR jsonPayload.refusal:*)"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
    unit        = "1"

    dynamic "labels" {
      for_each = {
        class     = "The class"
        candidate = "The candidate, as in the class's status"
        decision  = "Creating: it was tried. NextCandidate: it was refused, and another one is tried. Others: it was refused"
        refusal   = "The reason of the refusal; Waited if it was given up; empty for a try"
      }
      content {
        key         = labels.key
        value_type  = "STRING"
        description = labels.value
      }
    }
  }

  label_extractors = {
    class     = "EXTRACT(jsonPayload.class)"
    candidate = "EXTRACT(jsonPayload.candidate)"
    decision  = "EXTRACT(jsonPayload.decision)"
    refusal   = "EXTRACT(jsonPayload.refusal)"
  }

  depends_on = [time_sleep.apis]
}

# From the begin of the Pod's wait to the sweep that finds the slice ready: one line for each slice.
resource "google_logging_metric" "class_waits" {
  project         = var.project_id
  name            = "${var.name_prefix}-slice-class-waits"
  description     = "How long Pods waited for slices of TPUSliceClasses, by the candidate that had them"
  filter          = "${local.invocations} AND jsonPayload.decision=\"BecameReady\" AND jsonPayload.waited_s>=0"
  value_extractor = "EXTRACT(jsonPayload.waited_s)"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = "s"

    dynamic "labels" {
      for_each = {
        class     = "The class"
        candidate = "The candidate, as in the class's status"
      }
      content {
        key         = labels.key
        value_type  = "STRING"
        description = labels.value
      }
    }
  }

  # Half a minute to 5.7 days.
  bucket_options {
    exponential_buckets {
      num_finite_buckets = 14
      growth_factor      = 2
      scale              = 30
    }
  }

  label_extractors = {
    class     = "EXTRACT(jsonPayload.class)"
    candidate = "EXTRACT(jsonPayload.candidate)"
  }

  depends_on = [time_sleep.apis]
}

# One line whenever the cause or the chips change, and once an hour. The sum of a distribution is its mean times its count.
resource "google_logging_metric" "unusable" {
  project         = var.project_id
  name            = "${var.name_prefix}-unusable-chip-hours"
  description     = "Chip-hours of running VMs whose slices were not Ready: billed, and not usable, by cause"
  filter          = "${local.invocations} AND jsonPayload.decision=\"Unusable\" AND jsonPayload.chip_hours>=0"
  value_extractor = "EXTRACT(jsonPayload.chip_hours)"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = "h"

    dynamic "labels" {
      for_each = {
        cause    = "start: VMs boot and join. computeEngine: it has taken VMs back or restores them. steps: a step fails. user: all else"
        group    = "The TPUNodeGroup"
        workload = "The workload that it was created for, if any"
      }
      content {
        key         = labels.key
        value_type  = "STRING"
        description = labels.value
      }
    }
  }

  # 0.01 to 5,243 chip-hours.
  bucket_options {
    exponential_buckets {
      num_finite_buckets = 19
      growth_factor      = 2
      scale              = 0.01
    }
  }

  label_extractors = {
    cause    = "EXTRACT(jsonPayload.cause)"
    group    = "EXTRACT(jsonPayload.group)"
    workload = "EXTRACT(jsonPayload.workload)"
  }

  depends_on = [time_sleep.apis]
}

# From the receipt of a message to the response, without the cold start of an instance.
resource "google_logging_metric" "duration" {
  project         = var.project_id
  name            = "${var.name_prefix}-invocation-duration"
  description     = "How long an invocation of a function took, by step and decision"
  filter          = "${local.invocations} AND jsonPayload.milliseconds>=0"
  value_extractor = "EXTRACT(jsonPayload.milliseconds)"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = "ms"

    dynamic "labels" {
      for_each = local.invocation_labels
      content {
        key         = labels.key
        value_type  = "STRING"
        description = labels.value
      }
    }
  }

  # 10 ms to 164 s: the timeout of a function is 100 s.
  bucket_options {
    exponential_buckets {
      num_finite_buckets = 14
      growth_factor      = 2
      scale              = 10
    }
  }

  label_extractors = {
    step     = "EXTRACT(jsonPayload.step)"
    decision = "EXTRACT(jsonPayload.decision)"
  }

  depends_on = [time_sleep.apis]
}
