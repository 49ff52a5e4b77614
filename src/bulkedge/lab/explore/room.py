"""A room of the explorer: parameters declared once, theory, simulation, and the Python that makes the same figure.

A room is a frozen dataclass whose fields are declared with :func:`bulkedge.support.domains.parameter`. Its sliders, its
validation, its address (``/heads?beta=1.2``) and the Python that a reader downloads all come from these declarations.
What it draws is in plain functions of its module, which take the room, or anything with the same attributes, and use
NumPy, ``be`` and :mod:`~bulkedge.lab.explore.room` alone: the downloaded program *is* their source.
"""

from __future__ import annotations

import ast
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode

import numpy as np

from bulkedge.support.domains import Choice, Domain, Integers, Interval, Parameter, Parametric, parameters, shown
from bulkedge.support.errors import DomainError
from bulkedge.support.files import replace_file
from bulkedge.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Look = Literal["theory", "rival", "second", "simulation", "mark", "here"]
# Colour of everything that rooms draw, on a light and on a dark page, and its dash: colours of Okabe and Ito and
# lighter relatives, and no two lines alike without colour.
LOOKS: dict[Look, tuple[str, str, str]] = {
    "theory": ("#D55E00", "#f0a35e", "solid"),
    "rival": ("#009E73", "#5fcea6", "dash"),
    "second": ("#CC79A7", "#e3a6c8", "dashdot"),
    "simulation": ("#0072B2", "#56b4e9", "solid"),
    "mark": ("#808890", "#a0a8b1", "dot"),
    "here": ("#808890", "#e6e8eb", "solid"),
}
DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}
STOPS = 100  # stops of a slider, about
FAR = 20  # quotient of a domain's ends from which on its slider is logarithmic
MOST_ADDRESS = 2000  # characters of an address that are read
MOST_PROBLEMS = 8  # faults of an address that are told one by one
SEED, SEEDS = "seed", Integers(0, 1_000_000)  # what addresses call the seed of the first simulation, and its domain


class Panel(NamedTuple):
    """Axes: what is along them, and which of them are logarithmic (``"x"``, ``"y"``, ``"xy"``)."""

    title: str
    x: str
    y: str
    log: str = ""
    click: tuple[str, str] | None = None  # parameters that a click on the panel sets, along x and along y


@dataclass(frozen=True, eq=False)
class Trace:
    """One thing in a panel: a line, points with error bars, bars between ends, a vertical mark, or a map of colours.

    ``x`` and ``y`` are arrays of one length. Bars have one more x than y, a mark has no y, and a map has an array z
    with a row for each y.
    """

    label: str
    x: Any
    y: Any = None
    panel: int = 0
    look: Look = "theory"
    shape: Literal["line", "points", "bars", "mark", "map"] = "line"
    error: Any = None
    z: Any = None


class Room(Parametric):
    """What all rooms have."""

    name: ClassVar[str]
    title: ClassVar[str]
    shows: ClassVar[str]  # one sentence: what the room shows
    not_claimed: ClassVar[str]  # one sentence: what it does not say
    # functions that make the figure, helpers first: ``panels``, ``theory``, ``simulate``, ``observations``
    code: ClassVar[Sequence[Callable[..., Any]]]
    # parameters that move on the page without a server, and their values there; the others have their defaults
    exported: ClassVar[Mapping[str, Sequence[Any]]] = {}
    # what parameters are called beside their sliders, where their names would not do
    symbols: ClassVar[Mapping[str, str]] = {}

    # -- what a room supplies ------------------------------------------------------------------------------------------

    @property
    def draws(self) -> int:
        """How many simulations follow; zero where none does, and :attr:`quiet` says why."""
        return 8

    @property
    def quiet(self) -> str:
        """Why there is no simulation."""
        return ""

    def quick(self) -> list[Trace] | None:
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
        return next(each for each in cls.code if each.__name__ == name)

    def panels(self) -> tuple[Panel, ...]:
        """The axes of the figure."""
        return tuple(self._function("panels")(self))

    def theory(self) -> list[Trace]:
        """What theory says."""
        return list(self._function("theory")(self))

    def simulate(self, number: int) -> Any:
        """One simulation."""
        return self._function("simulate")(self, np.random.default_rng(number))

    def observations(self, samples: Sequence[Any]) -> list[Trace]:
        """Simulations as curves."""
        return list(self._function("observations")(self, samples))

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
        sources = "\n\n\n".join(short_source(each) for each in self.code)
        return f'''"""{self.title}: {self.shows}

{self.not_claimed} Made by bulkedge {__version__}.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Trace, Panel, save

p = SimpleNamespace(
{values},
)


{sources}


curves = theory(p)
samples = [simulate(p, np.random.default_rng(number)) for number in range({seed}, {seed + self.draws})]
if samples:
    curves += observations(p, samples)
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


def short_source(function: Callable[..., Any]) -> str:
    """The source of a function with the first line of its docstring alone, and without types."""
    lines = dedent(inspect.getsource(function)).splitlines()
    told: Any = ast.parse("\n".join(lines)).body[0].body[0]  # type: ignore[attr-defined]  # the docstring
    lines[told.lineno - 1 : told.end_lineno] = [f'{" " * told.col_offset}"""{told.value.value.splitlines()[0]}"""']
    return "\n".join(lines)


def figure(panels: Sequence[Panel], curves: Sequence[Trace]) -> Figure:
    """Draw curves in their panels with Matplotlib."""
    from bulkedge.plots import style

    with style.styled():
        drawn, axes = style.panels(1, len(panels))
        for panel, axis in zip(panels, axes[0], strict=True):
            axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
            axis.set_xscale("log" if "x" in panel.log else "linear")
            axis.set_yscale("log" if "y" in panel.log else "linear")
        for curve in curves:
            _draw(axes[0][curve.panel], curve)
        for axis in axes[0]:
            axis.legend()
    return drawn


def _draw(axis: Any, curve: Trace) -> None:
    colour, _, dash = LOOKS[curve.look]
    look = {"color": colour, "label": curve.label}
    if curve.shape == "line":
        # no line goes through one point
        axis.plot(curve.x, curve.y, linestyle=DASHES[dash], marker="_" if len(curve.x) == 1 else "", **look)
    elif curve.shape == "points":
        axis.errorbar(curve.x, curve.y, yerr=curve.error, fmt="D" if curve.look == "here" else "o", ms=3, **look)
    elif curve.shape == "bars":
        axis.stairs(curve.y, curve.x, fill=True, alpha=0.35, **look)
    elif curve.shape == "mark":
        axis.axvline(float(curve.x), linestyle=DASHES[dash], **look)
    else:
        mesh = axis.pcolormesh(curve.x, curve.y, curve.z, cmap="cividis", shading="nearest", rasterized=True)
        axis.figure.colorbar(mesh, ax=axis, label=curve.label)


def save(path: str | Path, panels: Sequence[Panel], curves: Sequence[Trace]) -> None:
    """Draw curves into a file."""
    stream = io.BytesIO()
    figure(panels, curves).savefig(stream, format=Path(path).suffix[1:] or "png", dpi=200)
    replace_file(Path(path), stream.getvalue())


def control_kind(domain: Domain) -> Literal["slider", "box", "buttons"]:
    """How a parameter is set."""
    options = domain.options if isinstance(domain, Choice) else ()
    if set(options) == {False, True}:
        return "box"
    return "buttons" if any(isinstance(each, str) for each in options) else "slider"


def stops(domain: Domain, value: Any) -> list[str]:
    """Where a slider stops, in its order; the value that the parameter has is one of the stops.

    >>> stops(Interval(0, 1), 0.333)[32:36]
    ['0.32', '0.33', '0.333', '0.34']
    >>> stops(Choice((32, 64)), 64)
    ['32', '64']
    """
    if isinstance(domain, Choice):
        return [str(each) for each in domain.options]
    if not isinstance(domain, Interval | Integers):
        raise TypeError(f"no slider for {domain}")
    whole = isinstance(domain, Integers)
    found = _geometric(domain) if domain.low > 0 and domain.high / domain.low >= FAR else _even(domain)
    values = {round(each) if whole else float(f"{each:.6g}") for each in found}
    return [str(each) for each in sorted(values | {value})]


def slider_place(texts: Sequence[str], value: Any) -> int:
    """Where a slider is that has a value."""
    return [float(text) for text in texts].index(float(value))


def _even(domain: Interval | Integers) -> Any:
    rough = (domain.high - domain.low) / STOPS
    power = 10.0 ** floor(log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
    step = max(step, 1.0) if isinstance(domain, Integers) else step
    count = int((domain.high - domain.low) / step + 1e-9)
    return np.append(domain.low + step * np.arange(count + 1), domain.high)


def _geometric(domain: Interval | Integers) -> Any:
    middle = [float(f"{each:.2g}") for each in np.geomspace(domain.low, domain.high, STOPS)[1:-1]]
    return [domain.low, *middle, domain.high]
