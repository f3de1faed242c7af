"""Terraform itself at work on the module of ``infra/terraform``, without a cloud."""
