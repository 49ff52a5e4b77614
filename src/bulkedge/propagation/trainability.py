"""Which initialisations of attention carry a signal: not collapsed in rank, not collapsed in entropy.

Attention with independent Gaussian scores, ``X_l = a X_{l-1} + sqrt(1 - a**2) A_l X_{l-1} W_l``. Two numbers decide.

* The share of the signal that tokens do not have in common is multiplied, at each layer, by ``a**2 + (1 - a**2) Y``,
  where ``Y = E sum_j A_ij**2 - 1/T`` is what attention passes on of differences between tokens. Small scores attend to
  all alike: Y is small and the rank collapses.
* Large scores attend to one token only. The softmax of T Gaussian scores is the Gibbs measure of the random energy
  model (Derrida 1981), which freezes at ``beta = sqrt(2 log T)``: the entropy of a row, ``log T - beta**2/2``, runs
  out there.

Key-query attention with LayerNorm (``attention="key-query"``) has correlated rows: similar tokens ask for the same, and
the overlap of two rows, :func:`bulkedge.propagation.softmax_overlap`, pulls tokens together.

>>> design = Trainability(tokens=1000, depth=12, skip=0.7)
>>> [design.verdict(beta) for beta in (0.5, 3.5, 4.0)]
['rank collapse', 'inside', 'entropy collapse']
>>> low, high = design.window()
>>> round(low, 2), round(high, 2)
(3.16, 3.72)
>>> Trainability(tokens=1000, depth=12, skip=0.5).window() is None
True
>>> [round(float(each), 3) for each in Trainability(512, 3, 0.9, attention="key-query").similarities(3.0)]
[0.0, 0.0, 0.001, 0.002]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from bulkedge.heads.softmax import BETA, softmax_of_gaussians
from bulkedge.propagation.overlap import Overlaps, overlaps
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, Interval, Parametric, parameter, takes
from bulkedge.support.errors import DomainError

TOKENS = Interval(1, 1e300)


def freezing_beta(tokens: float) -> float:
    """``sqrt(2 log T)``: where the softmax of T Gaussian scores freezes (random energy model).

    Parameters
    ----------
    tokens : float
        Number of tokens T, above one.

    Returns
    -------
    float
        The score scale from which a few weights hold nearly all of a row.

    Examples
    --------
    >>> round(freezing_beta(1000), 4)
    3.7169
    """
    return float(np.sqrt(2 * np.log(TOKENS.check("tokens", tokens))))


@dataclass(frozen=True)
class Trainability(Parametric):
    """An architecture, and the score scales beta at which it carries a signal at initialisation.

    Rank has collapsed when the tokens have more than ``1 - share`` of the signal's power in common; entropy when beta
    is beyond :func:`freezing_beta`. Without the gap tokens stay distinct at any beta, but attention passes on a power
    :meth:`passed` only, which vanishes with beta: the values have to make up for it.

    >>> design = Trainability(tokens=1000, depth=12, skip=0.7)
    >>> design.verdict(0.5), [round(beta, 2) for beta in design.window()]
    ('rank collapse', [3.16, 3.72])
    """

    tokens: int = parameter(Integers(4, 10**7), "number of tokens T")
    depth: int = parameter(Integers(1, 10**4), "number of layers L")
    skip: float = parameter(Interval(0, 1), "weight a of the skip connection; attention has sqrt(1 - a**2)", 0.0)
    gap: bool = parameter(Choice((True, False)), "whether attention keeps its gap", default=True)
    share: float = parameter(Interval(0, 1, "()"), "share of the signal that tokens must keep to themselves", 0.5)
    attention: Literal["markov", "key-query"] = parameter(
        Choice(("markov", "key-query")),
        "independent scores, or those of wide queries and keys, with LayerNorm",
        "markov",
    )
    rows: Literal["finite", "limit"] = parameter(
        Choice(("finite", "limit")), "rows of T tokens, or of infinitely many at beta/sqrt(log T) fixed", "finite"
    )

    def overlaps(self, beta: float, similarity: float = 0.0) -> Overlaps:
        """Overlap of a row of attention with itself, and of two rows, for tokens with this cosine.

        In the limit of many tokens rows are uniform up to the freezing point and two of them never share a token: the
        random energy model, as Giorlandino and Goldt (arXiv:2505.24333) have it.

        Parameters
        ----------
        beta : float
            Standard deviation of the scores of orthonormal tokens.
        similarity : float
            Cosine of two tokens; zero for ``attention="markov"``, whose scores do not know the tokens.

        Returns
        -------
        Overlaps
            ``E sum_j A_ij**2`` and ``E sum_j A_ij A_kj``.
        """
        beta = BETA.check("beta", beta)
        if self.rows == "finite":
            return overlaps(beta, self.tokens, similarity)
        spread = beta * np.sqrt(max(1 - similarity, 0.0))
        frozen = max(1 - freezing_beta(self.tokens) / spread, 0.0) if spread > 0 else 0.0
        return Overlaps(frozen + (1 - frozen) / self.tokens, 1 / self.tokens)

    def similarities(self, beta: float, start: float = 0.0) -> Real:
        """Mean cosine of two tokens after each layer of key-query attention with LayerNorm.

        With p the cosine before a layer, P and P' the power of a row of attention and the product of two, the next one
        is ``(a**2 p + b P')/(a**2 + b P)``, ``b = 1 - a**2`` (docs/theory/trainability.md, "Two rows of attention").

        Parameters
        ----------
        beta : float
            Standard deviation of the scores of orthonormal tokens.
        start : float
            Cosine of two tokens of the input, zero for orthonormal ones.

        Returns
        -------
        array of shape (depth + 1,)
            The input's first. One where no signal is left.
        """
        if self.attention != "key-query":
            raise DomainError(
                f"similarities are those of attention = 'key-query', not {self.attention!r}: distinct_share has the "
                "mean over pairs of tokens"
            )
        found = [Interval(-1 / (self.tokens - 1), 1).check("start", start)]
        for _ in range(self.depth):
            found.append(self.next_similarity(found[-1], self.overlaps(beta, found[-1])))
        return np.array(found)

    def next_similarity(self, similarity: float, rows: Overlaps) -> float:
        """Cosine of two tokens after one layer of key-query attention with LayerNorm, if rows have these overlaps.

        A ratio of means: that LayerNorm divides by lengths which fluctuate with the participation of their rows is left
        out, as is that cosines differ from pair to pair.

        Parameters
        ----------
        similarity : float
            Cosine of two tokens before the layer.
        rows : Overlaps
            As :meth:`overlaps` has them.

        Returns
        -------
        float
            One where no signal is left.
        """
        through, skipped, p = 1 - self.skip**2, self.skip**2, similarity
        left = 0.0 if self.gap else 1 / self.tokens
        power, product = ((p if self.gap else 0.0) + (1 - p) * (each - left) for each in rows)
        total = skipped + through * max(power, 0.0)
        if total == 0:
            return 1.0
        return min((skipped * p + through * product) / total, 1.0)

    @takes(beta=BETA)
    def passed(self, beta: float) -> float:
        """``Y``, the power of differences between tokens that one attention matrix passes on.

        Parameters
        ----------
        beta : float
            Standard deviation of the scores.

        Returns
        -------
        float
            ``E sum_j A_ij**2 - 1/T``: zero for uniform attention, ``1 - 1/T`` where each token attends to one.
        """
        if beta == 0:
            return 0.0
        if self.rows == "limit":
            return self.overlaps(beta).same - 1 / self.tokens
        return max(softmax_of_gaussians(beta, self.tokens).participation - 1 / self.tokens, 0.0)

    @takes(beta=BETA)
    def distinct_share(self, beta: float) -> float:
        """Share of the signal's power that tokens do not have in common, after the last layer.

        For key-query attention, whose tokens have one length, ``(1 - 1/T)`` times one minus the last of
        :meth:`similarities`; for independent scores by the recursion of docs/theory/trainability.md, "Trainability".

        Parameters
        ----------
        beta : float
            Standard deviation of the scores.

        Returns
        -------
        float
            Between 0, where all tokens are the same, and 1; the input, of orthonormal tokens, has ``1 - 1/T``.
        """
        if self.attention == "key-query":
            return float((1 - 1 / self.tokens) * (1 - self.similarities(beta)[-1]))
        through, skipped = 1 - self.skip**2, self.skip**2
        passed = self.passed(beta)
        apart, common = 1 - 1 / self.tokens, 1 / self.tokens
        for _ in range(self.depth):
            kept = (skipped + (through if self.gap else 0.0)) * common + through * passed * apart / (self.tokens - 1)
            apart, common = (skipped + through * passed) * apart, kept
            total = apart + common
            if total == 0:
                return 0.0
            apart, common = apart / total, common / total
        return float(apart)

    @takes(beta=BETA)
    def entropy(self, beta: float) -> float:
        """Mean entropy of a row of attention, the same with and without the gap.

        Parameters
        ----------
        beta : float
            Standard deviation of the scores.

        Returns
        -------
        float
            In nats, at most ``log T``.
        """
        return softmax_of_gaussians(beta, self.tokens).entropy

    def verdict(self, beta: float) -> Literal["inside", "rank collapse", "entropy collapse"]:
        """Whether attention with this score scale carries a signal at initialisation, and if not, what collapses.

        Parameters
        ----------
        beta : float
            Standard deviation of the scores.

        Returns
        -------
        {"rank collapse", "inside", "entropy collapse"}
            Below the window, in it, or above; entropy goes before rank.
        """
        beta = BETA.check("beta", beta)
        if beta >= freezing_beta(self.tokens):
            return "entropy collapse"
        return "inside" if self.distinct_share(beta) >= self.share else "rank collapse"

    def window(self) -> tuple[float, float] | None:
        """The score scales that are inside, from the smallest to the freezing one; None if there are none.

        The share that survives grows with beta, so there is one window at most.
        """
        high = freezing_beta(self.tokens)

        def miss(beta: float) -> float:
            return self.distinct_share(beta) - self.share

        if miss(high) < 0:
            return None
        return (0.0 if miss(0.0) >= 0 else float(brentq(miss, 0.0, high, xtol=1e-6))), high
