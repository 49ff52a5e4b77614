"""A matrix of low rank seen through white noise: its noise level, its rank, and the best estimate of it.

>>> rng = np.random.default_rng(0)
>>> signal = 3 * np.outer(rng.standard_normal(200), rng.standard_normal(400)) / np.sqrt(200)
>>> found = denoise(signal + 0.5 * rng.standard_normal((200, 400)))
>>> found.rank, round(found.noise, 2)
(1, 0.5)
>>> bool(np.linalg.norm(found.matrix - signal) < 0.2 * np.linalg.norm(signal))
True
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.laws import MarchenkoPastur
from bulkedge.laws.law import LEVEL
from bulkedge.laws.spikes.shrinkage import LOSS, Loss, factor
from bulkedge.laws.spikes.singular_spikes import singular_response
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Interval, shown
from bulkedge.support.errors import DomainError
from bulkedge.support.records import html_table

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
        Standard deviation of an entry of the noise.
    observed : array of shape (rank,)
        The singular values that stand out, largest first.
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
    matrix: ArrayLike, noise: float | None = None, *, loss: Loss = "frobenius", level: float = 0.01
) -> Denoised:
    """Estimate a matrix of low rank from itself plus independent noise of equal variance.

    The noise level, if it is not known, is that at which the median of the squared singular values is that of the
    Marchenko-Pastur law (Gavish and Donoho 2014); a signal of low rank moves it by about its rank over the number of
    values. Values beyond the edge that noise reaches with probability ``level`` count as signal, and are shrunk as is
    best for the loss (:mod:`bulkedge.laws.spikes.shrinkage`).

    Parameters
    ----------
    matrix : array_like of shape (rows, columns)
        Signal plus noise, at least two by two.
    noise : float, optional
        Standard deviation of an entry of the noise, where it is known.
    loss : {"frobenius", "operator", "nuclear"}
        The norm of the error that is made as small as possible.
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
        it tells the noise.
    """
    given = FINITE.check("matrix", matrix)
    if given.ndim != 2 or min(given.shape) < 2:
        raise DomainError(f"matrix = {shown(matrix)} has shape {given.shape}: two rows and two columns are the least")
    level, norm = LEVEL.check("level", level), LOSS.check("loss", loss)
    left, values, right = np.linalg.svd(given, full_matrices=False)
    short, long = sorted(given.shape)
    law = MarchenkoPastur(short / long)
    if noise is None:
        noise = float(np.median(values) / np.sqrt(long * law.ppf(0.5)))
        if not noise > 0:
            raise DomainError("half of the singular values are zero: the matrix does not tell its noise; pass noise=")
    noise = NOISE.check("noise", noise)
    unit = noise * long**0.5
    reach = law.finite_edge(short, level)
    outside = (values / unit) ** 2 > reach
    squares = (values[outside] / unit) ** 2
    strength, ours, theirs = singular_response(law).signals(squares)
    shrunk = unit * strength * factor(ours, theirs, norm)
    # the law is that of the short side
    sides = (ours, theirs) if given.shape[0] <= given.shape[1] else (theirs, ours)
    return Denoised(
        matrix=(left[:, outside] * shrunk) @ right[outside],
        rank=int(outside.sum()),
        noise=noise,
        observed=values[outside],
        shrunk=shrunk,
        left_overlap=sides[0],
        right_overlap=sides[1],
        finite_edge=unit * float(np.sqrt(reach)),
        level=level,
    )
