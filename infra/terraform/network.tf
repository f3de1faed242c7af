# The functions' egress to a private API server, and grants on the subnets of a Shared VPC.

locals {
  direct_egress = var.vpc_egress.direct
  connector     = var.vpc_egress.connector

  shared_subnets = {
    for subnet in var.shared_vpc_subnets :
    "${subnet.project_id}/${subnet.region}/${subnet.name}" => subnet
  }

  # Managed instance groups create their VMs as this Google service account, one for each project.
  vm_creators = {
    for project, found in data.google_project.served :
    "agent-of-${project}" => "serviceAccount:${found.number}@cloudservices.gserviceaccount.com"
  }
  subnet_users = merge(local.vm_creators, {
    for step in local.steps : step => google_service_account.step[step].member
    if length(local.permissions[step].subnetwork) > 0
  })
  subnet_permissions = {
    for pair in setproduct(keys(local.shared_subnets), keys(local.subnet_users)) :
    join("/", pair) => { subnet = local.shared_subnets[pair[0]], user = pair[1] }
  }
}

data "google_project" "served" {
  for_each = length(var.shared_vpc_subnets) == 0 ? [] : local.served_projects

  project_id = each.value
}

resource "google_compute_subnetwork_iam_member" "user" {
  for_each = local.subnet_permissions

  project    = each.value.subnet.project_id
  region     = each.value.subnet.region
  subnetwork = each.value.subnet.name
  role       = "roles/compute.networkUser"
  member     = local.subnet_users[each.value.user]

  depends_on = [time_sleep.accounts]
}
