"""Matrices that are never written out: what can be multiplied from both sides, and nothing else."""

from bulkedge.spectra.operators.algebra import Gram, Hermitised, MapOperator, MatrixOperator, Product
from bulkedge.spectra.operators.attention import AttentionOperator
from bulkedge.spectra.operators.base import Operator

__all__ = ["AttentionOperator", "Gram", "Hermitised", "MapOperator", "MatrixOperator", "Operator", "Product"]
