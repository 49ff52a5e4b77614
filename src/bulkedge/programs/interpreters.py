"""A program at width n, with every draw's own weights, many draws at a time.

Only what a weight does to the vectors it meets is ever seen. Given their Gram matrix ``M = L L'`` that is ``L Z`` with
Z Gaussian, at any width: a weight is *revealed* as it is used, at the cost of a few vectors instead of a matrix, and
the law is exactly that of whole matrices (``dense=True``, which draws those). When the weight meets further vectors
the factor of the larger Gram matrix extends the earlier one, and so does Z.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import singledispatchmethod
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.programs import instructions
from bulkedge.programs.gaussian import cholesky
from bulkedge.programs.graph import Program
from bulkedge.programs.instructions import Instruction, Matrix, Scalars, Vectors, Weight
from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError
from bulkedge.support.random import normal

MEMORY = 2**22  # numbers that a block of draws may hold at once; 32 MB in double precision


def run(program: Program, width: int, rng: Any, draws: int = 1, *, dense: bool = False) -> Any:
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
