"""A room of the explorer: parameters declared once, theory, simulation, and the Python that makes the same figure.

A room is a frozen dataclass whose fields are declared with :func:`bulkedge.support.domains.parameter`. Its sliders, its
validation, its address (``/heads?beta=1.2``) and the Python that a reader downloads all come from these declarations.
What it draws is in plain functions of its module, which take the room, or anything with the same attributes, and use
NumPy, ``be`` and :mod:`~bulkedge.lab.explore.curves` alone: the downloaded program *is* their source.
"""

from __future__ import annotations

import ast
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from textwrap import dedent
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl, urlencode

import numpy as np

from bulkedge.lab.explore.curves import Curve, Panel
from bulkedge.support.domains import Integers, Parameter, Parametric, parameters, shown
from bulkedge.support.errors import DomainError
from bulkedge.version import __version__

MOST_ADDRESS = 2000
"""Characters of an address that are read."""
MOST_PROBLEMS = 8
"""Faults of an address that are told one by one."""
SEED, SEEDS = "seed", Integers(0, 1_000_000)
"""What addresses call the seed of the first simulation, and its domain."""


class Room(Parametric):
    """What all rooms have."""

    name: ClassVar[str]
    title: ClassVar[str]
    shows: ClassVar[str]
    """One sentence: what the room shows."""
    not_claimed: ClassVar[str]
    """One sentence: what it does not say."""
    exported: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Parameters that move on the page without a server, and their values there; the others have their defaults."""
    symbols: ClassVar[Mapping[str, str]] = {}
    """What parameters are called beside their sliders, where their names would not do."""

    # -- what a room supplies ------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def code(cls) -> Sequence[Callable[..., Any]]:
        """Functions that make the figure, helpers first: ``panels``, ``theory``, ``simulate``, ``seen``."""

    @property
    def draws(self) -> int:
        """How many simulations follow; zero where none does, and :attr:`quiet` says why."""
        return 8

    @property
    def quiet(self) -> str:
        """Why there is no simulation."""
        return ""

    def quick(self) -> list[Curve] | None:
        """The theory at once, from a table, where the theory itself takes more than a tenth of a second."""
        return None

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:  # noqa: ARG002 - rooms that compare use them
        """Numbers beside the figure."""
        return {}

    # -- what it gets --------------------------------------------------------------------------------------------------

    @classmethod
    def declared(cls) -> tuple[Parameter, ...]:
        """The parameters of the room, in order."""
        return parameters(cls)

    @classmethod
    def _function(cls, name: str) -> Callable[..., Any]:
        return next(each for each in cls.code() if each.__name__ == name)

    def panels(self) -> tuple[Panel, ...]:
        """The axes of the figure."""
        return tuple(self._function("panels")(self))

    def theory(self) -> list[Curve]:
        """What theory says."""
        return list(self._function("theory")(self))

    def simulate(self, number: int) -> Any:
        """One simulation."""
        return self._function("simulate")(self, np.random.default_rng(number))

    def seen(self, samples: Sequence[Any]) -> list[Curve]:
        """Simulations as curves."""
        return list(self._function("seen")(self, samples))

    # -- its address ---------------------------------------------------------------------------------------------------

    def query(self) -> str:
        """All parameters, as the address has them after the question mark."""
        return urlencode({each.name: getattr(self, each.name) for each in self.declared()})

    @classmethod
    def read(cls, query: str) -> tuple[Self, list[str]]:
        """The room that an address describes."""
        known = {each.name: each.domain for each in cls.declared()}
        values, problems = read_address(query, known | {SEED: SEEDS})
        values.pop(SEED, None)
        return cls(**values), problems

    # -- its Python ----------------------------------------------------------------------------------------------------

    def script(self, seed: int = 0) -> str:
        """A program that makes the same figure: theory, all simulations, and a file beside it."""
        values = ",\n".join(f"    {each.name}={getattr(self, each.name)!r}" for each in self.declared())
        sources = "\n\n\n".join(shortened(each) for each in self.code())
        return f'''"""{self.title}: {self.shows}

{self.not_claimed} Made by bulkedge {__version__}.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.curves import Curve, Panel, save

p = SimpleNamespace(
{values},
)


{sources}


curves = theory(p)
samples = [simulate(p, np.random.default_rng(number)) for number in range({seed}, {seed + self.draws})]
if samples:
    curves += seen(p, samples)
save("{self.name}.png", panels(p), curves)
print("{self.name}.png")
'''


def read_address(query: str, known: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values that an address has, and what is wrong with it."""
    values: dict[str, Any] = {}
    problems = []
    if len(query) > MOST_ADDRESS:
        problems.append(f"the address is longer than {MOST_ADDRESS} characters: what follows these was not read")
    for name, text in parse_qsl(query[:MOST_ADDRESS].removeprefix("?"), keep_blank_values=True):
        if name not in known:
            problems.append(f"{shown(name)} is no parameter of this room")
        elif name in values:
            problems.append(f"{name} is given more than once: the first that could be read counts")
        else:
            try:
                found = known[name].parse(name, text)
            except DomainError as error:
                problems.append(str(error))
            else:
                values[name] = found + 0.0 if isinstance(found, float) else found  # no sign of zero: -0 is 0
    more = len(problems) - MOST_PROBLEMS
    return values, problems if more <= 0 else [*problems[:MOST_PROBLEMS], f"and {more} more"]


def shortened(function: Callable[..., Any]) -> str:
    """The source of a function with the first line of its docstring alone, and without types."""
    source = dedent(inspect.getsource(function))
    tree = ast.parse(source)
    (body,) = tree.body
    if not isinstance(body, ast.FunctionDef):  # pragma: no cover - rooms list functions
        raise TypeError(f"{function} is no function")
    lines = source.splitlines()
    first = body.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno is not None:
        said = str(first.value.value).splitlines()[0]
        indent = " " * first.col_offset
        lines[first.lineno - 1 : first.end_lineno] = [f'{indent}"""{said}"""']
    return "\n".join(lines)
