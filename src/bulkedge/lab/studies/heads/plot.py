"""Figures of the studies of real heads, each in a file of ``figures/``."""

from bulkedge.lab.studies.heads.figures.causal import causal
from bulkedge.lab.studies.heads.figures.gap import gap
from bulkedge.lab.studies.heads.figures.initialised import initialised
from bulkedge.lab.studies.heads.figures.long_context import long_context
from bulkedge.lab.studies.heads.figures.longer import longer
from bulkedge.lab.studies.heads.figures.popularity import popularity
from bulkedge.lab.studies.heads.figures.scan import scan
from bulkedge.lab.studies.heads.figures.score_scales import score_scales
from bulkedge.lab.studies.heads.figures.sharp import sharp
from bulkedge.lab.studies.heads.figures.shrinkage import shrinkage
from bulkedge.lab.studies.heads.figures.trained import trained
from bulkedge.lab.studies.heads.figures.watch import watch

__all__ = [
    "causal",
    "gap",
    "initialised",
    "long_context",
    "longer",
    "popularity",
    "scan",
    "score_scales",
    "sharp",
    "shrinkage",
    "trained",
    "watch",
]
