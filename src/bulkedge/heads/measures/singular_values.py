"""Singular values of attention matrices of heads: all of them, or what products tell where there are too many tokens.

Up to :data:`COMPUTED` tokens they are the roots of the eigenvalues of a Gram matrix, which is summed over blocks of
rows. Beyond, no matrix of tokens by tokens is formed: the distribution comes from
:func:`~bulkedge.spectra.matrix_free.operator_spectrum`, which states its error, the largest values from
:func:`~bulkedge.spectra.top.top_singular`, which bounds it, and the sum of the squares from the rows, without one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.heads.measures.layer_visibility import AllKeys, AttentionRows, OtherKeys, positive
from bulkedge.spectra.dense import Spectrum
from bulkedge.spectra.matrix_free import QUANTILES, operator_spectrum
from bulkedge.spectra.operators import MapOperator, Operator
from bulkedge.spectra.stopping import MostSteps, Reached
from bulkedge.spectra.top import STEPS as TOP_STEPS
from bulkedge.spectra.top import top_singular
from bulkedge.spectra.traces import trace_of
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.errors import AccuracyWarning, UnresolvedError
from bulkedge.support.progress import tell

COMPUTED = 4096
"""Rows or tokens up to which all singular values are computed; more are estimated from products."""
TOLERANCE, STEPS = 0.02, 24
"""Kolmogorov distance within which the distribution of more than that is wanted, and steps after which what was reached
is taken, with its error: spectra that pile up at zero, as those of causal heads, would take many more."""
RESIDUAL = 1e-3
"""Error of the largest singular values that is allowed then, as a part of the largest."""
SUM_PROBES, SUM_STEPS = 16, 16  # random vectors and steps for the entropy of the squared values
LEVELS = np.linspace(0.0, 1.0, 257)
"""Levels of the quantile function that stands for a spectrum."""


class Matrices(NamedTuple):
    """What singular values are asked of: heads whole, and without the sinks among their keys."""

    attention: AttentionRows
    all_keys: AllKeys
    other: OtherKeys
    sinks: Any  # ones for sinks, (heads, tokens); None if there are none
    operator: Callable[[int], Operator] | None = None
    """Product with the whole matrix of a head, where somebody knows a quicker way than blocks of rows."""

    @property
    def long(self) -> bool:
        """Whether values are estimated."""
        return max(self.attention.visibility.shape) > COMPUTED

    def ranks(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ranks and spectrum without sinks, by name, each of shape (heads, ...); and the two largest values."""
        if not self.long:
            values = all_singular_values(self.attention, self.sinks)
            return _ranks(values), _first_two(values)
        heads = [self._rest(each) for each in range(self.other.columns.shape[0])]
        total = as_numpy(array_namespace(self.other.squares).sum(self.other.squares, axis=-1))
        found = [_estimate_ranks(head, float(each)) for head, each in zip(heads, total, strict=True)]
        ranks = {name: np.stack([each[0][name] for each in found]) for name in found[0][0]}
        return ranks, _first_two(np.stack([each[1] for each in found]))

    def first_two(self, left: Any = None) -> dict[str, Any]:
        """Largest value and relative gap of the whole matrices."""
        if self.long:
            heads = range(self.other.columns.shape[0])
            return _first_two(np.stack([_largest(_scale_sides(self._whole(each), left, None, each)) for each in heads]))
        return _first_two(all_singular_values(self.attention, None, left))

    def _whole(self, head: int) -> Operator:
        return self.operator(head) if self.operator else _RowOperator(self.attention, None, head)

    def _rest(self, head: int) -> Operator:
        """Without sinks: rows of the whole, of which sinks are cut out and the rest sums to one again."""
        if self.sinks is None:
            return self._whole(head)
        if self.operator is None:
            return _RowOperator(self.attention, self.sinks, head)
        xp = self.attention.visibility.xp
        left = xp.exp(xp.where(self.other.taken > 0, self.all_keys.normaliser - self.other.normaliser, -xp.inf))
        return _scale_sides(self.operator(head), left, 1 - self.sinks, head)


def all_singular_values(attention: AttentionRows, sinks: Any = None, left: Any = None) -> Any:
    """All singular values, from a Gram matrix: right to 1e-8 of the largest in doubles."""
    # on a processor NumPy solves, whatever the library of the matrices: it lets other threads work on other heads
    gram: Any = 0.0
    for rows, _, weights, _ in attention.parts(sinks):
        block = weights if left is None else weights * left[:, rows, None]
        matrices = as_numpy(block) if str(device(block)) == "cpu" else block
        xp = array_namespace(matrices)
        turned = xp.matrix_transpose(matrices)
        wide = len(attention.visibility.blocks) == 1 and block.shape[1] <= block.shape[2]
        gram = gram + (xp.matmul(matrices, turned) if wide else xp.matmul(turned, matrices))
    values = xp.sqrt(xp.clip(xp.linalg.eigvalsh(gram), 0.0, None))
    return values[:, max(0, values.shape[1] - min(attention.visibility.shape)) :]


def _ranks(values: Any) -> dict[str, Any]:
    """Ranks, and the quantile function, of singular values (heads, values), smallest first."""
    xp = array_namespace(values)
    squares = values**2
    total = xp.sum(squares, axis=-1, keepdims=True)
    shares = squares / total
    logs = xp.log(xp.where(shares > 0, shares, xp.ones_like(shares)))
    places = LEVELS * (values.shape[-1] - 1)
    low = np.floor(places).astype(int)
    high, part = np.minimum(low + 1, values.shape[-1] - 1), places - low
    numbers = as_numpy(values)
    return {
        "stable_rank": total[:, 0] / squares[:, -1],
        "effective_rank": xp.exp(-xp.sum(shares * logs, axis=-1)),
        "spectrum": numbers[:, low] * (1 - part) + numbers[:, high] * part,
        "entropy_error": xp.zeros_like(total[:, 0]),
        "spectrum_error": xp.zeros_like(total[:, 0]),
        "spectrum_floor": xp.zeros_like(total[:, 0]),
    }


def _first_two(values: Any) -> dict[str, Any]:
    """Largest singular value and relative gap, of values smallest first; one row or one key has no second value."""
    second = values[:, -2] if values.shape[-1] > 1 else np.nan
    return {"s1": values[:, -1], "gap": 1 - second / positive(values[:, -1])}


def _forward(attention: AttentionRows, sinks: Any, block: Any) -> Any:
    """Products with blocks of vectors, (heads, tokens, k), of all heads."""
    xp = attention.visibility.xp
    return xp.concat([xp.matmul(weights, block) for _, _, weights, _ in attention.parts(sinks)], axis=1)


def _backward(attention: AttentionRows, sinks: Any, block: Any) -> Any:
    """Products of the transposes, with (heads, rows, k)."""
    xp = attention.visibility.xp
    found: Any = 0.0
    for rows, _, weights, _ in attention.parts(sinks):
        found = found + xp.matmul(xp.matrix_transpose(weights), block[:, rows])
    return found


class _RowOperator(Operator):
    """The matrix of a head as an operator, whatever its scores are: any cap, mask and bias."""

    one_pass = True

    def __init__(self, attention: AttentionRows, sinks: Any, head: int) -> None:
        self.attention, self.sinks, self.head = attention, sinks, head
        self.shape, self.like = (
            attention.visibility.shape,
            attention.visibility.new(attention.visibility.xp.ones, (1, 1)),
        )

    def _forward(self, block: Any) -> Any:
        return _forward(self.attention, self.sinks, block[None])[self.head]

    def _backward(self, block: Any) -> Any:
        return _backward(self.attention, self.sinks, block[None])[self.head]

    def _sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        xp, images, back = self.attention.visibility.xp, [], 0.0
        for rows, _, weights, _ in self.attention.parts(self.sinks):
            image = weights[self.head] @ block
            images.append(image if less is None else image - less[rows])
            back = back + xp.matrix_transpose(weights[self.head]) @ images[-1]
        return xp.concat(images, axis=0), back


def _scale_sides(operator: Operator, left: Any, right: Any, head: int) -> Operator:
    """An operator with its rows and columns multiplied by numbers (heads, rows) and (heads, columns)."""
    if left is None and right is None:
        return operator
    like = operator.like
    rows, columns = (
        None if each is None else array_namespace(like).astype(each[head], like.dtype)[:, None]
        for each in (left, right)
    )

    def times(block: Any, numbers: Any) -> Any:
        return block if numbers is None else numbers * block

    return MapOperator(
        lambda block: times(operator @ times(block, columns), rows),
        lambda block: times(operator.T @ times(block, rows), columns),
        (operator.shape[-2], operator.shape[-1]),
        like,
    )


class _PassCounter(Operator):
    """An operator that counts how many passes over its entries were made: of many tokens each takes a while."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.shape, self.like, self.done = operator, operator.shape, operator.like, count(1)

    @property
    def one_pass(self) -> bool:
        return self.operator.one_pass

    def _tell(self) -> None:
        most = (1 if self.one_pass else 2) * (STEPS + TOP_STEPS + SUM_STEPS)
        tell("passes over a head", min(next(self.done), most), most)

    def _forward(self, block: Any) -> Any:
        self._tell()
        return self.operator @ block

    def _backward(self, block: Any) -> Any:
        self._tell()
        return self.operator.T @ block

    def _sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        self._tell()
        return self.operator.sweep(block, less)


def _largest(operator: Operator) -> Real:
    """The two largest values, smaller first, to :data:`RESIDUAL` of the largest; nan where that is not reached."""
    try:
        return top_singular(operator, 2, RESIDUAL).values[::-1]
    except UnresolvedError as error:
        warnings.warn(f"no largest singular values of a head: {error}", AccuracyWarning, stacklevel=2)
        return np.full(2, np.nan)


def _estimate_ranks(operator: Operator, total: float) -> tuple[dict[str, Any], Real]:
    """Ranks and spectrum of one matrix, of which the sum of squares is known, from products; and its largest values."""
    operator = _PassCounter(operator)
    largest = _largest(operator)
    with warnings.catch_warnings():
        # what is not reached is reported beside the numbers
        warnings.simplefilter("ignore", AccuracyWarning)
        found = operator_spectrum(operator, TOLERANCE, stop=Reached(TOLERANCE) | MostSteps(STEPS))
    # the distribution is too coarse for a sum that few large values rule: quadrature knows those one by one
    terms = trace_of(_entropy_terms, operator, SUM_PROBES, SUM_STEPS)
    ranks = {
        "stable_rank": total / largest[-1] ** 2,
        "effective_rank": np.exp(np.log(total) - terms.value / total),
        "entropy_error": terms.error / total,
        "spectrum": np.append(quantiles(found)[:-1], largest[-1]),
        "spectrum_error": found.error,
        "spectrum_floor": found.rounding,
    }
    return ranks, largest


def _entropy_terms(values: Real) -> Real:
    """``s**2 log s**2``, zero at zero."""
    squares = values**2
    return squares * np.log(np.where(squares > 0, squares, 1.0))


def quantiles(found: Spectrum) -> Real:
    """Values at the :data:`LEVELS` of an estimated spectrum, as if all of them had been sorted."""
    upto = np.cumsum(found.weights)
    # a value of weight one over the size is one value, at the middle of its step; a point mass is many of them, and
    # what stands for a part of a curve is in its middle
    point = found.weights > 2 / min(QUANTILES, found.size)
    half = np.where(point, 0.5 / found.size, found.weights / 2)
    at = np.concatenate([upto - found.weights + half, (upto - half)[point]])
    values = np.concatenate([found.values, found.values[point]])
    order = np.lexsort((values, at))
    return np.interp((LEVELS * (found.size - 1) + 0.5) / found.size, at[order], values[order])
