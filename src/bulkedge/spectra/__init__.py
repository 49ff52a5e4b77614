"""Measured spectra."""

from bulkedge.spectra.dense import Spectra, Spectrum, attention_spectrum, spectrum
from bulkedge.spectra.operators import (
    AttentionOperator,
    Gram,
    Hermitised,
    MapOperator,
    MatrixOperator,
    Operator,
    Product,
)
from bulkedge.spectra.top import TopSingular, top_singular
from bulkedge.spectra.traces import (
    cosine_similarity,
    effective_rank,
    schatten_norm,
    stable_rank,
    trace_moments,
    trace_of,
)

__all__ = [
    "AttentionOperator",
    "Gram",
    "Hermitised",
    "MapOperator",
    "MatrixOperator",
    "Operator",
    "Product",
    "Spectra",
    "Spectrum",
    "TopSingular",
    "attention_spectrum",
    "cosine_similarity",
    "effective_rank",
    "schatten_norm",
    "spectrum",
    "stable_rank",
    "top_singular",
    "trace_moments",
    "trace_of",
]
