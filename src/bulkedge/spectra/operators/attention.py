"""Attention as an operator: ``softmax(scale q k')`` behind a mask, for any number of tokens.

``A V`` is what an attention layer computes from values V, and ``A' U`` is its gradient with respect to them. So neither
needs the matrix: memory is that of queries, keys and the blocks that are multiplied.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> q, k = rng.standard_normal((2, 300, 16))
>>> op = AttentionOperator(q, k, scale=0.25, mask="causal")
>>> op.shape, op.backend, bool(np.allclose(op @ np.ones(300), 1.0))
((300, 300), 'rows', True)
>>> float(np.abs(op.centred() @ np.ones(300)).max()) < 1e-12       # less the mean of its mask
True
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device, is_torch_array

from bulkedge.spectra.dense import floating
from bulkedge.spectra.operators.base import Difference, Operator
from bulkedge.spectra.operators.directions import Polynomials
from bulkedge.spectra.operators.means import MaskMean
from bulkedge.spectra.operators.products import Products, RowBlocks
from bulkedge.support.domains import Choice, Interval, shown
from bulkedge.support.errors import DomainError
from bulkedge.visibility import FullMask, Mask, MaskOrName, mask_for

SCALE = Interval(-1e30, 1e30)
BACKENDS = ("auto", "rows", "sdpa", "triton")


class AttentionOperator(Operator):
    """The attention matrix of a head, or of a batch of heads, that is never formed.

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
        """``A - C``, less the mean matrix of the mask: what attention is less the matrix it would be without scores.

        Times ``sqrt(keys)`` it is the matrix of the laws of attention.

        Returns
        -------
        Operator
            Of the same shape; the mean is subtracted by sums, and not written out either.
        """
        return Difference(self, MaskMean(self.mask, self.like))

    def less_popularity(self, popularity: Any = None) -> Operator:
        """``A - 1 pi'``, less the attention that each key gets on average.

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
        shares = self._backward(ones / rows) if popularity is None else self._beside(popularity)[..., None]
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
    if torch_both and keep_half:
        pair = query.detach(), key.detach()
    else:
        pair = floating("query", query), floating("key", key)
    shapes = [tuple(each.shape) for each in pair]
    fit = all(len(each) >= 2 and 0 not in each for each in shapes) and shapes[0][-1] == shapes[1][-1]
    if not fit or shapes[0][:-2] != shapes[1][:-2]:
        raise DomainError(f"query and key must have shapes (..., queries, d) and (..., keys, d); got {shapes}")
    if is_torch_array(pair[0]) != is_torch_array(pair[1]) or pair[0].dtype != pair[1].dtype:
        raise DomainError(
            f"query and key must be arrays of one library and one type; got {shown(pair[0].dtype)} and "
            f"{shown(pair[1].dtype)}"
        )
    xp = array_namespace(*pair)
    if not all(bool(xp.all(xp.isfinite(each))) for each in pair):
        raise DomainError("query or key contains NaN or infinite entries")
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
        raise DomainError(
            "backend = 'triton' needs Triton, single precision on a GPU, and a full, causal or window mask"
        )
    return RowBlocks(query, key, mask)


def _check_scores(products: Products) -> None:
    """Refuse scores that overflow: their rows have no weights."""
    normaliser = products.log_normaliser
    if normaliser is not None and not bool(
        array_namespace(normaliser).all(array_namespace(normaliser).isfinite(normaliser))
    ):
        raise DomainError("scores overflow the floating type of query and key: their rows have no softmax")
