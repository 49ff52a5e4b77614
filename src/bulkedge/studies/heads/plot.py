"""Figures of the studies of real heads, each in a file of ``figures/``."""

from bulkedge.studies.heads.figures.gap import gap
from bulkedge.studies.heads.figures.long_context import long_context
from bulkedge.studies.heads.figures.popularity import popularity
from bulkedge.studies.heads.figures.shrinkage import shrinkage

__all__ = ["gap", "long_context", "popularity", "shrinkage"]
