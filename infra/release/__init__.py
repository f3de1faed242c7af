"""The files of a release: ``make release`` makes them, the workflow ``release.yaml`` publishes them."""
