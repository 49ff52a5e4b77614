"""A p-value of a whole spectrum: from known fluctuations where there are some, by simulation elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.gaussian import Wigner, Wishart
from bulkedge.inference.comparison import in_one_unit
from bulkedge.inference.linear_statistics import (
    ESTIMATED,
    FEWEST,
    KURTOSIS,
    Assumed,
    GoodnessOfFit,
    chebyshev_sums,
    degrees,
    law_fit,
)
from bulkedge.inference.nulls import DRAWS, Null, SimulatedNull
from bulkedge.laws.law import Law
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Instance, shown, takes
from bulkedge.support.errors import DomainError

SET_ASIDE = 0.01
"""How often the largest value of a spectrum without structure is set aside as an outlier."""
DRAWS_A_DEGREE = 8
"""Simulated spectra for each linear statistic: fewer do not tell the covariance."""


@takes(spectrum=Instance(Spectrum), dyson=Choice((1, 2, 4)), kurtosis=KURTOSIS, estimated=ESTIMATED, draws=DRAWS)
def goodness_of_fit(  # noqa: PLR0913 - what is compared, what is known of the entries, and how to simulate
    spectrum: Spectrum,
    law: Law | Ensemble | Null,
    *,
    dyson: int = 1,
    kurtosis: float = 0.0,
    estimated: Sequence[str] = (),
    draws: int = 199,
    rng: Any = 0,
) -> GoodnessOfFit:
    """Test whether a whole spectrum fits a law or an ensemble.

    The test looks at sums of Chebyshev polynomials over the values. For a symmetric matrix with independent entries
    (``Semicircle``) and for a sample covariance of white noise (``MarchenkoPastur``) their fluctuations are known. Any
    other ensemble is simulated.

    Parameters
    ----------
    spectrum : Spectrum
        All values of one matrix.
    law : Law, Ensemble or Null
        What they should follow. A law without known fluctuations is refused: pass its ensemble, which is simulated, or
        a :class:`~bulkedge.SimulatedNull`.
    dyson : {1, 2, 4}
        Symmetry class of the matrix: 1 for real entries, 2 for complex ones.
    kurtosis : float
        Excess kurtosis of the entries (off the diagonal, of a symmetric matrix): 0 for Gaussian ones, -1.2 for uniform
        ones.
    estimated : sequence of str
        Parameters of the law that were estimated from this spectrum, such as ``("scale",)``.
    draws : int
        Spectra to simulate, where it is necessary; 19 or more.
    rng : int or generator
        Seed or source of the simulation. The draws of a seed are kept.

    Returns
    -------
    GoodnessOfFit
        The p-value as ``.value``, its ``statistic`` and ``draws``, and ``words``.

    Raises
    ------
    DomainError
        If no calibrated p-value is known: for other laws, for fewer than 20 values, or for a spectrum that was
        estimated instead of computed.

    Notes
    -----
    Outliers of the two laws are set aside, and what their signals do to the other values is subtracted: values beyond
    ``finite_edge`` at level 0.01, on both sides for a symmetric matrix. A simulated test takes all values as they are.
    Measured rates of rejection are in docs/goodness_of_fit.md.

    Examples
    --------
    >>> from bulkedge.ensembles import Wishart
    >>> from bulkedge.laws import MarchenkoPastur
    >>> measured = Wishart(dim=100, samples=200).spectrum(np.random.default_rng(0))
    >>> print(goodness_of_fit(measured, MarchenkoPastur(0.5)).words)
    The spectrum fits: p = 0.25.
    >>> print(goodness_of_fit(measured, MarchenkoPastur(0.45)).words)
    The spectrum does not fit: p = 0.00011.
    """
    if spectrum.error or len(spectrum.values) < spectrum.size:
        raise DomainError("spectrum was estimated, not computed: goodness_of_fit needs all values of the matrix")
    if isinstance(law, Wigner | Wishart):
        law = law.law()
    elif isinstance(law, Ensemble):
        law = SimulatedNull.of(law, draws, rng)
    if isinstance(law, SimulatedNull):
        if len(estimated) or kurtosis:
            raise DomainError("estimated and kurtosis are of laws; a simulation has its own entries and parameters")
        return simulated_fit(spectrum, law)
    if not isinstance(law, Law):
        raise DomainError(f"law = {shown(law)} is not a law, an ensemble or a simulated null")
    measured, law = in_one_unit(spectrum, law)  # type: ignore[assignment]
    reach = law.reach(measured.size, SET_ASIDE, dyson)
    found = law_fit(measured.values, law, Assumed(reach, dyson, kurtosis, tuple(dict.fromkeys(estimated))))
    if found is None:
        raise DomainError(
            f"no calibrated p-value is known for {len(measured.values)} values and {law!r}: it takes {FEWEST} values "
            "or more (27 if two parameters were estimated), and Semicircle, QuarterCircle or MarchenkoPastur. Pass the "
            "ensemble instead, which is simulated"
        )
    return found


def simulated_fit(spectrum: Spectrum, null: SimulatedNull) -> GoodnessOfFit:
    """The fit of a spectrum among simulated ones: the rank of its distance from the mean of all of them."""
    own, _ = in_one_unit(spectrum, null.distribution)
    if own.unit is not null.members[0].unit or own.size != null.members[0].size:
        first = null.members[0]
        raise DomainError(
            f"spectrum has {own.size} {own.unit}, the simulated ones {first.size} {first.unit}: they must be alike"
        )
    distances, freedom = exchangeable_distances(np.stack([each.values for each in (*null.members, own)]))
    value = float(np.mean(distances >= distances[-1] * (1 - 1e-9)))
    return GoodnessOfFit(value, float(distances[-1]), freedom, null.draws)


def exchangeable_distances(values: Real, covariates: Real | None = None) -> tuple[Real, int]:
    """Squared distances of rows of values from the mean of all, in units of their common covariance.

    All rows are treated alike, so that under the null each is equally likely to be the farthest, whatever the law is.
    ``covariates`` (rows, q) are estimates made from each row's matrix, whose linear effect is removed.
    """
    low, high = np.median(values[:, 0]), np.median(values[:, -1])
    rows = len(values)
    count = max(1, min(degrees(values.shape[1]), rows // DRAWS_A_DEGREE))
    points = (2 * values - low - high) / max(high - low, np.finfo(float).tiny)
    sums = np.stack([chebyshev_sums(each, count) for each in points])
    sums -= sums.mean(axis=0)
    if covariates is not None:
        effects = covariates - covariates.mean(axis=0)
        sums -= effects @ np.linalg.lstsq(effects, sums, rcond=None)[0]
    left, sizes, _ = np.linalg.svd(sums, full_matrices=False)
    kept = sizes > 1e-9 * max(sizes[0], 1e-300)
    return np.asarray((left[:, kept] ** 2).sum(axis=1) * (rows - 1)), int(kept.sum())
