"""The admission webhook in the cluster: `functions.inject_env` and `admit_job` behind TLS."""
