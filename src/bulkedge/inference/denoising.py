"""A matrix of low rank seen through noise: its noise level, its rank, and the best estimate of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bulkedge.laws import MarchenkoPastur
from bulkedge.laws.classical.tracy_widom import TracyWidom
from bulkedge.laws.distribution import Unit
from bulkedge.laws.law import LEVEL, Law
from bulkedge.laws.spikes.shrinkage import LOSS, Loss, factor
from bulkedge.laws.spikes.singular_spikes import singular_response
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Interval, SymmetricMatrix, shown
from bulkedge.support.errors import DomainError
from bulkedge.support.files import html_table

NOISE = Interval(1e-100, 1e100)


@dataclass(frozen=True)
class Denoised:
    """A matrix without its noise, and what was found on the way.

    Attributes
    ----------
    matrix : array
        The estimate of the signal.
    rank : int
        How many singular values stand out of the noise.
    noise : float
        Standard deviation of an entry of the noise; root mean square where entries differ.
    observed : array of shape (rank,)
        The singular values that stand out, largest first; of the whitened matrix where a covariance was given.
    shrunk : array of shape (rank,)
        What the estimate has in their place.
    left_overlap, right_overlap : array of shape (rank,)
        Predicted squared overlaps of the observed vectors with the signal's.
    finite_edge : float
        The singular value that noise alone exceeds with probability ``level``.
    level : float
        Probability that the rank of noise alone is not found to be zero.
    """

    matrix: Any = field(repr=False)
    rank: int
    noise: float
    observed: Real
    shrunk: Real
    left_overlap: Real
    right_overlap: Real
    finite_edge: float
    level: float

    def _repr_html_(self) -> str:
        facts = {"rank": str(self.rank), "noise of an entry": f"{self.noise:.4g}"}
        pairs = zip(self.observed.tolist(), self.shrunk.tolist(), strict=True)
        shrunk = ", ".join(f"{one:.4g} to {other:.4g}" for one, other in pairs)
        return html_table(facts | {"singular values": shrunk or "none stands out"})


def denoise(
    matrix: ArrayLike, noise: float | ArrayLike | Law | None = None, *, loss: Loss = "frobenius", level: float = 0.01
) -> Denoised:
    """Estimate a matrix of low rank from itself plus Gaussian noise.

    The noise level, if it is not known, follows from the median singular value (Gavish and Donoho 2014) of a noise
    matrix of this shape; a signal of low rank moves it by about its rank over the number of values. Values beyond
    ``finite_edge`` count as signal, and are shrunk as is best for the loss (:mod:`bulkedge.laws.spikes.shrinkage`).
    Noise alone exceeds that edge with probability ``level``: the edge allows for the fluctuation of the largest value,
    and for that of the median where it gives the noise (docs/theory/outliers.md, "Largest and median value of noise").

    Coloured noise has to be known. With the covariance of a row of the noise the matrix is whitened, denoised and
    coloured again; each term then gets the size that is best for the coloured matrix (Leeb and Romanov 2021). With a
    law of the noise's singular values, signal and noise are taken to have independent directions.

    Parameters
    ----------
    matrix : array_like of shape (rows, columns)
        Signal plus noise, at least two by two.
    noise : float, array_like of shape (columns, columns) or Law, optional
        What is known of the noise: the standard deviation of an entry, the covariance of a row, or the law of its
        singular values (or of their squares), for as many values as the shorter side has.
    loss : {"frobenius", "operator", "nuclear"}
        The norm of the error that is made as small as possible; only the first with a covariance.
    level : float
        Probability of finding a signal where there is none.

    Returns
    -------
    Denoised
        The estimate, its rank, the noise level, and what each singular value became.

    Raises
    ------
    DomainError
        If the matrix is not a matrix of finite numbers, or if more than half of its values are zero: then nothing in
        it shows the noise.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> signal = 4 * np.outer(rng.standard_normal(300), rng.standard_normal(200)) / 245
    >>> denoise(signal + rng.standard_normal((300, 200)) / 300**0.5, noise=1.0).rank
    0
    >>> coloured = rng.standard_normal((300, 200)) * np.linspace(0.2, 2.0, 200)       # each column its own noise
    >>> denoise(20 * signal + coloured, np.diag(np.linspace(0.2, 2.0, 200) ** 2)).rank
    1
    """
    given = FINITE.check("matrix", matrix)
    if given.ndim != 2 or min(given.shape) < 2:
        raise DomainError(f"matrix = {shown(matrix)} has shape {given.shape}: two rows and two columns are the least")
    level, norm = LEVEL.check("level", level), LOSS.check("loss", loss)
    if isinstance(noise, Law):
        return _denoise_law(given, noise, norm, level)
    if noise is not None and np.ndim(noise):
        if norm != "frobenius":
            raise DomainError(f"loss = {norm!r} is not known for noise with a covariance: only 'frobenius' is")
        return _denoise_coloured(given, noise, level)
    left, values, right = np.linalg.svd(given, full_matrices=False)
    short, long = sorted(given.shape)
    edge = _NoiseEdge.of(short, long, MarchenkoPastur(short / long))
    reach = edge.quantile(level, edge.spread if noise is None else 0.0) / long
    if noise is None:
        noise = float(np.median(values) / edge.median**0.5)
        if not noise > 0:
            raise DomainError("half of the singular values are zero: the matrix does not tell its noise; pass noise=")
    noise = NOISE.check("noise", noise)
    unit = noise * long**0.5
    outside = (values / unit) ** 2 > reach
    strength, *sides = signals_of(given.shape, MarchenkoPastur(short / long), (values[outside] / unit) ** 2)
    shrunk = unit * strength * factor(sides[0], sides[1], norm)
    estimate = (left[:, outside] * shrunk) @ right[outside]
    edge_value = unit * float(np.sqrt(reach))
    return Denoised(estimate, len(shrunk), noise, values[outside], shrunk, sides[0], sides[1], edge_value, level)


def signals_of(shape: tuple[int, ...], law: Law, values: Real) -> tuple[Real, Real, Real]:
    """Strength of signals from outliers in the unit of the law, and squared overlaps on the left and on the right."""
    short, long = sorted(shape)
    strength, ours, theirs = singular_response(law, short / long).signals(values)
    # the law is that of the short side
    return (strength, ours, theirs) if shape[0] <= shape[1] else (strength, theirs, ours)


def _denoise_law(given: Real, law: Law, norm: Loss, level: float) -> Denoised:
    """Denoise where the law of the noise's singular values is known."""
    if law.unit not in {Unit.SINGULAR, Unit.SQUARED, Unit.EIGEN}:
        raise DomainError(f"noise = {law!r} is of {law.unit}: it must be a law of singular values or of their squares")
    left, values, right = np.linalg.svd(given, full_matrices=False)
    power = 1 if law.unit is Unit.SINGULAR else 2
    reach = law.reach(len(values), level)
    outside = values**power > reach
    strength, *sides = signals_of(given.shape, law, values[outside] ** power)
    shrunk = np.abs(strength) * factor(sides[0], sides[1], norm)
    mean_square = law.moment(2) if power == 1 else law.mean()
    return Denoised(
        matrix=(left[:, outside] * shrunk) @ right[outside],
        rank=len(shrunk),
        noise=float(np.sqrt(mean_square / max(given.shape))),
        observed=values[outside],
        shrunk=shrunk,
        left_overlap=sides[0],
        right_overlap=sides[1],
        finite_edge=float(reach ** (1 / power)),
        level=level,
    )


def _denoise_coloured(given: Real, covariance: ArrayLike, level: float) -> Denoised:
    """Denoise where the covariance of a row of the noise is known: whiten, shrink, colour again."""
    colour = SymmetricMatrix().check("noise", covariance)
    if len(colour) != given.shape[1]:
        raise DomainError(f"noise has shape {colour.shape}: the covariance of a row of {given.shape[1]} entries is due")
    powers, axes = np.linalg.eigh(colour)
    if powers[0] <= 1e-12 * powers[-1]:
        raise DomainError("noise is singular: leave out the columns, or combinations of them, that have no noise")
    root = (axes * np.sqrt(powers)) @ axes.T
    white = denoise((given @ axes / np.sqrt(powers)) @ axes.T, 1.0, level=level)
    if not white.rank:
        return replace(white, noise=float(np.sqrt(powers.mean())))
    left, _, right = np.linalg.svd(white.matrix, full_matrices=False)
    left, right = left[:, : white.rank], right[: white.rank] @ root
    near, far = white.left_overlap, white.right_overlap
    # a right vector is sqrt(far) times the signal's plus noise of a generic direction, of mean square length ``mean``
    sizes, mean = (right**2).sum(axis=1), float(powers.mean())
    # what stands out of the finite edge, at a high level, and not of the law's has no overlap with any signal
    seen = near * far > 0
    strength, share = np.zeros((2, white.rank))
    np.divide(white.shrunk, factor(near, far, "frobenius"), out=strength, where=seen)
    np.divide(np.maximum(sizes - (1 - far) * mean, 0.0), sizes * np.sqrt(far), out=share, where=seen)
    scale = strength * np.sqrt(near) * share
    return replace(
        white,
        matrix=(left * scale) @ right,
        noise=float(np.sqrt(mean)),
        shrunk=scale * np.sqrt(sizes),
    )


class _NoiseEdge(NamedTuple):
    """The largest squared singular value of noise, ``centre + scale * TracyWidom``, and the median with its spread."""

    centre: float
    scale: float
    median: float
    spread: float

    @classmethod
    def of(cls, short: int, long: int, law: MarchenkoPastur) -> _NoiseEdge:
        """To second order in the size: docs/theory/outliers.md, "Largest and median value of noise"."""
        near, far = np.sqrt(short - 0.5), np.sqrt(long - 0.5)
        a, b, x = law.lower_edge, law.edge, float(law.ppf(0.5))
        swept = 0.5 - np.arcsin((2 * a * b / x - a - b) / (b - a)) / np.pi
        median = (long - 1) * float(MarchenkoPastur(short / (long - 1)).ppf(0.5 - (0.25 - 0.5 * swept) / short))
        density = short * float(law.pdf(x))
        ends = np.log(8 * np.pi * density * (b - x) * (x - a) / (b - a)) + 1 + np.euler_gamma - np.pi**2 / 8
        variance = ends / np.pi**2 - 1 / 12
        if short % 2 == 0:  # a mean of two neighbours, whose spacing has this variance (Mehta)
            variance -= 0.286 / 4
        shared = 4 * law.ratio * np.sqrt((x - a) / (b - x)) / (np.pi * (b - a) * short)
        relative = (variance / (density * x) - 2 * shared) / (density * x)
        scale = (near + far) * (1 / near + 1 / far) ** (1 / 3)
        return cls((near + far) ** 2, scale, median, float(np.sqrt(max(relative, 0.0))) / 2)

    def quantile(self, level: float, spread: float) -> float:
        """What the largest exceeds with this probability, in units of the median if that has a spread."""
        edge, (nodes, weights) = TracyWidom(1), hermegauss(21)
        units = np.maximum(1 + spread * nodes, 0.0) ** 2

        def excess(place: float) -> float:
            alarms = edge.sf((place * units - self.centre) / self.scale)
            return float(weights @ alarms / weights.sum()) - level

        highest = 1e6 * self.centre
        if excess(0.0) <= 0:
            return 0.0
        return float(brentq(excess, 0.0, highest)) if excess(highest) < 0 else np.inf
