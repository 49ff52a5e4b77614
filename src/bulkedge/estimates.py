"""A sampled number and its standard error, in one type.

>>> Estimate.of([1.0, 2.0, 3.0, 6.0])
Estimate(value=3.0, error=1.0801234497346435)
>>> print(Estimate(3.0, 0.25))
3 ± 0.25
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.errors import DomainError


class Estimate(NamedTuple):
    """A number or an array, with its standard error; error zero means that it was computed without sampling."""

    value: Any
    error: Any = 0.0

    @classmethod
    def of(cls, draws: ArrayLike, axis: int = 0) -> Estimate:
        """The mean of independent draws along an axis, and its standard error.

        Parameters
        ----------
        draws : array
            Independent draws; two or more along ``axis``, since one does not tell how much it scatters.
        axis : int
            The axis of the draws.

        Returns
        -------
        Estimate
            Arrays without that axis; plain floats if none is left.
        """
        values = np.asarray(draws, dtype=float)
        count = values.shape[axis] if values.ndim else 1
        if count < 2:
            raise DomainError(f"a standard error needs two draws or more; got {count}")
        error = values.std(axis=axis, ddof=1) / np.sqrt(count)
        return cls(_plain(values.mean(axis=axis)), _plain(error))

    def __str__(self) -> str:
        return f"{self.value:.6g} ± {self.error:.2g}" if np.ndim(self.value) == 0 else f"{self.value} ± {self.error}"


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
