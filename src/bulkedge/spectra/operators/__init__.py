"""Matrices that are never written out: what can be multiplied from both sides, and nothing else."""

from bulkedge.spectra.operators.algebra import Gram, Hermitised, Product
from bulkedge.spectra.operators.attention import AttentionOperator
from bulkedge.spectra.operators.base import Operator
from bulkedge.spectra.operators.given import MapOperator, MatrixOperator

__all__ = ["AttentionOperator", "Gram", "Hermitised", "MapOperator", "MatrixOperator", "Operator", "Product"]
