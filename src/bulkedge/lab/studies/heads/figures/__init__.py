"""Figures of the studies of real heads that ``plot.py`` imports; drawing is loaded with it, not with the studies."""
