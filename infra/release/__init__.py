"""The files of a release: ``make release`` builds them, the workflow ``release.yaml`` publishes them."""
