"""Signal propagation through stacks of attention (*propagation*): gradients, isometry, trainability.

The random matrices themselves, :class:`bulkedge.RandomMarkov` and :class:`bulkedge.AttentionStack`, are ensembles.
"""

from bulkedge.heads.softmax import softmax_of_gaussians
from bulkedge.propagation.gradients import estimated_gradient_norms, gradient_norms, pullback
from bulkedge.propagation.moments import Isometry, Moments, deepest, finite_moments, tradeoff
from bulkedge.propagation.overlap import Overlaps, overlaps, participation_variance, softmax_overlap
from bulkedge.propagation.skips import SkipIsometry, skip_isometry
from bulkedge.propagation.trainability import Trainability, freezing_beta

__all__ = [
    "Isometry",
    "Moments",
    "Overlaps",
    "SkipIsometry",
    "Trainability",
    "deepest",
    "estimated_gradient_norms",
    "finite_moments",
    "freezing_beta",
    "gradient_norms",
    "overlaps",
    "participation_variance",
    "pullback",
    "skip_isometry",
    "softmax_of_gaussians",
    "softmax_overlap",
    "tradeoff",
]
