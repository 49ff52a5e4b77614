"""Pictures of laws, spectra, comparisons and heads: axes in, axes out.

Values of a spectrum often span decades, and a linear axis shows one bar. So the axis is chosen by the values: a
logarithmic one where the upper values are far above the lower ones, one in the square root where the density may be
infinite at zero, linear otherwise. Densities are those of the variable on the axis, so that areas are masses.

>>> from bulkedge.laws import AttentionLaw, CausalLaw, Semicircle
>>> axis_of(Semicircle()).name, axis_of(AttentionLaw(1.0, 1.0)).name, axis_of(CausalLaw(1.0)).name
('linear', 'sqrt', 'log')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator, NullFormatter

from bulkedge.inference.comparison import Comparison
from bulkedge.laws.distribution import Distribution, Unit
from bulkedge.laws.law import Law
from bulkedge.plots.style import BARS, COLOURS, PLACE, SIMULATION, THEORY, panels, styled
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Instance, Integers, takes
from bulkedge.support.errors import DomainError

POINTS = 600
UPPER_HALF = (0.5, 0.99)  # levels between which the range of the values decides on the axis
FAINT = 1e-6  # share of the median below which a logarithmic axis ends
FAR = 20.0  # ratio of the two quantiles from which on the axis is logarithmic


@dataclass(frozen=True)
class Axis:
    """A monotone map of values to the axis, with its inverse and its derivative."""

    name: str
    forward: Callable[[Any], Any]
    inverse: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    density: str  # what the density on this axis is called


AXES = {
    "linear": Axis("linear", lambda x: x, lambda y: y, np.ones_like, "density"),
    "sqrt": Axis("sqrt", np.sqrt, np.square, lambda x: 0.5 / np.sqrt(x), "density in √x"),
    "log": Axis("log", np.log10, lambda y: 10.0**y, lambda x: 1 / (np.log(10) * x), "density in log₁₀ x"),
}
SCALE = Choice(("auto", *AXES))
DRAWN = Instance((Distribution, Spectrum))


@takes(values=DRAWN, scale=SCALE)
def axis_of(values: Distribution | Spectrum, scale: str = "auto") -> Axis:
    """The axis on which a distribution or a spectrum can be seen."""
    if scale != "auto":
        return AXES[scale]
    distribution = values.distribution() if isinstance(values, Spectrum) else values
    low, high = (float(each) for each in distribution.ppf(np.array(UPPER_HALF)))
    if float(distribution.ppf(0.0)) < 0:
        return AXES["linear"]
    if high > FAR * low > 0:
        return AXES["log"]
    return AXES["sqrt" if distribution.unit in {Unit.SQUARED, Unit.EIGEN} else "linear"]


def _axes_or_current(axes: Axes | None) -> Axes:
    """The axes given, or the current ones of pyplot, as people expect in a notebook."""
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.gca()


def _label_axes(axes: Axes, axis: Axis, unit: str) -> Axes:
    axes.set_xlabel(unit)
    axes.set_ylabel(axis.density)
    if axis.name == "log":
        axes.set_xscale("log")
    elif axis.name == "sqrt":
        # odd, so that margins left of zero have a place
        axes.set_xscale("function", functions=(lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda y: y * np.abs(y)))
    axes.set_ylim(bottom=0, auto=True)
    return axes


@takes(law=Instance(Law), axes=PLACE, scale=SCALE)
def density(law: Law, axes: Axes | None = None, *, scale: str = "auto", **look: Any) -> Axes:
    """Draw the density of a law, its atoms as stems with their mass.

    Parameters
    ----------
    law : Law
        What to draw.
    axes : matplotlib Axes, optional
        Where; the current axes of pyplot by default.
    scale : {"auto", "linear", "sqrt", "log"}
        The axis of the values.
    **look
        Options of ``Axes.plot``, such as ``label`` and ``color``.

    Returns
    -------
    matplotlib Axes
        The axes.

    Examples
    --------
    >>> from bulkedge import MarchenkoPastur
    >>> density(MarchenkoPastur(0.5)).get_ylabel()
    'density in √x'
    """
    axes, axis = _axes_or_current(axes), axis_of(law, scale)
    style: dict[str, Any] = {"color": THEORY, "label": "law", "zorder": 3} | look
    for low, high in law.support:
        x = _inside(axis, low, high if np.isfinite(high) else float(law.ppf(0.999)), law)
        axes.plot(x, law.pdf(x) / axis.slope(x), **style)
        style["label"] = None
    shown = [(place, mass) for place, mass in law.atoms if mass > 1e-3 and (place > 0 or axis.name != "log")]
    for place, mass in shown:
        axes.vlines(place, 0, mass, color=style["color"], linestyles=":")
        axes.plot([place], [mass], "v", color=style["color"], ms=4, label=style["label"] and f"{style['label']} (atom)")
        style["label"] = None
    return _label_axes(axes, axis, law.unit)


def _inside(axis: Axis, low: float, high: float, law: Law) -> Real:
    """Points strictly between the ends, close together near both, where a density rises steeply."""
    faint = max(float(law.ppf(0.002)), FAINT * float(law.ppf(0.5)), 1e-300)
    start = max(low, faint) if axis.name == "log" else low
    theta = np.linspace(0, np.pi, POINTS + 2)[1:-1]
    first, last = axis.forward(np.array([start, high]))
    return np.asarray(axis.inverse(first + (last - first) * (1 - np.cos(theta)) / 2))


@takes(spectrum=Instance(Spectrum), axes=PLACE, scale=SCALE, bins=Integers(0, 10**6))
def histogram(spectrum: Spectrum, axes: Axes | None = None, *, scale: str = "auto", bins: int = 0, **look: Any) -> Axes:
    """Draw a spectrum as bars of equal width on the axis; the area of the bars is the mass that is shown.

    Parameters
    ----------
    spectrum : Spectrum
        What to draw.
    axes : matplotlib Axes, optional
        Where; the current axes of pyplot by default.
    scale : {"auto", "linear", "sqrt", "log"}
        The axis of the values.
    bins : int
        Number of bars; by default as many as the number of values asks for.
    **look
        Options of ``Axes.stairs``, such as ``label`` and ``color``.

    Returns
    -------
    matplotlib Axes
        The axes.

    Examples
    --------
    >>> histogram(Spectrum.of(np.arange(50.0), "eigenvalues"), bins=5).get_xlabel()
    'eigenvalues'
    """
    axes, axis = _axes_or_current(axes), axis_of(spectrum, scale)
    values, weights = spectrum.values, spectrum.weights
    if axis.name == "log":  # what is rounding, or far below the bulk, has no place there
        floor = max(spectrum.rounding, float(spectrum.distribution().ppf(0.002)), 1e-300)
        values, weights = values[values >= floor], weights[values >= floor]
    count = bins or int(np.clip(3 * spectrum.size ** (1 / 3), 10, 80))
    mapped = axis.forward(np.maximum(values, 0.0) if axis.name != "linear" else values)
    heights, edges = np.histogram(mapped, bins=count, weights=weights)
    style: dict[str, Any] = {"fill": True, "color": BARS, "label": "spectrum"} | look
    axes.stairs(heights / np.diff(edges), axis.inverse(edges), **style)
    return _label_axes(axes, axis, spectrum.unit)


@takes(values=DRAWN, axes=PLACE, scale=SCALE)
def cumulative(values: Distribution | Spectrum, axes: Axes | None = None, *, scale: str = "auto", **look: Any) -> Axes:
    """Draw a distribution function, which every distribution and spectrum has.

    Parameters
    ----------
    values : Distribution or Spectrum
        What to draw.
    axes : matplotlib Axes, optional
        Where; the current axes of pyplot by default.
    scale : {"auto", "linear", "sqrt", "log"}
        The axis of the values.
    **look
        Options of ``Axes.plot``.

    Returns
    -------
    matplotlib Axes
        The axes.

    Examples
    --------
    >>> from bulkedge import Semicircle
    >>> cumulative(Semicircle()).get_ylabel()
    'share of values at or below'
    """
    axes, axis = _axes_or_current(axes), axis_of(values, scale)
    levels = np.linspace(0.002, 0.998, POINTS)
    distribution: Distribution = values.distribution() if isinstance(values, Spectrum) else values
    style: dict[str, Any] = {"color": THEORY, "label": "law"}
    if isinstance(values, Spectrum):
        style = {"color": SIMULATION, "label": "spectrum", "drawstyle": "steps-post"}
    points = np.asarray(distribution.ppf(levels))
    if axis.name == "log":  # a heavy tail towards zero would take all of the axis
        seen = points > FAINT * float(distribution.ppf(0.5))
        points, levels = points[seen], levels[seen]
    axes.plot(points, levels, **(style | look))
    _label_axes(axes, axis, distribution.unit)
    axes.set_ylabel("share of values at or below")
    axes.set_ylim(0, 1)
    return axes


@takes(spectrum=Instance(Spectrum), law=Instance(Distribution), axes=PLACE)
def quantiles(spectrum: Spectrum, law: Distribution, axes: Axes | None = None, **look: Any) -> Axes:
    """Draw the values of a spectrum against the quantiles of a law at the same levels; on the law, a straight line.

    Parameters
    ----------
    spectrum : Spectrum
        Measured values, in the unit of the law.
    law : Distribution
        What they should follow.
    axes : matplotlib Axes, optional
        Where; the current axes of pyplot by default.
    **look
        Options of ``Axes.plot``.

    Returns
    -------
    matplotlib Axes
        The axes.

    Examples
    --------
    >>> from bulkedge import Semicircle
    >>> law = Semicircle()
    >>> spectrum = Spectrum.of(law.ppf(np.linspace(0.01, 0.99, 50)), "eigenvalues")
    >>> quantiles(spectrum, law).get_ylabel()
    'measured'
    """
    if spectrum.unit is not law.unit and Unit.VALUES not in {spectrum.unit, law.unit}:
        raise DomainError(f"the spectrum holds {spectrum.unit} and the law {law.unit}: convert one of them")
    axes, axis = _axes_or_current(axes), axis_of(law)
    levels = np.cumsum(spectrum.weights) - spectrum.weights / 2
    expected = np.asarray(law.ppf(levels))
    shown = (expected > max(spectrum.rounding, 0.0)) & (spectrum.values > spectrum.rounding)
    shown |= axis.name == "linear"
    style: dict[str, Any] = {"color": SIMULATION, "ms": 3, "label": "values"} | look
    axes.plot(expected[shown], spectrum.values[shown], ".", **style)
    ends = np.array([expected[shown].min(), expected[shown].max()])
    axes.plot(ends, ends, color=THEORY, label="law", zorder=1)
    if axis.name == "log":
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(f"{law.unit}: quantiles of the law")
    axes.set_ylabel("measured")
    return axes


@takes(result=Instance(Comparison), axes=PLACE, scale=SCALE)
def comparison(result: Comparison, axes: Axes | None = None, *, scale: str = "auto") -> Axes:
    """Draw a spectrum on its law, with the outliers and the edge beyond which they are called.

    Parameters
    ----------
    result : Comparison
        What :func:`bulkedge.compare` returned.
    axes : matplotlib Axes, optional
        Where; the current axes of pyplot by default.
    scale : {"auto", "linear", "sqrt", "log"}
        The axis of the values.

    Returns
    -------
    matplotlib Axes
        The axes.

    Examples
    --------
    >>> import bulkedge as be
    >>> from bulkedge.plots.style import panels
    >>> model = be.Wishart(50, 100)
    >>> result = be.compare(model.spectrum(np.random.default_rng(0)), model.law())
    >>> comparison(result).get_ylabel()
    'density in √x'
    """
    axes, law, spectrum = _axes_or_current(axes), result.law, result.spectrum
    if not isinstance(law, Law) or not law.support:
        cumulative(spectrum, axes, scale=scale)
        cumulative(law, axes, scale=scale)
    else:
        name = axis_of(law, scale).name
        histogram(spectrum, axes, scale=name)
        density(law, axes, scale=name)
    if result.outliers:
        height = 0.04 * axes.get_ylim()[1]
        label = f"{len(result.outliers)} outlier" + "s" * (len(result.outliers) > 1)
        axes.plot(result.outliers, np.full(len(result.outliers), height), "v", color="black", ms=4, label=label)
    axes.set_title(f"Kolmogorov distance {result.ks:.3g}")
    axes.legend()
    return axes


ENDS = slice(1, -1)  # the smallest and the largest of all values are no quantiles
MARKERS = {
    "sharp": ".", "growing": ".", "frozen": "s", "runaway": "^", "collapse": "v", "gap": ".", "alike": "h", "dead": "x",
    "drift": "D", "sink": "p", "copies": "*", "not finite": "P",
}  # fmt: skip


@takes(head=Instance(xr.Dataset), ax=PLACE)
def plot_head(head: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw the spectrum of a head, largest singular value first, in the band of random heads."""
    with styled():
        axes: Any = panels(1, 1)[1][0, 0] if ax is None else ax
        share = 1 - head["level"].to_numpy()[ENDS]
        first = head.isel(text=0)
        if np.isfinite(first["null_low"]).all():
            low, high = (first[name].to_numpy()[ENDS] for name in ("null_low", "null_high"))
            axes.fill_between(share, low, high, color=BARS, label="random weights, 5 % to 95 %", lw=0)
        for place in range(head.sizes["text"]):
            values = head["spectrum"].isel(text=place).to_numpy()[ENDS]
            axes.plot(share, values, color=SIMULATION, lw=1, label="head" if place == 0 else None)
        axes.set(yscale="log", xlabel="share of the values", ylabel="singular value")
        axes.set_title(f"layer {int(head['layer'])}, head {int(head['head'])}: {head['kinds'].item()}")
        axes.legend()
    return axes


@takes(data=Instance(xr.Dataset), titles=Instance(dict), ax=PLACE)
def plot_kinds(data: xr.Dataset, titles: dict[str, str], ax: Axes | None = None) -> Axes:
    """Draw the map of all heads, layers down and heads across, by their kinds."""
    unknown = sorted({*data["kind"].to_numpy().tolist()} - titles.keys())
    if unknown:
        raise DomainError(f"titles has none for {', '.join(unknown)}: bulkedge.heads.KINDS has the titles of all kinds")
    layers = {each: place for place, each in enumerate(np.unique(data["layer"].to_numpy()))}
    with styled():
        axes: Any = panels(1, 1, width=5.2, height=0.3 * len(layers) + 0.9)[1][0, 0] if ax is None else ax
        colours = dict(zip(titles, ("#882255", "#332288", "#999933", *COLOURS, "#999999", "#DDDDDD"), strict=False))
        for layer, head, kind in zip(*(data[each].to_numpy() for each in ("layer", "head", "kind")), strict=True):
            axes.add_patch(_square(int(head), layers[layer], colours[str(kind)]))
        present = [each for each in titles if each in set(data["kind"].to_numpy().tolist())]
        handles = [_square(0, 0, colours[each]) for each in present]
        names = [titles[each] for each in present]
        axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        heads = int(data["head"].max()) + 1
        axes.set(
            xlim=(-0.6, heads - 0.4), ylim=(len(layers) - 0.4, -0.6), xlabel="head", ylabel="layer", aspect="equal"
        )
        axes.set_yticks(range(len(layers)), [str(each) for each in layers])
        axes.set_xticks(range(0, heads, max(1, heads // 12)))
    return axes


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.45, y - 0.45), 0.9, 0.9, facecolor=colour, edgecolor="none")


@takes(data=Instance(xr.Dataset))
def plot_watch(data: xr.Dataset, alarms: Sequence[Any] = ()) -> Figure:
    """Draw the readings of a run."""
    with styled():
        figure, (axes,) = panels(1, 3, width=3.2, height=2.9)
        heat, entropy, residual = axes
        colours = {layer: COLOURS[n % len(COLOURS)] for n, layer in enumerate(data.layer.values.tolist())}
        share = (data.entropy / data.uniform_entropy).mean("head")
        sized = np.abs(data.residual).fillna(-1).argmax("head")
        for layer, colour in colours.items():
            look = {"color": colour, "lw": 1.1, "marker": ".", "ms": 3, "label": f"layer {layer}"}
            heat.plot(data.step, np.maximum(data.beta.sel(layer=layer).max("head"), 1e-3), **look)
            entropy.plot(data.step, share.sel(layer=layer), **look)
            residual.plot(data.step, data.residual.isel(head=sized).sel(layer=layer), **look)
        heat.plot(
            data.step, np.sqrt(2 * np.log(data["keys"].max(("layer", "head")))), color="0.3", ls="--", label="freezing"
        )
        _mark(heat, data, alarms)
        heat.set(yscale="log", xlabel="step", ylabel=r"largest $\beta$ of a layer's heads")
        heat.yaxis.set_major_formatter(LogFormatterSciNotation())
        heat.yaxis.set_minor_formatter(NullFormatter())
        entropy.set(xlabel="step", ylabel="entropy over the uniform one", ylim=(0, 1.05))
        residual.axhline(0, color="0.6", lw=0.8)
        residual.set(xlabel="step", ylabel="largest residual entropy (nats)")
        for each in axes:
            each.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        # below the panels: curves, the line and the marks of alarms may be anywhere in them
        figure.legend(*heat.get_legend_handles_labels(), loc="outside lower center", ncols=8)
    return figure


def _mark(axes: Any, data: xr.Dataset, alarms: Sequence[Any]) -> None:
    """The alarms at the spread of their head, each kind once in the legend."""
    for kind in dict.fromkeys(each.kind for each in alarms if each.grade != "note"):
        places = [each for each in alarms if each.kind == kind]
        found = []
        for each in places:
            spreads = data.beta.sel(step=each.step, layer=each.layer)
            found.append((each.step, float(spreads.max() if each.head is None else spreads.sel(head=each.head))))
        known = [(step, value) for step, value in found if np.isfinite(value)]
        axes.plot(
            *zip(*known or [(np.nan, np.nan)], strict=True), MARKERS[kind], color="0.2", ms=4, mfc="none", label=kind
        )


def plot_preflight(layers: dict[str, Real], tokens: int, longer: int) -> Figure:
    """Draw what a configuration does at initialisation against its layers: rows, scores, tokens, gradients."""
    with styled():
        figure, axes = panels(2, 2)
        place = np.arange(len(layers["beta"]))
        shown = [("entropy", "entropy of a row, nats"), ("beta", "score scale β"), ("cosine", "cosine of two tokens")]
        for each, (name, title) in zip(axes.flat, shown, strict=False):
            each.plot(place, layers[name], color=THEORY, label=f"{tokens} tokens")
            if f"{name}_long" in layers:
                each.plot(place, layers[f"{name}_long"], color=SIMULATION, lw=1, label=f"{longer} tokens")
            each.set(xlabel="layer", ylabel=title)
        axes[0, 0].set_ylim(bottom=0)
        axes[0, 1].plot(place, layers["beta"] + layers["margin"], color="0.5", ls=":", label="freezing")
        axes[0, 1].set_ylim(bottom=0)
        axes[1, 0].set_ylim(-0.05, 1.05)
        axes[0, 1].legend()
        last = axes[1, 1]
        last.plot(place, layers["scaled_gradient"], color=THEORY)
        last.set(xlabel="layer", ylabel="scaled gradient", yscale="log")
        for each in axes.flat:
            each.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
