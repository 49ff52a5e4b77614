"""Pooled sequences in which few positions have the weight, so that tokens repeat (ours).

``kappa MP(delta) * MP(gamma)`` takes pooled rows to point anywhere in the space of tokens. If one position has all the
weight a row is one token, and tokens are counted: a token that occurs k times is a sample of weight k, and the bulk is
the free sum of the Marchenko-Pastur laws of tokens that occur once, twice, and so on; some do not at all. The first
three free cumulants are the same, as it takes two sequences that meet at one token twice over to tell: the fourth
differ by ``delta gamma**2`` times the chance that two meetings of a position are at one token, ``1/n**2`` with ``n =
(sum w**2)**2/sum w**4`` the number of positions that count.

>>> import numpy as np
>>> round(repetition(np.array([1.0]), 0.5, 0.5), 3), round(repetition(np.full(10, 0.1), 0.5, 0.5), 5)
(0.125, 0.00125)
>>> round(counted_bulk(dim=300, vocab=600, samples=300).atoms[0][1], 3)       # 1 - 600 (1 - 1/e**0.5)/300
0.213
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from scipy.special import betaln, xlog1py, xlogy

from bulkedge.laws.classical.free import free_add
from bulkedge.laws.classical.product import MarchenkoPastur
from bulkedge.laws.law import Law
from bulkedge.support.arrays import Real

MOST_REPETITION = 0.03
"""Excess fourth free cumulant over squared variance up to which the free product is trusted: beyond, the Kolmogorov
distance is 0.015 to 0.17 at 300 dimensions, below it is that of exact laws, 0.01."""


def repetition(weights: Real, vocab_ratio: float, sample_ratio: float) -> float:
    """``delta gamma**2/((delta + gamma) n)**2``: what repeated tokens add to the fourth free cumulant of the bulk.

    In units of its squared variance.
    """
    share = float(np.sum(weights**4)) / float(weights @ weights) ** 2
    return vocab_ratio * (share * sample_ratio / (vocab_ratio + sample_ratio)) ** 2


def repetition_message(what: str, weights: Real, excess: float) -> str:
    """What a warning says where few positions have the weight."""
    count = float(weights @ weights) ** 2 / float(np.sum(weights**4))
    return (
        f"{what} is for rows that mix many tokens: here {count:.3g} positions count, tokens repeat, and the fourth "
        f"cumulant is off by {excess:.2g} squared variances (more than {MOST_REPETITION:g}). More samples or more even "
        "weights help"
    )


def counted_bulk(dim: int, vocab: int, samples: int) -> Law:
    """Eigenvalues of ``Y'Y/N`` when each of the N rows is one of V tokens, drawn evenly, with unit white noise.

    A token occurs k times with binomial probability ``p_k``; those that do are ``V p_k`` samples of weight ``k/N``, a
    Marchenko-Pastur law of ratio ``delta/p_k`` and mean ``p_k k V/N``. Independent samples are free, so these add.
    Counts that less than half a token is expected to have join the largest that is kept.
    """
    counts = np.arange(1.0, samples + 1)[: int(samples / vocab + 40 * np.sqrt(samples / vocab) + 40)]
    # binomial probabilities, by the logarithm of the beta function
    choices = -betaln(counts + 1, samples - counts + 1) - np.log(samples + 1)
    shares = np.exp(choices + xlogy(counts, 1 / vocab) + xlog1py(samples - counts, -1 / vocab))
    kept = vocab * shares >= 1 / 2
    kept[int(np.argmax(shares))] = True
    shares, counts, beyond = shares[kept], counts[kept], shares[~kept].sum()
    shares[-1] += beyond
    means = shares * counts / (shares @ counts)
    parts: list[Law] = [MarchenkoPastur(dim / vocab / share, mean) for share, mean in zip(shares, means, strict=True)]
    return reduce(free_add, parts[1:], parts[0])
