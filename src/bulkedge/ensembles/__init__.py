"""Finite random models, each with its limiting law; one file a model."""

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.gaussian import GaussianProduct, GaussianSum, Wigner, Wishart

__all__ = ["Ensemble", "GaussianProduct", "GaussianSum", "SoftmaxAttention", "Wigner", "Wishart"]
