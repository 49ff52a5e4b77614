"""Finite random models, each with its limiting law; one file a model."""

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.gaussian import GaussianProduct, GaussianSum, Wigner, Wishart
from bulkedge.ensembles.markov import RandomMarkov
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.ensembles.trainability import Trainability

__all__ = [
    "AttentionStack",
    "Ensemble",
    "GaussianProduct",
    "GaussianSum",
    "RandomMarkov",
    "SoftmaxAttention",
    "Trainability",
    "Wigner",
    "Wishart",
]
