"""Figures of the studies of *equivalence*: those of its proof in ``figures/proof.py``, those of heads beside it."""

from bulkedge.lab.studies.equivalence.figures.heads import (
    causal,
    context,
    finite_head,
    inputs,
    outliers,
    poisson,
    rank_one,
)
from bulkedge.lab.studies.equivalence.figures.proof import (
    breakdown,
    bulk,
    coefficients,
    normaliser,
    taylor,
    threshold,
    top,
)

__all__ = [
    "breakdown",
    "bulk",
    "causal",
    "coefficients",
    "context",
    "finite_head",
    "inputs",
    "normaliser",
    "outliers",
    "poisson",
    "rank_one",
    "taylor",
    "threshold",
    "top",
]
