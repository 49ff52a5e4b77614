"""Small studies with figures, for the tests of the gallery: each counts how often it was run in this process."""

import io
from collections import Counter
from dataclasses import dataclass
from functools import cache

import xarray as xr

from bulkedge.domains import Choice, Each, Integers, Interval, parameter
from bulkedge.errors import UnresolvedError
from bulkedge.plots.style import marks, panels
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim

RUNS = Counter()


class Picture:
    """A figure that is drawn once for all exhibits, as drawing would take most of the time of the tests."""

    def get_size_inches(self):
        return (3.4, 2.3)

    def savefig(self, file, *, format, **options):  # noqa: A002  # matplotlib's word
        file.write(drawn(format))


@cache
def drawn(kind):
    figure, axes = panels(1, 1)
    marks(axes[0, 0], [0, 1, 2], [2, 0, 1])
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=200)
    return file.getvalue()


@dataclass(frozen=True)
class Exhibit(Study):
    """Draws numbers; so many of its five claims fail."""

    size: int = parameter(Integers(1, 1000), "how many", 5, paper=7)
    failing: int = parameter(Integers(0, 5), "claims that fail", 0)
    rates: tuple = parameter(Each(Interval(0, 10, infinity=True)), "numbers", (1.0, 2.0))
    kind: str = parameter(Choice(("plain", "two words")), "any", "plain")
    trouble: str = parameter(Choice(("none", "bug", "unresolved", "stop")), "what goes wrong", "none")

    @classmethod
    def name(cls):
        return f"exhibits/{cls.__name__.lower()}"

    def run(self, rng):
        RUNS[self.name()] += 1
        trouble = {"bug": ValueError("a bug"), "unresolved": UnresolvedError("too hard"), "stop": KeyboardInterrupt()}
        if self.trouble in trouble:
            raise trouble[self.trouble]
        return xr.Dataset({"values": ("name", rng.random(3))}, coords={"name": ["a", "b", "c"]})

    def claims(self, data):
        first = float(data["values"][0])
        return [
            Claim(f"claim {k} of <{self.name()}>", "here", first, first + (k < self.failing), 0.1, 0.5, "half")
            for k in range(5)
        ]

    def plot(self, data):
        return Picture()


class First(Exhibit):
    """The first exhibit."""


class Second(Exhibit):
    """The second exhibit."""


class Third(Exhibit):
    """The third exhibit."""


class Extreme(Exhibit):
    """Has claims about numbers that are not finite, which JSON does not know."""

    def claims(self, data):
        return [
            Claim("infinite as it should be", "here", float("inf"), float("inf"), 0, 0, "exact", ">="),
            Claim("below", "here", float("-inf"), float("nan"), 0, float("inf"), "nothing refutes but nan", "<="),
        ]


EXHIBITS = {each.name(): each for each in (First, Second, Third)}
