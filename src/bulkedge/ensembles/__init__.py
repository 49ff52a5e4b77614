"""Finite random matrices, each with its limiting law; one file a model."""

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.gaussian import GaussianProduct, GaussianSum, Wigner, Wishart
from bulkedge.ensembles.markov import RandomMarkov
from bulkedge.ensembles.mixture import PooledMixture
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.ensembles.stack import AttentionStack

__all__ = [
    "AttentionStack",
    "Ensemble",
    "GaussianProduct",
    "GaussianSum",
    "PooledMixture",
    "PooledSequences",
    "RandomMarkov",
    "SoftmaxAttention",
    "Wigner",
    "Wishart",
]
