"""What was found of a matrix: laws, outliers, the fit of the whole spectrum, and a verdict in a sentence.

>>> tail(MarchenkoPastur(0.5), 100, 3.1) < 0.01
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from bulkedge.inference.comparison import Comparison
from bulkedge.inference.fresh_heads import FreshHead
from bulkedge.inference.linear_statistics import GoodnessOfFit
from bulkedge.inference.nulls import LawNull
from bulkedge.laws import Law, MarchenkoPastur, Semicircle, Unit
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.errors import BulkedgeError
from bulkedge.support.files import html_table

# Kolmogorov distance from which on no law is suggested; it is larger for the few values of small matrices, because that
# of pure noise from its own law reaches this many over their number
NEAR, NOISE = 0.05, 4.5
LEVEL = 0.05  # of the whole fit, for the verdict
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

MatrixKind = Literal["attention", "causal attention", "matrix", "symmetric matrix", "covariance"]


class Candidate(NamedTuple):
    """A law, how far the matrix is from it, and the fresh head that has this law if it is one of heads."""

    name: str
    law: Law
    comparison: Comparison
    fresh: FreshHead | None = None

    @property
    def distance(self) -> float:
        """Kolmogorov distance."""
        return self.comparison.ks

    @property
    def least(self) -> float:
        """The least p-value that there is; zero where a limit law gives it."""
        return 0.0 if self.fresh is None else self.fresh.least

    def p_value(self, value: float, size: int) -> float:
        """Probability that the largest value without structure is as large."""
        return tail(self.law, size, value) if self.fresh is None else self.fresh.p_value(value)


class MatrixOutlier(NamedTuple):
    """A value beyond the edge of the nearest law.

    Attributes
    ----------
    value : float
        The value.
    p_value : float
        Probability that the largest value without structure is as large; nan where it is not known.
    left_overlap, right_overlap : float
        Predicted squared overlaps of its vectors with the signal's; nan where they are not known.
    """

    value: float
    p_value: float
    left_overlap: float = np.nan
    right_overlap: float = np.nan


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What a matrix looks like.

    Attributes
    ----------
    kind : {"attention", "causal attention", "matrix", "symmetric matrix", "covariance"}
        What the matrix was taken for.
    shape : tuple of int
        Its shape.
    matrix : str
        The normalised matrix whose values are compared with laws.
    values : array
        These values in increasing order: eigenvalues of symmetric matrices, squared singular values of others.
    unit : Unit
        Which of the two.
    beta, head_dim : float
        Of attention: the standard deviation of its scores, and the dimension that they seem to have. The dimension is
        infinite where scores look independent; both are nan where weights of zero hide the scores.
    candidates : sequence of Candidate
        Laws and the distance to each, nearest first.
    outliers : sequence of MatrixOutlier
        Values beyond the edge of the nearest law, largest first.
    fit : GoodnessOfFit or None
        How well the whole spectrum fits the nearest law; None where no calibrated p-value is known.
    noise : float
        Standard deviation of an entry without the signals; nan of attention.
    verdict : str
        What to think of it, in a sentence or two.
    """

    kind: MatrixKind
    shape: tuple[int, int]
    matrix: str
    values: Real = field(repr=False)
    unit: Unit = Unit.SQUARED
    beta: float = np.nan
    head_dim: float = np.nan
    candidates: Sequence[Candidate] = field(default=(), repr=False)
    outliers: Sequence[MatrixOutlier] = ()
    fit: GoodnessOfFit | None = None
    noise: float = np.nan
    verdict: str = ""

    @property
    def nearness(self) -> float:
        """Kolmogorov distance below which a law may be that of this matrix."""
        return max(NEAR, NOISE / len(self.values))

    @property
    def near(self) -> bool:
        """Whether the nearest law is that near."""
        return bool(self.candidates) and self.candidates[0].distance < self.nearness

    def plot(self, axes: Any = None, *, scale: str = "auto") -> Any:
        """Draw the values on the nearest law.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where; the current axes of pyplot by default.
        scale : {"auto", "linear", "sqrt", "log"}
            The axis of the values.

        Returns
        -------
        matplotlib Axes
            The axes.
        """
        from bulkedge import plots

        if self.candidates:
            return plots.comparison(self.candidates[0].comparison, axes, scale=scale)
        return plots.histogram(Spectrum.of(self.values, self.unit), axes, scale=scale)

    def facts(self) -> dict[str, Any]:
        """The numbers, for JSON.

        Returns
        -------
        dict
            Everything but the values and the laws themselves.
        """
        return {
            "verdict": self.verdict,
            "kind": self.kind,
            "shape": list(self.shape),
            "noise": self.noise,
            "beta": self.beta,
            "head_dim": self.head_dim,
            "p_value": self.fit.value if self.fit else None,
            "draws": self.fit.draws if self.fit else None,
            "values_of": f"{self.unit} of {self.matrix}",
            "laws": [{"name": each.name, "law": repr(each.law), "distance": each.distance} for each in self.candidates],
            "outliers": [each._asdict() for each in self.outliers],
        }

    def _repr_html_(self) -> str:
        rows = {each.name: f"{each.distance:.3f}" for each in self.candidates}
        whole = {"p of the whole fit": f"{self.fit.value:.2g}"} if self.fit else {}
        return html_table(whole | rows, self.verdict)


def constant_words(matrix: Real) -> str:
    """The verdict on a matrix whose entries are all equal."""
    return f"All entries of this matrix are {matrix.flat[0]:.4g}: there is nothing random to judge."


def verdict_of(found: Diagnosis) -> str:
    """The verdict on any other matrix."""
    rows, columns = found.shape
    this = {
        "matrix": f"This {rows} x {columns} matrix",
        "symmetric matrix": f"This symmetric {rows} x {columns} matrix",
        "covariance": f"This covariance of {rows} dimensions",
    }.get(found.kind, f"This {found.kind} matrix of {rows} tokens")
    hidden = "attention" in found.kind and np.isnan(found.beta)
    say = " Too many weights are zero to read the scores, so that β and the dimension are not known." if hidden else ""
    if not found.candidates:
        return f"{this} is near to no law: without one no value can be said to stand out.{say}"
    best = found.candidates[0]
    if not found.near:
        return (
            f"{this} has structure of its own: the nearest law, {best.name}, is at a Kolmogorov distance of "
            f"{best.distance:.2f}, too far to call it the law of this matrix.{say}"
        )
    count = sum(each.p_value <= 0.01 or np.isnan(each.p_value) or each.p_value <= best.least for each in found.outliers)
    number = COUNTS[count] if count < len(COUNTS) else f"{count} or more"
    signals = f" plus {number} signal{'s' * (count > 1)}" if count else ""
    rest = _whole_words(found)
    return f"{this} looks like {_background(found)}{signals}.{rest}{say}"


def _background(found: Diagnosis) -> str:
    """What the bulk looks like."""
    best = found.candidates[0]
    if found.kind == "covariance" and isinstance(best.law, MarchenkoPastur):
        return (
            f"white noise of standard deviation {found.noise:.3g}, seen through {found.shape[0] / best.law.ratio:.0f} "
            "samples"
        )
    if isinstance(best.law, MarchenkoPastur | Semicircle) and np.isfinite(found.noise):
        return f"noise of standard deviation {found.noise:.3g}"
    if np.isfinite(found.beta):
        alone = f"dimension {found.head_dim:.0f}" if np.isfinite(found.head_dim) else "independent scores"
        return f"a head with random weights, β = {found.beta:.2f} and {alone}"
    return {"ProductLaw": "a product of two random matrices", "one-hot": "attention to one random key in each row"}.get(
        best.name.split(" ")[0].rstrip(":"), f"the law {best.name}"
    )


def _whole_words(found: Diagnosis) -> str:
    """What the whole fit adds."""
    if found.fit is None or found.fit.value > LEVEL:
        return ""
    return (
        f" But its whole spectrum does not quite fit (p = {found.fit.value:.2g}): there is weak structure, or its "
        "entries are not alike."
    )


def tail(law: Law, size: int, value: float) -> float:
    """Probability that the largest of so many values of a law is as large."""
    try:
        return LawNull(law, size).p_value(Spectrum.of([value], law.unit)).value
    except BulkedgeError:
        return float("nan")
