"""Finite random models, each with its limiting law; one file a model."""

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.classifier import LabelledSequences, LabelledSigns, RidgeClassifier, prefix_majority
from bulkedge.ensembles.gaussian import GaussianProduct, GaussianSum, Wigner, Wishart
from bulkedge.ensembles.learned import LearnedWeights, learned_weights

__all__ = [
    "Ensemble",
    "GaussianProduct",
    "GaussianSum",
    "LabelledSequences",
    "LabelledSigns",
    "LearnedWeights",
    "RidgeClassifier",
    "SoftmaxAttention",
    "Wigner",
    "Wishart",
    "learned_weights",
    "prefix_majority",
]
