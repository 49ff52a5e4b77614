"""One look for all figures: sizes, colours and the two marks, a line for theory and points or bars for simulation.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike

from bulkedge.support.domains import REAL, Integers, Interval, Like, Text, takes
from bulkedge.support.errors import DomainError

COLUMN = 3.4  # width of a column of a two-column paper, in inches; text stays readable there
THEORY, SIMULATION, BARS = "#D55E00", "#0072B2", "#A9C9E3"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,
}


GRID, INCHES = Integers(1, 100), Interval(0, 100, "(]")
PLACE = Like("axes of matplotlib", ("plot", "stairs", "transData"))


def styled() -> AbstractContextManager[None]:
    """The style, for everything drawn inside.

    Returns
    -------
    context manager
        The style is on until its end.

    Examples
    --------
    >>> with styled():
    ...     figure, axes = panels(1, 1)
    """
    return mpl.rc_context(STYLE)


@takes(rows=GRID, columns=GRID, height=INCHES, width=INCHES)
def panels(rows: int, columns: int, *, height: float = 2.3, width: float = COLUMN) -> tuple[Figure, Any]:
    """A figure with a grid of axes, each a column wide; not attached to any window."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


@takes(axes=PLACE, x=REAL, y=REAL, label=Text())
def line(axes: Axes, x: ArrayLike, y: ArrayLike, label: str = "theory", **look: Any) -> None:
    """Draw theory, as a line in its colour."""
    style: dict[str, Any] = {"color": THEORY, "label": label, "zorder": 3}
    axes.plot(*_points(x, y), **(style | look))


@takes(axes=PLACE, x=REAL, y=REAL, error=REAL, label=Text())
def marks(
    axes: Axes, x: ArrayLike, y: ArrayLike, error: ArrayLike = 0.0, label: str = "simulation", **look: Any
) -> None:
    """Draw simulation, as points with error bars."""
    x, y, bars = _points(x, y, error)
    style: dict[str, Any] = {"fmt": "o", "ms": 3, "color": SIMULATION, "label": label, "elinewidth": 0.8, "capsize": 0}
    axes.errorbar(x, y, yerr=bars, **(style | look))


def _points(*given: ArrayLike) -> tuple[Any, ...]:
    """Arrays of one shape; an error may be a single number."""
    try:
        found = np.broadcast_arrays(*given)
    except ValueError:
        found = ()
    if not found or found[0].ndim > 1:
        shapes = " and ".join(str(np.shape(each)) for each in given)
        raise DomainError(f"x, y and error must have as many points each; their shapes are {shapes}")
    return found


def histogram(axes: Axes, edges: ArrayLike, density: ArrayLike, label: str = "simulation", **look: Any) -> None:
    """Draw simulation, as bars of these heights between ends in increasing order."""
    style: dict[str, Any] = {"fill": True, "color": BARS, "label": label}
    axes.stairs(density, edges, **(style | look))


def shared_legend(figure: Figure, panels: Iterable[Axes], columns: int = 4) -> None:
    """One legend for all panels, under them, with every entry once."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def plain_ticks(axis: Any, values: ArrayLike) -> None:
    """Ticks at these values alone, as plain numbers."""
    axis.set_ticks(np.asarray(values), labels=[f"{value:g}" for value in np.asarray(values).tolist()])
    axis.set_minor_locator(NullLocator())
