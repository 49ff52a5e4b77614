"""Moments of the spectra of a gap-free stack: exact ones at any size, and which singular values can be held near one.

Rows of ``A - uu'`` are independent, of mean zero, and their entries are exchangeable and sum to zero. So the fourth
moment of a row r has two invariants only, ``E (r.w)**4 = a |w|**4 + b sum w_i**4`` for w of sum zero, and the expected
squares of the kernel's trace, of its entries and of its diagonal form a linear recursion over layers that closes: no
approximation is made (docs/theory/propagation.md, "Moments at finite size"). For exponential entries rows are uniform
on the simplex, and ``a`` and ``b`` are rational in T.

>>> stack = AttentionStack(2, 100, 200, gap=False, value_variance=0.5, entries="exponential")
>>> found = finite_moments(stack)
>>> round(found.mean, 4), round(found.second, 3)                       # limits: 1 and 1 + 2 (1 + 1/2) = 4
(0.9608, 3.807)
>>> round(finite_moments(stack, of="jacobian").second, 2)              # limit: (1 + 2)**2 = 9
8.6

In the limit the laws have the mean ``m = (sigma_A**2 sigma_V**2/gamma)**L`` and the variance ``v m**2``, v set by depth
and shape alone (*propagation*, Propositions 7 and 8). Only m is free, so mean and variance trade off: ``E (x - 1)**2 =
v m**2 + (m - 1)**2`` is least at ``m = 1/(1 + v)``, where it is ``v/(1 + v)``. It tends to one with depth: that of a
signal that is lost (docs/theory/isometry.md, "Isometry").

>>> trade = tradeoff(AttentionStack(4, 100, 200, gap=False))
>>> round(trade.spread, 10), round(trade.least, 4)      # 4 (1 + 1/2)
(6.0, 0.8571)
>>> round(tradeoff(AttentionStack(4, 100, 200, gap=False, values="orthogonal"), of="jacobian").spread, 10)
4.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Choice, Instance, Interval, takes
from bulkedge.support.errors import DomainError

Whose = Literal["kernel", "jacobian"]
WHOSE = Choice(("kernel", "jacobian"))


class Moments(NamedTuple):
    """Expected moments of a spectrum of finite size: ``mean = E tr M/n`` and ``second = E tr M**2/n``."""

    mean: float
    second: float


class _Squares(NamedTuple):
    """Expectations for a random positive matrix S."""

    entries: float  # tr S**2
    trace: float  # (tr S)**2
    diagonal: float  # sum S_ii**2


@takes(stack=Instance(AttentionStack), of=WHOSE)
def finite_moments(stack: AttentionStack, of: Whose = "kernel") -> Moments:
    """Expected moments of a gap-free stack, exactly.

    Parameters
    ----------
    stack : AttentionStack
        With Markov attention of exponential entries and Gaussian values, without gap, skip and LayerNorm.
    of : {"kernel", "jacobian"}
        Whose: eigenvalues of ``X_L X_L'``, or squared singular values of ``dX_L/dX_0``.

    Returns
    -------
    Moments
        Means over the spectrum and over draws.

    Raises
    ------
    DomainError
        For any other stack.

    Examples
    --------
    >>> stack = AttentionStack(2, 100, 200, gap=False, value_variance=0.5, entries="exponential")
    >>> round(finite_moments(stack).mean, 4)
    0.9608
    """
    stack.require_free("the finite-size moments")
    if stack.attention != "markov" or stack.entries != "exponential" or stack.values != "gaussian":
        raise DomainError(f"finite-size moments are known for exponential entries and Gaussian values: not {stack}")
    tokens, width, depth = stack.tokens, stack.width, stack.depth
    # each layer multiplies expected squared norms by tokens * (E sum_j A_ij**2 - 1/T)/T and by d sigma_V**2
    factor = ((tokens - 1) / (tokens + 1) / tokens * width * stack.value_variance) ** depth
    power = stack.value_variance ** (2 * depth)
    if of == "kernel":
        count = min(tokens, width)
        squares = _initial_squares(tokens, count)
        for layer in range(depth):
            squares = squares if layer == 0 else _project(squares, tokens)
            squares = _apply_attention(_apply_values(squares, width), tokens)
        return Moments(factor * count / tokens, power * squares.entries / tokens)
    attention, values = _initial_squares(tokens, tokens), _Squares(width, width**2, width)
    for layer in range(depth):
        attention = _apply_attention(attention if layer == 0 else _project(attention, tokens), tokens)
        values = _apply_values(values, width)
    return Moments(factor, power * attention.entries / tokens * values.entries / width)


def _initial_squares(tokens: int, count: int) -> _Squares:
    """The input's kernel, ``count`` ones on the diagonal, seen from the space orthogonal to u."""
    share = count / tokens
    on, off = 1 - 2 / tokens + share / tokens, share / tokens
    return _Squares(
        count * (1 - 2 / tokens) + share**2, (count - share) ** 2, count * on**2 + (tokens - count) * off**2
    )


def _apply_values(squares: _Squares, width: int) -> _Squares:
    """After X -> X W, W of standard Gaussian entries: ``E W'MWW'MW`` by Wick's rule."""
    entries, trace, diagonal = squares
    return _Squares(
        width * (width + 1) * entries + width * trace,
        width**2 * trace + 2 * width * entries,
        width * (width + 2) * diagonal,
    )


def _apply_attention(squares: _Squares, tokens: int) -> _Squares:
    """After S -> ASA', with S as it is on the space orthogonal to u; pairs of rows are independent."""
    spherical, cubical = _fourth_moments(tokens)
    own = spherical / 3 * (squares.trace + 2 * squares.entries) + cubical * squares.diagonal
    # the covariance of a row is P/(T (T + 1))
    pair = (tokens - 1) / (tokens * (tokens + 1)) ** 2
    return _Squares(tokens * (own + pair * squares.entries), tokens * (own + pair * squares.trace), tokens * own)


def _project(squares: _Squares, tokens: int) -> _Squares:
    """From ``S = AMA'``, whose entries are those of independent rows, to ``PSP``, P the projection away from u."""
    entries, trace, diagonal = squares
    along = (trace + 2 * (entries - diagonal)) / tokens**2  # E (u'Su)**2
    return _Squares(
        entries * (1 - 2 / tokens) + along,
        trace * (1 - 2 / tokens) + along,
        diagonal * (1 - 4 / tokens) + (4 * entries + 2 * trace) / tokens**2 - 3 * along / tokens,
    )


def _fourth_moments(tokens: int) -> tuple[float, float]:
    """``a`` and ``b`` of a row that is uniform on the simplex, less its mean, from two of its fourth moments."""
    n = tokens
    rising = n * (n + 1) * (n + 2) * (n + 3)
    # E |r|**4 and E sum r_i**4 from the moments of a Dirichlet variable
    length = (24 * n + 4 * n * (n - 1)) / rising - 2 / n * 2 / (n + 1) + 1 / n**2
    quartic = n * (24 / rising - 4 / n * 6 / (n * (n + 1) * (n + 2)) + 6 / n**2 * 2 / (n * (n + 1)) - 3 / n**4)
    # the same two moments of a Sym(11) + b sum e_i**4, projected away from u
    kept = 1 - 1 / n
    length_of = ((n - 1) ** 2 + 2 * (n - 1)) / 3, n * kept**2
    quartic_of = n * kept**2, n * (kept**4 + (n - 1) / n**4)
    determinant = length_of[0] * quartic_of[1] - length_of[1] * quartic_of[0]
    spherical = (length * quartic_of[1] - quartic * length_of[1]) / determinant
    cubical = (quartic * length_of[0] - length * quartic_of[0]) / determinant
    return spherical, cubical


@dataclass(frozen=True)
class Isometry:
    """The trade-off between mean and variance.

    Attributes
    ----------
    spread : float
        Variance over squared mean, which no scale changes.
    depth : int
        Number of layers.
    mean : float
        Mean at the scales that the stack has.
    layer_mean : float
        Its factor for each layer.
    """

    spread: float
    depth: int
    mean: float
    layer_mean: float

    @takes(mean=FINITE)
    def distortion(self, mean: ArrayLike) -> Real:
        """``E (x - 1)**2`` when the scales are chosen to give this mean.

        Parameters
        ----------
        mean : array_like
            Means m of the squared singular values, of any shape.

        Returns
        -------
        array
            Mean squared distance to one, ``v m**2 + (m - 1)**2``, of the same shape.
        """
        m = np.asarray(mean, dtype=float)
        return np.asarray(self.spread * m**2 + (m - 1) ** 2)

    @property
    def best_mean(self) -> float:
        """The mean of least distortion."""
        return 1 / (1 + self.spread)

    @property
    def least(self) -> float:
        """Least distortion over all scales."""
        return self.spread / (1 + self.spread)

    @property
    def value_factor(self) -> float:
        """What to multiply the variance of the values with for a mean of one."""
        return 1 / self.layer_mean


@takes(stack=Instance(AttentionStack), of=WHOSE)
def tradeoff(stack: AttentionStack, of: Whose = "kernel") -> Isometry:
    """The trade-off between mean and variance of a gap-free stack.

    ``v = a + b`` for the kernel and ``(1 + a)(1 + c) - 1`` for the Jacobian: ``a = L`` for Markov attention, ``b = L
    T/d`` and ``c = L`` for Gaussian values, each zero for what is orthogonal. With more tokens than dimensions ``v =
    a - 1 + b + T/d`` for the kernel, whose law then has an atom at zero.

    Parameters
    ----------
    stack : AttentionStack
        Linear: Markov or identity attention, no LayerNorm; without skip connection and without its gap.
    of : {"kernel", "jacobian"}
        Whose eigenvalues: those of ``X_L X_L'``, or the squared singular values of the Jacobian.

    Returns
    -------
    Isometry
        Spread, mean, and the least distortion that any scale reaches.

    Examples
    --------
    >>> round(tradeoff(AttentionStack(4, 100, 200, gap=False)).least, 4)
    0.8571
    """
    share = min(1.0, 1 / stack.ratio) if of == "kernel" else 1.0
    spread = _spread(stack, of)
    layer_mean = stack.at_depth(1).passed * share ** (1 / stack.depth)
    return Isometry(spread, stack.depth, stack.passed * share, layer_mean)


def _spread(stack: AttentionStack, of: Whose) -> float:
    """Variance over squared mean, which no scale changes."""
    stack.require_free("the trade-off")
    if of == "kernel":
        square, wide = stack.factors()
        return float(square + wide * stack.ratio)
    attention = stack.depth if stack.attention == "markov" else 0
    values = stack.depth if stack.values == "gaussian" else 0
    return float((1 + attention) * (1 + values) - 1)


@takes(stack=Instance(AttentionStack), distortion=Interval(0, 1, "()"), of=WHOSE)
def deepest(stack: AttentionStack, distortion: float, of: Whose = "kernel") -> int:
    """Largest depth at which some scale keeps the distortion this small; zero if no depth does.

    Parameters
    ----------
    stack : AttentionStack
        A gap-free stack; its own depth does not matter.
    distortion : float
        The largest ``E (x - 1)**2`` that is accepted, between 0 and 1.
    of : {"kernel", "jacobian"}
        Whose eigenvalues; see :func:`tradeoff`.

    Returns
    -------
    int
        The depth, at most 1000.

    Examples
    --------
    >>> deepest(AttentionStack(1, 100, 200, gap=False), distortion=0.8)
    2
    """
    # without the mean, which overflows in deep stacks and does not matter here
    depth = 0
    while depth < 1000 and 1 - 1 / (1 + _spread(stack.at_depth(depth + 1), of)) <= distortion:
        depth += 1
    return depth
