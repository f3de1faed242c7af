"""The token-writer."""
