"""Large values set aside before a run, so that all of its steps are for the rest.

With s steps a run resolves squared values down to about ``(pi/(2 s))**2`` of the largest that is left. At 131,072
tokens a head of 64 dimensions has 2144 squared values above 25, and half of all below 0.04: a run finds the first 64
of the large ones by itself, and has no eyes for the small ones. But the directions of the large ones are known
(:meth:`~bulkedge.spectra.operators.base.Operator.leading`).

With an orthonormal basis Q of r directions and ``P = I - Q Q'``, a run on ``M P`` from probes in the complement of Q
estimates the n - r values of ``M P``, and the r values of ``M Q`` are found beside it. Together they are the values of
M as far as the two spaces are not coupled, that is as far as ``E = P M' M Q`` is small:

* Whatever Q is, no more than r of n values are counted on the wrong side of any point. The number of squared values
  above x is that of ``M P``, plus that of the positive eigenvalues of ``S(x) = G - x - E' (H - x)^(-1) E``, where G
  and H are the Gram matrices of ``M Q`` and ``M P`` (Sylvester's law of inertia); the latter lies between zero and r.
  If r/n is small beside the tolerance, it is stated, and few products are spent on Q.
* Otherwise ``Q <- orth(M' M Q)`` makes E smaller by the ratio of small to large squared values, and what is left of it
  is measured: ``Q' M' M V`` for the probes V shows the size of E in every direction. Take a direction of squared value
  g with a column of E of length e. Columns of E are images ``M' u`` of vectors; if u has no preference among the left
  singular vectors of ``M P``, ``e' (H - x)^(-1) e`` scatters as a Cauchy number of scale ``pi e**2 t(x)/m``, with t(x)
  the share of squared values in an e-fold around x and m their mean. Then the direction is on the wrong side of x with
  the probability ``arctan(pi e**2 t/(m (g - x)))/pi``. For heads of 8 dimensions the sum of these was between 0.5 and
  1.2 times what was wrong; it is stated with a factor of two. If it is too large, the run is made without Q.

Memory, in numbers: ``n r`` for Q, which is made, improved and orthonormalised in place, and ``n p s`` for the basis of
a run with p probes and s steps, twice that where both bases are kept; beside that blocks of n x 64 and of 8192 x r,
and matrices of r x r. With r = 2144 and s = 40 in single precision Q and bases have 1.0 and 1.3 GiB at 131,072 tokens
(p = 32, both bases), 8.4 and 2.5 GiB at 1,048,576 (p = 16, one basis).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.spectra.curves import SpectralDensity
from bulkedge.spectra.krylov import GolubKahan
from bulkedge.spectra.operators.algebra import MapOperator
from bulkedge.spectra.operators.base import Operator, Projected
from bulkedge.spectra.operators.directions import orthonormalise
from bulkedge.spectra.quadrature import density
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.threads import thin_products

MOST_SHARE = 1 / 16
"""Share of all directions up to which some are set aside: beyond it products with all of them cost more than steps."""
LITTLE = 0.25  # share of the tolerance up to which the coupling may be stated as it is
HALF = 0.5  # share of the tolerance above which directions are not worth it
CHEAP = 8  # steps of a run whose products may be spent on directions where they could be spared
ROUNDS = 2  # most products of ``M' M`` with the directions
LARGE = 4.0  # mean squared value of directions, over that of the rest, from which on it is worth looking at them
STEPS = 5
"""Steps of the run for the values of directions that are taken as they are: a few large ones one by one, and about
where the others are."""
COLUMNS = 64  # directions that are multiplied at a time
ROUNDING = 10.0  # rounding units of the largest value that projections leave behind


@dataclass(frozen=True)
class Deflation:
    """Directions that are set aside, and what is known about them."""

    operator: Projected  # ``M P``: the matrix without the directions
    block: Any  # (n, probes): random orthonormal probes in the complement of the directions
    mean: float  # mean squared value of the rest
    # (r, probes): ``E' V`` for the probes V, times the root of n - r over their number: squares of a row sum to about
    # the squared length of the column of E of a direction
    sketch: Real
    # (r,): singular values of the directions, in increasing order
    values: Real = field(default_factory=lambda: np.zeros(0))
    # (r,): the squared value of each direction; None if the values are known as a distribution only
    squares: Real | None = None
    uncertain: float = 0.0  # share of the directions by which that distribution may be wrong at any point

    @property
    def basis(self) -> Any:
        """Q, of shape (n, r)."""
        return self.operator.basis

    @property
    def coupling(self) -> Real:
        """The squared length of the column of E of each direction, as far as the probes see it."""
        return np.sum(self.sketch**2, axis=1)

    @property
    def count(self) -> int:
        """Number of directions, r."""
        return int(self.basis.shape[1])

    @property
    def size(self) -> int:
        """Number of all values, n."""
        return self.operator.shape[-1]

    @property
    def rest(self) -> int:
        """Dimension of the complement, in which the run is."""
        return self.size - self.count

    @property
    def noise(self) -> float:
        """What rounding of the projection leaves of the largest value."""
        xp = array_namespace(self.block)
        return ROUNDING * float(xp.finfo(self.block.dtype).eps) * float(self.values[-1])

    def whole(self, rest: SpectralDensity) -> SpectralDensity:
        """The distribution of all values."""
        return replace(rest, locked=np.sort(np.concatenate([rest.locked, self.values])), size=self.size)

    def error(self, found: SpectralDensity | None = None) -> float:
        """Kolmogorov distance by which the coupling of the directions with the rest may move the distribution."""
        most = self.count / self.size
        if self.squares is None:
            return most
        if found is None or not found.nodes.size:
            # share of the squared values of a spectrum within an e-fold, at most, before there is an estimate of it
            places, shares = np.array([0.0]), np.array([0.3])
        else:
            places = np.exp(np.linspace(-4, 0, 60)) * found.top
            # an e-fold of squared values around each place
            shares = found.cdf(places * np.exp(0.25)) - found.cdf(places * np.exp(-0.25))
        apart = np.abs(self.squares - places[:, None] ** 2)
        width = np.pi * self.coupling * shares[:, None] / max(self.mean, 1e-300)
        wrong = np.sum(np.arctan2(width, apart), axis=1).max() / np.pi / self.size
        return float(min(most, 2 * wrong + most * self.uncertain + 1 / self.size))

    def worth(self, found: SpectralDensity, tolerance: float) -> bool:
        """Whether what setting aside adds to the error leaves enough of the tolerance for the run."""
        return self.error(found) <= HALF * tolerance


def deflate(operator: Operator, block: Any, tolerance: float) -> Deflation | None:
    """Directions of large values set aside, where some are known, few beside the size, and worth it."""
    leading, size = operator.leading(), operator.shape[-1]
    # numbers of the basis up to which it is made: 10 GiB in single precision
    if leading is None or leading.count > MOST_SHARE * size or leading.count * size > 5 * 2**29:
        return None
    basis = leading.basis()
    inside, outside = _parts(basis, block)
    found = _set_aside(operator, basis, outside)
    if not _mean_square(operator @ (basis @ inside)) >= LARGE * found.mean:
        return None
    if found.error() <= LITTLE * tolerance and found.count > CHEAP * block.shape[1]:
        return replace(found, values=_values(operator, basis, inside))
    for _ in range(ROUNDS):
        found = _improve(operator, found, block)
        if found.error() <= LITTLE * tolerance:
            break
    return found if found.error() <= tolerance else None


def _parts(basis: Any, block: Any) -> tuple[Any, Any]:
    """Random orthonormal probes in the coordinates of a basis, and in its complement, from those for all space."""
    xp = array_namespace(block)
    with thin_products():
        inside = xp.matrix_transpose(basis) @ block
        # twice, because what the first time leaves is its rounding
        outside = block - basis @ inside
        outside = outside - basis @ (xp.matrix_transpose(basis) @ outside)
        return xp.linalg.qr(inside[:, : basis.shape[1]])[0], xp.linalg.qr(outside)[0]


def _mean_square(block: Any) -> float:
    """Mean squared length of columns."""
    xp = array_namespace(block)
    return float(xp.sum(xp.astype(xp.sum(block**2, axis=0), xp.float64))) / block.shape[1]


def _set_aside(operator: Operator, basis: Any, outside: Any) -> Deflation:
    """Directions set aside, and how much the probes say that they are coupled with the rest."""
    xp, (size, count) = array_namespace(basis), basis.shape
    image, back = operator.sweep(outside)
    with thin_products():
        sketch = as_numpy(xp.matrix_transpose(basis) @ back).astype(float)
    scale = ((size - count) / outside.shape[1]) ** 0.5
    return Deflation(Projected(operator, basis), outside, _mean_square(image), scale * sketch)


def _improve(operator: Operator, found: Deflation, block: Any) -> Deflation:
    """Directions multiplied by ``M' M``, in place."""
    # columns of M' M Q have the squared values g as lengths, up to angles of Q; with e the column of E, the limit
    # is above g by about e**2/(2 g), and the double of that is how far it may be
    basis, xp = found.basis, array_namespace(block)
    for start in range(0, found.count, COLUMNS):
        columns = slice(start, min(start + COLUMNS, found.count))
        basis[:, columns] = operator.sweep(xp.asarray(basis[:, columns], copy=True))[1]
    basis, lengths, turn = orthonormalise(basis)
    squares = as_numpy(lengths**0.5).astype(float)
    short = np.sum((as_numpy(turn).astype(float).T @ found.sketch) ** 2, axis=1) / squares
    # how many of them may be above a point that all of the others are below
    passed = np.searchsorted(np.sort(squares), np.sort(squares), side="right") - np.searchsorted(
        np.sort(squares + short), np.sort(squares), side="right"
    )
    return replace(
        _set_aside(operator, basis, _parts(basis, block)[1]),
        squares=squares,
        values=squares[::-1] ** 0.5,
        uncertain=float(passed.max()) / len(squares),
    )


def _values(operator: Operator, basis: Any, inside: Any) -> Real:
    """Singular values of ``M Q``, from a short run that starts from random coordinates."""
    xp, count = array_namespace(basis), basis.shape[1]
    within = MapOperator(
        lambda columns: operator @ (basis @ columns),
        lambda rows: xp.matrix_transpose(basis) @ (operator.T @ rows),
        (operator.shape[-2], count),
        operator.like,
    )
    run = GolubKahan(within, inside)
    while run.steps < STEPS and not run.exhausted:
        run.step()
    with thin_products():
        places, weights = density(run.projection(), count).quantiles(4 * count)
    return np.interp((np.arange(count) + 0.5) / count, np.cumsum(weights) - weights / 2, places)
