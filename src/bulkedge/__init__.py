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

from bulkedge.comparison import Comparison, compare
from bulkedge.ensembles import Ensemble, GaussianProduct, GaussianSum, SoftmaxAttention, Wigner, Wishart
from bulkedge.laws import (
    AttentionLaw,
    CorrelatedAttentionLaw,
    EmpiricalLaw,
    FiniteHeadLaw,
    FussCatalan,
    Law,
    MarchenkoPastur,
    PoissonLaw,
    ProductLaw,
    QuarterCircle,
    Semicircle,
    Spike,
    SumLaw,
    TracyWidom,
    free_add,
    free_mul,
    rectangular_add,
)
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.version import __version__

__all__ = [
    # laws
    "Law",
    "Semicircle",
    "QuarterCircle",
    "MarchenkoPastur",
    "ProductLaw",
    "FussCatalan",
    "SumLaw",
    "AttentionLaw",
    "FiniteHeadLaw",
    "CorrelatedAttentionLaw",
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
    # spectra
    "Spectrum",
    "spectrum",
    # comparison
    "Comparison",
    "compare",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """``nn``, when it is asked for: it imports torch, which is large and optional."""
    if name == "nn":
        return import_module("bulkedge.nn")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
