"""What every law must satisfy, whatever its family, at parameters drawn from the declared domains.

Tolerances: mass, moments and transforms 1e-9 (the package promises 1e-10 for mass, and quadrature here adds its own
error); quantiles 1e-9 of the size of the law plus what one rounding of the cdf moves them.
"""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from strategies import costly, parameters_of

import bulkedge as be
from bulkedge import laws
from bulkedge.support.domains import Parametric
from bulkedge.support.errors import RegimeWarning

FAMILIES = [
    family
    for family in (getattr(be, name) for name in be.__all__)
    if isinstance(family, type) and issubclass(family, Parametric) and issubclass(family, be.Law)
]
"""Every law of the package that declares parameters."""


def test_every_law_is_in_the_facade():
    """What is not there is not tested here."""
    exported = [getattr(laws, name) for name in laws.__all__]
    assert [each.__name__ for each in exported if isinstance(each, type) and not hasattr(be, each.__name__)] == []


FIXED = {
    # without normalisation it takes a second to build, and refuses corners of the domain: see COMPUTED
    be.FiniteHeadLaw: {"qk_norm": True},
    # a table takes seconds: one is in COMPUTED
    be.HeadLaw: {"beta": 0.5, "head_dim": 64, "tokens": 500, "qk_norm": True},
    # half a second to build, each; others are in tests/laws/test_causal_head.py
    be.CausalHeadLaw: {"beta": 0.8, "head_dim": 64, "tokens": 1000, "qk_norm": True},
    # a second to build, each; others are in tests/laws/test_window.py
    be.WindowLaw: {
        "beta": 0.8,
        "head_dim": 64,
        "tokens": 1000,
        "width": 100,
        "after": 0,
        "qk_norm": True,
        "head_beta": 1e-3,
    },
    # its other parameters are drawn; a law of the Gram matrix is a parameter too
    be.CorrelatedAttentionLaw: {"gram": be.MarchenkoPastur(0.5)},
    # its parameters are laws; others are in COMPUTED
    be.IndependentProduct: {"first": be.FussCatalan(2), "second": be.FussCatalan(2)},
}
COMPUTED = {
    "finite head, normalised": lambda: be.FiniteHeadLaw(1.0, 64, 2048, qk_norm=True),
    "finite head": lambda: be.FiniteHeadLaw(1.0, 64, 2048),
    "causal head, two sinks": lambda: be.CausalHeadLaw(0.8, 64, 512, qk_norm=True).with_columns(
        [256.0] * 2 + [1.0] * 510
    ),
    "head, from a table": lambda: be.HeadLaw(3.0, 64, 256, qk_norm=True),
    "finite head, three intervals": lambda: be.FiniteHeadLaw(0.25, 32, 2048),
    "empirical": lambda: be.EmpiricalLaw([-1.0, 0.5, 0.5, 3.0], [1, 2, 3, 4]),
    "affine": lambda: be.free_add(be.MarchenkoPastur(2.0), be.EmpiricalLaw([-3.0])),
    "tail, scaled": lambda: be.PoissonLaw().scaled(3.0),
    "negative multiple": lambda: be.MarchenkoPastur(2.0).scaled(-1.5),
    "square of an asymmetric law": lambda: be.free_add(be.Semicircle(), be.EmpiricalLaw([-1.0, 3.0])).squared(),
    "square of a law with hard edge": lambda: be.MarchenkoPastur(1.0).squared(),
    "square root": lambda: be.FussCatalan(2).sqrt(),
    "square root with kernel": lambda: be.ProductLaw((2.0, 2.0)).sqrt(),
    "two semicircles": lambda: be.free_add(be.Semicircle(), be.Semicircle(2.0)),
    "levy + levy": lambda: be.free_add(be.Semicircle(), be.MarchenkoPastur(0.5)),
    "split semicircle": lambda: be.free_add(be.Semicircle(0.5), be.EmpiricalLaw([-1.0, 1.0])),
    "cusp": lambda: be.free_add(be.Semicircle(1.0), be.EmpiricalLaw([-1.0, 1.0])),
    "merged semicircle": lambda: be.free_add(be.Semicircle(1.05), be.EmpiricalLaw([-1.0, 1.0])),
    "levy + atoms, surviving": lambda: be.free_add(be.MarchenkoPastur(2.0), be.EmpiricalLaw([-1.0, 1.0], [3, 7])),
    "levy + continuous": lambda: be.free_add(be.QuarterCircle(), be.MarchenkoPastur(0.5)),
    "levy + poisson": lambda: be.free_add(be.PoissonLaw(), be.Semicircle()),
    "silverstein": lambda: be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(0.5)),
    "silverstein, square": lambda: be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(1.0)),
    "silverstein, kernel": lambda: be.free_mul(be.EmpiricalLaw([0.0, 1.0, 5.0]), be.MarchenkoPastur(2.0)),
    "silverstein, touching zero": lambda: be.free_mul(be.QuarterCircle(), be.MarchenkoPastur(0.5)),
    "silverstein, logarithmic edge": lambda: be.free_mul(be.QuarterCircle(), be.MarchenkoPastur(1.0)),
    "silverstein, signed": lambda: be.free_mul(be.Semicircle(), be.MarchenkoPastur(0.5)),
    "silverstein twice": lambda: be.free_mul(be.EmpiricalLaw([1.0, 2.0]), be.ProductLaw((0.5, 0.2))),
    "two-sided sum, arcsine": lambda: be.free_add(be.EmpiricalLaw([0.0, 1.0]), be.EmpiricalLaw([0.0, 1.0])),
    "two-sided sum, atoms": lambda: be.free_add(
        be.EmpiricalLaw([0.0, 1.0], [7, 3]), be.EmpiricalLaw([0.0, 1.0], [6, 4])
    ),
    "two-sided sum": lambda: be.free_add(be.QuarterCircle(), be.FussCatalan(2)),
    "two-sided sum, narrow islands": lambda: be.free_add(be.QuarterCircle(1e-4), be.EmpiricalLaw([0.0, 10.0])),
    "two-sided product": lambda: be.free_mul(be.AttentionLaw(1.0, 0.5), be.QuarterCircle()),
    "two-sided product, kernels": lambda: be.free_mul(
        be.EmpiricalLaw([0.0, 2.0], [2, 8]), be.EmpiricalLaw([0.0, 3.0], [4, 6])
    ),
    "two-sided product, projections": lambda: be.free_mul(be.EmpiricalLaw([0.0, 2.0]), be.EmpiricalLaw([0.0, 3.0])),
    "two-sided product, signed": lambda: be.free_mul(be.Semicircle(), be.EmpiricalLaw([1.0, 3.0])),
    "rectangular": lambda: be.rectangular_add(be.EmpiricalLaw([1.0, 4.0]), be.MarchenkoPastur(0.5).sqrt(), 0.5),
    "rectangular, kernel": lambda: be.rectangular_add(
        be.EmpiricalLaw([0.0, 4.0], [9, 1]), be.MarchenkoPastur(0.5).sqrt(), 0.5
    ),
    "rectangular, square": lambda: be.rectangular_add(be.EmpiricalLaw([1.0, 4.0]), be.EmpiricalLaw([1.0, 2.0]), 1.0),
    "independent product, different edges at zero": lambda: be.IndependentProduct(
        be.ProductLaw((1.0, 0.5), 0.1), be.FussCatalan(3)
    ),
    "independent product of finite densities": lambda: be.IndependentProduct(be.QuarterCircle(), be.QuarterCircle(2.0)),
    "independent product, deep": lambda: be.IndependentProduct(be.FussCatalan(6), be.FussCatalan(6)),
    "silverstein, small": lambda: be.free_mul(be.EmpiricalLaw([0.01, 0.05]), be.MarchenkoPastur(0.5, 0.03)),
    "two-sided sum, large": lambda: be.free_add(be.QuarterCircle(400.0), be.FussCatalan(2, 35.0)),
    "two-sided product, small": lambda: be.free_mul(
        be.AttentionLaw(1.0, 0.5).scaled(0.02), be.QuarterCircle(0.04).scaled(0.3)
    ),
    "rectangular, large": lambda: be.rectangular_add(
        be.EmpiricalLaw([70.0, 200.0]), be.MarchenkoPastur(0.5, 4000.0).sqrt(), 0.5
    ),
    "nested": lambda: be.free_add(
        be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(0.5)),
        be.free_add(be.Semicircle(), be.EmpiricalLaw([-3.0, 3.0])),
    ),
}


def check(law):
    """All of it."""
    for part in (
        mass,
        density,
        distribution,
        quantiles,
        moments,
        transforms,
        next_to_edges,
        spikes,
        odd_arguments,
        images,
    ):
        part(law)


def size(law):
    ends = [abs(end) for interval in law.support for end in interval] + np.abs(law.locations).tolist()
    return max(ends) or 1.0


def interior(law, n=8):
    """Points inside each interval, away from the edges; of a law without end, where its mass is."""
    share = (np.arange(n) + 0.5) / n
    if law.support and np.isinf(law.edge):
        return law.ppf(0.02 + 0.96 * share)
    return np.concatenate([lo + (hi - lo) * share for lo, hi in law.support]) if law.support else np.zeros(0)


def mass(law):
    continuous = law.continuum.mass if law.support else 0.0
    assert continuous + sum(weight for _, weight in law.atoms) == pytest.approx(1, abs=1e-10)
    assert all(weight > 0 for _, weight in law.atoms)
    assert list(law.atoms) == sorted(law.atoms)
    assert list(law.support) == sorted(law.support)
    assert law.cdf(-np.inf) == 0
    assert law.cdf(np.inf) == 1


def density(law):
    x = interior(law)
    assert np.all(law.pdf(x) > 0)
    outside = np.array([law.lower_edge - size(law), law.lower_edge - 1e-6 * size(law)])
    assert np.all(law.pdf(outside) == 0)
    assert np.all(law.cdf(outside) == 0)


def distribution(law):
    for lo, hi in law.support:
        a, b = lo + 0.3 * (hi - lo), lo + 0.7 * (hi - lo)
        steps = [law.cdf(place) - law.cdf(np.nextafter(place, -np.inf)) for place, _ in law.atoms if a < place <= b]
        breaks = [x for x in law.continuum._breaks if a < x < b]
        integral = sum(integrate(law.pdf, *piece) for piece in pairwise([a, *breaks, b]))
        assert law.cdf(b) - law.cdf(a) == pytest.approx(integral + sum(steps), abs=1e-9)
    x = np.sort(np.concatenate([interior(law), law.locations]))
    assert np.all(np.diff(law.cdf(x)) >= -1e-15)
    for place, weight in law.atoms:
        assert law.cdf(place) - law.cdf(np.nextafter(place, -np.inf)) == pytest.approx(weight, abs=1e-7)


def quantiles(law):
    x = interior(law)
    if len(x):
        slack = 1e-9 * size(law) + 8 * np.finfo(float).eps / np.maximum(law.pdf(x), 1e-9 / size(law))
        assert np.all(np.abs(law.ppf(law.cdf(x)) - x) <= slack)
    q = np.linspace(0.01, 0.99, 21)
    assert np.all(law.cdf(law.ppf(q)) >= q - 1e-12)
    assert law.ppf(0) == law.lower_edge
    assert law.ppf(1) == law.edge
    assert np.all(np.isnan(law.ppf([-0.1, 1.1, np.nan])))


def moments(law):
    assert law.moment(0) == pytest.approx(1, abs=1e-10)
    if np.isinf(law.mean()):
        assert np.isinf(law.var())
        return
    centre, spread = law.mean(), np.sqrt(law.var())
    draws = law.rvs(4000, np.random.default_rng(0))
    assert abs(draws.mean() - centre) <= 5 * spread / np.sqrt(4000) + 1e-14 * size(law)
    assert law._moment_about(4, centre) >= (1 - 1e-9) * spread**4


def graded_nodes(n):
    """Nodes and weights on [0, 1], dense at both ends: integrands with singular derivatives there do no harm."""
    u, weights = np.polynomial.legendre.leggauss(n)
    u = (1 + u) / 2
    return u**3 * (10 - 15 * u + 6 * u**2), 15 * u**2 * (1 - u) ** 2 * weights


def integrate(function, low, high):
    nodes, weights = graded_nodes(100)
    return (high - low) * np.sum(weights * function(low + (high - low) * nodes))


def by_quantiles(law, function):
    """Expectation of a function of the law, through its quantiles."""
    total = (function(law.locations) * law.masses).sum(axis=-1)
    share, weights = graded_nodes(400)
    for interval in law.support:
        low, high = law.continuum.cdf(np.array(interval))
        points = law.continuum.ppf(low + (high - low) * share)
        total = total + (function(points) * weights).sum(axis=-1) * (high - low)
    return total


def transforms(law):
    scale = size(law)
    x = interior(law, 6)
    if len(x):
        # the boundary value of the Cauchy transform carries the density
        value = law.cauchy(x)
        assert np.allclose(-value.imag / np.pi, law.pdf(x), rtol=1e-9, atol=1e-9 / scale)
    centre = law.mean() if np.isfinite(law.mean()) else law.ppf(0.5)
    z = centre + scale * np.array([2j, 0.3 + 0.5j, -0.2 - 1j])
    assert np.allclose(law.cauchy(np.conj(z)), np.conj(law.cauchy(z)))
    assert np.allclose(scale * law.cauchy(z), scale * by_quantiles(law, lambda t: 1 / (z[:, None] - t)), atol=1e-7)
    far = centre + 1e4 * scale * 1j
    assert (far - centre) * law.cauchy(far) == pytest.approx(1, abs=1e-7)
    if np.isfinite(law.edge):
        place = law.edge + 0.7 * scale
        g = law.cauchy(place).real
        assert law.inverse_cauchy(g) == pytest.approx(place, rel=1e-9, abs=1e-9 * scale)
        w = law.cauchy(law.mean() + 3j * scale)
        assert law.inverse_cauchy(w) == pytest.approx(law.mean() + 3j * scale, rel=1e-9)


def next_to_edges(law):
    """Just outside the outer edges the transform is real, and smaller the further away."""
    if not np.isfinite(law.edge):
        return
    offsets = size(law) * np.array([1e-12, 1e-9, 1e-6, 1e-3])
    for side, edge in ((1.0, law.edge), (-1.0, law.lower_edge)):
        value = law.cauchy(edge + side * offsets)
        assert np.all(value.imag == 0)
        assert np.all(side * value.real > 0)
        assert np.all(np.diff(side * value.real) < 0)


def spikes(law):
    if law.unit in {be.Unit.SINGULAR, be.Unit.SQUARED}:
        with pytest.raises(be.UnitError, match="singular_spike"):
            law.spike(1.0)
    else:
        additive_spikes(law)
    if law.lower_edge >= 0 or law.unit is be.Unit.SYMMETRISED:
        singular_spikes(law)
    if law.lower_edge >= 0 and law.edge > 0:
        sample_spikes(law)


def additive_spikes(law):
    scale, bounded = size(law), np.isfinite(law.edge)
    spike = law.spike(1.0)
    threshold, lower = spike.threshold, spike.lower_threshold
    assert lower <= 0 <= threshold
    beyond = [threshold + scale] if bounded else []
    for theta in (*beyond, lower - scale, 0.5 * threshold, 0.3 * scale, -0.3 * scale):
        if not (theta and np.isfinite(theta)):
            continue
        spike = law.spike(theta)
        outliers_are_free(law, spike, "overlap")
        for each in spike.outliers:
            if each.location not in each.gap:
                slope = abs(law.transforms(np.array([each.location + 0j]))[1][0].real)
                blur = 1e-9 * abs(1 / theta) + 4 * slope * np.spacing(abs(each.location))
                assert law.cauchy(each.location).real == pytest.approx(1 / theta, abs=blur)
        above, below = (
            any(np.isinf(each.gap[1]) for each in spike.outliers),
            any(np.isinf(each.gap[0]) for each in spike.outliers),
        )
        assert (above, below) == (theta > threshold, theta < lower)
        if not law.support and bounded:  # eigenvectors of a matrix of finite rank are complete
            assert sum(each.overlap for each in spike.outliers) == pytest.approx(1, abs=1e-9)
    if bounded:
        assert law.spike(threshold + scale).location > law.edge
        # first-order perturbation theory when the spike is very strong
        huge = 1e6 * scale
        assert law.spike(huge).location == pytest.approx(huge + law.mean() + law.var() / huge, rel=1e-9)
    assert law.spike(lower - scale).location < law.lower_edge


def singular_spikes(law):
    unit = "squared singular values" if law.unit is be.Unit.VALUES else None
    ratio = None if law._aspect else 0.7
    squared = law.unit not in {be.Unit.SINGULAR, be.Unit.SYMMETRISED}
    scale = np.sqrt(size(law)) if squared else size(law)
    threshold = law.singular_spike(scale, ratio, unit).threshold
    strengths = [0.3 * scale, *([0.5 * threshold, threshold + scale] if np.isfinite(threshold) else [])]
    for strength in strengths:
        if not strength:
            continue
        spike = law.singular_spike(strength, ratio, unit)
        for side in ("left_overlap", "right_overlap"):
            outliers_are_free(law, spike, side)
        for each in spike.outliers:
            assert each.location == pytest.approx(each.singular_value ** (2 if squared else 1), rel=1e-14)
        assert any(np.isinf(each.gap[1]) for each in spike.outliers) == (strength > threshold)
    if np.isfinite(threshold):
        huge = 1e6 * scale
        second = law.mean() if squared else law.moment(2)
        found = law.singular_spike(huge, ratio, unit).singular_value
        assert found == pytest.approx(huge + (1 + (ratio or law._aspect)) * second / (2 * huge), rel=1e-13)


def sample_spikes(law):
    thetas = np.array([0.0, 0.5, 0.9, 1.01, 100]) * (law.edge if np.isfinite(law.edge) else law.ppf(0.5))
    sample = law.sample_spike(thetas, 0.3)
    assert bool(sample.detectable[-1]) == (np.isfinite(law.edge) or bool(sample.outliers[-1]))
    for theta, location, overlap, seen, outliers in zip(
        thetas, sample.location, sample.overlap, sample.detectable, sample.outliers, strict=True
    ):
        assert len(outliers) == seen
        assert seen == ((theta > sample.threshold) or (theta < sample.lower_threshold) or len(outliers) == 1)
        for each in outliers:
            assert (each.location, each.overlap, each.strength) == (location, overlap, theta)
            assert each.gap[0] <= each.location <= each.gap[1]
            assert 0 < each.overlap <= 1
        if not seen:
            assert overlap == 0


def outliers_are_free(law, spike, overlap):
    """Outliers lie in gaps in which the law has no mass, in order, and overlaps sum to at most one."""
    shares = [getattr(each, overlap) for each in spike.outliers]
    places = [each.location for each in spike.outliers]
    assert spike.detectable == bool(places)
    assert places == sorted(places)
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) <= 1 + 1e-9
    for each in spike.outliers:
        low, high = each.gap
        assert low <= each.location <= high
        middle = [low + (high - low) / 3, high - (high - low) / 3] if np.isfinite(high - low) else [each.location] * 2
        assert np.ptp(law.cdf(middle)) < 1e-12
        assert np.all(law.pdf(middle) == 0)


def odd_arguments(law):
    for function in (law.pdf, law.cdf, law.ppf):
        assert np.isnan(function(np.nan))
        assert function([]).shape == (0,)
        assert function(np.zeros((2, 0))).shape == (2, 0)
        assert function(np.full((2, 3), 0.5)).shape == (2, 3)
        assert np.ndim(function(0.5)) == 0
    assert law.pdf(np.inf) == law.pdf(-np.inf) == 0


def images(law):
    double = law.scaled(2.0)
    x = interior(law)
    assert np.allclose(double.cdf(2 * x), law.cdf(x), atol=1e-10)
    assert double.mean() == pytest.approx(2 * law.mean(), abs=1e-9 * size(law))


@pytest.mark.always
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@costly(10)
@given(data=st.data())
def test_family(family, data):
    keywords = data.draw(parameters_of(family, FIXED.get(family, {})))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RegimeWarning)  # a law far from draws is a law all the same
        try:
            law = family(**keywords)
        except ValueError:
            reject()
        check(law)


@given(
    st.lists(st.floats(-100, 100).map(lambda v: round(v, 6)), min_size=1, max_size=30),
    st.lists(st.floats(0.01, 100), min_size=30, max_size=30),
)
def test_empirical_law(values, weights):
    check(be.EmpiricalLaw(values, weights[: len(values)]))


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_law(name):
    check(COMPUTED[name]())
