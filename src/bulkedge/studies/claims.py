"""Claims: sentences of a paper beside the numbers that were measured.

>>> claim = Claim("the bulk ends at 4", "Marchenko-Pastur", predicted=4.0, measured=3.99, error=0.01, tolerance=0.03,
...               reason="three standard errors")
>>> claim.holds
True
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from bulkedge.records import html_table


def standard_error(draws: ArrayLike) -> float:
    """Standard error of the mean of independent draws; zero for a single one, which has no scatter.

    Parameters
    ----------
    draws : array_like
        Independent draws of one number, of any shape.

    Returns
    -------
    float
        Standard deviation over the root of their number.
    """
    values = np.asarray(draws, dtype=float)
    return float(values.std() / max(values.size - 1, 1) ** 0.5)


def average(values: xr.DataArray) -> tuple[float, float]:
    """Mean over everything, and its standard error from the scatter of the draws in each cell.

    Parameters
    ----------
    values : xarray.DataArray
        Has a dimension ``draw`` of two independent draws or more; all others are cells.

    Returns
    -------
    mean : float
        Over cells and draws.
    error : float
        Its standard error, where the cells are independent of each other.
    """
    variance = values.var("draw", ddof=1) / values.sizes["draw"]
    return float(values.mean()), float(np.sqrt(variance.sum()) / variance.size)


@dataclass(frozen=True)
class Claim:
    """A statement that a measurement can refute.

    Attributes
    ----------
    statement : str
        What is claimed, as a sentence.
    place : str
        Paper and theorem, equation or figure.
    predicted : float
        The value that theory gives, or the bound for one-sided claims.
    measured : float
        The value that was found.
    error : float
        Its standard error; zero if it was computed without sampling.
    tolerance : float
        How far measured may be from predicted (beyond it, for one-sided claims).
    reason : str
        Where the tolerance comes from.
    relation : {"=", "<=", ">="}
        How measured should stand to predicted.
    """

    statement: str
    place: str
    predicted: float
    measured: float
    error: float
    tolerance: float
    reason: str
    relation: Literal["=", "<=", ">="] = "="

    def __post_init__(self) -> None:
        """Plain numbers, so that a claim can be written down."""
        for name in ("predicted", "measured", "error", "tolerance"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def holds(self) -> bool:
        """The verdict; a measurement that is not a number refutes."""
        excess = self.measured - self.predicted
        if self.relation == "<=":
            return excess <= self.tolerance
        if self.relation == ">=":
            return -excess <= self.tolerance
        return abs(excess) <= self.tolerance

    def record(self) -> dict[str, Any]:
        """The claim with its verdict, for ``claims.json``."""
        return asdict(self) | {"holds": self.holds}

    def _repr_html_(self) -> str:
        sign = "" if self.relation == "=" else self.relation + " "
        measured = f"{self.measured:.5g}" + (f" ± {self.error:.1g}" if self.error else "")
        verdict = "holds" if self.holds else "fails"
        facts = {"predicted": f"{sign}{self.predicted:.5g}", "measured": measured, "tolerance": f"{self.tolerance:.2g}"}
        return html_table(facts | {"verdict": verdict, "place": self.place}, self.statement)
