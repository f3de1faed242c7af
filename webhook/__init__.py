"""The admission webhook in the cluster: `webhook.inject_env` and `admit_job` behind TLS."""
