"""Figures of the studies of real heads, each in a file of ``figures/``."""

from bulkedge.studies.heads.figures.hot import hot
from bulkedge.studies.heads.figures.long_context import long_context

__all__ = ["hot", "long_context"]
