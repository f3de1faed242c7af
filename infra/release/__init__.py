"""The files of a release: ``make release`` makes them, ``.github/workflows/release.yaml`` publishes them."""
