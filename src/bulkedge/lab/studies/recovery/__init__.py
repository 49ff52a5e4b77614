"""Studies of *recovery*: which pooling of token embeddings keeps the signal."""
