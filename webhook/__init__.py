"""The admission webhook in the cluster: `inject_env`, `admit_job` and `tie_pod` behind TLS."""
