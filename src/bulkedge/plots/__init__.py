"""One look for all figures: laws, spectra and comparisons, and the style that studies and documentation share.

``law.plot()``, ``spectrum.plot(law)`` and ``comparison.plot()`` call these; every function takes axes and returns them.
"""

from bulkedge.plots.spectra import comparison, cumulative, density, histogram, quantiles
from bulkedge.plots.style import styled

__all__ = ["comparison", "cumulative", "density", "histogram", "quantiles", "styled"]
