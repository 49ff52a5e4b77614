"""Claims: sentences of a paper beside the numbers that were measured, and beside what a rival says.

A claim holds if the measurement agrees with the prediction *and* excludes the rival: what it would have shown if the
paper were wrong in the obvious way. A measurement that cannot tell the two apart decides nothing, and says so.

>>> claim = Claim("the bulk ends at 4", "laws: Marchenko-Pastur", Estimate(3.99, 0.01), 4.0, Rival("a semicircle's", 2))
>>> claim.verdict, round(claim.deviation, 6), round(claim.exclusion)
('holds', 1.0, 199)
>>> Claim("the same", "laws: Marchenko-Pastur", Estimate(3.2, 0.5), 4.0, Rival("a semicircle's", 2)).verdict
'undecided'
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy import special, stats

from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate, welch
from bulkedge.support.records import html_table

AGREEMENT = 4.5
"""Standard deviations by which a measurement may miss its prediction. Five seeds of 250 true claims are 1250 chances of
7e-6 each: one false alarm in a hundred such families."""
EXCLUSION = 4.0
"""Standard deviations by which it must miss the rival; one chance in 30,000 of excluding a rival that is right."""

Relation = Literal["=", "<=", ">="]
ClaimVerdict = Literal["holds", "fails", "undecided"]
DIRECTION = {"<=": -1, ">=": 1}


class Rival(NamedTuple):
    """What the measurement would show if the paper were wrong in the obvious way.

    Attributes
    ----------
    name : str
        Who says so, as the end of the sentence "not ...": ``"Marchenko-Pastur"``, ``"no gap"``.
    value : float
        The number that this rival predicts.
    """

    name: str
    value: float


@dataclass(frozen=True)
class Claim:
    """A statement that a measurement can refute, and a rival that it can exclude.

    Attributes
    ----------
    statement : str
        What is claimed, as a sentence.
    place : str
        Paper and item: ``"equivalence: Theorem 3.2, Figure 1"``; several papers are separated by semicolons, and
        ``"ours"`` is what no paper has.
    measured : Estimate
        What was found, with its standard error; that is never zero, since what needs no sampling is a test.
    predicted : float or Estimate
        The value that theory gives, or the bound for one-sided claims; an estimate if it was sampled itself.
    rival : Rival or str
        What a measurement would show otherwise; a string says why there is no sensible rival.
    finite_size : float
        How far the prediction itself may be off at the size that was simulated.
    reason : str
        Where ``finite_size`` comes from.
    relation : {"=", "<=", ">="}
        How measured should stand to predicted.
    """

    statement: str
    place: str
    measured: Estimate
    predicted: Any
    rival: Rival | str
    finite_size: float = 0.0
    reason: str = ""
    relation: Relation = "="

    def __post_init__(self) -> None:
        """Plain numbers, so that a claim can be written down; a sampled prediction adds to the error."""
        found, theory = Estimate(*self.measured), self.predicted
        if isinstance(theory, Estimate):
            variances = (float(found.error) ** 2, float(theory.error) ** 2)
            freedom = welch(variances, (found.freedom, theory.freedom))
            found, theory = Estimate(found.value, sum(variances) ** 0.5, freedom), theory.value
        if found.error == 0:
            raise DomainError(
                f"{self.statement!r} has no error: a claim is sampled; what is computed belongs in a test"
            )
        if bool(self.finite_size) != bool(self.reason):
            raise DomainError(f"{self.statement!r}: a finite-size term needs a reason, and only it does")
        object.__setattr__(self, "measured", Estimate(*map(float, found)))
        object.__setattr__(self, "predicted", float(theory))
        object.__setattr__(self, "finite_size", float(self.finite_size))
        if isinstance(self.rival, Rival):
            object.__setattr__(self, "rival", Rival(self.rival.name, float(self.rival.value)))

    @property
    def deviation(self) -> float:
        """By how many standard deviations the measurement misses the prediction, its finite-size term granted.

        Those of a normal distribution: an error from few draws counts for what Student's t makes of it.
        """
        excess = self.measured.value - self.predicted
        miss = abs(excess) if self.relation == "=" else -DIRECTION[self.relation] * excess
        return self._sigmas(miss - self.finite_size)

    @property
    def exclusion(self) -> float:
        """By how many standard deviations it misses the rival, the same term granted; nan without a rival."""
        if isinstance(self.rival, str):
            return nan
        excess = self.measured.value - self.rival.value
        miss = abs(excess) if self.relation == "=" else DIRECTION[self.relation] * excess
        return self._sigmas(miss - self.finite_size)

    @property
    def verdict(self) -> ClaimVerdict:
        """Whether it holds, fails, or cannot be decided at this size; a number that is none refutes."""
        if not self.deviation <= AGREEMENT:
            return "fails"
        return "undecided" if self.exclusion < EXCLUSION else "holds"

    @property
    def tolerance(self) -> float:
        """How far measured may be from predicted (beyond it, for one-sided claims)."""
        level = stats.t.isf(stats.norm.sf(AGREEMENT), self.measured.freedom)
        return self.finite_size + float(level) * self.measured.error

    def swapped(self) -> Claim:
        """The claim with the rival's number for the prediction: a measurement with power makes it fail."""
        if isinstance(self.rival, str):
            raise DomainError(f"{self.statement!r} has no rival: {self.rival}")
        theory = Rival("the theory", self.predicted)
        return Claim(
            self.statement,
            self.place,
            self.measured,
            self.rival.value,
            theory,
            self.finite_size,
            self.reason,
            {"=": "=", "<=": ">=", ">=": "<="}[self.relation],  # type: ignore[arg-type]
        )

    def _sigmas(self, distance: float) -> float:
        ratio = distance / self.measured.error
        if not ratio > 0 or not isfinite(self.measured.freedom):
            return max(ratio, 0.0)
        return float(-special.ndtri_exp(_log_tail(ratio, self.measured.freedom)))

    def record(self) -> dict[str, Any]:
        """The claim with its verdict, for ``claims.json``."""
        rival, value = self.rival if isinstance(self.rival, Rival) else (None, None)
        return {
            "statement": self.statement,
            "place": self.place,
            "relation": self.relation,
            "predicted": self.predicted,
            "measured": self.measured.value,
            "error": self.measured.error,
            "freedom": self.measured.freedom if isfinite(self.measured.freedom) else None,
            "finite_size": self.finite_size,
            "reason": self.reason,
            "rival": rival,
            "rival_value": value,
            "unrivalled": self.rival if isinstance(self.rival, str) else "",
            "deviation": self.deviation,
            "exclusion": None if isinstance(self.rival, str) else self.exclusion,
            "verdict": self.verdict,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Read what :meth:`record` wrote."""
        freedom = float("inf") if record["freedom"] is None else float(record["freedom"])
        rival = record["unrivalled"] if record["rival"] is None else Rival(record["rival"], record["rival_value"])
        measured = Estimate(float(record["measured"]), float(record["error"]), freedom)
        own = (record["finite_size"], record["reason"], record["relation"])
        return cls(record["statement"], record["place"], measured, record["predicted"], rival, *own)

    def _repr_html_(self) -> str:
        sign = "" if self.relation == "=" else self.relation + " "
        rival = "none: " + self.rival if isinstance(self.rival, str) else f"{self.rival.name}: {self.rival.value:.5g}"
        facts = {
            "predicted": f"{sign}{self.predicted:.5g}",
            "measured": str(self.measured),
            "tolerance": f"{self.tolerance:.2g}",
            "rival": rival,
        }
        return html_table(facts | {"verdict": self.verdict, "place": self.place}, self.statement)


def _log_tail(ratio: float, freedom: float) -> float:
    """Logarithm of the probability that Student's t exceeds a positive ratio.

    Where the probability itself is too small for a float, it is the first factor of its expansion as an incomplete
    beta function ``I_z(a, 1/2) / 2`` with ``a = freedom / 2`` and ``z = freedom / (freedom + ratio**2)``, times
    ``1 / (1 - z)``, which bounds the rest of it from above and is off by no more than 1/(2a) there.
    """
    with np.errstate(divide="ignore"):
        known = float(stats.t.logsf(ratio, freedom))
    if isfinite(known):
        return known
    half, square = freedom / 2, ratio**2
    body = -half * np.log1p(square / freedom) + np.log1p(freedom / square) / 2
    return float(body - np.log(2 * half) - special.betaln(half, 0.5))


def average(values: xr.DataArray) -> Estimate:
    """Mean over everything, and its standard error from the scatter of the draws in each cell."""
    variance = np.ravel(values.var("draw", ddof=1) / values.sizes["draw"])
    freedom = welch(variance, np.full(variance.size, values.sizes["draw"] - 1.0))
    return Estimate(float(values.mean()), float(np.sqrt(variance.sum()) / variance.size), freedom)


def share(draws: ArrayLike, predicted: ArrayLike, rival: ArrayLike) -> Estimate:
    """How much of the rival is in curves that were measured: 0 is the prediction, 1 the rival.

    The curves are projected on the difference of the two, a draw at a time, so that points of one draw may depend on
    each other.

    Examples
    --------
    >>> print(share([[1.0, 2.1], [1.1, 1.8]], predicted=[1, 2], rival=[3, 3]))
    0.01 ± 0.01
    """
    theory = np.asarray(predicted, dtype=float)
    direction = np.asarray(rival, dtype=float) - theory
    return Estimate.of((np.asarray(draws, dtype=float) - theory) @ direction / (direction @ direction))
