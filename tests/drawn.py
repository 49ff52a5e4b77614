"""What a figure shows, in words and numbers that can be compared: panels, labels, limits, and every line's data."""

import numpy as np
from matplotlib.patches import StepPatch

DIGITS = 4


def described(figure):
    """A list for each panel: its words, its limits and what is drawn in it, as JSON types."""
    figure.draw_without_rendering()
    words = [figure.get_suptitle(), *(legend_words(each) for each in figure.legends)]
    return [words, *(panel(axes) for axes in figure.axes if axes.get_visible())]


def panel(axes):
    words = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale()]
    limits = [number(each) for each in (*axes.get_xlim(), *axes.get_ylim())]
    drawn = [[label(each), each.get_linestyle(), *means(each.get_xydata().T)] for each in axes.lines]
    steps = [each for each in axes.patches if isinstance(each, StepPatch)]
    drawn += [[label(each), "steps", *means([each.get_data().values, each.get_data().edges[1:]])] for each in steps]
    drawn += [["image", *means([each.get_array()])] for each in axes.images]
    drawn += [["collection", type(each).__name__, *means(each.get_offsets().T)] for each in axes.collections]
    said = [each.get_text() for each in axes.texts]
    legend = axes.get_legend()
    return [words, limits, drawn, said, legend_words(legend) if legend else []]


def label(artist):
    """Its label; matplotlib numbers those that have none."""
    return "" if str(artist.get_label()).startswith("_") else artist.get_label()


def legend_words(legend):
    return [legend.get_title().get_text(), *(each.get_text() for each in legend.get_texts())]


def means(rows):
    """How many finite numbers there are, and means that a shift, a factor or another order would change."""
    found = []
    for row in rows:
        values = np.ma.filled(np.ma.asarray(row, dtype=float), np.nan).ravel()
        weights = 1 + np.arange(values.size) / max(values.size, 1)
        known = np.isfinite(values)
        found += [int(known.sum()), number(np.mean(values[known] * weights[known]) if known.any() else 0.0)]
    return found


def number(value):
    return float(f"{float(value):.{DIGITS}g}")
