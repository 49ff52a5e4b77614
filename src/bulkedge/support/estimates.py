"""A sampled number, its standard error, and how well that error is known, in one type.

>>> Estimate.of([1.0, 2.0, 3.0, 6.0])
Estimate(value=3.0, error=1.0801234497346435, freedom=3.0)
>>> print(Estimate(3.0, 0.25))
3 ± 0.25
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.support.errors import DomainError


class Estimate(NamedTuple):
    """A number or an array, with its standard error; error zero means that it was computed without sampling.

    >>> print(Estimate.of([3.0, 4.0, 5.0]))
    4 ± 0.58

    Attributes
    ----------
    value : float or array
        The number.
    error : float or array
        Its standard error.
    freedom : float
        Degrees of freedom of the error, infinite where it is known: a value from few draws deviates from the truth, in
        units of its own error, as Student's t distribution does.
    """

    value: Any
    error: Any = 0.0
    freedom: float = inf

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
        count = _count(values, axis)
        error = values.std(axis=axis, ddof=1) / np.sqrt(count)
        return cls(_plain(values.mean(axis=axis)), _plain(error), float(count - 1))

    @classmethod
    def jackknife(cls, statistic: Callable[[Any], float], draws: ArrayLike) -> Estimate:
        """A smooth statistic of all draws (a slope, a ratio of means), its error by leaving out one draw at a time.

        Parameters
        ----------
        statistic : callable
            Takes draws along the first axis and gives a number; medians and extremes are not smooth enough for the
            jackknife.
        draws : array
            Independent draws along the first axis, two or more.

        Returns
        -------
        Estimate
            The statistic of all draws; Tukey's error, of one degree of freedom less than there are draws.

        >>> print(Estimate.jackknife(np.mean, [1.0, 2.0, 3.0, 6.0]), Estimate.of([1.0, 2.0, 3.0, 6.0]))
        3 ± 1.1 3 ± 1.1
        """
        values = np.asarray(draws, dtype=float)
        count = _count(values, 0)
        without = np.array([statistic(np.delete(values, index, axis=0)) for index in range(count)])
        error = float(np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2)))
        return cls(float(statistic(values)), error, float(count - 1))

    @classmethod
    def mean(cls, parts: Any) -> Estimate:
        """The plain mean of independent estimates, with the freedom that Welch and Satterthwaite give it.

        Parameters
        ----------
        parts : iterable of Estimate
            Scalars, independent of each other.

        Returns
        -------
        Estimate
            Their mean.
        """
        known = [cls(*each) for each in parts]
        variances = np.array([each.error**2 for each in known])
        freedom = welch(variances, [each.freedom for each in known])
        return cls(
            float(np.mean([each.value for each in known])), float(np.sqrt(variances.sum())) / len(known), freedom
        )

    def __str__(self) -> str:
        return f"{self.value:.6g} ± {self.error:.2g}" if np.ndim(self.value) == 0 else f"{self.value} ± {self.error}"


def welch(variances: ArrayLike, freedoms: ArrayLike) -> float:
    """Degrees of freedom of a sum of independent variances (Welch and Satterthwaite)."""
    variance, freedom = np.asarray(variances, dtype=float), np.asarray(freedoms, dtype=float)
    denominator = np.sum(variance**2 / freedom)
    return float(variance.sum() ** 2 / denominator) if denominator > 0 else inf


def _count(values: Any, axis: int) -> int:
    count = values.shape[axis] if values.ndim else 1
    if count < 2:
        raise DomainError(f"a standard error needs two draws or more; got {count}")
    return int(count)


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
