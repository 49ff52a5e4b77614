"""A program in the limit of infinite width: exact draws, without any matrix.

In the limit the coordinates of vectors are independent and alike; what is left of a family of vectors is the law of one
coordinate, given the scalars (*width*, Theorem 3.1):

- products with weights are Gaussian, ``Cov(W x, W y) = variance E[x y]``, and independent for different weights;
- dot products over n are means, ``x · y / n -> E[x y]``;
- dot products over the root of n are Gaussian, with covariance ``Cov(q_i, q_r) Cov(k_j, k_s)``, and independent of all
  coordinates.

So the scalars are drawn in order, each given those before it, and second moments ``E[x y]`` are all that is needed
of the vectors, which are drawn at the end. In a deep program these second moments are random: the kernels of a layer
are drawn given those of the layer before, a Markov chain (ours; *width* has one layer; docs/theory/width.md, "Depth: a
Markov chain of kernels").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.programs import instructions
from bulkedge.programs.activations import IDENTITY, first_moment, second_moment
from bulkedge.programs.finite import draw_first, in_blocks, shape_scalars
from bulkedge.programs.gaussian import block, cholesky, mean, product, transpose
from bulkedge.programs.graph import Program
from bulkedge.programs.instructions import Scalars, Vectors, gaussian_names
from bulkedge.support.errors import DomainError
from bulkedge.support.random import normal

LINEAR = (instructions.Combine, instructions.Add, instructions.Center)
CACHE = 2**18  # scalars that a block of draws holds at once, so that they stay in the processor's cache


def run(program: Program, rng: Any, draws: int = 1, workers: int = 1) -> Any:
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
    return max(64, CACHE // largest)


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
