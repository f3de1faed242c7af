# The repository for images: Cloud Functions builds those of the functions, deploy.sh those of the relay and of
# inject-env.

resource "google_artifact_registry_repository" "images" {
  project       = var.project_id
  location      = var.region
  repository_id = var.name_prefix
  description   = "Images of ${var.name_prefix}"
  format        = "DOCKER"
  labels        = var.labels

  depends_on = [time_sleep.apis]
}

resource "google_artifact_registry_repository_iam_member" "reader" {
  for_each = toset(var.image_readers)

  project    = var.project_id
  location   = var.region
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${each.value}"
}
