"""The daemon in the cluster: publishes a trigger to the steps' topics for each relevant change."""
