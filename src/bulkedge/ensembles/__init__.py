"""Finite random models, each with its limiting law; one file a model."""

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.classifier import LabelledSequences, LabelledSigns, RidgeClassifier, prefix_majority
from bulkedge.ensembles.correlations import (
    autoregressive_correlation,
    draw_signs,
    prefix_correlation,
    spiked_correlation,
)
from bulkedge.ensembles.gaussian import GaussianProduct, GaussianSum, Wigner, Wishart
from bulkedge.ensembles.learned import LearnedWeights, learned_weights
from bulkedge.ensembles.markov import RandomMarkov
from bulkedge.ensembles.mixture import PooledMixture
from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.ensembles.trainability import Trainability
from bulkedge.ensembles.weights import causal_weights, mean_weights, optimal_weights, self_attention_weights

__all__ = [
    "AttentionStack",
    "Ensemble",
    "GaussianProduct",
    "GaussianSum",
    "LabelledSequences",
    "LabelledSigns",
    "LearnedWeights",
    "PooledMixture",
    "PooledSequences",
    "RandomMarkov",
    "RidgeClassifier",
    "SoftmaxAttention",
    "Trainability",
    "Wigner",
    "Wishart",
    "autoregressive_correlation",
    "causal_weights",
    "draw_signs",
    "learned_weights",
    "mean_weights",
    "optimal_weights",
    "prefix_correlation",
    "prefix_majority",
    "self_attention_weights",
    "spiked_correlation",
]
