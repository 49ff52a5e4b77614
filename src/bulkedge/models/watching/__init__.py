"""A watch: every head of a model along a training run."""
