"""What the values of a law or a spectrum are: eigenvalues, singular values, or their squares.

Mistaking one for the other is the commonest silent error with random matrices, so both sides of a comparison say it.

>>> Unit("squared singular values").root()
<Unit.SINGULAR: 'singular values'>
"""

from __future__ import annotations

from enum import StrEnum

from bulkedge.support.domains import Choice


class Unit(StrEnum):
    """The quantity that values are."""

    EIGEN = "eigenvalues"
    """Eigenvalues of a Hermitian matrix; of a Gram matrix ``M'M`` they are also the squared singular values of M."""
    SINGULAR = "singular values"
    SQUARED = "squared singular values"
    SYMMETRISED = "symmetrised singular values"
    """Each singular value with both signs and half its weight: the eigenvalues of ``[[0, M], [M', 0]]``."""
    VALUES = "values"
    """Plain numbers, such as a list of measured ones: comparable with anything, as they are."""

    def square(self) -> Unit:
        """What squares of such values are; of a Hermitian matrix, singular values are absolute eigenvalues."""
        return Unit.VALUES if self in {Unit.VALUES, Unit.SQUARED} else Unit.SQUARED

    def root(self) -> Unit:
        """What square roots of such values are: those of the eigenvalues of M'M are the singular values of M."""
        return Unit.SINGULAR if self in {Unit.SQUARED, Unit.EIGEN} else Unit.VALUES


UNIT = Choice(tuple(Unit))
