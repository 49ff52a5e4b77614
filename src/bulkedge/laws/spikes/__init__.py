"""Outliers and overlaps of a perturbation of rank one, and optimal shrinkage."""
