"""How far the largest value of a fresh head reaches: a null for the outliers of an attention matrix.

Tracy and Widom's law at the edge of a head's law will not do. Without QK-norm a few queries and keys are long, and
their large entries push values far beyond the edge: of fresh heads with beta = 1, 64 dimensions and 256 tokens four in
ten have an outlier by that law, with p-values down to 1e-24.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

import bulkedge as be
from bulkedge.support.arrays import Real
from bulkedge.support.errors import UnresolvedError

DRAWS, FEW_DRAWS = 39, 19
"""Heads that are drawn, and of large ones, which take longer."""
STREAM = 8052
"""Keeps the draws apart from those of readers, who begin to count their seeds at zero as well."""
LARGE, DENSE = 1024, 200
"""Tokens from which on there are few draws, and up to which all values are computed."""


class FreshHead(NamedTuple):
    """A head as it would be without structure.

    ``head_dim`` is None for independent scores; ``liked`` has the popularity of every key, or is None where all are
    alike.
    """

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
            scores = be.SoftmaxAttention(self.tokens, self.head_dim, self.beta, self.qk_norm).scores(rng)
        logs = self.beta * scores + (0.0 if self.liked is None else np.log(self.liked))
        if self.causal:
            logs = np.where(np.tri(self.tokens, dtype=bool), logs, -np.inf)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def p_value(self, value: float) -> float:
        """Share of fresh heads, this one counted, whose largest value is as large."""
        found = largest_values(self)
        return float((1 + np.sum(found >= value)) / (1 + len(found)))


def centred(attention: Real, *, causal: bool) -> Real:
    """Attention less its mean, times the root of the tokens: the matrix whose values laws of heads are of."""
    tokens = len(attention)
    mean = be.Mask.causal(tokens).mean() if causal else attention.mean(axis=0)
    return np.sqrt(tokens) * (attention - mean)


@lru_cache(maxsize=32)
def largest_values(head: FreshHead) -> Real:
    """The largest squared singular value of each of some fresh heads."""
    found = []
    for seed in range(head.draws):
        rng = np.random.default_rng([STREAM, seed])
        matrix = centred(head.sample(rng), causal=head.causal)
        found.append(_largest(matrix, rng) ** 2)
    return np.array(found)


def _largest(matrix: Real, rng: np.random.Generator) -> float:
    if len(matrix) > DENSE:
        try:
            return float(be.top_singular(matrix, 1, 1e-4, rng).values[0])
        except UnresolvedError:
            pass  # values that are close to each other take all of them
    return float(np.linalg.norm(matrix, 2))
