"""One look for all figures: sizes, colours and the two marks, a line for theory and points or bars for simulation.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

COLUMN = 3.4
"""Width of a column of a two-column paper, in inches; text stays readable there."""
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


def styled() -> AbstractContextManager[None]:
    """The style, for everything drawn inside."""
    return mpl.rc_context(STYLE)


def panels(rows: int, columns: int, *, height: float = 2.3, width: float = COLUMN) -> tuple[Figure, Any]:
    """A figure with a grid of axes, each a column wide; not attached to any window.

    Parameters
    ----------
    rows, columns : int
        Size of the grid.
    height, width : float
        Size of one of its axes, in inches.

    Returns
    -------
    figure : matplotlib Figure
        With a canvas for files.
    axes : array of matplotlib Axes, shape (rows, columns)
        Also if there is only one.
    """
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def line(axes: Axes, x: ArrayLike, y: ArrayLike, label: str = "theory", **look: Any) -> None:
    """Draw theory, as a line in its colour.

    Parameters
    ----------
    axes : matplotlib Axes
        Where.
    x, y : array_like of shape (points,)
        Points of the curve.
    label : str
        Its entry in the legend.
    **look : object
        Options of ``Axes.plot``, which go before those of the style.
    """
    style: dict[str, Any] = {"color": THEORY, "label": label, "zorder": 3}
    axes.plot(x, y, **(style | look))


def marks(
    axes: Axes, x: ArrayLike, y: ArrayLike, error: ArrayLike = 0.0, label: str = "simulation", **look: Any
) -> None:
    """Draw simulation, as points with error bars.

    Parameters
    ----------
    axes : matplotlib Axes
        Where.
    x, y : array_like of shape (points,)
        The points.
    error : array_like
        Half the length of the bars in y, one for all points or one for each.
    label : str
        Their entry in the legend.
    **look : object
        Options of ``Axes.errorbar``, which go before those of the style.
    """
    bars = np.broadcast_to(np.asarray(error, dtype=float), np.shape(x))
    style: dict[str, Any] = {"fmt": "o", "ms": 3, "color": SIMULATION, "label": label, "elinewidth": 0.8, "capsize": 0}
    axes.errorbar(x, y, yerr=bars, **(style | look))


def histogram(axes: Axes, edges: ArrayLike, density: ArrayLike, label: str = "simulation", **look: Any) -> None:
    """Draw simulation, as bars between given ends.

    Parameters
    ----------
    axes : matplotlib Axes
        Where.
    edges : array_like of shape (bars + 1,)
        Ends of the bars, in increasing order.
    density : array_like of shape (bars,)
        Their heights.
    label : str
        Their entry in the legend.
    **look : object
        Options of ``Axes.stairs``, which go before those of the style.
    """
    style: dict[str, Any] = {"fill": True, "color": BARS, "label": label}
    axes.stairs(density, edges, **(style | look))
