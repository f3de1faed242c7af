"""The admission webhook in the cluster: `functions.inject_env` behind TLS."""
