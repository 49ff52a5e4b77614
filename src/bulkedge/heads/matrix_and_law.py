"""The attention of a trained head as a matrix, and the law of its singular values that goes with it.

Words repeat in a text, and a law that takes all places of a word as one is a law of the attention *between words*,
``P A P``, not of A. The two belong together, so one function returns both. The law of A itself knows which tokens are
of one word, and takes orthogonal combinations of them in their place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.heads.law.channel_law import ChannelLaw
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import LABELS, REAL_NUMBER, takes
from bulkedge.visibility import softmax


class MatrixAndLaw(NamedTuple):
    """A matrix, and the law of its squared singular values."""

    matrix: Real
    law: ChannelLaw


@takes(scale=REAL_NUMBER, labels=LABELS)
def matrix_and_law(
    q: Any, k: Any, scale: float | None = None, labels: ArrayLike | None = None, *, average: bool = True
) -> MatrixAndLaw:
    """The attention of a head of these queries and keys, and the law that its squared singular values follow.

    Parameters
    ----------
    q, k : array of shape (tokens, d)
        Queries and keys of one head as the scores see them, NumPy or torch; every token sees all.
    scale : float, optional
        What scores ``q . k`` are multiplied by; ``1/sqrt(d)`` by default.
    labels : array_like of shape (tokens,), optional
        The word of each token. Attention is then averaged over all places of each word, in rows and in columns. By
        default it is taken as it is.
    average : bool
        With ``False`` attention is taken as it is, and labels only say which tokens are nearly alike: the law is nearer
        to it than without labels.

    Returns
    -------
    MatrixAndLaw
        ``sqrt(T) P (A - 1 pi') P`` and its law: A is the attention, pi its mean row and P the projection onto what is
        equal for equal labels, or the identity without labels or average.

    Raises
    ------
    DomainError
        As for :meth:`ChannelLaw.from_qk`.

    Examples
    --------
    >>> q, k = np.random.default_rng(1).standard_normal((2, 64, 16))
    >>> matrix, law = matrix_and_law(q, k, scale=0.1)
    >>> matrix.shape, law.tokens
    ((64, 64), 64)
    """
    law = ChannelLaw.from_qk(q, k, scale, labels, average=average)
    queries, keys = (np.asarray(as_numpy(each), dtype=float) for each in (q, k))
    tokens, dim = queries.shape
    attention = softmax((dim**-0.5 if scale is None else scale) * queries @ keys.T)
    centred = np.sqrt(tokens) * (attention - attention.mean(axis=0))
    if labels is None or not average:
        return MatrixAndLaw(centred, law)
    _, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    equal = (members[:, None] == members) / counts[members]
    return MatrixAndLaw(equal @ centred @ equal, law)
