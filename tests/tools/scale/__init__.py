"""The runs of `make scale`."""
