"""bulkedge: random-matrix theory for transformer attention.

Predict a spectrum with a law, simulate it with an ensemble, measure it, compare the two:

>>> import numpy as np
>>> import bulkedge as be
>>> model = be.Wishart(dim=300, samples=600)
>>> comparison = be.compare(model.spectrum(np.random.default_rng(0)), model.law())
>>> comparison.ks < 0.01, comparison.outliers
(True, ())

The papers' theory has rooms of its own: ``be.recovery``, ``be.propagation``, ``be.programs``. ``be.nn`` (which needs
torch), ``be.models``, ``be.plots``, ``be.studies`` and ``be.sweeps`` are imported when they are first used.
"""

from importlib import import_module
from typing import Any

from bulkedge import programs, propagation, recovery
from bulkedge.comparison import Comparison, Comparisons, compare
from bulkedge.ensembles import (
    AttentionStack,
    Ensemble,
    GaussianProduct,
    GaussianSum,
    PooledMixture,
    PooledSequences,
    RandomMarkov,
    SoftmaxAttention,
    Wigner,
    Wishart,
)
from bulkedge.errors import (
    AccuracyWarning,
    BulkedgeError,
    DomainError,
    MissingPackageError,
    RegimeWarning,
    StoreError,
    UnitError,
    UnresolvedError,
)
from bulkedge.estimates import Estimate
from bulkedge.laws import (
    AttentionLaw,
    CausalHeadDistribution,
    CausalLaw,
    CorrelatedAttentionLaw,
    Distribution,
    EmpiricalLaw,
    FiniteHeadLaw,
    FussCatalan,
    IndependentProduct,
    Law,
    MarchenkoPastur,
    Outlier,
    PoissonLaw,
    ProductLaw,
    ProfileLaw,
    QuarterCircle,
    Semicircle,
    SingularOutlier,
    SingularSpike,
    Spike,
    StepDistribution,
    SumLaw,
    TracyWidom,
    Unit,
    free_add,
    free_mul,
    rectangular_add,
)
from bulkedge.masks import Mask
from bulkedge.nulls import LawNull, Null, PValue, SimulatedNull, null_of
from bulkedge.spectra import (
    Spectra,
    Spectrum,
    attention_spectrum,
    cosine_similarity,
    effective_rank,
    spectrum,
    stable_rank,
)
from bulkedge.version import __version__

__all__ = [
    # laws
    "Unit",
    "Distribution",
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
    "StepDistribution",
    "free_add",
    "free_mul",
    "rectangular_add",
    "Spike",
    "Outlier",
    "SingularSpike",
    "SingularOutlier",
    "TracyWidom",
    # masks
    "Mask",
    # ensembles
    "Ensemble",
    "Wigner",
    "Wishart",
    "GaussianProduct",
    "GaussianSum",
    "SoftmaxAttention",
    "PooledSequences",
    "PooledMixture",
    "RandomMarkov",
    "AttentionStack",
    # spectra
    "Spectrum",
    "Spectra",
    "spectrum",
    "attention_spectrum",
    "stable_rank",
    "effective_rank",
    "cosine_similarity",
    # comparison
    "Comparison",
    "Comparisons",
    "compare",
    # nulls
    "Null",
    "LawNull",
    "SimulatedNull",
    "PValue",
    "null_of",
    # numbers with errors, and what goes wrong
    "Estimate",
    "BulkedgeError",
    "DomainError",
    "UnitError",
    "UnresolvedError",
    "MissingPackageError",
    "StoreError",
    "RegimeWarning",
    "AccuracyWarning",
    # the papers' theory
    "recovery",
    "propagation",
    "programs",
    "__version__",
]


LAZY = ("models", "nn", "plots", "studies", "sweeps")
"""Rooms that import what is large or optional (torch, xarray, matplotlib): they are loaded when first used."""


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return import_module(f"bulkedge.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
