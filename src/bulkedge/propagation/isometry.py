"""Dynamical isometry of gap-free attention: how close to one can the singular values of a stack be held.

The kernel and the Jacobian of a gap-free stack have laws whose mean is ``m = (sigma_A**2 sigma_V**2/gamma)**L`` and
whose variance is ``v m**2``, v set by depth and shape alone (*propagation*, Propositions 7 and 8). Only m is free, so
mean and variance trade off: ``E (x - 1)**2 = v m**2 + (m - 1)**2`` is least at ``m = 1/(1 + v)``, where it is ``v/(1 +
v)``. It tends to one with depth: that of a signal that is lost (docs/theory/propagation.md, "Isometry").

>>> trade = tradeoff(AttentionStack(4, 100, 200, gap=False))
>>> round(trade.spread, 10), round(trade.at_mean_one, 10), round(trade.least, 4)      # 4 (1 + 1/2)
(6.0, 6.0, 0.8571)
>>> round(tradeoff(AttentionStack(4, 100, 200, gap=False, values="orthogonal"), of="jacobian").spread, 10)
4.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Interval


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
    def at_mean_one(self) -> float:
        """Distortion where signals keep their size on average."""
        return self.spread

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


def tradeoff(stack: AttentionStack, of: Literal["kernel", "jacobian"] = "kernel") -> Isometry:
    """The trade-off of a gap-free stack.

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
    """
    Choice(("kernel", "jacobian")).check("of", of)
    stack.require_free("the trade-off")
    if of == "kernel":
        square, wide = stack.factors()
        spread, share = square + wide * stack.ratio, min(1.0, 1 / stack.ratio)
    else:
        attention = stack.depth if stack.attention == "markov" else 0
        values = stack.depth if stack.values == "gaussian" else 0
        spread, share = float((1 + attention) * (1 + values) - 1), 1.0
    layer_mean = stack.at_depth(1).passed * share ** (1 / stack.depth)
    return Isometry(float(spread), stack.depth, stack.passed * share, layer_mean)


def deepest(stack: AttentionStack, distortion: float, of: Literal["kernel", "jacobian"] = "kernel") -> int:
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
    bound = Interval(0, 1, "()").check("distortion", distortion)
    depth = 0
    while depth < 1000 and tradeoff(stack.at_depth(depth + 1), of).least <= bound:
        depth += 1
    return depth
