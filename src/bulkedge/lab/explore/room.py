"""A room of the explorer: parameters declared once, theory, simulation, and ten lines of Python that do the same.

A room is a frozen dataclass whose fields are declared with :func:`bulkedge.support.domains.parameter`. Its sliders, its
validation and its address (``/heads?beta=1.2``) come from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any, ClassVar, Literal, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode

import numpy as np

from bulkedge.support.domains import Choice, Domain, Integers, Interval, Parameter, Parametric, parameters, shown
from bulkedge.support.errors import DomainError

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
STOPS = 100  # stops of a slider, about
FAR = 20  # quotient of a domain's ends from which on its slider is logarithmic
MOST_ADDRESS = 2000  # characters of an address that are read
MOST_PROBLEMS = 8  # faults of an address that are told one by one
FEWEST = 3  # draws from which on their spread is shown as an error
SEED, SEEDS = "seed", Integers(0, 1_000_000)  # what addresses call the seed of the first simulation, and its domain


class Panel(NamedTuple):
    """Axes: what is along them, and which of them are logarithmic (``"x"``, ``"y"``, ``"xy"``)."""

    title: str
    x: str
    y: str
    log: str = ""
    click: tuple[str, str] | None = None  # parameters that a click on the panel sets, along x and along y
    across: tuple[float, float] | None = None  # ends of the axes, where they do not follow the curves
    down: tuple[float, float] | None = None
    words: Sequence[str] = ()  # what rows and columns of a map are called


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
    limits: tuple[float, float] = (0.0, 1.0)  # what the two ends of a map's colours mean
    after: int = 0  # questions of a chapter that are answered before this is shown


class Room(Parametric):
    """What all rooms have."""

    name: ClassVar[str]
    title: ClassVar[str]
    shows: ClassVar[str]  # one sentence: what the room shows
    not_claimed: ClassVar[str]  # one sentence: what it does not say
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

    def panels(self) -> list[Panel]:
        """The axes of the figure."""
        raise NotImplementedError

    def theory(self) -> list[Trace]:
        """What theory says."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator) -> Any:
        """One simulation."""
        raise NotImplementedError

    def observations(self, samples: Sequence[Any]) -> list[Trace]:
        """Simulations as curves."""
        raise NotImplementedError

    def script(self, seed: int = 0) -> str:
        """About ten lines of Python that do the same with what is public."""
        raise NotImplementedError

    # -- what it gets --------------------------------------------------------------------------------------------------

    @classmethod
    def declared(cls) -> tuple[Parameter, ...]:
        """The parameters of the room, in order."""
        return parameters(cls)

    def simulate(self, number: int) -> Any:
        """The simulation of that number."""
        return self.draw(np.random.default_rng(number))

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


def mean_error(draws: Any) -> tuple[Any, Any]:
    """The mean of draws along their first axis, and its standard error, for which two draws are too few (NaN)."""
    array = np.asarray(draws, dtype=float)
    if len(array) < FEWEST:
        return array.mean(axis=0), np.full(array.shape[1:], np.nan)
    return array.mean(axis=0), array.std(axis=0, ddof=1) / np.sqrt(len(array))


def histogram(label: str, samples: Sequence[Any], ends: Any, *, panel: int = 0, log: bool = False) -> Trace:
    """Values of several draws as bars, with the standard error that the draws show."""
    widths = np.diff(np.log(ends) if log else ends)
    height, error = mean_error([np.histogram(each, ends)[0] / (np.size(each) * widths) for each in samples])
    return Trace(label, ends, height, panel=panel, look="simulation", shape="bars", error=error)


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
