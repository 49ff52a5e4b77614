"""What the moments of queries and keys say of heads without a decomposition: traces, Cholesky factors and products.

With ``S = L L'`` and K the covariances of queries and keys, squared couplings are the eigenvalues of ``M = L' K L``,
and those of ``N = C**-1 M C**-T``, where ``C C' = 1 + M``, are the shares ``a**2/(1 + a**2)``. Sums of functions of
these over directions are traces, and the three quadratic forms of popularity are products of ``T = C**-1 L'`` and
``C**-1 C**-T T`` with a key (docs/theory/popularity.md, "Saturation"). All of it stays in the library and on the device
of the arrays; what the host has to know comes in one transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from bulkedge.heads.channel.moments import Moments, root
from bulkedge.heads.channel.popularity import Maps, constants
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.errors import DomainError


class Sizes(NamedTuple):
    """Sums over the directions of heads, each an array over the heads, in NumPy.

    ``squares`` is ``sum a**2`` and ``drifts`` ``sum (a mu)**2``; ``crowding`` is ``sum a**4`` over the square of the
    first, zero without couplings; ``mixed`` is ``sum a**2 (a mu)**2``.
    """

    squares: Real
    drifts: Real
    crowding: Real
    mixed: Real

    @classmethod
    def of(cls, couplings: Real, drift: Real) -> Self:
        """The sums, from couplings and drift themselves."""
        largest = couplings.max(axis=-1, keepdims=True)
        shares = np.divide(couplings, largest, out=np.zeros_like(couplings), where=largest > 0) ** 2
        total, fourth = np.sum(shares, axis=-1), np.sum(shares**2, axis=-1)
        crowding = np.divide(fourth, total**2, out=np.zeros_like(total), where=total > 0)
        squares, drifts = couplings**2, drift**2
        return cls(squares.sum(axis=-1), drifts.sum(axis=-1), crowding, np.sum(squares * drifts, axis=-1))


@dataclass(frozen=True, eq=False)
class Factored:
    """Moments of the queries and keys of heads, with what follows from them by products and Cholesky factors.

    Attributes
    ----------
    queries, keys : Moments
        Means of shape (..., d) and covariances of shape (..., d, d), the scale of the scores in the queries.
    factor : array of shape (..., d, d)
        L with ``L L'`` the covariance of the queries.
    sizes : Sizes
        Sums over directions.
    """

    queries: Moments
    keys: Moments
    factor: Any
    sizes: Sizes

    @classmethod
    def of(cls, queries: Moments, keys: Moments) -> Self:
        """Check moments, factor the queries' covariance and take the sums."""
        factor, failed = _cholesky(queries.covariance)
        xp = array_namespace(factor)
        finite = [
            xp.all(xp.isfinite(each.mean), axis=-1) & xp.all(xp.isfinite(each.covariance), axis=(-2, -1))
            for each in (queries, keys)
        ]
        flags = [xp.astype(each, factor.dtype) for each in (*finite, failed)]
        # the one transfer to the host
        numbers = as_numpy(xp.stack([*flags, *_sums(queries, keys, factor)]))
        for name, known in zip("qk", numbers, strict=False):
            if not np.all(known):
                raise DomainError(f"{name} has entries, or squares of entries, that are not finite")
        if np.any(numbers[2]):
            factor = _mended(queries.covariance, factor, numbers[2])
            numbers[3:] = as_numpy(xp.stack(_sums(queries, keys, factor)))
        if not np.all(np.isfinite(numbers)):
            raise DomainError("q and k are so large that variances of their scores are not finite")
        # rounding may leave a little less than nothing of what is nothing
        return cls(queries, keys, factor, Sizes(*np.maximum(numbers[3:], 0.0)))

    @cached_property
    def maps(self) -> Maps:
        """The three forms of popularity, on the device of the moments."""
        mean, keys = self.queries.mean[..., None], self.keys.covariance
        xp = array_namespace(mean)
        turned = xp.matrix_transpose(self.factor)
        middle = _eye(turned) + xp.matmul(xp.matmul(turned, keys), self.factor)
        lower, _ = _cholesky(middle)  # of eigenvalues from one on: it does not fail
        inverse = _inverse(lower)
        first = xp.matmul(inverse, turned)
        third = xp.matmul(inverse, xp.matmul(xp.matrix_transpose(inverse), first))
        shares = xp.matmul(xp.matmul(first, keys), xp.matrix_transpose(first))
        logarithms = 2 * xp.sum(xp.log(xp.linalg.diagonal(lower)), axis=-1)
        once = self._tamed(first, mean)
        lost = self._taken(first, once)
        linear = xp.concat([once, once - lost, -2 * self._tamed(first, lost)], axis=-1)
        own = xp.matmul(xp.matrix_transpose(xp.matmul(keys, once)), xp.concat([mean, once, lost], axis=-1))[..., 0, :]
        sums = (logarithms, xp.sum(xp.linalg.diagonal(shares), axis=-1), xp.sum(shares**2, axis=(-2, -1)))
        features = xp.matrix_transpose(xp.concat([first, third], axis=-2))
        return Maps(self.keys.mean, features, linear, constants(sums, tuple(own[..., k] for k in range(3))))

    def _taken(self, first: Any, vectors: Any) -> Any:
        """``(1 - G) v = S (1 + K S)**-1 K v`` for ``G = (1 + S K)**-1``, which is ``T' T K v``."""
        xp = array_namespace(vectors)
        return xp.matmul(xp.matrix_transpose(first), xp.matmul(first, xp.matmul(self.keys.covariance, vectors)))

    def _tamed(self, first: Any, vectors: Any) -> Any:
        """``G v``, refined once: the difference of v and what G takes of it cancels where couplings are large."""
        xp = array_namespace(vectors)
        found = vectors - self._taken(first, vectors)
        left = vectors - found - xp.matmul(self.queries.covariance, xp.matmul(self.keys.covariance, found))
        return found + left - self._taken(first, left)


def _sums(queries: Moments, keys: Moments, factor: Any) -> list[Any]:
    """What :class:`Sizes` holds, on the device of the moments."""
    xp = array_namespace(factor)
    mean = queries.mean[..., None]
    reached = xp.matmul(keys.covariance, xp.concat([factor, mean], axis=-1))
    coupled = xp.matmul(xp.matrix_transpose(factor), reached)  # M, and L'K m beside it
    squares = xp.sum(xp.linalg.diagonal(coupled), axis=-1)
    scale = xp.where(squares > 0, squares, xp.ones_like(squares))[..., None, None]
    crowding = xp.sum((coupled[..., :-1] / scale) ** 2, axis=(-2, -1))
    drifts = xp.sum(reached[..., -1] * queries.mean, axis=-1)
    return [squares, drifts, crowding, xp.sum(coupled[..., -1] ** 2, axis=-1)]


def _cholesky(matrices: Any) -> tuple[Any, Any]:
    """Lower factors, and for each matrix whether it has none; a stack of NumPy's fails as one."""
    if is_torch_array(matrices):
        import torch

        factor, failed = torch.linalg.cholesky_ex(matrices)  # without a look at the device, unlike torch's cholesky
        return factor, failed > 0
    shape = matrices.shape[:-2]
    try:
        return np.linalg.cholesky(matrices), np.zeros(shape, dtype=bool)
    except np.linalg.LinAlgError:
        return np.zeros_like(matrices), np.ones(shape, dtype=bool)


def _mended(matrices: Any, factor: Any, failed: Real) -> Any:
    """The factors, with those of the failed matrices (singular up to rounding) made of eigenvalues on the host."""
    xp = array_namespace(factor)
    for head in zip(*np.nonzero(failed), strict=True) if failed.ndim else [()]:
        factor[head] = xp.asarray(root(as_numpy(matrices[head])), device=device(factor))
    return factor


def _inverse(lower: Any) -> Any:
    """Inverses of lower triangular matrices."""
    if is_torch_array(lower):
        import torch

        return torch.linalg.solve_triangular(lower, _eye(lower), upper=False)
    return np.linalg.inv(lower)


def _eye(matrices: Any) -> Any:
    xp = array_namespace(matrices)
    return xp.eye(matrices.shape[-1], dtype=matrices.dtype, device=device(matrices))
