"""Figures of the studies of *propagation* that ``plot.py`` imports; drawing is loaded with it, not with the studies."""
