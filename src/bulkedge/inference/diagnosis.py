"""Whether a matrix looks random: the laws that it is compared with, what stands out, and a verdict in a sentence.

>>> tail(MarchenkoPastur(0.5), 100, 3.1) < 0.01
True
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bulkedge.inference.comparison import Comparison, compare
from bulkedge.inference.denoising import denoise, signals_of
from bulkedge.inference.fresh_heads import (
    LARGEST_DIM,
    FreshHead,
    Trial,
    causal_laws,
    centre,
    estimates_of,
    full_laws,
    is_attention,
    one_hot_law,
    read_scores,
    whole_spectra,
)
from bulkedge.inference.linear_statistics import FEWEST, Assumed, GoodnessOfFit, law_fit
from bulkedge.inference.nulls import LawNull, exchangeable_distances
from bulkedge.laws import EmpiricalLaw, Law, MarchenkoPastur, ProductLaw, QuarterCircle, Semicircle, Unit
from bulkedge.laws.spikes.rank_one import SymmetricResponse
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE
from bulkedge.support.errors import BulkedgeError, DomainError, RegimeWarning
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


SMALLEST_ENTRY, LARGEST_ENTRY = 1e-90, 1e90  # of the largest entry of a matrix: singular values are squared twice
MOST_OUTLIERS = 12
TOLERANCE = 1e-9  # relative to the largest entry: rounding of a symmetric matrix, or of one that is constant
WHOLE = 256  # tokens up to which all values of fresh heads are computed, in a second


def diagnose(matrix: ArrayLike) -> Diagnosis:
    """Say which law a matrix looks like, how well it fits, and what stands out.

    Parameters
    ----------
    matrix : array_like of shape (rows, columns)
        Real numbers, two rows and two columns at least. A square matrix whose rows sum to one is taken for attention
        (causal, if nothing is above the diagonal), a symmetric one for a covariance if no eigenvalue is negative.

    Returns
    -------
    Diagnosis
        The verdict, the laws by their distance, the p-value of the whole fit, the outliers, and ``plot``.

    Raises
    ------
    DomainError
        If it is not a matrix of finite numbers, or all of them are zero.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> found = diagnose(rng.standard_normal((100, 150)))
    >>> print(found.verdict)
    This 100 x 150 matrix looks like noise of standard deviation 1.
    >>> found.candidates[0].name, found.fit.value > 0.05, found.outliers
    ('MarchenkoPastur: independent entries', True, [])
    """
    given = FINITE.check("matrix", matrix).astype(float)
    if given.ndim != 2 or min(given.shape) < 2:
        raise DomainError(f"matrix has shape {given.shape}: it must have two axes, each longer than one")
    largest = float(np.abs(given).max())
    if not SMALLEST_ENTRY <= largest <= LARGEST_ENTRY:
        say = f"the largest entry of the matrix is {largest:.2g}" if largest else "all entries of the matrix are zero"
        raise DomainError(f"{say}; one between {SMALLEST_ENTRY:g} and {LARGEST_ENTRY:g} is needed: scale the matrix")
    if is_attention(given):
        found = _attention(given)
    elif given.shape[0] == given.shape[1] and np.abs(given - given.T).max() <= TOLERANCE * largest:
        found = _symmetric((given + given.T) / 2)
    else:
        found = _rectangle(given)
    constant = float(np.ptp(given)) <= TOLERANCE * largest
    return replace(found, verdict=constant_words(given) if constant else verdict_of(found))


# -- what each kind is compared with -----------------------------------------------------------------------------------


def _attention(attention: Real) -> Diagnosis:
    tokens = len(attention)
    causal = bool(np.all(np.triu(attention, 1) < 1e-9))
    beta, dim, liked = read_scores(attention, causal=causal)
    values = np.linalg.svd(centre(attention, causal=causal), compute_uv=False)[::-1] ** 2
    kind: MatrixKind = "causal attention" if causal else "attention"
    matrix = "√T (A − C)" if causal else "√T (A − 1π′)"
    found = Diagnosis(kind, (tokens, tokens), matrix, values, beta=beta, head_dim=dim)
    if np.isnan(beta):
        return _judge(found, iter(()) if causal else one_hot_law(tokens))
    rounded = int(np.clip(round(min(dim, LARGEST_DIM)), 2, LARGEST_DIM))
    laws = causal_laws(beta, rounded, tokens) if causal else full_laws(beta, rounded, tokens, liked)
    found = _judge(found, laws)
    if tokens > WHOLE or beta < TOLERANCE or not found.near or found.candidates[0].fresh is None:
        return found
    # the nearest law may be that of another normalisation: a head that fits one kind of fresh head is one
    kinds = [each.fresh for each in found.candidates if each.fresh and each.distance < found.nearness]
    estimates = estimates_of(attention, causal=causal)
    fits = [_fresh_fit(fresh, values, estimates) for fresh in dict.fromkeys(kinds)]
    return replace(found, fit=max(fits, key=lambda each: each.value))


def _fresh_fit(fresh: FreshHead, values: Real, estimates: tuple[float, float]) -> GoodnessOfFit:
    """The fit among fresh heads, but for what beta and the dimension say that were read off each of them."""
    others, theirs = whole_spectra(fresh)
    distances, freedom = exchangeable_distances(np.vstack([others, values]), np.vstack([theirs, estimates]))
    value = float(np.mean(distances >= distances[-1] * (1 - 1e-9)))
    return GoodnessOfFit(value, float(distances[-1]), freedom, len(others))


def _rectangle(matrix: Real) -> Diagnosis:
    wide = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    rows, columns = wide.shape
    values = np.linalg.svd(wide, compute_uv=False)[::-1] ** 2 / rows
    ratio, noise = columns / rows, np.nan
    with suppress(DomainError):  # at low rank there is no noise
        noise = denoise(wide).noise

    def laws() -> Iterator[Trial]:
        if noise > 0:
            yield "MarchenkoPastur: independent entries", lambda: MarchenkoPastur(ratio, noise**2), None
        yield "ProductLaw: a product of two", lambda: ProductLaw((ratio, ratio), float(values.mean())), None

    shape: Any = matrix.shape
    found = _judge(Diagnosis("matrix", shape, "M/√rows", values, noise=noise), laws())
    return _with_limit(found, _kurtosis(matrix), ("scale",))


def _symmetric(matrix: Real) -> Diagnosis:
    values, size = np.linalg.eigvalsh(matrix), len(matrix)
    shape, positive = (size, size), values[0] > -1e-7 * values[-1]
    if positive and np.trace(matrix) > 0:
        found = _judge(Diagnosis("covariance", shape, "S", np.maximum(values, 0.0), Unit.EIGEN), _sample_laws(values))
        nearest = found.candidates[0].law if found.candidates else None
        noise = float(np.sqrt(nearest.scale)) if isinstance(nearest, MarchenkoPastur) else np.nan
        found = replace(found, noise=noise)
        diagonal = np.diagonal(matrix)
        if np.ptp(diagonal) <= TOLERANCE * diagonal.max():
            return found  # of correlations the trace is fixed, and the p-value below is not theirs
        return _with_limit(found, 0.0, ("scale",) if found.values[0] == 0 else ("scale", "ratio"))
    middle = float(np.median(np.abs(values - np.median(values))) / QuarterCircle().ppf(0.5))

    def laws() -> Iterator[Trial]:
        yield "Semicircle: independent entries", lambda: Semicircle(middle**2), None

    found = _judge(Diagnosis("symmetric matrix", shape, "S", values, Unit.EIGEN, noise=middle / size**0.5), laws())
    above = matrix[np.triu_indices(size, 1)]
    return _with_limit(found, _kurtosis(above), ("variance",))


def _sample_laws(values: Real) -> Iterator[Trial]:
    """The Marchenko-Pastur law whose quartiles are those of the positive values."""
    positive = values[values > 1e-9 * values[-1]]
    low, middle, high = np.quantile(positive, (0.25, 0.5, 0.75))
    zeros = 1 - len(positive) / len(values)

    def make() -> Law:
        if len(positive) < FEWEST:
            raise DomainError("so few values that are not zero have no law")
        if zeros:
            law = MarchenkoPastur(1 / (1 - zeros))
            return law.__class__(law.ratio, float(middle / law.ppf(zeros + (1 - zeros) / 2)))

        def spread(log: float) -> float:
            law = MarchenkoPastur(float(np.exp(log)))
            return float(law.ppf(0.75) / law.ppf(0.25) - high / low)

        if spread(0.0) <= 0 or spread(-12.0) >= 0:
            raise DomainError("no ratio below one has such quartiles")
        law = MarchenkoPastur(float(np.exp(brentq(spread, -12.0, 0.0, xtol=1e-10))))
        return MarchenkoPastur(law.ratio, float(middle / law.ppf(0.5)))

    yield "MarchenkoPastur: samples of white noise", make, None


def _kurtosis(entries: Real) -> float:
    """Excess kurtosis, of entries minus their mean."""
    centred = (entries - entries.mean()) / max(float(np.abs(entries).max()), np.finfo(float).tiny)
    square = float(np.mean(centred**2))
    return float(np.mean(centred**4)) / square**2 - 3 if square > 0 else 0.0


# -- laws, outliers and the fit ---------------------------------------------------------------------------------------


def _judge(found: Diagnosis, laws: Iterator[Trial]) -> Diagnosis:
    """The laws by their distance, and the outliers of the nearest."""
    spectrum, candidates = Spectrum.of(found.values, found.unit), []
    for name, make, fresh in laws:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RegimeWarning)
            try:
                law = make()
                candidates.append(Candidate(name, law, compare(spectrum, law), fresh))
            except BulkedgeError:
                continue  # outside of its domain: no candidate
    candidates.sort(key=lambda each: each.distance)
    if not candidates:
        return found
    best = candidates[0]
    beyond = np.array(sorted(best.comparison.outliers, reverse=True)[:MOST_OUTLIERS])
    if found.kind == "symmetric matrix":  # they have two ends
        lower = found.values[found.values < -best.comparison.finite_edge]
        beyond = np.array(sorted([*beyond, *lower], key=abs, reverse=True)[:MOST_OUTLIERS])
    left, right = _overlaps(found, best.law, beyond)
    chances = [best.p_value(abs(float(each)), len(found.values)) for each in beyond]
    rows = zip(beyond.tolist(), chances, left.tolist(), right.tolist(), strict=True)
    return replace(found, candidates=candidates, outliers=[MatrixOutlier(*row) for row in rows])


def _overlaps(found: Diagnosis, law: Law, values: Real) -> tuple[Real, Real]:
    """Squared overlaps of the outliers' vectors with those of signals that make them; nan where nothing is known."""
    unknown = np.full(len(values), np.nan)
    if not len(values):
        return unknown, unknown
    try:
        if found.kind == "symmetric matrix":
            return SymmetricResponse(law).signals(values)[1:]
        if found.kind == "covariance" and isinstance(law, MarchenkoPastur):
            white = EmpiricalLaw([law.scale])
            signal = white.shrink_sample(values, law.ratio, "operator")
            overlap = np.asarray(white.sample_spike(signal, law.ratio).overlap)
            return overlap, overlap
        return signals_of(found.shape, law, values)[1:]
    except BulkedgeError:
        return unknown, unknown


def _with_limit(found: Diagnosis, kurtosis: float, estimated: tuple[str, ...]) -> Diagnosis:
    """With the p-value of the whole fit from its limit law, where that is calibrated."""
    # excess kurtosis up to which p-values of the whole fit were measured to be right
    if not found.candidates or kurtosis > 3.0:
        return found
    best = found.candidates[0]
    if not isinstance(best.law, MarchenkoPastur | Semicircle):
        return found
    assumed = Assumed(best.comparison.finite_edge, 1, kurtosis, estimated)
    return replace(found, fit=law_fit(found.values, best.law, assumed))
