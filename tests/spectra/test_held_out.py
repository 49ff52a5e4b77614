"""Stated errors on spectra of other kinds than the constants were tuned on, above all close to zero.

Constants of :mod:`bulkedge.spectra.curves` were chosen on the spectra of ``test_curves.py``. These are others: edges
close to zero, densities that vanish or pile up there, atoms, gaps, decades. Runs stop by themselves, and nine of ten
must be as close to the truth as they say. Two constants were set after a look at the first families; the last family
was taken after that, and nothing was changed by it.
"""

import warnings
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

import bulkedge as be
from bulkedge import testing
from bulkedge.spectra import MapOperator
from bulkedge.spectra.curves import SpectralDensity, gauss, refine
from bulkedge.spectra.matrix_free import _distance_to_fewer, operator_spectrum


def levels(size):
    return (np.arange(size) + 0.5) / size


def wishart(ratio):
    return lambda size: testing.values_of(be.MarchenkoPastur(ratio), size)


def power(exponent):
    """A density of singular values that vanishes at zero as a power."""
    return lambda size: levels(size) ** (1 / (exponent + 1))


def beta(first, second):
    return lambda size: stats.beta(first, second).ppf(levels(size))


def semicircle(shift):
    """Moduli of the eigenvalues of a symmetric matrix that is shifted."""
    return lambda size: np.abs(2 * stats.semicircular.ppf(levels(size)) + shift)


def two_bulks(share, far):
    """Two Wishart matrices side by side, one of them larger."""

    def values(size):
        first = round(share * size)
        near = testing.values_of(be.MarchenkoPastur(0.3), first)
        return np.concatenate([near, far * testing.values_of(be.MarchenkoPastur(0.1), size - first)])

    return values


@cache
def _three_matrices():
    rng, sizes = np.random.default_rng(0), (900, 1200, 720, 600)
    matrix = np.eye(sizes[0])
    for rows, columns in pairwise(sizes):
        matrix = matrix @ rng.standard_normal((rows, columns)) / rows**0.5
    return np.linalg.svd(matrix, compute_uv=False)[::-1]


def product_of_three(size):
    """Singular values of a product of three rectangular Gaussian matrices; more of them than it has lie in between."""
    return np.interp(levels(size), levels(600), _three_matrices())


def with_zeros(share, rest):
    """Some values are zero, the others are of another family."""

    def values(size):
        zeros = round(share * size)
        return np.concatenate([np.zeros(zeros), rest(size - zeros)])

    return values


def decades(number):
    return lambda size: 10 ** (-number * (1 - levels(size)))


FAMILIES = {
    "Wishart": {f"ratio {each}": wishart(each) for each in (0.8, 0.9, 0.95, 0.99, 1.0)},
    "moduli of eigenvalues": {f"semicircle + {each}": semicircle(each) for each in (0.5, 1.0, 1.9)},
    "density x^a": {f"a = {each}": power(each) for each in (0.5, 1, 2, 3)},
    "uniform on [e, 1]": {f"e = {e}": (lambda size, e=e: e + (1 - e) * levels(size)) for e in (0.01, 0.05, 0.2)},
    "Beta": {f"Beta{pair}": beta(*pair) for pair in ((2, 2), (0.5, 0.5), (0.7, 2), (2, 5), (5, 2))},
    "two bulks and a gap": {"2 and 5": two_bulks(0.5, 5), "0.8 and 3": two_bulks(0.8, 3)},
    "log-uniform": {f"{each} decades": decades(each) for each in (1.5, 2.5, 3)},
    "product of three": {"Gaussian": product_of_three},
    "zeros and a bulk": {
        "a fifth, Wishart": with_zeros(0.2, wishart(0.5)),
        "a tenth, apart": with_zeros(0.1, lambda size: 0.3 + 0.7 * levels(size)),
    },
    "zeros where a density begins": {
        "a tenth, square": with_zeros(0.1, wishart(1.0)),
        "a quarter, x^1": with_zeros(0.25, power(1)),
        "a twentieth, equidistant": with_zeros(0.05, levels),
    },
}
FAMILIES["taken after the mend"] = {
    "Wishart, ratio 0.97": wishart(0.97),
    "uniform on [0.025, 1]": lambda size: 0.025 + 0.975 * levels(size),
    "semicircle + 0.8": semicircle(0.8),
    "normal": lambda size: stats.norm.ppf(0.5 + levels(size) / 2),
    "normal, shifted by 0.1": lambda size: 0.1 + stats.norm.ppf(0.5 + levels(size) / 2),
    "exponential": lambda size: stats.expon.ppf(levels(size)),
    "Beta(1.5, 3)": beta(1.5, 3),
    "triangle": lambda size: stats.triang(0.3).ppf(levels(size)),
}
"""Curves and constants were changed by what the families above showed, and by nothing that these did."""
LONG = {"two bulks and a gap", "log-uniform", "product of three", "zeros and a bulk", "zeros where a density begins"}
"""Families whose runs take many steps, seconds each."""
MEMBERS = [(family, name) for family, members in FAMILIES.items() for name in members]


@cache
def spectrum(family, name, size):
    return np.sort(FAMILIES[family][name](size))


def diagonal(values):
    """Probes are uniformly distributed: a diagonal matrix stands for all of its singular values."""

    def product(block):
        return values[:, None] * block

    return MapOperator(product, product, (len(values), len(values)), np.ones(1))


def distance(found, values):
    """Kolmogorov distance from values, each of which counts within a millionth of itself; above the rounding."""
    points, counts = np.unique(values, return_counts=True)
    upto, law, known = np.cumsum(counts) / len(values), found.distribution(), points > found.rounding
    after, before = law.cdf(1.000001 * points) - upto, law.cdf(0.999999 * points) - (upto - counts / len(values))
    return float(np.abs(np.concatenate([after[known], before[known]])).max(initial=0.0))


def run(family, name, size, tolerance, seed):
    """Actual and stated error of a run that stopped by itself."""
    values = spectrum(family, name, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", be.AccuracyWarning)
        found = operator_spectrum(diagonal(values), tolerance, rng=np.random.default_rng(seed))
    return distance(found, values), found.error


# -- what is not resolved, without sampling ----------------------------------------------------------------------------


def curve(values, steps):
    rule = [each[0] for each in gauss(values[None], np.ones((1, len(values))), steps)]
    return refine(SpectralDensity(np.zeros(0), *rule, values[-1], len(values)))


BEGINNINGS = [
    *(("Wishart", f"ratio {each}") for each in (0.8, 0.9, 0.95)),
    *(("uniform on [e, 1]", f"e = {each}") for each in (0.01, 0.05, 0.2)),
    ("zeros where a density begins", "a tenth, square"),
    ("zeros where a density begins", "a twentieth, equidistant"),
]
"""Spectra that begin above zero, or with an atom, and curves that begin at zero."""


@pytest.mark.parametrize("steps", [9, 14, 20, 34])
@pytest.mark.parametrize("member", BEGINNINGS)
def test_what_a_curve_has_below_a_spectrum_is_stated(member, steps):
    """The error of the distribution function itself, to a tenth of it and no more than a thousandth.

    The rival is the distance to fewer steps: for atoms it is a quarter of the error.
    """
    values = spectrum(*member, 2000)
    found, before = curve(values, steps), curve(values, round(steps / 1.4))
    upto = np.searchsorted(values, values, side="right") / len(values)
    actual = np.abs(found.cdf(values) - upto).max() - 1 / len(values)
    assert _distance_to_fewer(found, before, np.inf)[0] >= min(0.9 * actual, actual - 0.001)
    if member[0].startswith("zeros"):
        assert np.abs(found.cdf(values) - before.cdf(values)).max() < 0.3 * actual


# -- runs that stop by themselves --------------------------------------------------------------------------------------


def covered(members, size, tolerance, seeds):
    """How many runs are as close as they say, and how many there are; matrices that were found whole do not count."""
    runs = [run(*each, size, tolerance, seed) for each in members for seed in seeds]
    unfinished = [actual <= stated for actual, stated in runs if stated > 1e-6]
    return np.array([sum(unfinished), len(unfinished)])


HARD = [("Wishart", "ratio 0.95"), ("moduli of eigenvalues", "semicircle + 1.0"), ("uniform on [e, 1]", "e = 0.05")]
"""An edge and a gap close to zero, and an edge inside of a spectrum, where errors of steps and of sampling meet."""


def test_stated_errors_cover_the_truth():
    """If nine of ten are covered, fewer than 22 of 30 are once in 500 times.

    The rival are errors without what is read off gaps and growing bends, and without the sum of both kinds where they
    meet: they covered 10 of these 30.
    """
    count, runs = sum(covered(HARD, 2000, tolerance, range(5)) for tolerance in (0.02, 0.05))
    assert runs == 30
    assert count >= 22


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_stated_errors_cover_the_truth_in_every_family(family):
    """Three tolerances and two sizes. If nine of ten are covered, each family fails once in a thousand times.

    Zeros and a bulk that is apart are found whole, every time.
    """
    members = [each for each in MEMBERS if each[0] == family]
    sizes, seeds = ((2000,), range(2)) if family in LONG else ((2000, 4000), range(4))
    settings = [(size, tolerance) for size in sizes for tolerance in (0.01, 0.02, 0.05)]
    # probes of their own for every setting
    count, runs = sum(covered(members, *each, [100 * k + seed for seed in seeds]) for k, each in enumerate(settings))
    assert count >= (stats.binom.ppf(1e-3, runs, 0.9) if runs else 0)
