"""Small studies with figures, for the tests of the gallery: each counts how often it was run in this process."""

import io
import os
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import xarray as xr

from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.plots.style import marks, panels
from bulkedge.support.domains import Choice, Each, Integers, Interval, parameter
from bulkedge.support.errors import RegimeWarning, UnresolvedError
from bulkedge.support.estimates import Estimate

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
    figure.savefig(file, format=kind, dpi=200, metadata={"CreationDate": None} if kind == "pdf" else None)
    return file.getvalue()


@dataclass(frozen=True)
class Exhibit(Study):
    """Draws numbers; so many of its five claims fail, and the last so many of the others are undecided."""

    size: int = parameter(Integers(1, 1000), "how many", 5, paper=7)
    failing: int = parameter(Integers(0, 5), "claims that fail", 0, ours=0)
    undecided: int = parameter(Integers(0, 5), "claims that are not decided", 0, ours=0)
    rates: tuple = parameter(Each(Interval(0, 10, infinity=True)), "numbers", (1.0, 2.0), ours=(1.0, 2.0))
    kind: str = parameter(Choice(("plain", "two words")), "any", "plain", ours="plain")
    trouble: str = parameter(
        Choice(("none", "bug", "unresolved", "stop", "die", "warning")), "what goes wrong", "none", ours="none"
    )

    @classmethod
    def name(cls):
        return f"exhibits/{cls.__name__.lower()}"

    def run(self, rng):
        RUNS[self.name()] += 1
        trouble = {"bug": ValueError("a bug"), "unresolved": UnresolvedError("too hard"), "stop": KeyboardInterrupt()}
        if self.trouble == "die":
            os._exit(9)
        for _ in range(2 * (self.trouble == "warning")):
            warnings.warn("on thin ice", RegimeWarning, stacklevel=1)
        if self.trouble in trouble:
            raise trouble[self.trouble]
        return xr.Dataset({"values": ("name", rng.random(3))}, coords={"name": ["a", "b", "c"]})

    def claims(self, data):
        first = float(data["values"][0])
        rivals = [Rival("far <away>", first + 9), Rival("near", first + 0.2)]
        return [
            Claim(
                f"claim {k} of <{self.name()}>",
                "ours",
                Estimate(first + (k < self.failing), 0.1),
                first,
                rivals[k >= 5 - self.undecided],
            )
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


class Sleeper(Exhibit):
    """Does not come to an end in the time of a test."""

    def run(self, rng):
        time.sleep(100)


class Extreme(Exhibit):
    """Has claims about numbers that are not finite, which JSON does not know."""

    def claims(self, data):
        sided, none = {"one_sided": "why not"}, Estimate(np.nan, 1.0)
        return [
            Claim(
                "infinite, above zero",
                "ours",
                Estimate(np.inf, 1.0),
                0.0,
                Rival("nothing", -np.inf),
                **sided,
                relation=">=",
            ),
            Claim("none below", "ours", none, -np.inf, Rival("all", np.inf), np.inf, "fitted: any", "<=", "why not"),
            Claim("of three draws", "ours", Estimate(0.0, 1.0, 2.0), 0.0, "the draws are too few for any"),
        ]


EXHIBITS = {each.name(): each for each in (First, Second, Third)}
