"""Parameters that state their domain once: for validation, for documentation and for property tests.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Shape(Parametric):
...     ratio: float = parameter(Interval(0, 1, "(]"), "width over height")
>>> Shape(ratio=2)
Traceback (most recent call last):
    ...
bulkedge.support.errors.DomainError: ratio = 2 is outside its domain (0, 1]
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, Protocol
from unicodedata import category

import numpy as np

from bulkedge.support.arrays import as_numpy
from bulkedge.support.errors import DomainError


class Domain(Protocol):
    """A set of admissible values."""

    def check(self, name: str, value: Any) -> Any:
        """Return the value in its canonical form, or raise a ValueError that names it."""

    def parse(self, name: str, text: str) -> Any:
        """Read the value from a command line; the result is checked."""


SHOWN = 80
"""Characters of a value that an error message shows."""


def shown(value: object) -> str:
    """A value for an error message: its repr on one line, cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - numbers of thousands of digits refuse to be written, for one
        return f"an object of class {type(value).__name__}"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def refused(name: str, value: object, domain: object) -> DomainError:
    """The error that every domain raises for a value outside of it."""
    return DomainError(f"{name} = {shown(value)} is outside its domain {domain}")


def _is_single(value: Any) -> bool:
    """Whether a value can be a real number: no text, no container, no array with axes, not complex, not masked."""
    if isinstance(value, str | bytes | list | tuple | dict | set) or value is np.ma.masked:
        return False
    return getattr(value, "ndim", 0) == 0 and not np.iscomplexobj(value)


@dataclass(frozen=True)
class Interval:
    """Real numbers between two bounds; ``ends`` says with brackets which bounds belong to it."""

    low: float
    high: float
    ends: str = "[]"
    infinity: bool = False

    def check(self, name: str, value: Any) -> float:
        """Return the value as a float, or raise."""
        try:
            number = float(value) if _is_single(value) else math.nan
        except (TypeError, ValueError, OverflowError):
            raise refused(name, value, self) from None
        above = number >= self.low if self.ends[0] == "[" else number > self.low
        below = number <= self.high if self.ends[1] == "]" else number < self.high
        if not (above and below) and not (self.infinity and number == math.inf):
            raise refused(name, value, self)
        return number

    def parse(self, name: str, text: str) -> float:
        """Read a number."""
        try:
            return self.check(name, float(text))
        except ValueError:
            raise refused(name, text, self) from None

    def __str__(self) -> str:
        infinity = " or infinity" if self.infinity else ""
        return f"{self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}{infinity}"


@dataclass(frozen=True)
class Integers:
    """Whole numbers between two bounds, both included."""

    low: int
    high: int

    def check(self, name: str, value: Any) -> int:
        """Return the value as an int, or raise."""
        try:
            whole = _is_single(value) and int(value) == value
        except (TypeError, ValueError, OverflowError):
            whole = False
        if not whole or not self.low <= value <= self.high:
            raise refused(name, value, self)
        return int(value)

    def parse(self, name: str, text: str) -> int:
        """Read a whole number; 1e4 is one too."""
        try:
            return self.check(name, float(text))
        except ValueError:
            raise refused(name, text, self) from None

    def __str__(self) -> str:
        return f"{{{self.low}, ..., {self.high}}}"


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    options: tuple[Any, ...]

    def check(self, name: str, value: Any) -> Any:
        """Return the value, or raise."""
        if getattr(value, "ndim", 0) or value not in self.options:
            raise refused(name, value, self)
        return value

    def parse(self, name: str, text: str) -> Any:
        """Find the option that is written so."""
        return self.check(name, next((option for option in self.options if str(option) == text), text))

    def __str__(self) -> str:
        return "{" + ", ".join(repr(option) for option in self.options) + "}"


UNWRITTEN = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode's categories of control characters, halves of characters, and what ends lines and paragraphs."""


@dataclass(frozen=True)
class Text:
    """Names and paths: one line of characters that can be written, the empty one included."""

    most: int = 1000

    def check(self, name: str, value: Any) -> str:
        """Return the text, or raise."""
        if not isinstance(value, str) or len(value) > self.most or any(category(each) in UNWRITTEN for each in value):
            raise refused(name, value, self)
        return str(value)

    def parse(self, name: str, text: str) -> str:
        """A text is what is written."""
        return self.check(name, text)

    def __str__(self) -> str:
        return f"texts of one line and up to {self.most} characters"


@dataclass(frozen=True)
class Instance:
    """Objects of a class."""

    kind: type

    def check(self, name: str, value: Any) -> Any:
        """Return the value, or raise."""
        if not isinstance(value, self.kind):
            raise refused(name, value, self)
        return value

    def parse(self, name: str, text: str) -> Any:
        """Objects have no written form."""
        raise DomainError(f"{name} = {text!r} cannot be given as text: {self} are made in Python")

    def __str__(self) -> str:
        return f"objects of class {self.kind.__name__}"


@dataclass(frozen=True)
class Each:
    """Non-empty tuples whose members all lie in one domain."""

    member: Domain
    most: int = 1000

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """Return the value as a tuple, or raise."""
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
            raise refused(name, value, self)
        members = tuple(value)
        if not 1 <= len(members) <= self.most:
            raise refused(name, value, self)
        return tuple(self.member.check(f"{name}[{k}]", each) for k, each in enumerate(members))

    def parse(self, name: str, text: str) -> tuple[Any, ...]:
        """Read members separated by commas, or by semicolons where they are tuples themselves."""
        parts = text.split(";" if isinstance(self.member, Each) else ",")
        return self.check(name, [self.member.parse(f"{name}[{k}]", each) for k, each in enumerate(parts)])

    def __str__(self) -> str:
        return f"tuples of 1 to {self.most} members in {self.member}"


@dataclass(frozen=True)
class Numbers:
    """Arrays of real numbers: no text, no complex, masked or missing entries."""

    finite: bool = True
    complex_too: bool = False

    def check(self, name: str, value: Any) -> Any:
        """Return the numbers as a NumPy array of floating type, or raise."""
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise DomainError(f"{name} has masked entries, which are not numbers: fill them, or leave them out")
        try:
            array = as_numpy(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise DomainError(f"{name} = {shown(value)} is not an array of numbers: {error}") from None
        if array.dtype.kind not in "biufc":
            raise DomainError(f"{name} = {shown(value)} is not an array of numbers: it holds {array.dtype}")
        if array.dtype.kind == "c" and not self.complex_too:
            raise DomainError(f"{name} has complex entries: take the real part or the modulus, if that is meant")
        if array.dtype.kind in "biu":
            array = array.astype(float)
        if self.finite and not np.all(np.isfinite(array)):
            raise DomainError(f"{name} contains NaN or infinite entries: it must hold {self}")
        return array

    def parse(self, name: str, text: str) -> Any:
        """Arrays have no written form."""
        raise DomainError(f"{name} = {text!r} cannot be given as text: arrays are made in Python")

    def __str__(self) -> str:
        return f"{'finite ' if self.finite else ''}{'complex' if self.complex_too else 'real'} numbers"


FINITE, REAL = Numbers(), Numbers(finite=False)
"""Arrays without and with infinite entries and NaN."""


@dataclass(frozen=True)
class PositiveNumbers:
    """Non-empty vectors of positive finite numbers, as weights that need not sum to one."""

    def check(self, name: str, value: Any) -> Any:
        """Return the numbers as a one-dimensional array of doubles, or raise."""
        array = FINITE.check(name, value).astype(float)
        if array.ndim != 1 or not array.size:
            raise DomainError(f"{name} must be a vector of one or more numbers; got shape {array.shape}")
        if not np.all(array > 0):
            where = int(np.argmin(array > 0))
            raise DomainError(f"{name}[{where}] = {array[where]:g} is outside its domain: it must hold {self}")
        return array

    def parse(self, name: str, text: str) -> Any:
        """Arrays have no written form."""
        raise DomainError(f"{name} = {text!r} cannot be given as text: arrays are made in Python")

    def __str__(self) -> str:
        return "positive finite numbers"


POSITIVE = PositiveNumbers()
"""Vectors of weights."""


@dataclass(frozen=True)
class SymmetricMatrix:
    """Symmetric positive semidefinite matrices: covariances and Gram matrices; with unit diagonal, correlations."""

    unit_diagonal: bool = False

    def check(self, name: str, value: Any) -> Any:
        """Return the matrix as a read-only array, or raise."""
        matrix = FINITE.check(name, value)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
            raise DomainError(f"{name} must be a square matrix; got shape {matrix.shape}")
        size = float(np.abs(matrix).max())
        asymmetry = float(np.abs(matrix - matrix.T).max())
        if asymmetry > ROUNDING * size:
            raise DomainError(f"{name} is not symmetric: entries differ from their mirror by {asymmetry:g}")
        off = float(np.abs(np.diagonal(matrix) - 1).max())
        if self.unit_diagonal and off > ROUNDING:
            raise DomainError(f"{name} has a diagonal that differs from 1 by {off:g}; it must be {self}")
        lowest = float(np.linalg.eigvalsh(matrix)[0])
        if lowest < -ROUNDING * size * len(matrix):
            raise DomainError(f"{name} has the eigenvalue {lowest:g}; it must be {self}")
        matrix.flags.writeable = False
        return matrix

    def parse(self, name: str, text: str) -> Any:
        """Matrices have no written form."""
        raise DomainError(f"{name} = {text!r} cannot be given as text: matrices are made in Python")

    def __str__(self) -> str:
        diagonal = ", unit diagonal" if self.unit_diagonal else ""
        return f"a symmetric positive semidefinite matrix{diagonal}"


ROUNDING = 1e-9
"""Relative to its largest entry, the rounding up to which a matrix is symmetric and positive semidefinite."""


def parameter(domain: Domain, doc: str, default: Any = MISSING, *, paper: Any = MISSING, ours: Any = MISSING) -> Any:
    """Declare a dataclass field with its domain, its meaning, and for studies its value at the paper's size.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Head(Parametric):
    ...     tokens: int = parameter(Integers(2, 10**6), "number of tokens", 128)
    >>> Head().tokens, parameters(Head)[0].domain.low
    (128, 2)
    """
    return field(default=default, metadata={"domain": domain, "doc": doc, "paper": paper, "ours": ours})


@dataclass(frozen=True)
class Parameter:
    """What a field declared with :func:`parameter` says of itself."""

    name: str
    domain: Domain
    doc: str
    default: Any
    paper: Any
    ours: Any

    @classmethod
    def of(cls, name: str, declared: Any) -> Parameter:
        """Read a dataclass field that was declared with :func:`parameter`."""
        said = declared.metadata
        return cls(name, said["domain"], said["doc"], declared.default, said["paper"], said["ours"])

    @property
    def large(self) -> Any:
        """The value at the paper's size, whoever chose it; ``MISSING`` where there is none."""
        return self.ours if self.paper is MISSING else self.paper

    @property
    def source(self) -> str:
        """Who chose that value: ``"paper"`` or ``"ours"``."""
        return "ours" if self.paper is MISSING else "paper"

    def describe(self) -> str:
        """An entry of a Parameters section."""
        default = "" if self.default is MISSING else f"; {self.default!r} by default"
        whose = "in the paper" if self.source == "paper" else "at the paper's size (ours)"
        paper = "" if self.large is MISSING else f"; {self.large!r} {whose}"
        return f"{self.name} : {self.domain}\n    {self.doc[:1].upper()}{self.doc[1:]}{default}{paper}."


def parameters(cls: type) -> tuple[Parameter, ...]:
    """The declared parameters of a class, in order."""
    declared = (each for each in fields(cls) if "domain" in each.metadata)
    return tuple(Parameter.of(each.name, each) for each in declared)


class Parametric:
    """Mixin for frozen dataclasses: every field declared with :func:`parameter` is checked on construction.

    What the declarations say (meaning, domain, default, the paper's value) becomes the Parameters section of the
    class docstring, so that ``help()`` and the API pages show it.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Write the declarations into the docstring; dataclass has not seen the fields yet."""
        super().__init_subclass__(**options)
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        inherited: dict[str, Any] = {each.name: each for each in fields(cls)} if is_dataclass(cls) else {}
        declared = [Parameter.of(name, each) for name, each in (inherited | own).items() if "domain" in each.metadata]
        text = inspect.cleandoc(cls.__doc__ or "")
        if declared and "Parameters\n-----" not in text:
            cls.__doc__ = "\n".join([text, "", "Parameters", "----------", *(each.describe() for each in declared)])

    def __post_init__(self) -> None:
        """Check and canonicalise the declared parameters."""
        for each in parameters(type(self)):
            object.__setattr__(self, each.name, each.domain.check(each.name, getattr(self, each.name)))
