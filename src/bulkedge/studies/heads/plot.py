"""Figures of the studies of real heads, each in a file of ``figures/``."""

from bulkedge.studies.heads.figures.causal import causal
from bulkedge.studies.heads.figures.gap import gap
from bulkedge.studies.heads.figures.hot import hot
from bulkedge.studies.heads.figures.initialised import initialised
from bulkedge.studies.heads.figures.long_context import long_context
from bulkedge.studies.heads.figures.longer import longer
from bulkedge.studies.heads.figures.popularity import popularity
from bulkedge.studies.heads.figures.scan import scan
from bulkedge.studies.heads.figures.shrinkage import shrinkage
from bulkedge.studies.heads.figures.temperature import temperature
from bulkedge.studies.heads.figures.trained import trained
from bulkedge.studies.heads.figures.watch import watch

__all__ = [
    "causal",
    "gap",
    "hot",
    "initialised",
    "long_context",
    "longer",
    "popularity",
    "scan",
    "shrinkage",
    "temperature",
    "trained",
    "watch",
]
