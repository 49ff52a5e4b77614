"""The instructions of a tensor program, and what each of them makes: matrices, vectors or scalars.

Vectors come in families, one for each position of a sequence; a family may have several independent copies, one for
each head. Their width is a share of n. Scalars are arrays of fixed size.

:func:`check_scope` says which programs have a limit that is known: the conditions of the theorem of *width*. In a
tensor program (Netsor) the product of a weight and a vector is a Gaussian vector, independent of all others except
products with the same weight. Dot products over the root of n are Gaussian scalars if their two vectors come from
different weights and neither depends on the weight of the other (docs/theory/width.md, "Programs").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np

from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, Interval, SymmetricMatrix
from bulkedge.support.errors import DomainError

DotScaling = Literal["sqrt", "linear"]
COUNT = Integers(1, 10_000)
VARIANCE = Interval(1e-12, 1e12)


@dataclass(frozen=True)
class Matrix:
    """A weight: its shape in shares of n, and how many independent copies there are."""

    rows: Fraction
    columns: Fraction
    copies: int

    def __str__(self) -> str:
        return f"matrix {_width(self.rows)} × {_width(self.columns)}{_copies(self.copies)}"


@dataclass(frozen=True)
class Vectors:
    """A family of vectors: one for each position."""

    count: int
    share: Fraction
    copies: int = 1

    def __str__(self) -> str:
        return f"{self.count} vectors of width {_width(self.share)}{_copies(self.copies)}"


@dataclass(frozen=True)
class Scalars:
    """An array of scalars."""

    shape: tuple[int, ...]
    copies: int = 1

    def __str__(self) -> str:
        return f"{' × '.join(map(str, self.shape))} scalars{_copies(self.copies)}"


ValueKind = Matrix | Vectors | Scalars
ValueKinds = Mapping[str, ValueKind]


def _width(share: Fraction) -> str:
    return "n" if share == 1 else f"{'' if share.numerator == 1 else share.numerator}n/{share.denominator}"


def _copies(copies: int) -> str:
    return "" if copies == 1 else f", {copies} copies"


@dataclass(frozen=True)
class Instruction(ABC):
    """One line of a program: a name, and how its value comes from those of earlier lines."""

    name: str
    reads: ClassVar[tuple[str, ...]] = ()
    form: ClassVar[str]

    def operands(self) -> tuple[str, ...]:
        """Names of the values it needs, in the fields ``reads``: a name each, or several."""
        found = (getattr(self, each) for each in self.reads)
        return tuple(name for each in found for name in ((each,) if isinstance(each, str) else each))

    @abstractmethod
    def makes(self, kinds: ValueKinds) -> ValueKind:
        """The kind of its result, for operands of these kinds; a ValueError with the reason if they do not fit."""

    def formula(self) -> str:
        """The right-hand side: ``form`` with the fields in it."""
        return self.form.format(**vars(self))

    def __str__(self) -> str:
        return f"{self.name} = {self.formula()}"

    def _refuse(self, why: str) -> DomainError:
        return DomainError(f"{self}: {why}")

    def _vectors(self, kinds: ValueKinds, name: str) -> Vectors:
        if isinstance(kind := kinds[name], Vectors):
            return kind
        raise self._refuse(f"{name} must be vectors; it is {kind}")

    def _scalars(self, kinds: ValueKinds, name: str) -> Scalars:
        if isinstance(kind := kinds[name], Scalars):
            return kind
        raise self._refuse(f"{name} must be scalars; it is {kind}")


@dataclass(frozen=True)
class Input(Instruction):
    """Vectors with a given Gram matrix, ``x_i · x_j / n = gram_ij``, in random directions."""

    gram: tuple[tuple[float, ...], ...]
    form = "input"

    def makes(self, kinds: ValueKinds) -> Vectors:  # noqa: ARG002  # inputs depend on nothing
        """A vector for each row of the Gram matrix."""
        return Vectors(len(check_gram(self.gram)), Fraction(1))


@dataclass(frozen=True)
class Weight(Instruction):
    """Independent Gaussian entries of variance ``variance`` over the number of columns."""

    rows: Fraction
    columns: Fraction
    variance: float
    copies: int

    def makes(self, kinds: ValueKinds) -> Matrix:  # noqa: ARG002  # weights depend on nothing
        """A matrix for each copy."""
        COUNT.check("copies", self.copies)
        VARIANCE.check("variance", self.variance)
        return Matrix(self.rows, self.columns, self.copies)

    def formula(self) -> str:
        """``weight``, with its variance."""
        return "weight" if self.variance == 1 else f"weight of variance {self.variance:.4g}"


@dataclass(frozen=True)
class MatMul(Instruction):
    """A weight times vectors."""

    weight: str
    vectors: str
    reads = ("weight", "vectors")
    form = "{weight} {vectors}"

    def makes(self, kinds: ValueKinds) -> Vectors:
        """As many vectors, of the height of the matrix."""
        weight, vectors = kinds[self.weight], self._vectors(kinds, self.vectors)
        if not isinstance(weight, Matrix):
            raise self._refuse(f"{self.weight} must be a weight; it is {weight}")
        if weight.columns != vectors.share:
            raise self._refuse(f"{self.weight} is a {weight}, which does not fit {vectors}")
        if vectors.copies not in (1, weight.copies):
            raise self._refuse(f"{vectors.copies} copies need a weight each; {self.weight} has {weight.copies}")
        return Vectors(vectors.count, weight.rows, weight.copies)


@dataclass(frozen=True)
class Nonlin(Instruction):
    """A function of the coordinates of several families, position by position."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]
    reads = ("arguments",)

    def makes(self, kinds: ValueKinds) -> Vectors:
        """Vectors like its arguments, which are all alike."""
        given = {self._vectors(kinds, name) for name in self.arguments}
        if len(given) != 1:
            raise self._refuse(f"arguments must be of one kind; got {', '.join(map(str, given)) or 'none'}")
        return given.pop()

    def formula(self) -> str:
        """``f(g, ...)``."""
        return f"{name_of(self.function)}({', '.join(self.arguments)})"


@dataclass(frozen=True)
class Combine(Instruction):
    """Combinations of the positions, with scalars as coefficients: ``y_i = sum_j a_ij x_j``."""

    coefficients: str
    vectors: str
    reads = ("coefficients", "vectors")
    form = "{coefficients} {vectors}"

    def makes(self, kinds: ValueKinds) -> Vectors:
        """A vector for each row of coefficients."""
        scalars, vectors = self._scalars(kinds, self.coefficients), self._vectors(kinds, self.vectors)
        if len(scalars.shape) != 2 or scalars.shape[1] != vectors.count:
            raise self._refuse(f"coefficients are {scalars}, which do not fit {vectors}")
        if scalars.copies not in (1, vectors.copies):
            raise self._refuse(f"{scalars.copies} copies of coefficients do not fit {vectors}")
        return Vectors(scalars.shape[0], vectors.share, vectors.copies)


@dataclass(frozen=True)
class Add(Instruction):
    """The sum of two families."""

    left: str
    right: str
    reads = ("left", "right")
    form = "{left} + {right}"

    def makes(self, kinds: ValueKinds) -> Vectors:
        """Vectors like both operands, which must be alike."""
        left, right = (self._vectors(kinds, name) for name in self.operands())
        if left != right:
            raise self._refuse(f"cannot add {right} to {left}")
        return left


@dataclass(frozen=True)
class SumCopies(Instruction):
    """The sum over all copies, as over heads."""

    vectors: str
    reads = ("vectors",)
    form = "sum of copies of {vectors}"

    def makes(self, kinds: ValueKinds) -> Vectors:
        """As many vectors, in a single copy."""
        vectors = self._vectors(kinds, self.vectors)
        return Vectors(vectors.count, vectors.share)


@dataclass(frozen=True)
class Center(Instruction):
    """Vectors minus the mean of their coordinates."""

    vectors: str
    reads = ("vectors",)
    form = "{vectors} - mean of {vectors}"

    def makes(self, kinds: ValueKinds) -> Vectors:
        """Vectors like its operand."""
        return self._vectors(kinds, self.vectors)


@dataclass(frozen=True)
class Moment(Instruction):
    """Means of the coordinates: of a :class:`Nonlin`, any moment."""

    vectors: str
    reads = ("vectors",)
    form = "mean of {vectors}"

    def makes(self, kinds: ValueKinds) -> Scalars:
        """A scalar for each vector."""
        vectors = self._vectors(kinds, self.vectors)
        return Scalars((vectors.count,), vectors.copies)


@dataclass(frozen=True)
class Dot(Instruction):
    """Dot products of all pairs of positions, over the root of the width (``"sqrt"``) or the width (``"linear"``)."""

    left: str
    right: str
    scaling: DotScaling
    reads = ("left", "right")

    def makes(self, kinds: ValueKinds) -> Scalars:
        """A scalar for each pair of a left and a right position."""
        Choice(("sqrt", "linear")).check("scaling", self.scaling)
        left, right = (self._vectors(kinds, name) for name in self.operands())
        if (left.share, left.copies) != (right.share, right.copies):
            raise self._refuse(f"no dot product of {left} and {right}")
        return Scalars((left.count, right.count), left.copies)

    def formula(self) -> str:
        """``q · k / √n``; n is the width of the two."""
        return f"{self.left} · {self.right} / {'√n' if self.scaling == 'sqrt' else 'n'}"


@dataclass(frozen=True)
class ScalarMap(Instruction):
    """Scalars from scalars. The function sees arrays with the draw as their last axis, and the copy as their first."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]
    reads = ("arguments",)

    def makes(self, kinds: ValueKinds) -> Scalars:
        """Whatever shape the function returns for zeros."""
        given = [self._scalars(kinds, name) for name in self.arguments]
        with np.errstate(all="ignore"):
            found = np.shape(self.function(*(np.zeros((each.copies, *each.shape, 1)) for each in given)))
        if len(found) < 2 or found[-1] != 1 or found[0] != max(each.copies for each in given):
            raise self._refuse(f"the function must keep the first axis (copies) and the last (draws); got {found}")
        return Scalars(found[1:-1], found[0])

    def formula(self) -> str:
        """``f(p, ...)``."""
        return f"{name_of(self.function)}({', '.join(self.arguments)})"


def name_of(function: Callable[..., Any]) -> str:
    """The name by which the printed program shows a function."""
    return getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__


def check_gram(gram: Any) -> Real:
    """The matrix of the ``x_i · x_j / n`` as an array, if it is symmetric and positive semidefinite."""
    matrix: Real = SymmetricMatrix().check("gram", gram)
    return matrix


def check_scope(instructions: Sequence[Instruction], kinds: ValueKinds) -> None:
    """Raise a ValueError at the first line whose limit is not known."""
    table = {each.name: each for each in instructions}
    gaussian = gaussian_names(instructions, kinds)
    pairs: dict[frozenset[str], str] = {}
    for each in instructions:
        if isinstance(each, Dot) and each.scaling == "sqrt":
            pair = _fresh_pair(each, table)
            if pair in pairs:
                raise _outside(each, f"{pairs[pair]} has the same two weights: take all their dot products in one")
            pairs[pair] = each.name
        elif isinstance(each, (Nonlin, SumCopies)):
            wrong = [name for name in each.operands() if name not in gaussian]
            if wrong:
                remedy = "make it one function" if isinstance(each, Nonlin) else "multiply it by a weight first"
                raise _outside(each, f"{wrong[0]} is not Gaussian given the scalars: {remedy}")


def gaussian_names(instructions: Sequence[Instruction], kinds: ValueKinds) -> set[str]:
    """Vectors that are Gaussian given the scalars: inputs, products with weights, and their linear images."""
    found: set[str] = set()
    for each in instructions:
        linear = not isinstance(each, (Nonlin, Weight))
        images = all(name in found for name in each.operands() if not isinstance(kinds[name], Scalars))
        if isinstance(each, (Input, MatMul)) or (linear and images and not isinstance(kinds[each.name], Scalars)):
            found.add(each.name)
    return found


def _fresh_pair(each: Dot, table: dict[str, Instruction]) -> frozenset[str]:
    """The two weights of a dot product over the root of n."""
    sides = [table[name] for name in each.operands()]
    for side in sides:
        if not isinstance(side, MatMul):
            raise _outside(each, f"{side.name} must come straight from a weight (only 'linear' scaling takes others)")
    left, right = (side.weight for side in sides if isinstance(side, MatMul))
    if left == right:
        raise _outside(each, f"both come from {left}: their dot product grows like √n; use scaling='linear'")
    for weight, other in ((left, sides[1]), (right, sides[0])):
        if weight in _ancestors(other.operands()[1], table):
            raise _outside(each, f"{other.name} depends on {weight}, which the other side comes from")
    return frozenset((left, right))


def _ancestors(name: str, table: dict[str, Instruction]) -> set[str]:
    """All names that a value is computed from."""
    found, waiting = set(), [name]
    while waiting:
        for operand in table[waiting.pop()].operands():
            if operand not in found:
                found.add(operand)
                waiting.append(operand)
    return found


def _outside(each: Instruction, why: str) -> DomainError:
    return DomainError(f"{each} is outside of the theorem: {why}")
