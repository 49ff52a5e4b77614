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
import os
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import wraps
from types import FunctionType
from typing import Any, ParamSpec, Protocol, TypeVar
from unicodedata import category

import numpy as np
from array_api_compat import is_array_api_obj

from bulkedge.support.arrays import as_numpy
from bulkedge.support.errors import DomainError

P = ParamSpec("P")
R = TypeVar("R")


class Domain(Protocol):
    """A set of admissible values."""

    def check(self, name: str, value: Any) -> Any:
        """Return the value in its canonical form, or raise a ValueError that names it."""

    def parse(self, name: str, text: str) -> Any:
        """Read the value from a command line; the result is checked."""


SHOWN = 80  # characters of a value that an error message shows


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


class Unwritten:
    """Mixin for domains of values that no command line can spell."""

    def parse(self, name: str, text: str) -> Any:
        """Refuse the text."""
        raise DomainError(f"{name} = {text!r} cannot be given as text: it must be {self}, made in Python")


@dataclass(frozen=True)
class Instance(Unwritten):
    """Objects of a class."""

    kind: type | tuple[type, ...]

    def check(self, name: str, value: Any) -> Any:
        """Return the value, or raise."""
        if not isinstance(value, self.kind):
            raise refused(name, value, self)
        return value

    def __str__(self) -> str:
        kinds = self.kind if isinstance(self.kind, tuple) else (self.kind,)
        return f"objects of class {' or '.join(each.__name__ for each in kinds)}"


@dataclass(frozen=True)
class Each:
    """Tuples whose members all lie in one domain; non-empty, unless ``fewest`` is zero."""

    member: Domain
    most: int = 1000
    fewest: int = 1

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """Return the value as a tuple, or raise."""
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
            raise refused(name, value, self)
        members = tuple(value)
        if not self.fewest <= len(members) <= self.most:
            raise refused(name, value, self)
        return tuple(self.member.check(f"{name}[{k}]", each) for k, each in enumerate(members))

    def parse(self, name: str, text: str) -> tuple[Any, ...]:
        """Read members separated by commas, or by semicolons where they are tuples themselves."""
        parts = text.split(";" if isinstance(self.member, Each) else ",")
        return self.check(name, [self.member.parse(f"{name}[{k}]", each) for k, each in enumerate(parts)])

    def __str__(self) -> str:
        return f"tuples of {self.fewest} to {self.most} members in {self.member}"


MOST_AXES = 64
"""NumPy's arrays have no more."""


@dataclass(frozen=True)
class Numbers(Unwritten):
    """The gate for arrays of NumPy, torch or lists: no text, no missing, masked or unexpected complex entries."""

    # half and single precision and integers are widened, as sums overflow and bounds of 1e60 do not fit; what is
    # ``kept`` stays in single precision. Arrays that must have an axis may not be empty

    finite: bool = True
    complex_too: bool = False
    axes: tuple[int, int] = (0, MOST_AXES)
    kept: bool = False

    def check(self, name: str, value: Any) -> Any:
        """Return the numbers as a NumPy array of floating type, or ``kept`` on their own backend; or raise."""
        return self._keep(name, value) if self.kept else self._numpy(name, value)

    def _numpy(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise DomainError(f"{name} has masked entries, which are not numbers: fill them, or leave them out")
        try:
            array = as_numpy(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise DomainError(f"{name} = {shown(value)} is not an array of numbers: {error}") from None
        if array.dtype.kind not in "biufc":
            raise DomainError(f"{name} = {shown(value)} is not an array of numbers: it holds {array.dtype}")
        if array.dtype.kind in "biu" or (array.dtype.kind == "f" and array.dtype.itemsize < 8):
            array = array.astype(float)
        self._check_entries(
            name, array, complex_entries=array.dtype.kind == "c", all_finite=lambda: np.isfinite(array).all()
        )
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def _keep(self, name: str, value: Any) -> Any:
        """The numbers on their own backend and device, a tensor off its graph."""
        if type(value) is np.ndarray and value.dtype.char in "fdFD" and value.dtype.isnative:  # no copy of large ones
            self._check_entries(
                name, value, complex_entries=value.dtype.kind == "c", all_finite=lambda: np.isfinite(value).all()
            )
            return value
        if not hasattr(value, "detach"):
            foreign = is_array_api_obj(value) and not isinstance(value, np.ndarray | np.generic)
            return value if foreign else self._numpy(name, value)
        if value.device.type == "meta":
            raise DomainError(f"{name} is a tensor of shape {tuple(value.shape)} on the device meta: it has no numbers")
        tensor = value.detach() if str(value.layout) == "torch.strided" else value.detach().to_dense()
        if not (tensor.is_floating_point() or tensor.is_complex()):
            tensor = tensor.double()
        elif tensor.element_size() < 4:  # half precision has no decompositions
            tensor = tensor.float()
        self._check_entries(
            name, tensor, complex_entries=tensor.is_complex(), all_finite=lambda: tensor.isfinite().all()
        )
        return tensor

    def _check_entries(self, name: str, array: Any, *, complex_entries: bool, all_finite: Any) -> None:
        if complex_entries and not self.complex_too:
            raise DomainError(f"{name} has complex entries: take the real part or the modulus, if that is meant")
        low, high = self.axes
        if not low <= array.ndim <= high or (low and 0 in array.shape):
            raise DomainError(f"{name} has shape {tuple(array.shape)}; it must be {self}")
        # asked last, and only where it matters: the answer of a GPU takes time
        if self.finite and not bool(all_finite()):
            raise DomainError(f"{name} contains NaN or infinite entries: it must hold {self}")

    def __str__(self) -> str:
        low, high = self.axes
        number = f"{low}" if low == high else f"{low} or more" if high == MOST_AXES else f"{low} to {high}"
        shape = f"an array with {number} axes, none of them empty, of " if low else ""
        return f"{shape}{'finite ' if self.finite else ''}{'complex' if self.complex_too else 'real'} numbers"


@dataclass(frozen=True)
class Labels(Unwritten):
    """Arrays of integers or texts that say which things are the same."""

    axes: int = 1

    def check(self, name: str, value: Any) -> Any:
        """Return the labels as a NumPy array, or raise."""
        try:
            array = as_numpy(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # ragged, or without numbers
            raise refused(name, value, self) from None
        if array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat):  # a column of a table
            array = array.astype(str)
        if array.ndim != self.axes or array.dtype.kind not in "biuSU" or np.ma.isMaskedArray(value):
            raise refused(name, value, self)
        return array

    def __str__(self) -> str:
        return f"arrays of integers or texts with {self.axes} {'axis' if self.axes == 1 else 'axes'}"


LABELS = Labels()

FINITE, REAL = Numbers(), Numbers(finite=False)
"""Arrays without and with infinite entries and NaN."""
MATRIX, MATRICES = Numbers(axes=(2, 2)), Numbers(axes=(2, MOST_AXES), kept=True)
REAL_NUMBER = Interval(-1e30, 1e30)


@dataclass(frozen=True)
class Like(Unwritten):
    """Objects that have some attributes, such as axes of matplotlib or modules of torch, which are not imported."""

    what: str
    attributes: tuple[str, ...]

    def check(self, name: str, value: Any) -> Any:
        """Return the value, or raise."""
        if isinstance(value, type) or not all(hasattr(value, each) for each in self.attributes):
            raise DomainError(f"{name} = {shown(value)} is not {self.what}")
        return value

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Array(Unwritten):
    """Arrays of NumPy or torch as they are, whose entries are not looked at: for what is called often."""

    least: int = 0
    booleans: bool = False
    empty: bool = False

    def check(self, name: str, value: Any) -> Any:
        """Return the array, or raise."""
        kinds = ("float", "bfloat") + ("bool", "int") * self.booleans
        dtype = str(getattr(value, "dtype", "")).rpartition(".")[2]
        if not is_array_api_obj(value) or isinstance(value, np.ma.MaskedArray) or not dtype.startswith(kinds):
            raise DomainError(f"{name} = {shown(value)} is not {self}")
        if value.ndim < self.least or (0 in value.shape and not self.empty):
            raise DomainError(
                f"{name} has shape {tuple(value.shape)}; it must be {self}{', not empty' * (not self.empty)}"
            )
        return value

    def __str__(self) -> str:
        axes = f" with {self.least} or more axes" if self.least else ""
        return f"an array of NumPy or torch{axes}, of {'booleans or ' * self.booleans}floating numbers"


class PathOrText:
    """Paths of files and folders."""

    def check(self, name: str, value: Any) -> Any:
        """Return the value, or raise."""
        # characters of the longest path of most systems
        if not isinstance(value, str | os.PathLike) or "\0" in str(value) or len(str(value)) > 4096:
            raise DomainError(f"{name} = {shown(value)} is no path: give a string or a pathlib.Path")
        return value

    def parse(self, name: str, text: str) -> Any:
        """A path is what is written."""
        return self.check(name, text)

    def __str__(self) -> str:
        return "paths"


PATH, MODULE = PathOrText(), Like("a torch.nn.Module", ("named_modules", "forward"))
FUNCTION, FLAG = Like("a function", ("__call__",)), Choice((False, True))
GENERATOR = Like("a numpy.random.Generator: pass numpy.random.default_rng(seed)", ("standard_normal", "spawn"))


def takes(**domains: Domain) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a function before it runs, and hand them on in canonical form; a default passes.

    >>> @takes(count=Integers(1, 9))
    ... def repeat(text, count=1):
    ...     return text * count
    >>> repeat("ab", 2.0)
    'abab'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        starred = [each.name for each in parameters if each.kind is each.VAR_POSITIONAL]
        names = [each.name for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
        defaults = {each.name: each.default for each in parameters}

        def check(name: str, value: Any) -> Any:
            left_alone = name not in domains or (value is defaults[name] and value is None)
            return value if left_alone else domains[name].check(name, value)

        def checked(*args: Any, **options: Any) -> Any:
            places = names + starred * (len(args) - len(names))
            if len(places) >= len(args):  # else Python says what is wrong
                args = tuple(map(check, places, args))
            for name in options.keys() & domains.keys():
                options[name] = check(name, options[name])
            return function(*args, **options)

        # doctest takes a function for one of its module by its globals
        home = inspect.unwrap(function).__globals__
        return wraps(function)(FunctionType(checked.__code__, home, closure=checked.__closure__))

    return decorate


@dataclass(frozen=True)
class PositiveNumbers(Unwritten):
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

    def __str__(self) -> str:
        return "positive finite numbers"


POSITIVE = PositiveNumbers()  # vectors of weights


@dataclass(frozen=True)
class SymmetricMatrix(Unwritten):
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
    class docstring, in front of its example, so that ``help()`` and the API pages show it.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Write the declarations into the docstring; dataclass has not seen the fields yet."""
        super().__init_subclass__(**options)
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        inherited: dict[str, Any] = {each.name: each for each in fields(cls)} if is_dataclass(cls) else {}
        declared = [Parameter.of(name, each) for name, each in (inherited | own).items() if "domain" in each.metadata]
        text = inspect.cleandoc(cls.__doc__ or "")
        if declared and "Parameters\n-----" not in text:
            text, prompt, example = text.partition("\n\n>>> ")
            lines = [text, "", "Parameters", "----------", *(each.describe() for each in declared)]
            # sections go on until the next one: the example needs a title behind them
            cls.__doc__ = "\n".join(lines + ["", "Examples", "--------", f">>> {example}"] * bool(prompt))

    def __post_init__(self) -> None:
        """Check and canonicalise the declared parameters."""
        for each in parameters(type(self)):
            object.__setattr__(self, each.name, each.domain.check(each.name, getattr(self, each.name)))
