"""What rooms show: panels with curves in them, drawn by Matplotlib for a file; the page draws the same with Plotly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Look = Literal["theory", "rival", "second", "simulation", "mark", "here"]
LOOKS: dict[Look, tuple[str, str]] = {
    "theory": ("#D55E00", "solid"),
    "rival": ("#009E73", "dash"),
    "second": ("#CC79A7", "dashdot"),
    "simulation": ("#0072B2", "solid"),
    "mark": ("#808890", "dot"),
    "here": ("#808890", "solid"),
}
"""Colour and dash of everything that rooms draw: colours of Okabe and Ito, and no two lines alike without colour."""
DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}


class Panel(NamedTuple):
    """Axes: what is along them, and which of them are logarithmic (``"x"``, ``"y"``, ``"xy"``)."""

    title: str
    x: str
    y: str
    log: str = ""
    click: tuple[str, str] | None = None
    """Parameters that a click on the panel sets, along x and along y."""


@dataclass(frozen=True, eq=False)
class Curve:
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


def figure(panels: Sequence[Panel], curves: Sequence[Curve]) -> Figure:
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


def _draw(axis: Any, curve: Curve) -> None:
    colour, dash = LOOKS[curve.look]
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


def save(path: str | Path, panels: Sequence[Panel], curves: Sequence[Curve]) -> None:
    """Draw curves into a file."""
    figure(panels, curves).savefig(path, dpi=200)
