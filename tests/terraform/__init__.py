"""Runs Terraform on the module in ``infra/terraform``, without a cloud."""
