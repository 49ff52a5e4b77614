"""Measured spectra."""

from bulkedge.spectra.attention import attention_spectrum
from bulkedge.spectra.dense import Spectra, Spectrum, spectrum
from bulkedge.spectra.rank import cosine_similarity, effective_rank, stable_rank, stable_rank_excess

__all__ = [
    "Spectra",
    "Spectrum",
    "attention_spectrum",
    "cosine_similarity",
    "effective_rank",
    "spectrum",
    "stable_rank",
    "stable_rank_excess",
]
