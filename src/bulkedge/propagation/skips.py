"""Stacks with skip connections: dynamical isometry is reachable, at any depth (ours).

A layer is ``J <- (a + b K) J`` with ``a**2 + eps = 1``, where K = W (x) A has the mean power one in every row and eps
is the share of the branch. The mean squared singular value of the Jacobian stays one. With ``eps = c/L`` its variance
tends to ``2 c`` however many layers there are, where ``L (L + 2)`` was without skips (*propagation*, Proposition 8).
Branches of many layers add up to Gaussian matrices, so that the Jacobian is a free multiplicative Brownian motion and
its law is :class:`~bulkedge.FreeLogNormal`. Derivations are in docs/theory/isometry.md, "Skips make isometry
reachable".

>>> stack = skip_isometry(depth=16, power=1.0)
>>> round(stack.variance, 3), stack.limit, round(stack.law().edge, 3)
(2.065, 2.0, 7.76)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import expm

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.classical.free import rectangular_add
from bulkedge.laws.classical.product import FreeLogNormal, MarchenkoPastur
from bulkedge.laws.law import Law
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Instance, Integers, Interval, takes
from bulkedge.support.errors import DomainError
from bulkedge.visibility.masks import Mask

TOKENS = Integers(4, 20_000)
NODES = 24
"""Gauss nodes of the integral over depth; its integrand is entire in the power."""


@dataclass(frozen=True)
class SkipIsometry:
    """The singular values of a deep stack with skip connections.

    Attributes
    ----------
    depth : int
        Number of layers L.
    power : float
        Power c of all branches together, each of the share ``c/L``.
    mask : Mask or None
        Who sees whom; None where every token sees all.
    """

    depth: int
    power: float
    mask: Mask | None = None

    @property
    def share(self) -> float:
        """Power eps of a branch in the output of its layer, ``power/depth``."""
        return self.power / self.depth

    @property
    def skip(self) -> float:
        """Weight a of the layer's input, ``sqrt(1 - eps)``."""
        return float(np.sqrt(1 - self.share))

    @property
    def variance(self) -> float:
        """Variance of the squared singular values of ``dX_L/dX_0`` at this depth, for many tokens and dimensions."""
        return self._plain_variance() if self.mask is None else self._masked_variance(self.mask.mean())

    @property
    def limit(self) -> float:
        """The variance for infinitely many layers of the same total power, ``2 c`` without a mask.

        With one, and S the mean matrix of the mask (rows sum to one), it is ``|r(c)|**2/T - 1 + 2 int_0^c |r(t)|**2/T
        dt`` with ``r(t) = exp(t (S' - 1)) 1``: tokens that many others see are amplified. For causal attention of many
        tokens that is ``I_0(2 c) - 1 + 2 int_0^c I_0(2 t) dt``.
        """
        if self.mask is None:
            return 2 * self.power
        mean = self.mask.mean()
        generator = mean.T - np.eye(len(mean))
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        times = np.append(self.power * (1 + nodes) / 2, self.power)
        squares = np.array([np.mean(expm(t * generator).sum(axis=1) ** 2) for t in times.tolist()])
        return float(squares[-1] - 1 + self.power * weights @ squares[:-1])

    def _plain_variance(self) -> float:
        kept, branch = 1 - self.share, self.share
        second = by_tokens = by_features = 1.0  # tr M**2/n and the squared partial traces, of M = J J'
        for _ in range(self.depth):
            second = (
                kept**2 * second + 2 * kept * branch * (1 + second) + branch**2 * (1 + second + by_tokens + by_features)
            )
            by_tokens, by_features = (
                kept**2 * part + 2 * kept * branch + branch**2 * (1 + part) for part in (by_tokens, by_features)
            )
        return second - 1

    def _masked_variance(self, mean: Real) -> float:
        # Q_ij = tr M_ij M_ji/D over blocks of tokens; partial traces stay at their start up to order 1/L**2 of variance
        kept, branch = 1 - self.share, self.share
        one = np.eye(len(mean))
        start = 2 * kept * branch * one + branch**2 * (2 * one + mean @ mean.T)
        blocks: Real = one
        for _ in range(self.depth):
            spread = mean @ blocks
            blocks = kept**2 * blocks + start + kept * branch * (spread + spread.T) + branch**2 * spread @ mean.T
        return float(blocks.sum() / len(mean) - 1)

    def law(self) -> Law:
        """Law of the squared singular values of ``dX_L/dX_0`` for many layers: free log-normal, of variance ``2 c``.

        Returns
        -------
        Law
            Of mean one.

        Raises
        ------
        DomainError
            With a mask, for which the variance is known and the law is not.
        """
        if self.mask is not None:
            raise DomainError(f"mask = {self.mask!r}: with a mask the variance is known and the law is not; use None")
        return FreeLogNormal(2 * self.power)

    @takes(ratio=Interval(1e-3, 1))
    def kernel_law(self, ratio: float) -> Law:
        """Law of the eigenvalues of ``X_L X_L'`` for many layers, from orthonormal tokens.

        The signal is ``exp(-c/2)`` of its start plus Gaussian noise of power ``1 - exp(-c)``, so that the variance is
        ``(T/D)(1 - exp(-2 c))``: it stays below T/D at any power.

        Parameters
        ----------
        ratio : float
            Tokens over dimensions, ``T/D``.

        Returns
        -------
        Law
            Of mean one.

        Examples
        --------
        >>> round(skip_isometry(16, 1.0).kernel_law(0.5).var(), 6)
        0.432332
        """
        if self.mask is not None:
            raise DomainError(f"mask = {self.mask!r}: the law of the kernel is known without a mask; use None")
        kept = float(np.exp(-self.power))
        noise = MarchenkoPastur(ratio, 1 - kept).sqrt()
        return rectangular_add(EmpiricalLaw([float(np.sqrt(kept))]), noise, ratio).squared()

    @takes(tokens=TOKENS, width=TOKENS)
    def stack(self, tokens: int, width: int) -> AttentionStack:
        """Layers of Markov attention without its gap that have this skip and this share of the branch.

        Parameters
        ----------
        tokens, width : int
            Number of tokens and embedding dimension.

        Returns
        -------
        AttentionStack
            Exponential entries, and values of the variance at which a branch has the power ``eps`` exactly.

        Examples
        --------
        >>> round(skip_isometry(16, 1.0).stack(100, 50).skip, 4)
        0.9682
        """
        if self.mask is not None:
            raise DomainError(f"mask = {self.mask!r}: AttentionStack has no mask; use None")
        # an entry of attention without its gap has the variance (T - 1)/(T + 1)/T**2, and one row in T is lost
        power = (tokens - 1) / (tokens + 1) / tokens * width
        return AttentionStack(
            self.depth, tokens, width, gap=False, skip=self.skip, skip_scaling="rescaled",
            value_variance=self.share / power, entries="exponential",
        )  # fmt: skip


@takes(depth=Integers(1, 100_000), power=Interval(1e-4, 6))
def skip_isometry(depth: int, power: float, mask: Mask | None = None, norm: str = "none") -> SkipIsometry:
    """How close to an isometry a stack with skip connections is, from its depth and the power of its branches.

    Parameters
    ----------
    depth : int
        Number of layers L.
    power : float
        Power of all branches together over that of the stream, at most 6 and below the depth: the sum over attention
        and feed-forward branches of the mean square of a branch's Jacobian (its output, for ReLU).
    mask : Mask, optional
        Who sees whom, if not every token all others. Rows of the branch have the same power: causal attention without
        its gap needs a factor ``sqrt(i)`` in row i.
    norm : {"none", "first"}
        ``"none"``: each layer keeps the power of the stream, skip weight ``sqrt(1 - power/depth)``. ``"first"``:
        pre-LN, skip weight one, so that later branches count less and the effective power is ``log(1 + power)``.

    Returns
    -------
    SkipIsometry
        Variance, limit, laws, and a stack to simulate.

    Examples
    --------
    >>> [round(skip_isometry(depth, 1.0).variance, 2) for depth in (4, 16, 64, 256)]
    [2.29, 2.06, 2.02, 2.0]
    >>> round(skip_isometry(64, 4.0, norm="first").limit, 4)               # 2 log(1 + 4)
    3.2189
    """
    if Choice(("none", "first")).check("norm", norm) == "first":
        power = float(np.log1p(power))
    if mask is not None:
        mask = Instance(Mask).check("mask", mask)
    if power >= depth:
        raise DomainError(
            f"power = {power:g} is outside its domain (0, depth = {depth}): a layer keeps 1 - power/depth"
        )
    return SkipIsometry(depth, power, mask)
