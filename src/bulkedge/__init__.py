"""bulkedge: random-matrix theory for transformer attention.

Predict a spectrum with a law, simulate it with an ensemble, measure it, compare the two:

>>> import numpy as np
>>> import bulkedge as be
>>> model = be.Wishart(dim=300, samples=600)
>>> comparison = be.compare(model.spectrum(np.random.default_rng(0)), model.law())
>>> comparison.ks < 0.01, comparison.outliers
(True, ())

The papers' theory has rooms of its own: ``be.recovery``, ``be.propagation``, ``be.programs``; ``be.heads`` reads heads
of real models; ``be.scan``, ``be.watch``, ``be.preflight`` and ``be.nn`` need torch.
Everything is imported when it is first used, so that ``import bulkedge`` itself costs a few milliseconds.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors read; __getattr__ below finds the same names when they are used
    from bulkedge import heads, programs, propagation, recovery
    from bulkedge import lab as lab
    from bulkedge import models as models
    from bulkedge import nn as nn
    from bulkedge import plots as plots
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
    from bulkedge.heads.score_scales import score_scales
    from bulkedge.inference.comparison import Comparison, Comparisons, compare
    from bulkedge.inference.covariance import Population, free_deconvolve, shrink_spectrum
    from bulkedge.inference.denoising import Denoised, denoise
    from bulkedge.inference.diagnosis import Diagnosis, diagnose
    from bulkedge.inference.linear_statistics import GoodnessOfFit
    from bulkedge.inference.nulls import LawNull, Null, PValue, SimulatedNull, goodness_of_fit, null_of
    from bulkedge.laws import (
        AttentionLaw,
        CausalHeadLaw,
        CausalLaw,
        CorrelatedAttentionLaw,
        Distribution,
        EmpiricalLaw,
        FiniteHeadLaw,
        FreeLogNormal,
        FussCatalan,
        HeadLaw,
        IndependentProduct,
        Law,
        MarchenkoPastur,
        Outlier,
        PoissonLaw,
        ProductLaw,
        ProfileLaw,
        QuarterCircle,
        Semicircle,
        SharpHeadLaw,
        SingularOutlier,
        SingularSpike,
        Spike,
        StepDistribution,
        SumLaw,
        TracyWidom,
        Unit,
        WindowLaw,
        free_add,
        free_mul,
        rectangular_add,
    )
    from bulkedge.models import Scan as Scan
    from bulkedge.models import check_attention as check_attention
    from bulkedge.models import compare_scans as compare_scans
    from bulkedge.models import load_scan as load_scan
    from bulkedge.models import preflight as preflight
    from bulkedge.models import scan as scan
    from bulkedge.models import watch as watch
    from bulkedge.spectra import (
        AttentionOperator,
        Operator,
        Spectra,
        Spectrum,
        TopSingular,
        attention_spectrum,
        cosine_similarity,
        effective_rank,
        schatten_norm,
        spectrum,
        stable_rank,
        top_singular,
        trace_moments,
    )
    from bulkedge.support.errors import (
        AccuracyWarning,
        BulkedgeError,
        DomainError,
        MissingPackageError,
        RegimeWarning,
        StoreError,
        UnitError,
        UnresolvedError,
    )
    from bulkedge.support.estimates import Estimate
    from bulkedge.version import __version__
    from bulkedge.visibility import Mask

__all__ = [
    # laws
    "Unit",
    "Distribution",
    "Law",
    "Semicircle",
    "QuarterCircle",
    "MarchenkoPastur",
    "ProductLaw",
    "FreeLogNormal",
    "FussCatalan",
    "IndependentProduct",
    "SumLaw",
    "AttentionLaw",
    "FiniteHeadLaw",
    "HeadLaw",
    "CorrelatedAttentionLaw",
    "CausalLaw",
    "CausalHeadLaw",
    "WindowLaw",
    "SharpHeadLaw",
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
    "Operator",
    "AttentionOperator",
    "TopSingular",
    "top_singular",
    "schatten_norm",
    "trace_moments",
    "stable_rank",
    "effective_rank",
    "cosine_similarity",
    # comparison
    "Comparison",
    "Comparisons",
    "compare",
    # denoising
    "Denoised",
    "denoise",
    # covariances
    "Population",
    "free_deconvolve",
    "shrink_spectrum",
    # nulls
    "Null",
    "LawNull",
    "SimulatedNull",
    "PValue",
    "null_of",
    "GoodnessOfFit",
    "goodness_of_fit",
    "Diagnosis",
    "diagnose",
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
    # heads of real models
    "heads",
    "score_scales",
    "__version__",
]

NEED_TORCH = ("scan", "Scan", "load_scan", "compare_scans", "watch", "check_attention", "preflight")
"""Names of the façade that ``from bulkedge import *`` leaves out, because their modules need torch."""
ROOMS = ("lab", "models", "nn", "plots", "testing")
"""Rooms for people that the star leaves out too: two need torch, and three are seldom wanted."""
HOMES = (
    *("support.errors", "support.estimates", "visibility", "laws", "spectra", "inference.comparison"),
    *("inference.denoising", "inference.covariance", "ensembles", "inference.nulls", "inference.diagnosis"),
    *("heads", "models"),
)
"""Where the names of the façade are defined, from the bottom of the package up: looking for a name in this order
imports nothing that its own home does not import."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__version__":  # reading what is installed takes longer than all else here
            return import_module("bulkedge.version").__version__
        if not name.startswith("_") and find_spec(f"bulkedge.{name}"):
            return import_module(f"bulkedge.{name}")
        homes = (import_module(f"bulkedge.{home}") for home in HOMES if name in __all__ or name in NEED_TORCH)
        for home in homes:
            if name in vars(home) or name in vars(home).get("__all__", ()):
                globals()[name] = getattr(home, name)  # the next use finds it without coming here
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *NEED_TORCH, *ROOMS})
