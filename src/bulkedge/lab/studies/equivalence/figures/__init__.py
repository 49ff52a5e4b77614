"""Figures of the studies of *equivalence* that ``plot.py`` imports; drawing is loaded with it, not with the studies."""
