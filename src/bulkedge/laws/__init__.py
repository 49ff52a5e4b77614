"""Limiting spectral laws, one file a family; :mod:`bulkedge.laws.engine` is the numerical engine under them."""

from bulkedge.laws.attention import AttentionLaw
from bulkedge.laws.base import Law
from bulkedge.laws.causal import CausalLaw
from bulkedge.laws.causal_head import CausalHeadLaw
from bulkedge.laws.correlated import CorrelatedAttentionLaw
from bulkedge.laws.distribution import Distribution, StepDistribution
from bulkedge.laws.empirical import EmpiricalLaw, PoissonLaw
from bulkedge.laws.finite_head import FiniteHeadLaw
from bulkedge.laws.free import free_add, free_mul, rectangular_add
from bulkedge.laws.hot_head import HotHeadLaw
from bulkedge.laws.independent import IndependentProduct
from bulkedge.laws.product import FussCatalan, MarchenkoPastur, ProductLaw
from bulkedge.laws.profile import ProfileLaw
from bulkedge.laws.semicircle import QuarterCircle, Semicircle
from bulkedge.laws.singular_spikes import SingularOutlier, SingularSpike
from bulkedge.laws.spikes import Outlier, Spike
from bulkedge.laws.sum import SumLaw
from bulkedge.laws.tracy_widom import TracyWidom
from bulkedge.laws.units import Unit

__all__ = [
    "AttentionLaw",
    "CausalHeadLaw",
    "CausalLaw",
    "CorrelatedAttentionLaw",
    "Distribution",
    "EmpiricalLaw",
    "FiniteHeadLaw",
    "FussCatalan",
    "HotHeadLaw",
    "IndependentProduct",
    "Law",
    "MarchenkoPastur",
    "Outlier",
    "PoissonLaw",
    "ProductLaw",
    "ProfileLaw",
    "QuarterCircle",
    "Semicircle",
    "SingularOutlier",
    "SingularSpike",
    "Spike",
    "StepDistribution",
    "SumLaw",
    "TracyWidom",
    "Unit",
    "free_add",
    "free_mul",
    "rectangular_add",
]
