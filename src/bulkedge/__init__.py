"""bulkedge: random-matrix theory for transformer attention.

Predict a spectrum with a law, simulate it with an ensemble, measure it, compare the two:

>>> import numpy as np
>>> import bulkedge as be
>>> model = be.Wishart(dim=300, samples=600)
>>> comparison = be.compare(model.spectrum(np.random.default_rng(0)), model.law())
>>> comparison.ks < 0.01, comparison.outliers
(True, ())
"""

from bulkedge import programs
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
    # programs
    "programs",
    "__version__",
]
