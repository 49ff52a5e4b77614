"""Queries, keys and masks of every attention of a model, taken from its forward passes."""
