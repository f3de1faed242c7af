"""The daemon in the cluster: turns Kubernetes watches into occasions in the steps' inboxes."""
