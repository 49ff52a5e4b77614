"""Measured spectra."""

from bulkedge.spectra.attention import attention_spectrum
from bulkedge.spectra.dense import Spectra, Spectrum, spectrum
from bulkedge.spectra.operators import (
    AttentionOperator,
    Gram,
    Hermitised,
    MapOperator,
    MatrixOperator,
    Operator,
    Product,
)
from bulkedge.spectra.rank import cosine_similarity, effective_rank, stable_rank
from bulkedge.spectra.top import TopSingular, top_singular
from bulkedge.spectra.traces import schatten_norm, trace_moments, trace_of

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
