"""Figures of the studies of real heads, each in a file of ``figures/``."""

from bulkedge.studies.heads.figures.causal import causal

__all__ = ["causal"]
