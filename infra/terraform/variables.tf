variable "project_id" {
  description = "Project of the functions, topics and service accounts."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be the id of a project (not its number or name): 6 to 30 lower-case letters, digits and hyphens."
  }
}

variable "region" {
  description = "Region of the functions, preferably the region of the cluster's API server."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region such as us-central1, not a zone."
  }
}

variable "name_prefix" {
  description = "Prefix of all names. Installations that serve the same project need different prefixes."
  type        = string
  default     = "tpu-functions"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,11}[a-z0-9]$", var.name_prefix))
    error_message = "name_prefix must be 3 to 13 lower-case letters, digits and hyphens, the first a letter and the last no hyphen: the ids of service accounts end after 30 characters."
  }

  validation {
    condition     = !startswith(var.name_prefix, "gcp-")
    error_message = "name_prefix must not begin with gcp-: Google reserves this prefix."
  }
}

variable "projects" {
  description = "Projects in which groups may create TPU VMs. Empty: only project_id."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for project in var.projects : can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", project))])
    error_message = "projects must hold ids of projects (not numbers or names): 6 to 30 lower-case letters, digits and hyphens each."
  }
}

variable "cluster_access" {
  description = "How the functions authenticate to the cluster; exactly one of four methods. `service_account_token`: tokens of ServiceAccounts, which the token-writer in the cluster renews, for the address of the API server and its CA (PEM). `kubeconfig_secrets`: for each step, the name of a secret in project_id with a kubeconfig; it must have a version before the first apply. `google_id_token`: an API server that trusts Google's ID tokens (output authentication_configuration), with its address, its CA (PEM) and the audience that it accepts (default: the address). `google_access_token`: GKE, with the address of the endpoint, its CA (PEM) and the cluster's project."
  type = object({
    service_account_token = optional(object({
      server         = string
      ca_certificate = string
    }))
    kubeconfig_secrets = optional(map(string))
    google_id_token = optional(object({
      server         = string
      ca_certificate = string
      audience       = optional(string)
    }))
    google_access_token = optional(object({
      server         = string
      ca_certificate = string
      project_id     = string
    }))
  })

  validation {
    condition     = length([for way in values(var.cluster_access) : way if way != null]) == 1
    error_message = "cluster_access must have exactly one of service_account_token, kubeconfig_secrets, google_id_token and google_access_token."
  }

  validation {
    condition = var.cluster_access.kubeconfig_secrets == null ? true : (
      sort(keys(var.cluster_access.kubeconfig_secrets)) == sort(concat(
        ["approve_join", "create_resources", "inject_token", "label_node", "report_leaks", "sweep", "tear_down"],
        var.jobset_provider == "" ? [] : ["provision_slice", "release_slice"],
      ))
    )
    error_message = "cluster_access.kubeconfig_secrets must name a secret for each of create_resources, inject_token, label_node, tear_down, approve_join, sweep and report_leaks, with jobset_provider for provision_slice and release_slice, too."
  }

  validation {
    condition     = var.cluster_access.kubeconfig_secrets == null ? true : alltrue([for name in values(var.cluster_access.kubeconfig_secrets) : can(regex("^[A-Za-z0-9_-]{1,255}$", name))])
    error_message = "cluster_access.kubeconfig_secrets must hold the secrets' short names: letters, digits, hyphens and underscores, without projects/.../secrets/."
  }

  validation {
    condition = alltrue([
      for cluster in concat(var.cluster_access.service_account_token[*], var.cluster_access.google_id_token[*], var.cluster_access.google_access_token[*]) :
      can(regex("^https://[^/?#@]+$", cluster.server))
    ])
    error_message = "cluster_access: server must be an address such as https://10.128.0.2:6443, without a path."
  }

  validation {
    condition = alltrue([
      for cluster in concat(var.cluster_access.service_account_token[*], var.cluster_access.google_id_token[*], var.cluster_access.google_access_token[*]) :
      can(regex("^-----BEGIN CERTIFICATE-----\\s[A-Za-z0-9+/=\\s]+-----END CERTIFICATE-----", trimspace(cluster.ca_certificate)))
    ])
    error_message = "cluster_access: ca_certificate must be the cluster's CA in PEM form: all lines of /etc/kubernetes/pki/ca.crt. A kubeconfig has it in base64: decode it with base64 --decode."
  }

  validation {
    condition     = var.cluster_access.service_account_token == null || var.relay_identity.workload_identity_federation != null
    error_message = "cluster_access.service_account_token: relay_identity must be workload_identity_federation, for which no VM changes. With vm_service_account, each Pod on that VM could write the functions' tokens; a key_file does not expire; on GKE use google_access_token."
  }
}

variable "relay_identity" {
  description = "The Google identity with which the relay publishes; exactly one of four methods. `workload_identity_federation`: tokens of a self-managed cluster, with their issuer, the cluster's public keys (`kubectl get --raw /openid/v1/jwks`; without them Google fetches them from the issuer) and, if `<name_prefix>-cluster` is taken, the id of the pool. `vm_service_account`: the e-mail of the service account of the relay's VM. `key_file`: a service account of its own, whose key you create. `gke_workload_identity`: GKE, with the cluster's project."
  type = object({
    workload_identity_federation = optional(object({
      issuer  = string
      jwks    = optional(string)
      pool_id = optional(string)
    }))
    vm_service_account    = optional(string)
    key_file              = optional(bool, false)
    gke_workload_identity = optional(object({ project_id = string }))
  })

  validation {
    condition = length([
      for is_set in [
        var.relay_identity.workload_identity_federation != null,
        var.relay_identity.vm_service_account != null,
        var.relay_identity.key_file,
        var.relay_identity.gke_workload_identity != null,
      ] : is_set if is_set
    ]) == 1
    error_message = "relay_identity must have exactly one of workload_identity_federation, vm_service_account, key_file = true and gke_workload_identity."
  }

  validation {
    condition     = alltrue([for cluster in var.relay_identity.workload_identity_federation[*] : startswith(cluster.issuer, "https://")])
    error_message = "relay_identity: issuer must be the https:// address that the API server's --service-account-issuer has, character for character."
  }

  validation {
    condition     = alltrue([for cluster in var.relay_identity.workload_identity_federation[*] : cluster.jwks == null ? true : try(length(jsondecode(cluster.jwks).keys) > 0, false)])
    error_message = "relay_identity: jwks must be the JSON that `kubectl get --raw /openid/v1/jwks` prints, with the cluster's keys."
  }

  validation {
    condition     = alltrue([for cluster in var.relay_identity.workload_identity_federation[*] : cluster.pool_id == null ? true : can(regex("^[a-z0-9-]{4,32}$", cluster.pool_id))])
    error_message = "relay_identity: pool_id must be 4 to 32 lower-case letters, digits and hyphens."
  }

  validation {
    condition     = alltrue([for email in var.relay_identity.vm_service_account[*] : can(regex("^[a-z0-9-]+@[a-z0-9.-]+[.]gserviceaccount[.]com$", email))])
    error_message = "relay_identity.vm_service_account must be a service account's e-mail, as shown by `gcloud compute instances describe`."
  }
}

variable "vpc_egress" {
  description = "How the functions connect to an API server that has only a private address. Empty: over the internet. `direct`: addresses in a subnet (a /26 or larger; for a Shared VPC, the project's Cloud Run service agent needs roles/compute.networkUser on it). `connector`: the id of a Serverless VPC Access connector. Only traffic to private ranges uses it, traffic to Google's APIs does not. The first connection of a new instance may take some seconds or fail; it is retried once immediately, and then by Pub/Sub."
  type = object({
    direct = optional(object({
      network    = optional(string)
      subnetwork = string
      tags       = optional(list(string))
    }))
    connector = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.vpc_egress.direct == null || var.vpc_egress.connector == null
    error_message = "vpc_egress must have at most one of direct and connector."
  }

  validation {
    condition     = alltrue([for connector in var.vpc_egress.connector[*] : can(regex("^projects/[^/]+/locations/[^/]+/connectors/[^/]+$", connector))])
    error_message = "vpc_egress.connector must be projects/PROJECT/locations/REGION/connectors/NAME."
  }
}

variable "shared_vpc_subnets" {
  description = "Subnets of a Shared VPC's host project on which groups may create VMs. create_resources and Google's service agent that creates the VMs get roles/compute.networkUser on each."
  type = list(object({
    project_id = string
    region     = string
    name       = string
  }))
  default = []

  validation {
    condition = alltrue([
      for subnet in var.shared_vpc_subnets :
      can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", subnet.project_id)) &&
      can(regex("^[a-z]+-[a-z]+[0-9]+$", subnet.region)) &&
      can(regex("^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", subnet.name))
    ])
    error_message = "shared_vpc_subnets must hold the host project's id, a region such as us-central1, and the subnet's short name, without projects/.../subnetworks/."
  }
}

variable "vm_service_accounts" {
  description = "E-mails of the service accounts that TPU VMs may use, in `instanceConfig.serviceAccounts` or in a user's instance template. Compute Engine rejects a group with another account. Empty: VMs have no service account."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for email in var.vm_service_accounts : can(regex("^[a-z0-9-]+@[a-z0-9.-]+[.]gserviceaccount[.]com$", email))])
    error_message = "vm_service_accounts must hold e-mails of service accounts, such as tpu-vm@my-project.iam.gserviceaccount.com."
  }
}

variable "installation_id" {
  description = "Set by deploy.sh, not by you: the id of a new installation. The state keeps it. Empty: Terraform generates one."
  type        = string
  default     = ""
  nullable    = false
}

variable "cluster_identity" {
  description = "Set by deploy.sh, not by you: the uid of the cluster's Namespace kube-system and the addresses of its API servers, separated by spaces. The state keeps it."
  type        = string
  default     = ""
  nullable    = false
}

variable "extra_permissions" {
  description = "Additional permissions by step, in the served projects (for provision_slice and release_slice with `node_pools`: in its project). Use it if Google requires more than it documents, or for your own templates (such as `compute.images.useReadOnly`)."
  type        = map(list(string))
  default     = {}

  validation {
    condition     = length(setsubtract(keys(var.extra_permissions), ["approve_join", "create_resources", "inject_token", "label_node", "report_leaks", "sweep", "tear_down", "provision_slice", "release_slice"])) == 0
    error_message = "The keys of extra_permissions must be steps: create_resources, inject_token, label_node, tear_down, approve_join, sweep, report_leaks, provision_slice, release_slice."
  }

  validation {
    condition     = alltrue([for permission in flatten(values(var.extra_permissions)) : can(regex("^[a-z]+[.][A-Za-z]+[.][A-Za-z]+$", permission))])
    error_message = "extra_permissions must hold permissions such as compute.images.useReadOnly, not roles."
  }
}

variable "join_approval" {
  description = "Who approves the certificates of joining VMs. `approve_join`: the function, only for the VM that has the token. `external`: the cluster, for any Node that the holder of a token requests; root on one VM, or anyone who can read its metadata, can then become any Node."
  type        = string
  default     = "approve_join"

  validation {
    condition     = contains(["approve_join", "external"], var.join_approval)
    error_message = "join_approval must be approve_join or external."
  }
}

variable "node_join_timeout_seconds" {
  description = "Seconds that a started VM may take to join before its group reports NodeJoinTimeout."
  type        = number
  default     = 900

  validation {
    condition     = var.node_join_timeout_seconds >= 1 && floor(var.node_join_timeout_seconds) == var.node_join_timeout_seconds
    error_message = "node_join_timeout_seconds must be a whole number of seconds above 0."
  }
}

variable "jobset_provider" {
  description = "The kind of slices for JobSets. `gke`: node pools, configured by `node_pools`. `tpu-node-group`: TPUNodeGroups, configured by the cluster's ConfigMap tpu-functions/jobsets. Empty: JobSets get no slices. JobSet must be installed in the cluster, unless slice_workloads is set."
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = contains(["", "gke", "tpu-node-group"], var.jobset_provider)
    error_message = "jobset_provider must be gke, tpu-node-group or empty."
  }
}

variable "slice_workloads" {
  description = "With jobset_provider: whether other workloads than JobSets can get slices of that kind, too: LeaderWorkerSets, Deployments, StatefulSets, Jobs and Pods. The cluster's ConfigMap tpu-functions/jobsets lists the namespaces and their limits: none by default. JobSet need not be installed in the cluster."
  type        = bool
  default     = false
  nullable    = false

  validation {
    condition     = !var.slice_workloads || var.jobset_provider != ""
    error_message = "slice_workloads must be false without jobset_provider, which says what a slice is."
  }
}

variable "node_pools" {
  description = "With jobset_provider gke: the cluster (its project, by default project_id, its location and name), and common settings of the node pools for JobSets: the zone for Pods that select none; the service account of Nodes, and others that a Pod may select; network tags; labels of Pods that are copied to their Nodes; additional networks; a secondary boot disk with images; type, key and confidential mode of the boot disk; secure boot; whether Spot and reservations are ignored; the maximum number of Pods on a Node."
  type = object({
    project_id            = optional(string)
    location              = string
    cluster               = string
    zone                  = optional(string, "")
    service_account       = string
    more_service_accounts = optional(list(string), [])
    tags                  = optional(list(string), [])
    pod_to_node_labels    = optional(list(string), [])
    additional_networks   = optional(list(object({ network = string, subnetwork = string })), [])
    secondary_disk        = optional(string, "")
    disk_type             = optional(string, "")
    boot_disk_kms_key     = optional(string, "")
    secure_boot           = optional(bool, true)
    confidential_storage  = optional(bool, false)
    force_on_demand       = optional(bool, false)
    max_pods_per_node     = optional(number, 15)
  })
  default = null

  validation {
    condition     = (var.node_pools != null) == (var.jobset_provider == "gke")
    error_message = "node_pools must be set with jobset_provider gke, and only with it."
  }

  validation {
    condition     = alltrue([for pools in var.node_pools[*] : can(regex("^[a-z]+-[a-z]+[0-9]+(-[a-z][a-z0-9]*)?$", pools.location))])
    error_message = "node_pools.location must be the cluster's region or zone, such as us-east5."
  }

  # The rules below reject settings with which the functions would not start.
  validation {
    condition     = alltrue([for pools in var.node_pools[*] : can(regex("^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$", pools.cluster))])
    error_message = "node_pools.cluster must be the cluster's name: at most 40 lower-case letters, digits and hyphens."
  }

  validation {
    condition     = alltrue([for pools in var.node_pools[*] : pools.project_id == null ? true : can(regex("^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$", pools.project_id))])
    error_message = "node_pools.project_id must be the id of the cluster's project, or be left out."
  }

  validation {
    condition = alltrue([
      for key in flatten([for pools in var.node_pools[*] : pools.pod_to_node_labels]) :
      can(regex("^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$", key)) && !can(regex("(^|[.])(google[.]com|tpu-functions[.]dev)/", key))
    ])
    error_message = "node_pools.pod_to_node_labels must be labels of Pods that are not under google.com or tpu-functions.dev, which are reserved."
  }

  validation {
    condition = alltrue([
      for one in flatten([for pools in var.node_pools[*] : pools.additional_networks]) :
      can(regex("^[^:,\\s]+$", one.network)) && can(regex("^[^:,\\s]+$", one.subnetwork))
    ])
    error_message = "node_pools.additional_networks: network and subnetwork must be names, without colons, commas and spaces."
  }

  validation {
    condition = alltrue([
      for pools in var.node_pools[*] : pools.zone == "" ? true : (
        can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z][a-z0-9]*$", pools.zone)) && startswith(pools.zone, "${join("-", slice(split("-", "${pools.location}-"), 0, 2))}-")
      )
    ])
    error_message = "node_pools.zone must be a zone of the cluster's region, such as us-east5-a."
  }

  validation {
    condition = alltrue([
      for email in flatten([for pools in var.node_pools[*] : concat([pools.service_account], pools.more_service_accounts)]) :
      can(regex("^[a-z0-9-]+@[a-z0-9.-]+[.]gserviceaccount[.]com$", email))
    ])
    error_message = "node_pools: service_account and more_service_accounts must be e-mails of service accounts, such as tpu-nodes@my-project.iam.gserviceaccount.com."
  }

  validation {
    condition     = alltrue([for pools in var.node_pools[*] : pools.max_pods_per_node >= 8 && pools.max_pods_per_node <= 256 && floor(pools.max_pods_per_node) == pools.max_pods_per_node])
    error_message = "node_pools.max_pods_per_node must be a whole number from 8 to 256."
  }
}

variable "jobset_suspended_release_minutes" {
  description = "Minutes until the slice of a suspended JobSet is released, so that a queue can give its chips to another JobSet. 0: never."
  type        = number
  default     = 5
  nullable    = false

  validation {
    condition     = var.jobset_suspended_release_minutes >= 0 && floor(var.jobset_suspended_release_minutes) == var.jobset_suspended_release_minutes
    error_message = "jobset_suspended_release_minutes must be a whole number of minutes, or 0 for never."
  }
}

variable "jobset_lost_rebuild_minutes" {
  description = "Minutes from the loss of a host until the workload's slice is replaced, but not before Compute Engine may have restored it (Spot VMs: never, others: 30 minutes). null: as soon as it may not any more. 0: never."
  type        = number
  default     = null

  validation {
    condition     = try(var.jobset_lost_rebuild_minutes >= 0 && floor(var.jobset_lost_rebuild_minutes) == var.jobset_lost_rebuild_minutes, var.jobset_lost_rebuild_minutes == null)
    error_message = "jobset_lost_rebuild_minutes must be a whole number of minutes, 0 for never, or null."
  }
}

variable "runtime" {
  description = "Python runtime of the functions, 3.11 or newer."
  type        = string
  default     = "python312"

  validation {
    condition     = can(regex("^python3(1[1-9]|[2-9][0-9])$", var.runtime))
    error_message = "runtime must be python311 or newer, such as python312."
  }
}

variable "concurrency" {
  description = "Messages that an instance handles at the same time, each in a thread."
  type        = number
  default     = 8

  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 80 && floor(var.concurrency) == var.concurrency
    error_message = "concurrency must be a whole number from 1 to 80: each message has a thread, and an instance has one CPU."
  }
}

variable "min_instances" {
  description = "Minimum number of instances of each function. They are billed also when idle. 0: the first message after a pause waits some seconds for a cold start."
  type        = number
  default     = 0

  validation {
    condition     = var.min_instances >= 0 && floor(var.min_instances) == var.min_instances
    error_message = "min_instances must be a whole number, 0 or more."
  }
}

variable "max_instances" {
  description = "Maximum number of instances of each function. Multiplied by concurrency, it is the number of messages that are handled at the same time. More concurrent calls use more of Compute Engine's rate quota."
  type        = number
  default     = 10

  validation {
    condition     = var.max_instances >= max(1, var.min_instances) && floor(var.max_instances) == var.max_instances
    error_message = "max_instances must be a whole number, at least 1 and at least min_instances."
  }
}

variable "available_memory" {
  description = "Memory of an instance."
  type        = string
  default     = "512Mi"

  validation {
    condition     = can(regex("^[1-9][0-9]*(M|G|Mi|Gi)$", var.available_memory))
    error_message = "available_memory must be a quantity such as 512Mi or 1Gi."
  }
}

variable "ingress_settings" {
  description = "The sources from which the functions can be called. ALLOW_INTERNAL_ONLY includes Pub/Sub pushes of the same project. Whatever the setting, only the service account of Pub/Sub's pushes is admitted."
  type        = string
  default     = "ALLOW_INTERNAL_ONLY"

  validation {
    condition     = contains(["ALLOW_INTERNAL_ONLY", "ALLOW_INTERNAL_AND_GCLB", "ALLOW_ALL"], var.ingress_settings)
    error_message = "ingress_settings must be ALLOW_INTERNAL_ONLY, ALLOW_INTERNAL_AND_GCLB or ALLOW_ALL."
  }
}

variable "push_verification" {
  description = "Where the signature of a push's token is verified. `platform`: by Cloud Run, which admits only the service account of Pub/Sub's pushes and removes the signature; the function still compares audience and e-mail. `signature`: also by the function; only for a service that receives tokens with their signature."
  type        = string
  default     = "platform"
  nullable    = false

  validation {
    condition     = contains(["platform", "signature"], var.push_verification)
    error_message = "push_verification must be platform or signature."
  }
}

variable "image_readers" {
  description = "E-mails of the service accounts whose Nodes pull the images of the relay and of inject-env from the module's repository: those of GKE's Nodes, or of your own cluster whose kubelets have a credential provider. Each gets roles/artifactregistry.reader on that repository."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for email in var.image_readers : can(regex("^[a-z0-9-]+@[a-z0-9.-]+[.]gserviceaccount[.]com$", email))])
    error_message = "image_readers must hold e-mails of service accounts, such as nodes@my-project.iam.gserviceaccount.com."
  }
}

variable "scheduler_region" {
  description = "Region of the Cloud Scheduler job, if the region of the functions has no Cloud Scheduler."
  type        = string
  default     = null
}

variable "notification_channels" {
  description = "Ids of Cloud Monitoring channels that are notified of dead letters, waiting messages, failing steps or log sinks, a sweep that does not run, leaked slices and joins that were not approved. Empty: no alerts."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for channel in var.notification_channels : can(regex("^projects/[^/]+/notificationChannels/[0-9]+$", channel))])
    error_message = "notification_channels must hold ids such as projects/my-project/notificationChannels/123, as shown by `gcloud beta monitoring channels list`."
  }
}

variable "relay_metrics_cluster" {
  description = "The `cluster` label of the relay's metrics in Managed Service for Prometheus, if the chart's value `monitoring: google` lets it scrape them: with `notification_channels`, alerts if the relay is down. Empty: no alert."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[A-Za-z0-9._-]*$", var.relay_metrics_cluster))
    error_message = "relay_metrics_cluster must be the name of a cluster: letters, digits, dots, hyphens and underscores."
  }
}

variable "labels" {
  description = "Labels of functions, topics, subscriptions and the bucket."
  type        = map(string)
  default     = {}

  validation {
    condition = alltrue([
      for key, value in var.labels :
      can(regex("^[a-z][a-z0-9_-]{0,62}$", key)) && can(regex("^[a-z0-9_-]{0,63}$", value))
    ])
    error_message = "labels must be lower-case letters, digits, hyphens and underscores, 63 at most; a key begins with a letter."
  }
}
