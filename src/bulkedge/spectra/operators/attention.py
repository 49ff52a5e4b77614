"""Attention as an operator: ``softmax(scale q k')`` behind a mask, for any number of tokens.

``A V`` is what an attention layer computes from values V, and ``A' U`` is its gradient with respect to them. So neither
needs the matrix: memory is that of queries, keys and the blocks that are multiplied.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> q, k = rng.standard_normal((2, 300, 16))
>>> op = AttentionOperator(q, k, scale=0.25, mask="causal")
>>> op.shape, op.backend, bool(np.allclose(op @ np.ones(300), 1.0))
((300, 300), 'rows', True)
>>> float(np.abs(op.centred() @ np.ones(300)).max()) < 1e-12       # minus the mean of its mask
True
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from bulkedge.spectra.operators.base import Difference, Operator
from bulkedge.spectra.operators.directions import Polynomials
from bulkedge.spectra.operators.products import Products, RowBlocks
from bulkedge.support.domains import FLAG, MATRICES, Choice, Interval, shown, takes
from bulkedge.support.errors import DomainError
from bulkedge.visibility import FullMask, Mask, MaskOrName, WindowMask, mask_for, visible_rows

SCALE = Interval(-1e30, 1e30)
BACKENDS = ("auto", "rows", "sdpa", "triton")
BLOCK = 1024  # rows of a mask without structure that are multiplied at a time


class AttentionOperator(Operator):
    """The attention matrix of a head, or of a batch of heads, without forming it.

    >>> q, k = np.random.default_rng(0).standard_normal((2, 50, 16))
    >>> (AttentionOperator(q, k, mask="causal") @ np.eye(50)[0])[:2].round(2)
    array([1.  , 0.45])

    Parameters
    ----------
    query : array of shape (..., queries, d)
        Queries, of NumPy or torch; leading axes are a batch of heads. Single and double precision are kept, half
        precision is computed in single, except by ``backend="sdpa"``, which keeps it.
    key : array of shape (..., keys, d)
        Keys, of the same backend, device and leading axes.
    scale : float, optional
        Factor of the scores; ``1/sqrt(d)`` by default.
    mask : {"full", "causal"} or Mask
        Who attends to whom.
    backend : {"auto", "rows", "sdpa", "triton"}
        How products are computed. ``"rows"``: blocks of rows, anywhere and in the precision of the arrays.
        ``"triton"``: a kernel for NVIDIA's GPUs in single precision. ``"sdpa"``: torch's fused attention, in the
        precision of the arrays, which may be bfloat16. ``"auto"`` takes Triton's kernel where it runs and rows
        elsewhere; the attribute ``backend`` says which.

    Raises
    ------
    DomainError
        For arrays that do not fit each other or the mask, scores that overflow, and backends that cannot run here.
    """

    def __init__(
        self, query: Any, key: Any, scale: float | None = None, mask: str | Mask = "full", backend: str = "auto"
    ) -> None:
        MaskOrName().check("mask", mask)
        Choice(BACKENDS).check("backend", backend)
        query, key = _arrays(query, key, keep_half=backend == "sdpa")
        (rows, dim), keys = query.shape[-2:], key.shape[-2]
        full = isinstance(mask, str) and mask == "full"
        self.mask = Mask.cross(rows, keys) if full else mask_for(mask, rows) if isinstance(mask, str) else mask
        if self.mask.shape != (rows, keys):
            raise DomainError(f"mask = {mask!r} has shape {self.mask.shape}; there are {rows} queries and {keys} keys")
        self.scale = SCALE.check("scale", dim**-0.5 if scale is None else scale)
        self.query, self.key = query, key
        self._products = _products(backend, self.scale * query, key, self.mask)
        self.backend: str = self._products.name
        self.shape = (*query.shape[:-2], rows, keys)
        self.like = key[..., :1, :1]
        _check_scores(self._products)

    def centred(self) -> Operator:
        """``A - C``: attention minus the mean matrix of its mask, which is attention without scores.

        Times ``sqrt(keys)`` it is the matrix of the laws of attention. The mean is subtracted by sums.
        """
        return Difference(self, MaskMean(self.mask, self.like))

    def less_popularity(self, popularity: Any = None) -> Operator:
        """``A - 1 pi'``, minus the attention that each key gets on average.

        Parameters
        ----------
        popularity : array of shape (..., keys), optional
            pi; the mean of the rows of A by default, which takes one product.

        Returns
        -------
        Operator
            Of the same shape.
        """
        xp, rows = array_namespace(self.like), self.shape[-2]
        ones = xp.ones((rows, 1), dtype=self.like.dtype, device=device(self.like))
        shares = (
            self._backward(ones / rows) if popularity is None else self._on_backend(popularity, "popularity")[..., None]
        )
        if shares.shape[-2] != self.shape[-1]:
            raise DomainError(f"popularity has shape {tuple(popularity.shape)}; there are {self.shape[-1]} keys")
        return self.less(xp.broadcast_to(ones, (*shares.shape[:-2], rows, 1)), shares)

    def _forward(self, block: Any) -> Any:
        return self._products.forward(block)

    def _backward(self, block: Any) -> Any:
        return self._products.backward(block)

    @property
    def one_pass(self) -> bool:
        """Whether the backend computes scores once for both products of a sweep."""
        return self._products.one_pass

    def _sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        return self._products.sweep(block, less)

    @takes(left=FLAG)
    def leading(self, *, left: bool = False) -> Polynomials | None:
        """Polynomials of the keys, or of the queries for left vectors, of full attention of one head.

        With ``exp(q . k)`` as a series of Hermite polynomials, for Gaussian keys, a row is ``sum q^a He_a(k)/a!`` over
        all multi-indices a, and the normaliser has gone: the terms of the first two degrees are the largest.
        """
        points = self.query if left else self.key
        single = points.ndim == 2 and array_namespace(points).finfo(points.dtype).bits >= 32
        return Polynomials(points) if single and isinstance(self.mask, FullMask) else None

    def __getitem__(self, index: Any) -> Operator:
        return AttentionOperator(self.query[index], self.key[index], self.scale, self.mask, self.backend)

    def __repr__(self) -> str:
        return f"AttentionOperator(shape={self.shape}, {self.mask!r}, backend={self.backend!r})"


def _arrays(query: Any, key: Any, *, keep_half: bool) -> tuple[Any, Any]:
    """Both as arrays of one backend and one floating type."""
    torch_both = is_torch_array(query) and is_torch_array(key)
    pair = MATRICES.check("query", query), MATRICES.check("key", key)
    if torch_both and keep_half and query.is_floating_point() and key.is_floating_point():
        pair = query.detach(), key.detach()
    shapes = [tuple(each.shape) for each in pair]
    if shapes[0][-1] != shapes[1][-1] or shapes[0][:-2] != shapes[1][:-2]:
        raise DomainError(f"query and key must have shapes (..., queries, d) and (..., keys, d); got {shapes}")
    if is_torch_array(pair[0]) != is_torch_array(pair[1]) or pair[0].dtype != pair[1].dtype:
        raise DomainError(
            f"query and key must be arrays of one library and one type; got {shown(pair[0].dtype)} and "
            f"{shown(pair[1].dtype)}"
        )
    return pair


def _products(backend: str, query: Any, key: Any, mask: Mask) -> Products:
    """What computes the products: the backend that was asked for, or the best one that runs here."""
    if backend == "rows":
        return RowBlocks(query, key, mask)
    if not is_torch_array(query):
        if backend != "auto":
            raise DomainError(f"backend = {backend!r} is for torch's tensors; got arrays of NumPy (use 'rows')")
        return RowBlocks(query, key, mask)
    if backend == "sdpa":
        from bulkedge.spectra.operators.torch_products import Fused

        return Fused(query, key, mask)
    from bulkedge.spectra.operators.torch_products import Tiles, takes

    if takes(query, key, mask):
        return Tiles(query, key, mask)
    if backend == "triton":
        raise DomainError("backend = 'triton' needs Triton, float32 on a GPU, and a full, causal or window mask")
    return RowBlocks(query, key, mask)


def _check_scores(products: Products) -> None:
    """Refuse scores that overflow: their rows have no weights."""
    normaliser = products.log_normaliser
    if normaliser is not None and not bool(
        array_namespace(normaliser).all(array_namespace(normaliser).isfinite(normaliser))
    ):
        raise DomainError("scores overflow the floating type of query and key: their rows have no softmax")


# -- the mean of a mask ------------------------------------------------------------------------------------------------


def sums_before(block: Any) -> Any:
    """Sums of the rows before each row, and of all, in chunks, because a GPU sums along rows one by one."""
    xp, (*batch, rows, columns) = array_namespace(block), block.shape
    chunk = max(1, isqrt(rows))
    chunks = -(-rows // chunk)
    empty = {"dtype": block.dtype, "device": device(block)}
    padded = xp.concat([block, xp.zeros((*batch, chunks * chunk - rows, columns), **empty)], axis=-2)
    inside = xp.cumulative_sum(xp.reshape(padded, (*batch, chunks, chunk, columns)), axis=-2)
    before = xp.cumulative_sum(inside[..., -1, :], axis=-2, include_initial=True)[..., :-1, None, :]
    sums = xp.reshape(inside + before, padded.shape)[..., :rows, :]
    return xp.concat([xp.zeros((*batch, 1, columns), **empty), sums], axis=-2)


class MaskMean(Operator):
    """The uniform mean matrix C of a mask, row i constant on what query i sees; full and window masks by sums."""

    def __init__(self, mask: Mask, like: Any) -> None:
        self.mask, self.like, self.shape = mask, like, mask.shape
        xp = array_namespace(like)
        self._share = xp.asarray(1.0 / np.asarray(mask.counts()), dtype=xp.float64, device=device(like))[:, None]

    @property
    def low_rank(self) -> bool:
        """Whether all rows are the same."""
        return isinstance(self.mask, FullMask)

    def _forward(self, block: Any) -> Any:
        if isinstance(self.mask, FullMask):
            mean = array_namespace(block).mean(block, axis=-2, keepdims=True)
            return array_namespace(block).broadcast_to(mean, (*block.shape[:-2], self.shape[0], block.shape[-1]))
        if isinstance(self.mask, WindowMask):
            return self._rounded(self._share * self._window_sums(self._double(block), self.mask.width, ahead=False))
        return self._rounded(self._share * self._by_rows(self._double(block), adjoint=False))

    def _backward(self, block: Any) -> Any:
        weighted = self._share * self._double(block)
        if isinstance(self.mask, FullMask):
            total = array_namespace(block).sum(weighted, axis=-2, keepdims=True)
            shape = (*block.shape[:-2], self.shape[1], block.shape[-1])
            return array_namespace(block).broadcast_to(self._rounded(total), shape)
        if isinstance(self.mask, WindowMask):
            return self._rounded(self._window_sums(weighted, self.mask.width, ahead=True))
        return self._rounded(self._by_rows(weighted, adjoint=True))

    @staticmethod
    def _window_sums(block: Any, width: int, *, ahead: bool) -> Any:
        """Sums of ``width`` rows up to each row, or from each row on: differences of running sums."""
        xp, rows = array_namespace(block), block.shape[-2]
        sums = sums_before(block)
        place = xp.arange(rows, device=device(block))
        first, last = (
            (place, xp.clip(place + width, max=rows)) if ahead else (xp.clip(place + 1 - width, min=0), place + 1)
        )
        return xp.take(sums, last, axis=-2) - xp.take(sums, first, axis=-2)

    def _by_rows(self, block: Any, *, adjoint: bool) -> Any:
        """Products with the boolean matrix, a few rows at a time."""
        xp, parts, total = array_namespace(block), [], 0.0
        for start in range(0, self.shape[0], BLOCK):
            stop = min(start + BLOCK, self.shape[0])
            rows = xp.astype(visible_rows(self.mask, start, stop, block), block.dtype)
            if adjoint:
                total = total + xp.matrix_transpose(rows) @ block[..., start:stop, :]
            else:
                parts.append(rows @ block)
        return total if adjoint else xp.concat(parts, axis=-2)

    def _double(self, block: Any) -> Any:
        xp = array_namespace(block)
        return xp.astype(block, xp.float64)

    def _rounded(self, block: Any) -> Any:
        return array_namespace(block).astype(block, self.like.dtype)
