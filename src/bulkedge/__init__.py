"""bulkedge: random-matrix theory for transformer attention.

Predict a spectrum with a law, simulate it with an ensemble, measure it, compare the two:

>>> import numpy as np
>>> import bulkedge as be
>>> model = be.Wishart(dim=300, samples=600)
>>> comparison = be.compare(model.spectrum(np.random.default_rng(0)), model.law())
>>> comparison.ks < 0.01, comparison.outliers
(True, ())

``be.nn`` repairs attention in torch models; it is imported when it is first used.
"""

from importlib import import_module
from typing import Any

from bulkedge import programs
from bulkedge.comparison import Comparison, compare
from bulkedge.ensembles import (
    AttentionStack,
    Ensemble,
    GaussianProduct,
    GaussianSum,
    LearnedWeights,
    PooledMixture,
    PooledSequences,
    RandomMarkov,
    RidgeClassifier,
    SoftmaxAttention,
    Trainability,
    Wigner,
    Wishart,
    autoregressive_correlation,
    causal_weights,
    draw_signs,
    learned_weights,
    mean_weights,
    optimal_weights,
    prefix_correlation,
    prefix_majority,
    self_attention_weights,
    spiked_correlation,
)
from bulkedge.laws import (
    AttentionLaw,
    CausalHeadDistribution,
    CausalLaw,
    CorrelatedAttentionLaw,
    EmpiricalLaw,
    FiniteHeadLaw,
    FussCatalan,
    IndependentProduct,
    Law,
    MarchenkoPastur,
    PoissonLaw,
    ProductLaw,
    ProfileLaw,
    QuarterCircle,
    Semicircle,
    Spike,
    SumLaw,
    TracyWidom,
    free_add,
    free_mul,
    rectangular_add,
)
from bulkedge.models import TableSpectrum, table_spectrum
from bulkedge.spectra import Spectrum, cosine_similarity, effective_rank, spectrum, stable_rank
from bulkedge.version import __version__

__all__ = [
    # laws
    "Law",
    "Semicircle",
    "QuarterCircle",
    "MarchenkoPastur",
    "ProductLaw",
    "FussCatalan",
    "IndependentProduct",
    "SumLaw",
    "AttentionLaw",
    "FiniteHeadLaw",
    "CorrelatedAttentionLaw",
    "CausalLaw",
    "CausalHeadDistribution",
    "ProfileLaw",
    "PoissonLaw",
    "EmpiricalLaw",
    "free_add",
    "free_mul",
    "rectangular_add",
    "Spike",
    "TracyWidom",
    # ensembles
    "Ensemble",
    "Wigner",
    "Wishart",
    "GaussianProduct",
    "GaussianSum",
    "SoftmaxAttention",
    "PooledSequences",
    "PooledMixture",
    "mean_weights",
    "causal_weights",
    "optimal_weights",
    "self_attention_weights",
    "prefix_correlation",
    "spiked_correlation",
    "autoregressive_correlation",
    "draw_signs",
    "LearnedWeights",
    "learned_weights",
    "RidgeClassifier",
    "prefix_majority",
    "RandomMarkov",
    "AttentionStack",
    "Trainability",
    # spectra
    "Spectrum",
    "spectrum",
    "stable_rank",
    "effective_rank",
    "cosine_similarity",
    # comparison
    "Comparison",
    "compare",
    # programs
    "programs",
    # models
    "TableSpectrum",
    "table_spectrum",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """``nn``, when it is asked for: it imports torch, which is large and optional."""
    if name == "nn":
        return import_module("bulkedge.nn")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
