"""Tensor programs with dot products: written by tracing a Python function, checked, printed, run two ways.

A program computes with vectors of width n and with scalars. At width n its weights are random matrices
(:mod:`bulkedge.programs.interpreters`); as n grows its coordinates and scalars have a limit, which is sampled without
any matrix. The theorem is that of *width* (arXiv 2506.00846): Netsor, with dot products over the root of n as random
scalars. What lies outside of it is refused, with the reason.

>>> import numpy as np
>>> def head(x):
...     score = dot(linear(x), linear(x))
...     return scalar(softmax, score) @ linear(x)
>>> program = trace(head, [[1.0, 0.5], [0.5, 1.0]])
>>> print(program)
x0 = input              2 vectors of width n
W1 = weight             matrix n × n
g2 = W1 x0              2 vectors of width n
W3 = weight             matrix n × n
g4 = W3 x0              2 vectors of width n
p5 = g2 · g4 / √n       2 × 2 scalars
a6 = softmax(p5)        2 × 2 scalars
W7 = weight             matrix n × n
g8 = W7 x0              2 vectors of width n
y9 = a6 g8              2 vectors of width n
return y9
>>> program.limit(np.random.default_rng(0), draws=1000).shape      # a coordinate of each vector
(1000, 2)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from bulkedge import visibility as masks
from bulkedge.programs import instructions
from bulkedge.programs.instructions import DotScaling, Instruction, Matrix, Scalars, ValueKind, Vectors, Weight
from bulkedge.support.domains import FLAG, FUNCTION, Array, Choice, Instance, refused, shown, takes
from bulkedge.support.errors import DomainError


@dataclass(frozen=True)
class Program:
    """Instructions in order, and the names of what they return.

    >>> program = trace(lambda x: linear(x), [[1.0]])
    >>> len(program.instructions), program.outputs
    (3, ('g2',))
    """

    instructions: tuple[Instruction, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that every line makes sense, and that the limit is known."""
        instructions.check_scope(self.instructions, self.kinds)
        for name in self.outputs:
            kind = self.kinds[name]
            if isinstance(kind, Matrix) or (isinstance(kind, Vectors) and kind.copies > 1):
                raise DomainError(f"{name} is {kind}: return scalars, or vectors with their copies summed")

    @cached_property
    def kinds(self) -> dict[str, ValueKind]:
        """What each name stands for."""
        found: dict[str, ValueKind] = {}
        for each in self.instructions:
            missing = [name for name in each.operands() if name not in found]
            if missing or each.name in found:
                raise DomainError(f"{each}: {', '.join(missing) or each.name} must be defined before, and once")
            found[each.name] = each.makes(found)
        return found

    @cached_property
    def table(self) -> dict[str, Instruction]:
        """The instructions by name."""
        return {each.name: each for each in self.instructions}

    @cached_property
    def reused_weights(self) -> set[str]:
        """Weights that are used more than once."""
        uses = [each.weight for each in self.instructions if isinstance(each, instructions.MatMul)]
        return {name for name in uses if uses.count(name) > 1}

    def vectors(self, name: str) -> Vectors:
        """The kind of a family of vectors that the program computes."""
        return _vectors(name, self.kinds[Choice(tuple(self.kinds)).check("name", name)])

    def weight(self, name: str) -> Weight:
        """The instruction that makes the weight of that name."""
        found = self.table[Choice(tuple(self.table)).check("name", name)]
        if isinstance(found, Weight):
            return found
        raise DomainError(f"{found} is not a weight")

    @takes(dense=FLAG)
    def finite(self, width: int, rng: Any, draws: int = 1, *, dense: bool = False) -> Any:
        """Run with real weights of width n, each draw with its own.

        Parameters
        ----------
        width : int
            Width n; heads of width n/H must divide it.
        rng : numpy.random.Generator or torch.Generator
            Chooses backend and device.
        draws : int
            Independent draws.
        dense : bool
            Draw whole matrices, instead of what they do to the vectors they meet. The law is the same.

        Returns
        -------
        array or tuple of arrays
            For each output, with the draw first: scalars, or the first coordinate of each vector.
        """
        from bulkedge.programs.interpreters import draw_finite

        return draw_finite(self, width, rng, draws, dense=dense)

    def limit(self, rng: Any, draws: int = 1) -> Any:
        """Draw from the limit of infinite width.

        Parameters
        ----------
        rng : numpy.random.Generator or torch.Generator
            Chooses backend and device.
        draws : int
            Independent draws.

        Returns
        -------
        array or tuple of arrays
            For each output, with the draw first: scalars, or a coordinate of each vector.
        """
        from bulkedge.programs.interpreters import draw_limit

        return draw_limit(self, rng, draws)

    def kernels(self, rng: Any, draws: int = 1) -> Any:
        """Draw the covariance of the outputs given the scalars.

        Parameters
        ----------
        rng : numpy.random.Generator or torch.Generator
            Chooses backend and device.
        draws : int
            Independent draws of the scalars.

        Returns
        -------
        array of shape (draws, positions, positions)
            ``E[y_i y_j]`` given the scalars; a tuple of such arrays if the program returns several families of vectors.
        """
        from bulkedge.programs.interpreters import kernels

        return kernels(self, rng, draws)

    def __str__(self) -> str:
        margin = max(len(str(each)) for each in self.instructions) + 6
        lines = [f"{each!s:<{margin}}{self.kinds[each.name]}" for each in self.instructions]
        return "\n".join([*lines, f"return {', '.join(self.outputs)}"])


@dataclass
class Tracer:
    """Instructions, as they are written."""

    written: list[Instruction] = field(default_factory=list)
    kinds: dict[str, ValueKind] = field(default_factory=dict)

    def write(self, letter: str, kind: type[Instruction], *operands: Any) -> Traced:
        """Append an instruction; its name is a letter and its place."""
        each = kind(f"{letter}{len(self.written)}", *operands)
        self.kinds[each.name] = each.makes(self.kinds)
        self.written.append(each)
        return Traced(self, each.name)


@dataclass(frozen=True, eq=False)
class Traced:
    """A value of a program that is being written."""

    tracer: Tracer
    name: str

    @property
    def kind(self) -> ValueKind:
        """Matrix, vectors or scalars."""
        return self.tracer.kinds[self.name]

    def __matmul__(self, vectors: Traced) -> Traced:
        """A weight times vectors, or scalars as coefficients of vectors."""
        if isinstance(self.kind, Scalars):
            return self.tracer.write("y", instructions.Combine, self.name, vectors.name)
        return self.tracer.write("g", instructions.MatMul, self.name, vectors.name)

    def __add__(self, other: Traced) -> Traced:
        """The sum of two families of vectors."""
        return self.tracer.write("y", instructions.Add, self.name, other.name)

    @property
    def T(self) -> Traced:  # noqa: N802  # as NumPy spells it
        """Refused: Netsor knows no transposes."""
        raise DomainError(
            f"{self.name}.T: a weight and its transpose in one program are outside of Netsor, whose limit takes every "
            "product with a weight as fresh Gaussian noise; use two weights"
        )


class Share:
    """Domain of widths over n: fractions, which must not be rounded."""

    def check(self, name: str, value: Any) -> Fraction:
        """Return the share, or raise."""
        try:
            share = Fraction(value)
        except (TypeError, ValueError, ArithmeticError):
            share = Fraction(0)
        if not 0 < share <= 10**6 or isinstance(value, str):
            raise refused(name, value, self)
        return share

    def parse(self, name: str, text: str) -> Fraction:
        """Read a fraction."""
        return self.check(name, Fraction(text))

    def __str__(self) -> str:
        return "fractions above zero, such as Fraction(1, 2) or 1"


TRACED, SHARE = Instance(Traced), Share()


@takes(function=FUNCTION)
def trace(function: Callable[[Traced], Traced | tuple[Traced, ...]], gram: Any) -> Program:
    """Trace a function of inputs with this Gram matrix into a program.

    Parameters
    ----------
    function : callable
        Takes the inputs as a :class:`Traced` family of vectors and returns one traced value or a tuple of them. It is
        called once; Python's own loops and conditions are unrolled.
    gram : array_like of shape (inputs, inputs)
        ``x_i · x_j / n`` of the inputs; symmetric, positive semidefinite.

    Returns
    -------
    Program
        Checked: its limit is known.

    Raises
    ------
    DomainError
        With the line and the reason, if the theorem does not cover what was written.

    Examples
    --------
    >>> program = trace(lambda x: linear(x), [[1.0]])
    >>> program.outputs
    ('g2',)
    """
    tracer = Tracer()
    rows = tuple(tuple(row) for row in instructions.check_gram(gram).tolist())
    returned = function(tracer.write("x", instructions.Input, rows))
    outputs = returned if isinstance(returned, tuple) else (returned,)
    if not outputs or not all(isinstance(each, Traced) for each in outputs):
        raise DomainError(f"function returned {shown(returned)}: it must return traced values, or a tuple of them")
    return Program(tuple(tracer.written), tuple(each.name for each in outputs))


@takes(vectors=TRACED, share=SHARE, variance=instructions.VARIANCE, copies=instructions.COUNT)
def weight(vectors: Traced, share: Fraction | int = 1, variance: float = 1.0, copies: int = 1) -> Traced:
    """A fresh weight with as many columns as the vectors have coordinates, and ``share`` times n rows.

    Its entries have variance ``variance`` over the number of columns; there are ``copies`` independent ones (heads).

    Parameters
    ----------
    vectors : Traced
        The vectors it is going to meet; of them only the width is read.
    share : Fraction or int
        Number of rows over n.
    variance : float
        Variance of an entry, times the number of columns: with one, norms ``|x|**2/n`` are kept.
    copies : int
        Number of independent weights, one for each head.

    Returns
    -------
    Traced
        The weight; ``weight @ vectors`` applies it.

    Examples
    --------
    >>> print(trace(lambda x: weight(x, variance=2) @ x, [[1.0]]))
    x0 = input                     1 vectors of width n
    W1 = weight of variance 2      matrix n × n
    g2 = W1 x0                     1 vectors of width n
    return g2
    """
    columns = _vectors(vectors.name, vectors.kind).share
    return vectors.tracer.write("W", Weight, share, columns, variance, copies)


def _vectors(name: str, kind: ValueKind) -> Vectors:
    if isinstance(kind, Vectors):
        return kind
    raise DomainError(f"{name} must be vectors; it is {kind}")


@takes(vectors=TRACED, share=SHARE, variance=instructions.VARIANCE, copies=instructions.COUNT)
def linear(vectors: Traced, share: Fraction | int = 1, variance: float = 1.0, copies: int = 1) -> Traced:
    """Vectors multiplied by a fresh random weight.

    Parameters
    ----------
    vectors : Traced
        What the weight is applied to.
    share : Fraction or int
        Width of the result over n.
    variance : float
        Variance of an entry of the weight, times the number of its columns.
    copies : int
        Number of independent weights, one for each head; the result has as many copies.

    Returns
    -------
    Traced
        Vectors, one for each of those given.

    Examples
    --------
    >>> trace(linear, [[1.0]]).outputs
    ('g2',)
    """
    return weight(vectors, share, variance, copies) @ vectors


@takes(function=FUNCTION, vectors=TRACED)
def nonlin(function: Callable[..., Any], *vectors: Traced) -> Traced:
    """A function of the coordinates of vectors, coordinate by coordinate and position by position.

    Parameters
    ----------
    function : callable
        From as many arrays as there are families to one of the same shape, coordinate by coordinate; or an activation
        such as :data:`RELU`.
    *vectors : Traced
        Families of vectors, alike in number, width and copies.

    Returns
    -------
    Traced
        Vectors like these: position i has the function of the vectors at position i.

    Examples
    --------
    >>> import numpy as np
    >>> trace(lambda x: nonlin(np.tanh, linear(x)), [[1.0]]).outputs
    ('h3',)
    """
    return vectors[0].tracer.write("h", instructions.Nonlin, function, tuple(each.name for each in vectors))


@takes(function=FUNCTION, scalars=TRACED)
def scalar(function: Callable[..., Any], *scalars: Traced) -> Traced:
    """A function of scalars; see :class:`~bulkedge.programs.instructions.ScalarMap`.

    Parameters
    ----------
    function : callable
        Of arrays with axes (copy, ..., draw); it must keep the first and the last.
    *scalars : Traced
        Its arguments.

    Returns
    -------
    Traced
        Scalars of whatever shape the function returns.

    Examples
    --------
    >>> program = trace(lambda x: scalar(softmax, dot(linear(x), linear(x))), [[1.0]])
    >>> program.outputs
    ('a6',)
    """
    return scalars[0].tracer.write("a", instructions.ScalarMap, function, tuple(each.name for each in scalars))


@takes(left=TRACED, right=TRACED)
def dot(left: Traced, right: Traced, scaling: DotScaling = "sqrt") -> Traced:
    """Dot products of all pairs, over the root of the width or over the width.

    Parameters
    ----------
    left, right : Traced
        Families of vectors of one width and number of copies.
    scaling : {"sqrt", "linear"}
        Over the root of the width, a Gaussian in the limit; or over the width, a mean.

    Returns
    -------
    Traced
        Scalars of shape (left positions, right positions), for each copy.

    Examples
    --------
    >>> trace(lambda x: dot(linear(x), linear(x)), [[1.0]]).kinds["p5"]
    Scalars(shape=(1, 1), copies=1)
    """
    return left.tracer.write("p", instructions.Dot, left.name, right.name, scaling)


@takes(vectors=TRACED)
def moment(vectors: Traced) -> Traced:
    """The mean over the coordinates of each vector: ``sum_k x_ik / n``, a scalar in the limit.

    Parameters
    ----------
    vectors : Traced
        A family of vectors, for instance a :func:`nonlin`.

    Returns
    -------
    Traced
        Scalars of shape (positions,): the sum of the coordinates over the width.

    Examples
    --------
    >>> import numpy as np
    >>> program = trace(lambda x: moment(nonlin(np.square, linear(x))), [[4.0]])
    >>> program.limit(np.random.default_rng(0)).round(6)            # the mean square, four
    array([[4.]])
    """
    return vectors.tracer.write("m", instructions.Moment, vectors.name)


@takes(vectors=TRACED)
def center(vectors: Traced) -> Traced:
    """Each vector minus the mean of its coordinates.

    Parameters
    ----------
    vectors : Traced
        A family of vectors.

    Returns
    -------
    Traced
        Vectors like these, whose coordinates have mean zero at each position.

    Examples
    --------
    >>> trace(lambda x: center(linear(x)), [[1.0]]).outputs
    ('y3',)
    """
    return vectors.tracer.write("y", instructions.Center, vectors.name)


@takes(vectors=TRACED)
def sum_copies(vectors: Traced) -> Traced:
    """The sum over copies (heads) of a family of vectors.

    Parameters
    ----------
    vectors : Traced
        A family with several copies (heads).

    Returns
    -------
    Traced
        A family with one copy: the sum of them, position by position.

    Examples
    --------
    >>> trace(lambda x: sum_copies(linear(x, copies=3)), [[1.0]]).outputs
    ('y3',)
    """
    return vectors.tracer.write("y", instructions.SumCopies, vectors.name)


@takes(scores=Array(least=2))
def softmax(scores: Any) -> Any:
    """Softmax over the keys, of scores with axes (copy, query, key, draw).

    Parameters
    ----------
    scores : array with axes (copy, query, key, draw)
        NumPy or torch.

    Returns
    -------
    array of the same shape
        Attention weights, which sum to one over the keys.

    Examples
    --------
    >>> import numpy as np
    >>> softmax(np.zeros((1, 1, 4, 1))).ravel().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return masks.softmax(scores, axis=-2)
