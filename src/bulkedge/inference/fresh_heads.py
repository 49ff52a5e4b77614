"""What attention matrices say of their scores, the laws that they may have, and heads without structure beside them.

The logarithm of the entries are the scores, up to a constant in each row. Less the means of rows and columns they are
those of a head without popular keys: their spread is beta, and the participation of their singular values,
``(sum s**2)**2/sum s**4 = 1/(1/d + 2/T)`` for Gaussian queries and keys, gives the dimension d.

>>> head = FreshHead(tokens=256, beta=0.7, head_dim=64, qk_norm=True, causal=False)
>>> beta, dim, _ = scores_of(head.sample(np.random.default_rng(0)))
>>> round(beta, 2), 55 < dim < 75
(0.7, True)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.laws import (
    AttentionLaw,
    CausalHeadLaw,
    CausalLaw,
    FiniteHeadLaw,
    MarchenkoPastur,
    PoissonLaw,
)
from bulkedge.spectra import top_singular
from bulkedge.support.arrays import Real
from bulkedge.support.errors import UnresolvedError
from bulkedge.visibility import Mask

# smallest dimension of laws of heads without QK-norm, and the share of it that is taken for it, as estimates err
SMALLEST_GAUSSIAN, NEARLY = 32, 0.9
LARGEST_DIM = 4096  # largest dimension of laws of heads: independent scores are taken to have this one
SCATTER = (0.1, 0.25)  # of the logarithms of beta and dimension, for fits to whole spectra
DRAWS, FEW_DRAWS = 39, 19  # heads that are drawn, and of large ones, which take longer
LARGE, DENSE = 1024, 200  # tokens from which on there are few draws, and up to which all values are computed


class FreshHead(NamedTuple):
    """A head as it would be without structure: a null for the outliers of an attention matrix."""

    tokens: int
    beta: float
    head_dim: int | None
    qk_norm: bool
    causal: bool
    liked: tuple[float, ...] | None = None

    @property
    def draws(self) -> int:
        """How many heads are drawn."""
        return FEW_DRAWS if self.tokens > LARGE else DRAWS

    def sample(self, rng: np.random.Generator) -> Real:
        """The attention matrix of one head."""
        if self.head_dim is None:
            scores = rng.standard_normal((self.tokens, self.tokens))
        else:
            scores = SoftmaxAttention(self.tokens, self.head_dim, self.beta, self.qk_norm).scores(rng)
        logs = self.beta * scores + (0.0 if self.liked is None else np.log(self.liked))
        if self.causal:
            logs = np.where(np.tri(self.tokens, dtype=bool), logs, -np.inf)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    @property
    def least(self) -> float:
        """The least p-value that there is: one over the number of draws and one."""
        return 1 / (1 + self.draws)

    def p_value(self, value: float) -> float:
        """Share of fresh heads, this one counted, whose largest value is as large."""
        found = largest_values(self)
        return float((1 + np.sum(found >= value)) / (1 + len(found)))


def centre(attention: Real, *, causal: bool) -> Real:
    """Attention minus its mean, times the root of the tokens: the matrix whose values laws of heads are of."""
    tokens = len(attention)
    mean = Mask.causal(tokens).mean() if causal else attention.mean(axis=0)
    return np.sqrt(tokens) * (attention - mean)


def _streams(head: FreshHead) -> list[np.random.Generator]:
    # keeps the draws apart from those of readers, who begin to count their seeds at zero as well
    return [np.random.default_rng([8052, seed]) for seed in range(head.draws)]


@lru_cache(maxsize=8)
def whole_spectra(head: FreshHead) -> tuple[Real, Real]:
    """All squared singular values of fresh heads around this one, and what is read off each as it was off this one.

    Beta and the dimension scatter by more than they are in doubt, so that their effect on the values shows.
    """
    values, estimates = [], []
    for rng in _streams(head):
        moved = np.exp(np.array(SCATTER) * rng.uniform(-1, 1, 2))
        dim = None if head.head_dim is None else max(2, round(head.head_dim * moved[1]))
        attention = head._replace(beta=head.beta * moved[0], head_dim=dim).sample(rng)
        values.append(np.linalg.svd(centre(attention, causal=head.causal), compute_uv=False)[::-1] ** 2)
        estimates.append(estimates_of(attention, causal=head.causal))
    return np.array(values), np.array(estimates)


def estimates_of(attention: Real, *, causal: bool) -> tuple[float, float]:
    """What was fitted to a head: logarithm of beta, and one over the dimension, zero where none is known."""
    beta, dim, _ = read_scores(attention, causal=causal)
    return float(np.log(beta)), 1 / dim


@lru_cache(maxsize=32)
def largest_values(head: FreshHead) -> Real:
    """The largest squared singular value of each of some fresh heads."""
    streams = _streams(head)
    return np.array([_largest(centre(head.sample(rng), causal=head.causal), rng) ** 2 for rng in streams])


def _largest(matrix: Real, rng: np.random.Generator) -> float:
    if len(matrix) > DENSE:
        try:
            return float(top_singular(matrix, 1, 1e-4, rng).values[0])
        except UnresolvedError:
            pass  # values that are close to each other take all of them
    return float(np.linalg.norm(matrix, 2))


def is_attention(matrix: Real) -> bool:
    """Whether a matrix is one of attention: square, no entry negative, rows that sum to one."""
    square = matrix.shape[0] == matrix.shape[1]
    # how far the sums of rows may be from one: half precision rounds a thousand weights so
    return bool(square and matrix.min() >= -1e-6 and np.all(np.abs(matrix.sum(axis=1) - 1) < 0.01))


def scores_of(attention: Real) -> tuple[float, float, Real]:
    """Spread and dimension of the scores of a block of attention, and how much its keys are liked."""
    positive = attention > 0
    smallest = attention[positive].min() if np.any(positive) else 1.0
    logs = np.log(np.maximum(attention, smallest))
    logs = logs - logs.mean(axis=1, keepdims=True)
    columns = logs.mean(axis=0)
    scores = logs - columns
    freedom = max((scores.shape[0] - 1) * (scores.shape[1] - 1), 1)  # what the means of rows and columns leave
    beta = float(np.sqrt(np.sum(scores**2) / freedom))
    liked = np.exp(columns - columns.max())
    liked = liked / liked.mean()
    # share of weights of zero from which on scores are not known: masks and rounding make them
    if np.mean(~positive) > 0.01:
        return float("nan"), float("nan"), liked
    power = np.linalg.svd(scores, compute_uv=False) ** 2
    total = float(np.sum(power)) ** 2
    alike = float(np.sum(power**2)) / total - 1 / len(scores) - 1 / scores.shape[1] if total > 1e-200 else 0.0
    # independent scores of n rows and m columns seem to have nm/3 dimensions or so: 1/d is known from 12/(nm) on
    return beta, 1 / alike if alike > 12 / freedom else float("inf"), liked


def read_scores(attention: Real, *, causal: bool) -> tuple[float, float, Real]:
    """The same of a whole attention matrix; of causal attention the lower left quarter is read."""
    half = len(attention) // 2
    return scores_of(attention[half:, :half] if causal else attention)


Trial = tuple[str, Any, "FreshHead | None"]  # name of a law, what makes it, and the fresh head that has it


def one_hot_law(tokens: int) -> Iterator[Trial]:
    """The law of rows that look at one key each."""
    yield "one-hot rows (Poisson)", lambda: PoissonLaw(1.0).scaled(tokens), None


def _gaussian_dim(dim: int) -> int | None:
    """The dimension to try without QK-norm: that of the estimate, or the smallest if the estimate is just below it."""
    return max(dim, SMALLEST_GAUSSIAN) if dim >= NEARLY * SMALLEST_GAUSSIAN else None


def full_laws(beta: float, dim: int, tokens: int, liked: Real) -> Iterator[Trial]:
    """Laws of attention to all keys."""
    even = float(np.std(np.log(liked))) < 2 * beta / np.sqrt(tokens)  # means of so many scores differ by half of that
    for norm in (False, True):
        size = dim if norm else _gaussian_dim(dim)
        if size is not None:
            kept = f"FiniteHeadLaw, {'normalised' if norm else 'Gaussian'} queries and keys"
            fresh = FreshHead(tokens, beta, size, norm, causal=False)
            make = partial(FiniteHeadLaw, beta, size, tokens, norm)
            yield kept, make, fresh
            if not even:
                popular = fresh._replace(liked=tuple(liked.tolist()))
                yield f"{kept}, popular columns", lambda make=make: make().with_columns(liked), popular
    fresh = FreshHead(tokens, beta, dim, qk_norm=False, causal=False)
    yield "AttentionLaw (many dimensions)", lambda: AttentionLaw(beta, dim / tokens), fresh
    alone = fresh._replace(head_dim=None)
    yield "independent scores", lambda: MarchenkoPastur(1.0, float(np.expm1(beta**2))), alone
    yield from one_hot_law(tokens)


def causal_laws(beta: float, dim: int, tokens: int) -> Iterator[Trial]:
    """Laws of causal attention."""
    for norm in (False, True):
        name = f"CausalHeadLaw, {'normalised' if norm else 'Gaussian'} queries and keys"
        size = dim if norm else _gaussian_dim(dim) or dim  # the law refuses what is smaller
        fresh = FreshHead(tokens, beta, size, norm, causal=True)
        yield name, partial(CausalHeadLaw, beta, size, tokens, norm), fresh
    alone = FreshHead(tokens, beta, None, qk_norm=False, causal=True)
    yield "CausalLaw (independent scores)", lambda: CausalLaw(float(np.expm1(beta**2))), alone
