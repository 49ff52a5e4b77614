"""The spectrum of an embedding table beside the laws of random tables (*recovery*, Appendix I).

Three steps away from noise, each a law for the covariance of some of the table's rows:

- isotropic: Marchenko-Pastur, the scale from the median (the noise of the paper's model);
- profiled: Silverstein's law, ``H * MP(d/rows)`` (free product), H the covariance profile;
- elliptical: ``H * E``, rows of different sizes: E is the law of ``sum_i size_i x_i x_i'/rows`` with x_i white noise.

A table's own eigenvalues as its profile would make the second nearly a tautology: with many more rows than dimensions
the law of the profile *is* the profile. So H and the sizes come from some rows, drawn at random, and the laws are held
against the others; few of these, by default two for each dimension, so that the laws are far from H and can be refuted.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> table = rng.standard_normal((3000, 60)) * np.linspace(0.5, 1.5, 60)
>>> table[:, 0] += 4 * np.sign(rng.standard_normal(3000))                     # two classes of tokens: one spike
>>> result = table_spectrum(table, rng)
>>> len(result.spikes), len(result.profiled.comparison.outliers)
(1, 1)
>>> result.profiled.comparison.ks < 0.05 < result.isotropic.comparison.ks
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.inference.comparison import Comparison, compare
from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.classical.free import free_add, free_mul
from bulkedge.laws.classical.product import MarchenkoPastur
from bulkedge.laws.law import LEVEL, Law
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Integers
from bulkedge.support.errors import DomainError
from bulkedge.support.random import numpy_generator

GROUPS = 6  # sizes of rows that the elliptical law distinguishes


class TableFit(NamedTuple):
    """A law, and its comparison with the held-out rows.

    >>> table = np.random.default_rng(0).standard_normal((200, 20))
    >>> round(table_spectrum(table, np.random.default_rng(1)).isotropic.law.edge, 2)
    2.83
    """

    law: Law
    comparison: Comparison


@dataclass(frozen=True, eq=False)
class TableSpectrum:
    """What :func:`table_spectrum` found.

    Attributes
    ----------
    spectrum : Spectrum
        Eigenvalues of the covariance of the whole table.
    held_out : Spectrum
        Those of the rows that the laws have not seen.
    rows : int
        How many these are.
    spikes : tuple of float
        Eigenvalues of the profile that stand clear of its bulk when seen through that many rows.
    isotropic, profiled, elliptical : TableFit
        Marchenko-Pastur, and the two laws of the bulk of the profile. Their outliers are eigenvalues of the held-out
        rows beyond the finite edge of the law: the profiled law should have as many as there are spikes.
    size_variance : float
        Variance of the squared lengths of the rows over their mean, beyond what a Gaussian of this profile has.
    control : array
        Kolmogorov distances to the profiled law of Gaussian rows with the same profile: what to expect by chance.
    """

    spectrum: Spectrum
    held_out: Spectrum
    rows: int
    spikes: tuple[float, ...]
    isotropic: TableFit
    profiled: TableFit
    elliptical: TableFit
    size_variance: float
    control: Real


class RowSizes(NamedTuple):
    """Squared lengths of rows over their mean, averaged in groups, without the scatter that Gaussian rows have."""

    groups: Real
    variance: float


def table_spectrum(
    embeddings: ArrayLike, rng: np.random.Generator, *, rows: int | None = None, level: float = 0.01
) -> TableSpectrum:
    """Compare the spectrum of an embedding table with the laws of random ones.

    Parameters
    ----------
    embeddings : array of shape (vocab, dim)
        The table, a row for each token; its mean is taken off.
    rng : numpy.random.Generator
        Draws the rows that are held out, and the controls.
    rows : int, optional
        How many rows to hold out: two for each dimension by default, at most half of the table.
    level : float
        Accepted probability of calling an outlier where there is none.

    Returns
    -------
    TableSpectrum
        The spectra, the spikes, and a comparison with each of the three laws.

    Examples
    --------
    >>> table = np.random.default_rng(0).standard_normal((2000, 50))
    >>> found = table_spectrum(table, np.random.default_rng(1))
    >>> found.profiled.comparison.outliers
    ()
    """
    table, rng = centred(embeddings), numpy_generator(rng)
    vocab, dim = table.shape
    level = LEVEL.check("level", level)
    rows = min(2 * dim, vocab // 2) if rows is None else Integers(2, vocab - 2).check("rows", rows)
    order = rng.permutation(vocab)
    whole, tested = Scatter.of(table), Scatter.of(table[order[:rows]])
    held_out, seen = Spectrum.of(tested.values(), "eigenvalues"), whole.without(tested).values()
    if not (held_out.values[-1] > 0 and seen[-1] > 0):
        raise DomainError("embeddings has rows that are nearly all the same: too few differ for a spectrum")
    bulk, spikes = split_profile(seen, rows)
    sizes = row_sizes(np.einsum("vd,vd->v", table, table)[order[rows:]], seen)
    profiled = _fit(held_out, free_mul(EmpiricalLaw(bulk), MarchenkoPastur(dim / rows)), level)
    even = sizes.variance == 0
    return TableSpectrum(
        spectrum=Spectrum.of(whole.values(), "eigenvalues"),
        held_out=held_out,
        rows=rows,
        spikes=tuple(spikes.tolist()),
        isotropic=_fit(held_out, isotropic_law(held_out, dim / rows), level),
        profiled=profiled,
        elliptical=profiled if even else _fit(held_out, elliptical_law(bulk, dim / rows, sizes.groups), level),
        size_variance=sizes.variance,
        # tables of Gaussian rows say how close a spectrum comes to its own law at this size
        control=np.array([_control(seen, rows, profiled.law, rng) for _ in range(5)]),
    )


class Scatter(NamedTuple):
    """Sums over rows, from which their covariance follows; those of some rows come off without another pass."""

    rows: int
    total: Real
    squares: Real

    @classmethod
    def of(cls, rows: Real) -> Scatter:
        """Number, sum and sum of outer products of some rows."""
        return cls(len(rows), rows.sum(axis=0), rows.T @ rows)

    def without(self, other: Scatter) -> Scatter:
        """The sums of the rows that are not in the other."""
        return Scatter(self.rows - other.rows, self.total - other.total, self.squares - other.squares)

    def values(self) -> Real:
        """Eigenvalues of the covariance; rounding does not make them negative."""
        mean = self.total / self.rows
        return np.maximum(spectrum(self.squares / self.rows - np.outer(mean, mean), kind="eigen").values, 0.0)


def isotropic_law(held_out: Spectrum, ratio: float) -> Law:
    """Marchenko-Pastur with the median of the spectrum: up to half of the values may be outliers."""
    unit = MarchenkoPastur(ratio)
    middle = float(unit.ppf((1 + unit.cdf(0.0)) / 2))
    positive = held_out.values[held_out.values > 0]
    return MarchenkoPastur(ratio, float(np.median(positive)) / middle)


def split_profile(values: Real, rows: int) -> tuple[Real, Real]:
    """The bulk of a profile, and the spikes: what lies in intervals of Silverstein's law right of the heaviest one."""
    law = free_mul(EmpiricalLaw(values), MarchenkoPastur(len(values) / rows))
    if not law.support:
        return values, values[:0]
    masses = [float(law.cdf(high) - law.cdf(low)) for low, high in law.support]
    above = sum(masses[int(np.argmax(masses)) + 1 :])
    count = round(above * len(values))
    return values[: len(values) - count], values[len(values) - count :]


def row_sizes(lengths: Real, profile: Real) -> RowSizes:
    """Sizes of the rows from their squared lengths, in groups of equal number."""
    # Gaussian rows of covariance S have squared lengths of relative variance c = 2 tr S**2/(tr S)**2, and sizes of
    # variance v make that v (1 + c) + c: deviations from one are shrunk so that v is left
    relative = np.sort(lengths / lengths.mean())
    chance = 2 * float(np.sum(profile**2) / np.sum(profile) ** 2)
    total = float(relative.var())
    # four standard errors of the variance above chance, or there is nothing to tell
    scatter = 4 * float(np.std((relative - 1) ** 2)) / np.sqrt(len(relative))
    if total <= chance + scatter:
        return RowSizes(np.ones(1), 0.0)
    variance = (total - chance) / (1 + chance)
    groups = np.array([each.mean() for each in np.array_split(relative, min(GROUPS, len(relative)))])
    shrunk = 1 + np.sqrt(variance / total) * (groups - 1)
    return RowSizes(shrunk / shrunk.mean(), variance)


def elliptical_law(profile: Real, ratio: float, sizes: Real) -> Law:
    """``H * E``: rows of size s_k, as many of each, are a free sum of scaled Marchenko-Pastur laws."""
    count = len(sizes)
    noise: list[Law] = [MarchenkoPastur(count * ratio, size / count) for size in sizes.tolist()]
    return free_mul(EmpiricalLaw(profile), reduce(free_add, noise))


def centred(embeddings: ArrayLike) -> Real:
    """The table without its mean, in double precision; the one copy that is made of it."""
    table: Real = FINITE.check("embeddings", embeddings).astype(float, copy=False)
    if table.ndim != 2 or table.shape[0] < 4 or table.shape[1] < 2:
        raise DomainError(
            f"embeddings of shape {table.shape} is outside its domain: matrices with a row for each of at least four "
            "tokens, and at least two columns"
        )
    if not np.any(table != table[0]):
        raise DomainError("embeddings has rows that are all the same: there is no spectrum to speak of")
    table -= table.mean(axis=0)
    return table


def _control(profile: Real, rows: int, law: Law, rng: np.random.Generator) -> float:
    """Distance to the law of Gaussian rows with this profile."""
    noise = Scatter.of(rng.standard_normal((rows, len(profile))) * np.sqrt(profile))
    return compare(Spectrum.of(noise.values(), "eigenvalues"), law).ks


def _fit(held_out: Spectrum, law: Law, level: float) -> TableFit:
    return TableFit(law, compare(held_out, law, level))
