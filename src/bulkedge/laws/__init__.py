"""Limiting spectral laws, one file a family; :mod:`bulkedge.laws.engine` is the numerical engine under them."""

from bulkedge.laws.attention.causal import CausalLaw
from bulkedge.laws.attention.causal_head import CausalHeadLaw
from bulkedge.laws.attention.finite_head import FiniteHeadLaw
from bulkedge.laws.attention.head import HeadLaw
from bulkedge.laws.attention.proportional import AttentionLaw, CorrelatedAttentionLaw
from bulkedge.laws.attention.sharp_head import SharpHeadLaw
from bulkedge.laws.attention.window import WindowLaw
from bulkedge.laws.classical.empirical import EmpiricalLaw, PoissonLaw
from bulkedge.laws.classical.free import free_add, free_mul, rectangular_add
from bulkedge.laws.classical.product import FreeLogNormal, FussCatalan, IndependentProduct, MarchenkoPastur, ProductLaw
from bulkedge.laws.classical.profile import ProfileLaw
from bulkedge.laws.classical.semicircle import QuarterCircle, Semicircle, SumLaw
from bulkedge.laws.classical.tracy_widom import TracyWidom
from bulkedge.laws.distribution import Distribution, StepDistribution, Unit
from bulkedge.laws.law import Law
from bulkedge.laws.spikes.rank_one import Outlier, Spike
from bulkedge.laws.spikes.singular_spikes import SingularOutlier, SingularSpike

__all__ = [
    "AttentionLaw",
    "CausalHeadLaw",
    "CausalLaw",
    "CorrelatedAttentionLaw",
    "Distribution",
    "EmpiricalLaw",
    "FiniteHeadLaw",
    "FreeLogNormal",
    "FussCatalan",
    "HeadLaw",
    "IndependentProduct",
    "Law",
    "MarchenkoPastur",
    "Outlier",
    "PoissonLaw",
    "ProductLaw",
    "ProfileLaw",
    "QuarterCircle",
    "Semicircle",
    "SharpHeadLaw",
    "SingularOutlier",
    "SingularSpike",
    "Spike",
    "StepDistribution",
    "SumLaw",
    "TracyWidom",
    "Unit",
    "WindowLaw",
    "free_add",
    "free_mul",
    "rectangular_add",
]
