"""What an ensemble is: a finite random matrix and its limit, born from the same parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any

import numpy as np

from bulkedge.laws.law import Law
from bulkedge.spectra import Spectrum


class Ensemble(ABC):
    """A random matrix model; ``spectrum`` of a draw follows ``law`` as the matrix grows.

    Ensembles are frozen dataclasses, equal if their parameters are. Those with arrays among them take equality,
    ``hash`` and ``repr`` from here.
    """

    @abstractmethod
    def sample(self, rng: Any) -> Any:
        """Draw the random matrix once.

        The generator chooses the backend: NumPy's gives arrays; torch's gives tensors on its device, or a
        ``DomainError`` from models that draw with NumPy alone.

        Parameters
        ----------
        rng : numpy.random.Generator or torch.Generator
            Source of randomness; the same state gives the same matrix.

        Returns
        -------
        array
            One draw, in double precision.
        """

    @abstractmethod
    def spectrum(self, rng: Any) -> Spectrum:
        """Draw the matrix and return the values whose limit :meth:`law` is.

        Parameters
        ----------
        rng : numpy.random.Generator or torch.Generator
            Source of randomness, as for :meth:`sample`.

        Returns
        -------
        Spectrum
            The values of one draw, in the unit of :meth:`law`.
        """

    @abstractmethod
    def law(self) -> Law:
        """The limiting law; a ``RegimeWarning`` says where the matrix is not near it."""

    def _parameters(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Ensemble):
            return NotImplemented
        return all(_same(mine, theirs) for mine, theirs in zip(*map(_values, (self, other)), strict=True))

    def __hash__(self) -> int:
        # arrays by their shape only: equal ensembles have equal hashes, others rarely
        return hash((type(self), *(each.shape if hasattr(each, "shape") else each for each in _values(self))))

    def __repr__(self) -> str:
        parts = (f"{name}={_short_text(value)}" for name, value in self._parameters().items())
        return f"{type(self).__name__}({', '.join(parts)})"


def _values(ensemble: Ensemble) -> list[Any]:
    return list(ensemble._parameters().values())


def _same(mine: Any, theirs: Any) -> bool:
    if hasattr(mine, "shape") or hasattr(theirs, "shape"):
        return np.shape(mine) == np.shape(theirs) and bool(np.all(np.asarray(mine) == np.asarray(theirs)))
    return bool(mine == theirs)


def _short_text(value: Any) -> str:
    """Arrays by their shape, once they have more than a few entries."""
    return f"<array {np.shape(value)}>" if np.size(value) > 8 and hasattr(value, "shape") else repr(value)
