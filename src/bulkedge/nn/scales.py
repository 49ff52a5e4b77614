"""Scales for a whole stack of attention: score scale, weight of the branches and size of the values, with predictions.

A layer is ``x + w attention(norm(x))`` (norm ``"pre"``) or ``norm(x + w attention(x))`` (``"post"``). Values are as
large as attention leaves its inputs small (:func:`bulkedge.nn.attended_power`), so that a branch has the power of its
input, and its weight w gives it the share ``b = 1 - a**2`` of the power after the layer. The mean cosine p of two
tokens becomes ``p' = a**2 p + b P'/P``, P and P' the power of a row of attention and the product of two rows
(docs/theory/trainability.md, "Scales of a stack"); gradients run through values, queries and keys. Larger scores keep
tokens apart, and let gradients grow: the score scale that allows the heaviest branch is chosen.

>>> scales = initial_scales(depth=12, tokens=512, width=256, head_dim=32)
>>> print(scales)
12 layers of attention over 512 tokens of 256 dimensions, norm pre, mask full: beta 1.5, branches 0.072 of the power
predicted after the last layer: cosine of two tokens 0.5, stable rank 2; gradients 1.2 times those at the end
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import Chebyshev, chebpts2

from bulkedge.heads.softmax import moments_of_weights, transforms
from bulkedge.nn.power import attended_power
from bulkedge.propagation.overlap import overlaps
from bulkedge.propagation.trainability import freezing_beta
from bulkedge.support.domains import Choice, Integers, Interval
from bulkedge.support.errors import DomainError

Norm = Literal["pre", "post"]
BETAS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # to choose from; sharper ones gain little rank
# without the gap: small scores leave next to nothing of tokens but what they share by chance
LEAST_WITHOUT = 1.0
FREE = 0.8  # share of the freezing scale up to which rows are taken as not frozen
DISTINCT, GROWTH = 0.5, 1.5  # least share of power that tokens keep to themselves, and largest growth of gradients
NEARLY = 0.95  # of the heaviest branch: score scales that allow as much are as good, and that nearest to one is taken
HEAVIEST, LIGHTEST, STEPS = 0.5, 1e-5, 16  # shares of a branch between which bisection looks, and its steps
NODES = 12  # of the interpolation in the spread of scores; right to 1e-4


@dataclass(frozen=True)
class Scales:
    """Scales for a stack of attention, and what they should do.

    Attributes
    ----------
    depth, tokens, width, head_dim : int
        Of the stack.
    norm : {"pre", "post"}
        Where tokens are normalised.
    mask : {"full", "causal"}
        Who sees whom.
    gap : bool
        Whether attention keeps its gap.
    beta : float
        Standard deviation of the scores of tokens that have nothing in common.
    skip : float
        Weight a of the skip connection; a branch has the share ``1 - a**2`` of the power after its layer.
    value_gains : tuple of float
        For each layer, by what the values are larger than their inputs (root of a ratio of powers).
    weights : tuple of float
        For each layer, what multiplies the branch beside a skip connection of weight one, for tokens of power one at
        the start of the stack.
    cosine : float
        Predicted mean cosine of two tokens after the last layer.
    stable_rank : float or None
        Predicted squared Frobenius norm of all tokens over their squared spectral norm, after the last layer, if what
        tokens do not share has no structure. None without the gap: there it has, and is smaller.
    gradient_ratio : float
        Predicted norm of the gradient of a random function of the last tokens with respect to the first ones, over
        that with respect to the last ones; both relative to the size of the tokens.
    """

    depth: int
    tokens: int
    width: int
    head_dim: int
    norm: Norm
    mask: str
    gap: bool
    beta: float
    skip: float
    value_gains: tuple[float, ...]
    weights: tuple[float, ...]
    cosine: float
    stable_rank: float | None
    gradient_ratio: float

    def __str__(self) -> str:
        gap = "" if self.gap else ", gap removed"
        rank = "" if self.stable_rank is None else f", stable rank {self.stable_rank:.2g}"
        return (
            f"{self.depth} layers of attention over {self.tokens} tokens of {self.width} dimensions, norm {self.norm}, "
            f"mask {self.mask}{gap}: beta {self.beta:g}, branches {1 - self.skip**2:.2g} of the power\n"
            f"predicted after the last layer: cosine of two tokens {self.cosine:.2g}{rank}; gradients "
            f"{self.gradient_ratio:.2g} times those at the end"
        )


def initial_scales(  # noqa: PLR0913 - an architecture
    depth: int,
    tokens: int,
    width: int,
    head_dim: int,
    *,
    norm: Norm = "pre",
    mask: Literal["full", "causal"] = "full",
    gap: bool = True,
    similarity: float = 0.0,
    beta: float | None = None,
) -> Scales:
    """Score scale, weight of the branches and size of the values, for a stack of attention of any depth.

    Tokens shall keep half of their power to themselves (:data:`DISTINCT`), and gradients grow by half at most
    (:data:`GROWTH`); of what does both, the score scale is taken that allows the heaviest branches. Branches other than
    attention are not in the prediction.

    Parameters
    ----------
    depth : int
        Number of layers.
    tokens, width : int
        Number and dimension of the tokens.
    head_dim : int
        Dimension of queries and keys.
    norm : {"pre", "post"}
        Whether tokens are normalised before attention, or after the skip connection.
    mask : {"full", "causal"}
        Who sees whom. ``"causal"`` is known for ``norm="pre"`` only.
    gap : bool
        Whether attention keeps its gap; False for :func:`bulkedge.nn.remove_gap`.
    similarity : float
        Mean cosine of two tokens that enter the stack.
    beta : float, optional
        Score scale, where it is not to be chosen.

    Returns
    -------
    Scales
        For :func:`bulkedge.nn.initialise`; printed, they say what they predict.

    Raises
    ------
    DomainError
        If a number is outside its domain, or no weight of the branches does: tokens that are alike from the start stay
        so, and rows that freeze at so few tokens have no scale.

    Examples
    --------
    >>> initial_scales(depth=4, tokens=256, width=512, head_dim=64).beta.__round__(3)
    1.5
    """
    sizes = (Integers(1, 10_000).check("depth", depth), Integers(4, 10**6).check("tokens", tokens))
    width, head_dim = Integers(8, 10**6).check("width", width), Integers(8, 10**5).check("head_dim", head_dim)
    norm, mask = Choice(("pre", "post")).check("norm", norm), Choice(("full", "causal")).check("mask", mask)
    gap, start = Choice((True, False)).check("gap", gap), Interval(0, 1, "[)").check("similarity", similarity)
    if mask == "causal" and norm == "post":
        raise DomainError("mask = 'causal' with norm = 'post': rows of few keys differ too much; use norm = 'pre'")
    free = FREE * freezing_beta(sizes[1])
    least = 0.0 if gap else LEAST_WITHOUT
    betas = (
        [each for each in BETAS if least <= each < free]
        if beta is None
        else [Interval(0, free, "(]").check("beta", beta)]
    )
    rows = _StackRows(sizes[1], width, head_dim, mask, gap)
    shares = {each: _heaviest(rows, each, sizes[0], start) for each in betas}
    nearly = [each for each in betas if shares[each] >= NEARLY * max(shares.values())]
    chosen = min(nearly, key=lambda each: abs(math.log(each)))
    share = shares[chosen]
    if share == 0:
        raise DomainError(
            f"no branch keeps tokens distinct and gradients in bounds over {depth} layers from similarity = {start:g}: "
            "tokens have to be less alike at the start"
        )
    course = rows.course(chosen, share, sizes[0], start)
    gains = tuple(1 / math.sqrt(each) for each in course.powers)
    stream = [1.0 if norm == "post" else (1 - share) ** -layer for layer in range(depth)]
    return Scales(
        *sizes, width, head_dim, norm, mask, gap, chosen, math.sqrt(1 - share), gains,
        tuple(math.sqrt(share / (1 - share) * each) for each in stream),
        course.cosine,
        _stable_rank(course.cosine, sizes[1], width) if gap else None,
        course.gradient,
    )  # fmt: skip


def _heaviest(rows: _StackRows, beta: float, depth: int, start: float) -> float:
    """Largest share of a branch with which tokens stay distinct and gradients in bounds; zero if there is none."""

    def fine(share: float) -> bool:
        course = rows.course(beta, share, depth, start)
        return course.cosine <= 1 - DISTINCT and course.gradient <= GROWTH

    if fine(HEAVIEST):
        return HEAVIEST
    low, high = math.log(LIGHTEST), math.log(HEAVIEST)
    if not fine(LIGHTEST):
        return 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fine(math.exp(middle)) else (low, middle)
    return math.exp(low)


class _Course(NamedTuple):
    """Along a stack: power that attention leaves at each layer, the last cosine, and the growth of gradients."""

    powers: tuple[float, ...]
    cosine: float
    gradient: float


@dataclass(frozen=True)
class _StackRows:
    """Rows of attention of one architecture, by the spread of their scores."""

    tokens: int
    width: int
    head_dim: int
    mask: str
    gap: bool

    def course(self, beta: float, share: float, depth: int, start: float) -> _Course:
        """What tokens and gradients do along the stack."""
        cosine, passed, powers = start, [], []
        gap = float(self.gap)
        for _ in range(depth):
            own, free, power = (float(each(beta * math.sqrt(1 - cosine))) for each in _row_functions(self))
            two = overlaps(beta, self.tokens if self.mask == "full" else max(self.tokens // 2, 4), cosine).other
            # attention leans towards its query, by what independent rows do not explain; two rows lean alike by p
            whole = gap * cosine + (1 - cosine) * power
            lean = power - (own - (1 - gap) / self.tokens)
            both = gap * cosine + (1 - cosine) * (two - (1 - gap) / self.tokens + cosine * lean)
            passed.append((cosine, own, two, free, whole))
            powers.append(whole)
            cosine = min((1 - share) * cosine + share * max(both, 0.0) / whole, 1 - 1e-12)
        return _Course(tuple(powers), cosine, self._gradient(beta, share, passed))

    def _gradient(self, beta: float, share: float, passed: Sequence[tuple[float, ...]]) -> float:
        """Growth of gradients from the last tokens to the first."""
        # mean is the mean power of the gradient of a token, cross the mean product of those of two. Through the values
        # both go with the transposed attention, which keeps their sum, as rows sum to one; through queries and keys
        # they go with scores that differ by beta**2, where rows are not frozen (free).
        mean, cross, others = 1.0, 0.0, self.tokens - 1
        left = 0.0 if self.gap else 1 / self.tokens
        for cosine, own, two, free, whole in reversed(passed):
            values = mean * (own - left) + others * cross * (two - left)
            total = mean + others * cross if self.gap else 0.0
            apart = beta**2 * (1 - cosine) * free
            keys = apart * (mean * own + others * cosine * cross * two)
            queries = apart * (1 - cosine) * mean * (own + 1 / self.width)
            alike = apart * (1 - cosine) * cross * (two + 1 / self.width)
            through = share / whole
            mean, cross = (
                (1 - share) * mean + through * (values + keys + queries),
                (1 - share) * cross + through * ((total - values - keys) / others + alike),
            )
        return math.sqrt(mean)


@lru_cache(maxsize=32)
def _row_functions(rows: _StackRows) -> tuple[Callable[[float], float], ...]:
    """Of the spread of a row's scores: sum of squares, how free the weights are to move, and power of the row."""
    # The second is sum A**2 (1 - A)**2 over the first: a weight of one does not move with its score.
    sharpest = min(max(BETAS), FREE * freezing_beta(rows.tokens))
    spreads = sharpest * (chebpts2(NODES) + 1) / 2
    places = np.unique(np.round(np.geomspace(1, rows.tokens, 40))).astype(int).tolist()
    counts = [rows.tokens] if rows.mask == "full" else places
    values = np.empty((3, NODES))
    for column, spread in enumerate(spreads):
        shared = transforms(float(spread), rows.tokens)
        squares = [each * shared.sums(each).participation for each in counts]
        # smooth in the logarithm of the number of keys, of which a causal row of position i has i
        every = np.arange(1, rows.tokens + 1) if rows.mask == "causal" else np.array([rows.tokens])
        values[0, column] = np.mean(np.interp(np.log(every), np.log(counts), squares) / every)
        number = counts[-1] if rows.mask == "full" else counts[-1] // 2
        second, third, fourth = moments_of_weights(float(spread), number)
        values[1, column] = 1 - (2 * third - fourth) / second
        values[2, column] = attended_power(
            max(float(spread), 1e-6), rows.tokens, rows.width, rows.head_dim, gap=rows.gap, mask=rows.mask
        )
    return tuple(Chebyshev.fit(spreads, each, NODES - 1, domain=[0, sharpest]) for each in values)


def _stable_rank(cosine: float, tokens: int, width: int) -> float:
    """Of tokens with one common direction, and independent otherwise: an outlier of a Gaussian matrix, or its edge."""
    ratio = tokens / width
    signal = cosine * tokens / (1 - cosine)
    top = (1 + signal) * (ratio + signal) / signal if signal**2 > ratio else (1 + math.sqrt(ratio)) ** 2
    return tokens / ((1 - cosine) * top)
