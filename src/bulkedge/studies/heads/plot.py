"""Figures of the studies of real heads, each in a file of ``figures/``."""

from bulkedge.studies.heads.figures.long_context import long_context
from bulkedge.studies.heads.figures.trained import trained

__all__ = ["long_context", "trained"]
