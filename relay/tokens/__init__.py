"""The token-writer: it keeps a token of each step's ServiceAccount in the secret that the step reads."""
