"""A configuration before training: what it does at initialisation, predicted without weights."""
