"""Exact moments of a gap-free stack at any number of tokens, where the laws have only their limits.

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
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.support.domains import Choice
from bulkedge.support.errors import DomainError


class Moments(NamedTuple):
    """Expected first and second moment of a spectrum of finite size.

    Attributes
    ----------
    mean : float
        ``E tr M/n``.
    second : float
        ``E tr M**2/n``.
    """

    mean: float
    second: float


class _Squares(NamedTuple):
    """Expectations for a random positive matrix S."""

    entries: float
    """``tr S**2``."""
    trace: float
    """``(tr S)**2``."""
    diagonal: float
    """``sum S_ii**2``."""


def finite_moments(stack: AttentionStack, of: Literal["kernel", "jacobian"] = "kernel") -> Moments:
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
    """
    Choice(("kernel", "jacobian")).check("of", of)
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
            squares = _apply_attention(
                _apply_values(squares if layer == 0 else _project(squares, tokens), width), tokens
            )
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
        count * (1 - 2 / tokens) + share**2,
        (count - share) ** 2,
        count * on**2 + (tokens - count) * off**2,
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
    return _Squares(
        tokens * (own + pair * squares.entries),
        tokens * (own + pair * squares.trace),
        tokens * own,
    )


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
