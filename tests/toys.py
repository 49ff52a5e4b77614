"""Small studies for the tests of the machinery; worker processes import them from here."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.support.domains import Choice, Integers, Interval, parameter
from bulkedge.support.estimates import Estimate


@dataclass(frozen=True)
class Toy(Study):
    """Draws numbers, and lets BLAS add some up."""

    rate: float = parameter(Interval(0, 10), "scale of the numbers", 1.0, paper=2.0)
    size: int = parameter(Integers(1, 1000), "how many", 5)
    kind: str = parameter(Choice(("normal", "uniform")), "their distribution", "normal")
    pause: float = parameter(Interval(0, 10), "seconds to wait", 0.0)

    def run(self, rng):
        time.sleep(self.pause)
        values = self.rate * (rng.standard_normal(self.size) if self.kind == "normal" else rng.random(self.size))
        matrix = rng.standard_normal((200, 200))
        return xr.Dataset(
            {
                "values": ("index", values, {"units": "one"}),
                "mean": ((), values.mean()),
                "norm": ((), np.linalg.norm(matrix @ matrix)),
                "count": ((), self.size),
            }
        )

    def claims(self, data):
        return [Claim("the mean vanishes", "ours", Estimate(data["mean"], 1.0), 0.0, Rival("a hundred", 100.0))]


@dataclass(frozen=True)
class Labelled(Study):
    """Has labels on an inner dimension, which depend on a parameter."""

    size: int = parameter(Integers(1, 10), "how many", 3)
    shift: float = parameter(Interval(0, 1), "where they start", 0.0)

    def run(self, rng):
        return xr.Dataset(
            {"value": (("place", "name"), rng.random((self.size, 2)))},
            coords={"place": np.arange(self.size) + self.shift, "name": ["left", "right"]},
        )

    def claims(self, data):
        return []


@dataclass(frozen=True)
class Fragile(Study):
    """Raises at rate 3, as long as the environment does not say that it is mended; dies at rate 4."""

    rate: int = parameter(Integers(0, 10), "what may go wrong", 0)

    def run(self, rng):
        if self.rate == 3 and not Path(os.environ.get("TOYS_MENDED", "nowhere")).exists():
            raise ArithmeticError("three is too much")
        if self.rate == 4:
            os._exit(9)
        return xr.Dataset({"value": ((), rng.random())})

    def claims(self, data):
        return []


@dataclass(frozen=True)
class Empty(Study):
    """Does nothing, so that only the machinery takes time."""

    place: int = parameter(Integers(0, 10**6), "which", 0)

    def run(self, rng):
        return xr.Dataset({"value": ((), 1.0)})

    def claims(self, data):
        return []


FAULTS = ("none", "dimensions", "names", "labels", "no labels", "axis", "record", "path", "huge", "text", "dates")


@dataclass(frozen=True)
class Odd(Study):
    """Two numbers at each place; at the odd place 1 something is different from the others."""

    place: int = parameter(Integers(0, 10), "which", 0)
    fault: str = parameter(Choice(FAULTS), "what is different", "none")

    def run(self, rng):
        data = xr.Dataset({"value": ("k", rng.random(2)), "plain": ("j", rng.random(3))}, coords={"k": ["a", "b"]})
        changes = {
            "dimensions": lambda: data.assign(plain=(("j", "i"), rng.random((3, 2)))),
            "names": lambda: data.rename(j="i"),
            "labels": lambda: data.assign_coords(k=["a", "c"]),
            "no labels": lambda: data.drop_vars("k"),
            "axis": lambda: data.rename(j="place"),
            "record": lambda: data.rename(plain="checksum"),
            "path": lambda: data.rename(plain="../plain"),
            "huge": lambda: data.assign(count=2**53 + 1),
            "text": lambda: data.assign(name="Wigner"),
            "dates": lambda: data.assign_coords(j=np.arange(3).astype("datetime64[ns]")),
        }
        return changes[self.fault]() if self.place == 1 and self.fault != "none" else data

    def claims(self, data):
        return []


@dataclass(frozen=True)
class Described(Study):
    """A duration whose attributes partly depend on the cell."""

    place: int = parameter(Integers(0, 10), "which", 0)

    def run(self, rng):
        time.sleep(0.02 * (self.place % 3))
        return xr.Dataset({"wait": ((), 1.5, {"units": "days", "place": np.int64(self.place)})})

    def claims(self, data):
        return []


@dataclass(frozen=True)
class Hanging(Study):
    """Never ends at place 1, in Python, and not for an hour at place 2, in compiled code."""

    place: int = parameter(Integers(0, 10), "which", 0)

    def run(self, rng):
        while self.place == 1:
            time.sleep(0.01)
        if self.place == 2:
            time.sleep(3600)
        return xr.Dataset({"value": ((), rng.random())})

    def claims(self, data):
        return []
