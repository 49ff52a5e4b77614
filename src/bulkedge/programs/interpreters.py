"""The two interpreters of a program: at width n, with every draw's own weights, and in the limit of infinite width.

At width n only what a weight does to the vectors it meets is ever seen. Given their Gram matrix ``M = L L'`` that is
``L Z`` with Z Gaussian, at any width: a weight is *revealed* as it is used, at the cost of a few vectors instead of a
matrix, and the law is exactly that of whole matrices (``dense=True``, which draws those). When the weight meets further
vectors the factor of the larger Gram matrix extends the earlier one, and so does Z.

In the limit the coordinates of vectors are independent and alike; what is left of a family of vectors is the law of one
coordinate, given the scalars (*width*, Theorem 3.1):

- products with weights are Gaussian, ``Cov(W x, W y) = variance E[x y]``, and independent for different weights;
- dot products over n are means, ``x · y / n -> E[x y]``;
- dot products over the root of n are Gaussian, with covariance ``Cov(q_i, q_r) Cov(k_j, k_s)``, and independent of all
  coordinates.

So the scalars are drawn in order, each given those before it, and second moments ``E[x y]`` are all that is needed
of the vectors, which are drawn at the end. In a deep program these second moments are random: a Markov chain of kernels
(ours; *width* has one layer; docs/theory/width.md, "Depth: a Markov chain of kernels").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import singledispatchmethod
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.programs import instructions
from bulkedge.programs.activations import (
    IDENTITY,
    block,
    cholesky,
    first_moment,
    mean,
    product,
    second_moment,
    transpose,
)
from bulkedge.programs.graph import Program
from bulkedge.programs.instructions import Instruction, Matrix, Scalars, Vectors, Weight, gaussian_names
from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError
from bulkedge.support.random import normal

MEMORY = 2**22  # numbers that a block of draws may hold at once; 32 MB in double precision


def draw_finite(program: Program, width: int, rng: Any, draws: int = 1, *, dense: bool = False) -> Any:
    """Draw the outputs of a program at width n."""
    _check_width(program, width)
    size = max(1, MEMORY // _numbers(program, width, dense=dense))
    return in_blocks(lambda stream, count: Finite(program, width, stream, count, dense).outputs(), rng, draws, size)


def _check_width(program: Program, width: int) -> None:
    Integers(1, 10**6).check("width", width)
    for name, kind in program.kinds.items():
        share = Fraction(1) if isinstance(kind, Scalars) else kind.rows if isinstance(kind, Matrix) else kind.share
        if (share * width).denominator != 1:
            raise DomainError(
                f"width = {width} does not divide: {name} is {kind}; take a multiple of {share.denominator}"
            )
        if isinstance(program.table[name], instructions.Input) and isinstance(kind, Vectors) and kind.count > width:
            raise DomainError(f"width = {width} is too small for {kind.count} inputs with a given Gram matrix")


def _numbers(program: Program, width: int, *, dense: bool) -> int:
    """Numbers held for one draw."""
    total = Fraction(0)
    for kind in program.kinds.values():
        if isinstance(kind, Vectors):
            total += kind.copies * kind.count * kind.share * width
        elif dense and isinstance(kind, Matrix):
            total += kind.copies * kind.rows * kind.columns * width**2
    return int(total)


@dataclass
class Finite:
    """A block of draws. Vectors have axes (draw, copy, position, coordinate); scalars have the draw last."""

    program: Program
    width: int
    rng: Any
    draws: int
    dense: bool
    values: dict[str, Any] = field(default_factory=dict)
    matrices: dict[str, Any] = field(default_factory=dict)
    revealed: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def outputs(self) -> tuple[Any, ...]:
        """Run all instructions."""
        for each in self.program.instructions:
            if not isinstance(each, Weight):
                self.values[each.name] = self.value(each)
        return tuple(
            self.values[name][:, 0, :, 0]
            if isinstance(self.program.kinds[name], Vectors)
            else shape_scalars(self.values[name], self.program.kinds[name].copies, self.draws)
            for name in self.program.outputs
        )

    @singledispatchmethod
    def value(self, each: Instruction) -> Any:
        """The value of an instruction, from those of its operands."""
        raise NotImplementedError(each)

    @value.register
    def _(self, each: instructions.Input) -> Any:
        """Gaussian directions, turned into vectors that have the Gram matrix to rounding."""
        noise = normal(self.rng, (self.draws, 1, len(each.gram), self.width))
        xp = array_namespace(noise)
        gram = xp.asarray(each.gram, dtype=noise.dtype, device=noise.device)
        factor = cholesky(gram[:, :, None])[:, :, 0]
        white = xp.linalg.inv(xp.linalg.cholesky(gram_of(noise)))
        return (factor @ white) @ noise

    @value.register
    def _(self, each: instructions.MatMul) -> Any:
        weight, vectors = self.program.weight(each.weight), self.values[each.vectors]
        if self.dense:
            return (weight.variance / vectors.shape[-1]) ** 0.5 * vectors @ self._matrix(weight)
        return weight.variance**0.5 * self._reveal(weight, vectors)

    def _matrix(self, weight: Weight) -> Any:
        """The whole matrix, transposed; kept if it is used again."""
        if weight.name in self.matrices:
            return self.matrices[weight.name]
        rows, columns = int(weight.rows * self.width), int(weight.columns * self.width)
        matrix = normal(self.rng, (self.draws, weight.copies, columns, rows))
        if weight.name in self.program.reused_weights:
            self.matrices[weight.name] = matrix
        return matrix

    def _reveal(self, weight: Weight, vectors: Any) -> Any:
        """Products of the weight with vectors (draw, copy, position, coordinate), given its earlier products."""
        # a factor L of all vectors' Gram matrix keeps earlier rows: L Z stays, and Z with new rows gives the new ones
        xp, count = array_namespace(vectors), vectors.shape[2]
        noise = normal(self.rng, (self.draws, weight.copies, count, int(weight.rows * self.width)))
        if weight.name in self.revealed:
            before, old = self.revealed[weight.name]
            noise = xp.concat([old, noise], axis=2)
            copies = (self.draws, weight.copies)
            both = [xp.broadcast_to(each, (*copies, *each.shape[2:])) for each in (before, vectors)]
            vectors = xp.concat(both, axis=2)
        if weight.name in self.program.reused_weights:
            self.revealed[weight.name] = vectors, noise
        factor = draw_first(cholesky(draw_last(gram_of(vectors))))
        return factor[:, :, -count:, :] @ noise

    @value.register
    def _(self, each: instructions.Nonlin | instructions.ScalarMap) -> Any:
        return each.function(*(self.values[name] for name in each.arguments))

    @value.register
    def _(self, each: instructions.Combine) -> Any:
        return draw_first(self.values[each.coefficients]) @ self.values[each.vectors]

    @value.register
    def _(self, each: instructions.Add) -> Any:
        return self.values[each.left] + self.values[each.right]

    @value.register
    def _(self, each: instructions.SumCopies) -> Any:
        vectors = self.values[each.vectors]
        return array_namespace(vectors).sum(vectors, axis=1, keepdims=True)

    @value.register
    def _(self, each: instructions.Center) -> Any:
        vectors = self.values[each.vectors]
        return vectors - array_namespace(vectors).mean(vectors, axis=-1, keepdims=True)

    @value.register
    def _(self, each: instructions.Moment) -> Any:
        vectors = self.values[each.vectors]
        return draw_last(array_namespace(vectors).mean(vectors, axis=-1))

    @value.register
    def _(self, each: instructions.Dot) -> Any:
        left, right = self.values[each.left], self.values[each.right]
        over = left.shape[-1] ** (0.5 if each.scaling == "sqrt" else 1.0)
        return draw_last(left @ array_namespace(right).matrix_transpose(right)) / over


def gram_of(vectors: Any) -> Any:
    """Gram matrices ``x_i · x_j / n`` of vectors of width n."""
    return vectors @ array_namespace(vectors).matrix_transpose(vectors) / vectors.shape[-1]


def in_blocks(job: Callable[[Any, int], tuple[Any, ...]], rng: Any, draws: int, size: int, workers: int = 1) -> Any:
    """Call ``job(rng, count)`` until there are enough draws; join its arrays, or its only array, along the first axis.

    Blocks are small enough for memory, each with a random stream of its own: numbers do not depend on the number of
    workers, which are threads, because NumPy lets go of the interpreter while it draws.

    >>> job = lambda rng, count: (rng.standard_normal((count, 3)),)
    >>> one, two = (in_blocks(job, np.random.default_rng(0), 10, size=4, workers=workers) for workers in (1, 2))
    >>> one.shape, bool(np.all(one == two))
    ((10, 3), True)
    """
    Integers(1, 10**10).check("draws", draws)
    Integers(1, 1024).check("workers", workers)
    counts = [min(size, draws - start) for start in range(0, draws, size)]
    if isinstance(rng, np.random.Generator):
        with ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(job, rng.spawn(len(counts)), counts))
    else:
        found = [job(rng, count) for count in counts]
    joined = tuple(array_namespace(parts[0]).concat(parts, axis=0) for parts in zip(*found, strict=True))
    return joined[0] if len(joined) == 1 else joined


def draw_last(array: Any) -> Any:
    """Move the draw from the first axis to the last."""
    return array_namespace(array).moveaxis(array, 0, -1)


def draw_first(array: Any) -> Any:
    """Move the draw from the last axis to the first."""
    return array_namespace(array).moveaxis(array, -1, 0)


def shape_scalars(scalars: Any, copies: int, draws: int) -> Any:
    """Scalars as they are returned: the draw first, and the axis of copies only if there are several."""
    whole = array_namespace(scalars).broadcast_to(scalars, (copies, *scalars.shape[1:-1], draws))
    return draw_first(whole[0] if copies == 1 else whole)


LINEAR = (instructions.Combine, instructions.Add, instructions.Center)


def draw_limit(program: Program, rng: Any, draws: int = 1, workers: int = 1) -> Any:
    """Draw the outputs of a program in the limit."""
    return in_blocks(lambda stream, count: Limit(program, stream, count).outputs(), rng, draws, _size(program), workers)


def kernels(program: Program, rng: Any, draws: int = 1, workers: int = 1) -> Any:
    """Draw ``E[x_i x_j]`` of the vectors that a program returns, given its scalars: (draw, position, position)."""
    names = [name for name in program.outputs if isinstance(program.kinds[name], Vectors)]
    if not names:
        raise DomainError("the program returns no vectors, so it has no kernels")

    def job(stream: Any, count: int) -> tuple[Any, ...]:
        limit = Limit(program, stream, count)
        return tuple(shape_scalars(limit.second(name, name), 1, count) for name in names)

    return in_blocks(job, rng, draws, _size(program), workers)


def _size(program: Program) -> int:
    largest = max((k.copies * math.prod(k.shape) for k in program.kinds.values() if isinstance(k, Scalars)), default=1)
    # scalars that a block of draws holds at once, so that they stay in the processor's cache
    return max(64, 2**18 // largest)


@dataclass
class Limit:
    """A block of draws: arrays of (copy, positions, draw), where either may be one; scalars and second moments kept."""

    program: Program
    rng: Any
    draws: int
    scalars: dict[str, Any] = field(default_factory=dict)
    seconds: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Draw the scalars, in order."""
        self.like = normal(self.rng, (1,))
        self.gaussian = gaussian_names(self.program.instructions, self.program.kinds)
        for each in self.program.instructions:
            if isinstance(each, instructions.Dot):
                self.scalars[each.name] = self._dot(each)
            elif isinstance(each, instructions.Moment):
                self.scalars[each.name] = self.mean(each.vectors)
            elif isinstance(each, instructions.ScalarMap):
                self.scalars[each.name] = each.function(*(self.scalars[name] for name in each.arguments))

    def _constant(self, value: Any) -> Any:
        return array_namespace(self.like).asarray(value, dtype=self.like.dtype, device=self.like.device)

    def _dot(self, each: instructions.Dot) -> Any:
        if each.scaling == "linear":
            return self.second(each.left, each.right)
        left, right = (cholesky(self.second(name, name)) for name in each.operands())
        query, key = (self.program.vectors(name) for name in each.operands())
        noise = normal(self.rng, (query.copies, query.count, key.count, self.draws))
        return product(product(left, noise), transpose(right))

    # -- moments of coordinates, given the scalars ---------------------------------------------------------------------

    def mean(self, name: str) -> Any:
        """``E[x_i]`` of a coordinate of a family of vectors, given the scalars drawn so far."""
        each, kind = self.program.table[name], self.program.vectors(name)
        if isinstance(each, instructions.Combine):
            return product(self.scalars[each.coefficients], self.mean(each.vectors)[..., None, :])[..., 0, :]
        if isinstance(each, instructions.Add):
            return self.mean(each.left) + self.mean(each.right)
        if isinstance(each, instructions.Nonlin):
            return self._expect([(each.function, each.arguments)])[..., 0, :]
        return self._constant(np.zeros((kind.copies, kind.count, 1)))

    def second(self, left: str, right: str) -> Any:
        """``E[x_i y_j]`` of a coordinate of two families of vectors, given the scalars drawn so far."""
        if (left, right) not in self.seconds:
            if (right, left) in self.seconds:
                return transpose(self.seconds[right, left])
            linear = isinstance(self.program.table[left], LINEAR)
            if not linear and isinstance(self.program.table[right], LINEAR):
                return transpose(self.second(right, left))
            self.seconds[left, right] = self._of_operands(left, right) if linear else self._of_leaves(left, right)
        return self.seconds[left, right]

    def _of_operands(self, left: str, right: str) -> Any:
        """``E[x_i y_j]`` where x is a linear function of earlier vectors, from second moments of those."""
        x = self.program.table[left]
        if isinstance(x, instructions.Combine):
            return product(self.scalars[x.coefficients], self.second(x.vectors, right))
        if isinstance(x, instructions.Add):
            return self.second(x.left, right) + self.second(x.right, right)
        below = x.operands()[0]
        return self.second(below, right) - self.mean(below)[..., :, None, :] * self.mean(right)[..., None, :, :]

    def _of_leaves(self, left: str, right: str) -> Any:
        """``E[x_i y_j]`` where neither is a linear function of earlier vectors: inputs, products, sums or functions."""
        x, y = self.program.table[left], self.program.table[right]
        if isinstance(x, instructions.Nonlin) or isinstance(y, instructions.Nonlin):
            return self._expect([_as_function(x), _as_function(y)])
        if isinstance(x, instructions.SumCopies) and isinstance(y, instructions.SumCopies):
            alike = self.second(x.vectors, y.vectors)  # of one copy only, if all are alike
            copies = self.program.vectors(x.vectors).copies // alike.shape[0]
            return copies * array_namespace(alike).sum(alike, axis=0, keepdims=True)
        if isinstance(x, instructions.MatMul) and isinstance(y, instructions.MatMul) and x.weight == y.weight:
            variance, below = self.program.weight(x.weight).variance, self.second(x.vectors, y.vectors)
            return below if variance == 1 else variance * below
        if isinstance(x, instructions.Input) and isinstance(y, instructions.Input):
            return self._constant(x.gram)[None, :, :, None]
        return self._constant(np.zeros((1, self.program.vectors(left).count, self.program.vectors(right).count, 1)))

    def _expect(self, factors: Sequence[tuple[Any, tuple[str, ...]]]) -> Any:
        """``E f(x_i, ...) g(y_j, ...)``, or ``E f(x_i, ...)`` alone, with axes (copy, i, j, draw)."""
        names = [(name, side) for side, (_, arguments) in enumerate(factors) for name in arguments]
        entries = [[self._between(*first, *second) for second in names] for first in names]
        if len(names) == len(factors):
            moment = first_moment if len(factors) == 1 else second_moment
            variances = [entries[k][k] for k in range(len(names))]
            return moment(*(f for f, _ in factors), *variances, *entries[0][1:])
        split = len(factors[0][1])

        def together(*coordinates: Any) -> Any:
            parts = (coordinates[:split], coordinates[split:])
            return math.prod(f(*part) for (f, _), part in zip(factors, parts, strict=False))

        xp = array_namespace(self.like)
        flat = xp.broadcast_arrays(*(entry for row in entries for entry in row))
        rows = [xp.stack(flat[k : k + len(names)], axis=-2) for k in range(0, len(flat), len(names))]
        return mean(together, xp.stack(rows, axis=-3))

    def _between(self, first: str, side: int, second: str, other: int) -> Any:
        """Covariances of two Gaussian arguments for all pairs of positions (i, j), with axes (copy, i, j, draw)."""
        # an argument of the first function (side 0) is at i, of the second at j; one axis has length one if sides agree
        whole = self.second(first, second)
        if side != other:
            return whole if side == 0 else transpose(whole)
        positions = np.arange(whole.shape[-2])
        diagonal = whole[:, positions, positions, :]
        return diagonal[:, :, None, :] if side == 0 else diagonal[:, None, :, :]

    # -- coordinates ---------------------------------------------------------------------------------------------------

    def outputs(self) -> tuple[Any, ...]:
        """Scalars as drawn, and a coordinate of each vector."""
        drawn = self._coordinates()
        return tuple(
            draw_first(self._evaluate(name, drawn)[0])
            if isinstance(self.program.kinds[name], Vectors)
            else shape_scalars(self.scalars[name], self.program.kinds[name].copies, self.draws)
            for name in self.program.outputs
        )

    def _coordinates(self) -> dict[str, Any]:
        """The Gaussian vectors under the outputs, drawn together."""
        names: dict[str, None] = {}
        for name in self.program.outputs:
            if isinstance(self.program.kinds[name], Vectors):
                names |= dict.fromkeys(self._leaves(name))
        if not names:
            return {}
        factor = cholesky(block([[self.second(a, b) for b in names] for a in names]))
        noise = normal(self.rng, (1, factor.shape[-2], 1, self.draws))
        joint = product(factor, noise)[..., 0, :]
        ends = np.cumsum([0, *(self.program.vectors(name).count for name in names)]).tolist()
        return {name: joint[:, start:end] for name, start, end in zip(names, ends, ends[1:], strict=False)}

    def _leaves(self, name: str) -> list[str]:
        if name in self.gaussian:
            return [name]
        below = self.program.table[name].operands()
        return [leaf for each in below if isinstance(self.program.kinds[each], Vectors) for leaf in self._leaves(each)]

    def _evaluate(self, name: str, drawn: dict[str, Any]) -> Any:
        each = self.program.table[name]
        if name in drawn:
            return drawn[name]
        if isinstance(each, instructions.Nonlin):
            return each.function(*(self._evaluate(argument, drawn) for argument in each.arguments))
        if isinstance(each, instructions.Combine):
            vectors = self._evaluate(each.vectors, drawn)
            return product(self.scalars[each.coefficients], vectors[..., None, :])[..., 0, :]
        if isinstance(each, instructions.Add):
            return self._evaluate(each.left, drawn) + self._evaluate(each.right, drawn)
        below = each.operands()[0]
        return self._evaluate(below, drawn) - self.mean(below)


def _as_function(each: Any) -> tuple[Any, tuple[str, ...]]:
    return (each.function, each.arguments) if isinstance(each, instructions.Nonlin) else (IDENTITY, (each.name,))
