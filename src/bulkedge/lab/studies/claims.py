"""Claims: sentences of a paper beside the numbers that were measured, and beside what a rival says.

A claim holds if the measurement agrees with the prediction *and* excludes the rival: what it would have shown if the
paper were wrong in the obvious way. A measurement that cannot tell the two apart decides nothing, and says so.

A claim is of a number unless it says otherwise: a bound says in its statement that it is one, and why, and a claim of a
sign is called that. Deviations are those of the bare prediction; what a verdict allows for finite size is a number of
its own, and says on what ground it stands.

>>> claim = Claim("the bulk ends at 4", "laws: Marchenko-Pastur", Estimate(3.99, 0.01), 4.0, ("a semicircle's", 2))
>>> claim.verdict, round(claim.deviation, 6), round(claim.exclusion)
('holds', 1.0, 199)
>>> Claim("the same", "laws: Marchenko-Pastur", Estimate(3.2, 0.5), 4.0, ("a semicircle's", 2)).verdict
'undecided'
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy import special, stats

from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate, welch
from bulkedge.support.files import html_table

AGREEMENT = 4.5
"""Standard deviations by which a measurement may miss its prediction. Five seeds of 250 true claims are 1250 chances of
7e-6 each: one false alarm in a hundred such families."""
EXCLUSION = 4.0
"""Standard deviations by which it must miss the rival; one chance in 30,000 of excluding a rival that is right."""

Relation = Literal["=", "<=", ">="]
ClaimVerdict = Literal["holds", "fails", "undecided"]
DIRECTION = {"<=": -1, ">=": 1}
SIDED = ("at most", "at least", "above", "below")
"""Words of which the statement of a one-sided claim has one."""
PRINTED = "as printed"
"""What the name of a rival says if it is the form that the paper prints, which the claim corrects."""
NO_NUMBER = "no theory here gives the number"
GROUNDS = ("derived", "fitted", "shown")
"""Where an allowance for finite size comes from, the first word of its reason. Derived: the next order, with its
constant. Fitted: at other sizes than those that are claimed. Shown: the study itself sees it vanish, at two sizes."""


class Rival(NamedTuple):
    """What the measurement would show if the paper were wrong in the obvious way.

    >>> claim = Claim("the edge is 4", "ours", Estimate(3.99, 0.01), 4.0, Rival("a semicircle's", 2.0))
    >>> round(claim.exclusion)                                           # in standard errors
    199

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

    >>> claim = Claim("the edge is 4", "ours", Estimate(3.99, 0.01), 4.0, ("a semicircle's", 2))
    >>> claim.verdict
    'holds'

    Attributes
    ----------
    statement : str
        What is claimed, as a sentence.
    place : str
        Paper and item: ``"equivalence: Theorem 3.2, Figure 1"``; several papers are separated by semicolons, and
        ``"ours"`` is what no paper has.
    measured : Estimate, or draws
        What was found, with its standard error; that is never zero, since what needs no sampling is a test. Draws are a
        vector, or a DataArray with the dimension ``draw``, of which :func:`average` is taken.
    predicted : float, array or Estimate
        The value that theory gives, or the bound for one-sided claims; the mean of an array. An estimate if it was
        sampled itself.
    rival : Rival or str
        What a measurement would show otherwise, as a pair of name and value (or array); a string says why there is no
        sensible rival.
    finite_size : float
        How far the prediction itself may be off at the size that was simulated.
    reason : str
        Where ``finite_size`` comes from, behind one of :data:`GROUNDS` and a colon.
    relation : {"=", "<=", ">="}
        How measured should stand to predicted.
    one_sided : str
        Why no more than a bound or a sign is claimed; the statement of such a claim has one of the words :data:`SIDED`.
    """

    statement: str
    place: str
    measured: Any
    predicted: Any
    rival: Any
    finite_size: float = 0.0
    reason: str = ""
    relation: Relation = "="
    one_sided: str = ""

    def __post_init__(self) -> None:
        """Plain numbers, so that a claim can be written down; a sampled prediction adds to the error."""
        found, theory = _estimated(self.measured), self.predicted
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
        if self.reason and self.ground not in GROUNDS:
            raise DomainError(f"{self.statement!r}: the reason of a finite-size term begins with one of {GROUNDS}")
        if (self.relation != "=") != bool(self.one_sided):
            raise DomainError(f"{self.statement!r}: a one-sided claim says why it is one-sided, and only it does")
        if self.one_sided and not any(word in self.statement for word in SIDED):
            raise DomainError(f"{self.statement!r} is one-sided, and does not say so: none of {', '.join(SIDED)}")
        object.__setattr__(self, "measured", Estimate(*map(float, found)))
        object.__setattr__(self, "predicted", float(np.mean(theory)))
        object.__setattr__(self, "finite_size", float(self.finite_size))
        if not isinstance(self.rival, str):
            name, value = self.rival
            object.__setattr__(self, "rival", Rival(name, float(np.mean(value))))

    @property
    def kind(self) -> Literal["number", "bound", "sign"]:
        """What is claimed: a number, a bound, or no more than the side of its rival on which the measurement lies."""
        if self.relation == "=":
            return "number"
        return "sign" if not isinstance(self.rival, str) and self.rival.value == self.predicted else "bound"

    @property
    def side(self) -> str:
        """How deviations are called: off the number that is claimed, or above or below a bound."""
        return "off" if self.relation == "=" else "above" if self.measured.value > self.predicted else "below"

    @property
    def ground(self) -> str:
        """Which of :data:`GROUNDS` the finite-size term stands on; empty without one."""
        return str(self.reason.partition(":")[0])

    @property
    def deviation(self) -> float:
        """By how many standard deviations the measurement is off the bare prediction, on either side.

        Those of a normal distribution: an error from few draws counts for what Student's t makes of it.
        """
        return self._sigmas(abs(self.measured.value - self.predicted))

    @property
    def excess(self) -> float:
        """By how many it misses the prediction with its finite-size term granted: what the verdict goes by."""
        excess = self.measured.value - self.predicted
        miss = abs(excess) if self.relation == "=" else -DIRECTION[self.relation] * excess
        return self._sigmas(miss - self.finite_size)

    @property
    def exclusion(self) -> float:
        """By how many it misses the rival, the same term granted; nan without a rival."""
        if isinstance(self.rival, str):
            return nan
        excess = self.measured.value - self.rival.value
        miss = abs(excess) if self.relation == "=" else DIRECTION[self.relation] * excess
        return self._sigmas(miss - self.finite_size)

    @property
    def off_printed(self) -> float:
        """Standard deviations from the paper's printed form, nothing granted; nan if that is not the rival."""
        if isinstance(self.rival, str) or PRINTED not in self.rival.name:
            return nan
        return self._sigmas(abs(self.measured.value - self.rival.value))

    @property
    def verdict(self) -> ClaimVerdict:
        """Whether it holds, fails, or cannot be decided at this size; a number that is none refutes."""
        if not self.excess <= AGREEMENT:
            return "fails"
        return "undecided" if self.exclusion < EXCLUSION else "holds"

    @property
    def scale(self) -> float:
        """The number that is claimed, as a size: of a zero, how far away the rival is; nan where there is neither."""
        if self.predicted or isinstance(self.rival, str):
            return abs(self.predicted) or nan
        return abs(self.rival.value) or nan

    @property
    def detectable(self) -> float:
        """The smallest relative error of the prediction that the claim detects: its tolerance over its scale.

        Infinite for a bound, since a prediction that is wrong on the generous side goes unnoticed; nan for a sign.
        """
        return {"number": self.tolerance / self.scale, "bound": inf, "sign": nan}[self.kind]

    def detects(self, factor: float) -> bool:
        """Whether the claim fails, on this measurement, if the prediction is multiplied by a factor.

        A predicted zero moves by the same part of the way to its rival, or away from it.

        Parameters
        ----------
        factor : float
            The planted error, as 0.9 or 1.1.

        Returns
        -------
        bool
            Whether the verdict of the wrong claim is that it fails.
        """
        way = self.predicted or (0.0 if isinstance(self.rival, str) else self.rival.value)
        return replace(self, predicted=self.predicted + (factor - 1) * way).verdict == "fails"

    @property
    def tolerance(self) -> float:
        """How far measured may be from predicted (beyond it, for one-sided claims)."""
        level = stats.t.isf(stats.norm.sf(AGREEMENT), self.measured.freedom)
        return self.finite_size + float(level) * self.measured.error

    def swapped(self) -> Claim:
        """The claim with the rival's number for the prediction: a measurement with power makes it fail."""
        if isinstance(self.rival, str):
            raise DomainError(f"{self.statement!r} has no rival: {self.rival}")
        turned: Any = {"=": "=", "<=": ">=", ">=": "<="}[self.relation]
        theory = Rival("the theory", self.predicted)
        return replace(self, predicted=self.rival.value, rival=theory, relation=turned)

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
            "kind": self.kind,
            "relation": self.relation,
            "one_sided": self.one_sided,
            "predicted": self.predicted,
            "measured": self.measured.value,
            "error": self.measured.error,
            "freedom": self.measured.freedom if isfinite(self.measured.freedom) else None,
            "finite_size": self.finite_size,
            "ground": self.ground,
            "reason": self.reason,
            "rival": rival,
            "rival_value": value,
            "unrivalled": self.rival if isinstance(self.rival, str) else "",
            "deviation": self.deviation,
            "excess": self.excess,
            "exclusion": None if isinstance(self.rival, str) else self.exclusion,
            "verdict": self.verdict,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Read what :meth:`record` wrote."""
        freedom = float("inf") if record["freedom"] is None else float(record["freedom"])
        rival = record["unrivalled"] if record["rival"] is None else (record["rival"], float(record["rival_value"]))
        measured = Estimate(float(record["measured"]), float(record["error"]), freedom)
        own = (record["finite_size"], record["reason"], record["relation"], record["one_sided"])
        return cls(record["statement"], record["place"], measured, float(record["predicted"]), rival, *own)

    def _repr_html_(self) -> str:
        bound = "" if self.relation == "=" else self.relation + " "
        rival = "none: " + self.rival if isinstance(self.rival, str) else f"{self.rival.name}: {self.rival.value:.5g}"
        facts = {
            "predicted": f"{bound}{self.predicted:.5g}" + (" (sign only)" if self.kind == "sign" else ""),
            "measured": f"{self.measured}, {self.deviation:.1f} σ {self.side}",
            "allowed for finite size": f"{self.finite_size:.2g} ({self.reason})" if self.finite_size else "nothing",
            "rival": rival,
        } | ({"one-sided": self.one_sided} if self.one_sided else {})
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


def sign(statement: str, place: str, difference: Any, rival: str, relation: Relation = ">=") -> Claim:
    """The claim that a difference is above or below zero, where no theory says by how much.

    Parameters
    ----------
    statement, place, difference
        As the fields of :class:`Claim`, ``difference`` being what was measured; the statement gets the words "above
        zero" or "below zero".
    rival : str
        Who says that it is zero.
    relation : {">=", "<="}
        On which side it lies.

    Returns
    -------
    Claim
        Of a sign, and of no number.

    Examples
    --------
    >>> sign("heat minus cold", "ours", [1.0, 1.2, 0.9, 1.1], "no difference").statement
    'heat minus cold, above zero'
    """
    side = "above" if relation == ">=" else "below"
    return Claim(
        f"{statement}, {side} zero", place, difference, 0.0, (rival, 0.0), relation=relation, one_sided=NO_NUMBER
    )


def follows(  # noqa: PLR0913, PLR0917
    statement: str, place: str, draws: Any, theory: Any, rival: tuple[str, Any], off: float = 0.0, reason: str = ""
) -> Claim:
    """The claim that curves follow a theory (share 0) and not a rival (share 1), as :func:`share` measures it.

    Parameters
    ----------
    statement, place : str
        As the fields of :class:`Claim`.
    draws : array of shape (draws, points)
        Curves that were measured.
    theory : array of shape (points,)
        The curve that is predicted.
    rival : pair of str and array
        Who says otherwise, and the curve under it.
    off : float
        How far the theory may be off at every point, at worst in the direction of the rival.
    reason : str
        Where that comes from.

    Returns
    -------
    Claim
        Of a share of zero.

    Examples
    --------
    >>> draws = [[1.0, 2.1], [1.1, 1.8], [0.9, 2.0], [1.0, 2.0]]
    >>> follows("the line", "ours", draws, theory=[1, 2], rival=("three", [3, 3])).verdict
    'holds'
    """
    name, other = rival
    theory, other = np.asarray(theory, dtype=float), np.asarray(other, dtype=float)
    apart = np.abs(other - theory)
    allowed = off * float(apart.sum() / (apart @ apart))
    return Claim(statement, place, share(draws, theory, other), 0.0, (name, 1.0), allowed, reason)


def _estimated(found: Any) -> Estimate:
    """An estimate, or that of draws."""
    if isinstance(found, Estimate):
        return found
    return average(found) if isinstance(found, xr.DataArray) and found.ndim > 1 else Estimate.of(found)


def difference(first: Any, second: Any) -> Estimate:
    """The first minus the second of two independent estimates, or means of draws.

    Parameters
    ----------
    first, second : Estimate or draws
        As :class:`Claim` takes what was measured.

    Returns
    -------
    Estimate
        With the freedom that Welch and Satterthwaite give it.

    Examples
    --------
    >>> difference(Estimate(3.0, 0.3), Estimate(1.0, 0.4))[:2]
    (2.0, 0.5)
    """
    parts = _estimated(first), _estimated(second)
    half = Estimate.mean([parts[0], parts[1]._replace(value=-parts[1].value)])
    return Estimate(2 * half.value, 2 * half.error, half.freedom)


def average(values: xr.DataArray) -> Estimate:
    """Mean over everything, and its standard error from the scatter of the draws in each cell.

    Parameters
    ----------
    values : DataArray
        With a dimension ``draw``.

    Returns
    -------
    Estimate
        Their mean and its standard error.

    Examples
    --------
    >>> average(xr.DataArray([1.0, 2.0, 3.0], dims="draw")).value
    2.0
    """
    variance = np.ravel(values.var("draw", ddof=1) / values.sizes["draw"])
    freedom = welch(variance, np.full(variance.size, values.sizes["draw"] - 1.0))
    return Estimate(float(values.mean()), float(np.sqrt(variance.sum()) / variance.size), freedom)


def share(draws: ArrayLike, predicted: ArrayLike, rival: ArrayLike) -> Estimate:
    """How much of the rival is in curves that were measured: 0 is the prediction, 1 the rival.

    The curves are projected on the difference of the two, a draw at a time, so that points of one draw may depend on
    each other.

    Parameters
    ----------
    draws : array_like of shape (draws, points)
        Measured curves.
    predicted, rival : array_like of shape (points,)
        The curves of the prediction and of its rival.

    Returns
    -------
    Estimate
        The share, with the error of its mean over draws.

    Examples
    --------
    >>> print(share([[1.0, 2.1], [1.1, 1.8]], predicted=[1, 2], rival=[3, 3]))
    0.01 ± 0.01
    """
    theory = np.asarray(predicted, dtype=float)
    direction = np.asarray(rival, dtype=float) - theory
    return Estimate.of((np.asarray(draws, dtype=float) - theory) @ direction / (direction @ direction))
