"""Measured spectra."""

from bulkedge.spectra.dense import Spectrum, spectrum

__all__ = ["Spectrum", "spectrum"]
