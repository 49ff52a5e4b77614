"""One look for all figures: laws, spectra and comparisons, and the style that studies and documentation share.

``law.plot()``, ``spectrum.plot(law)`` and ``comparison.plot()`` call these; every function takes axes and returns them.
"""

from bulkedge.plots.heads import plot_head, plot_kinds, plot_watch
from bulkedge.plots.spectra import axis_of, comparison, cumulative, density, histogram, quantiles
from bulkedge.plots.style import line, marks, panels, styled

__all__ = [
    "axis_of",
    "comparison",
    "cumulative",
    "density",
    "histogram",
    "line",
    "marks",
    "panels",
    "plot_head",
    "plot_kinds",
    "plot_watch",
    "quantiles",
    "styled",
]
