"""Measures with known panels, whatever their edges, against integrals along another path.

The polynomials of the panels are drawn, so that nothing depends on how well a density was fitted. In its own variable s
the mass of a panel is a polynomial; its Cauchy integral is therefore the same along any path between the ends of the
panel that passes its poles on the same side, and far from the poles a plain Gauss rule gives it to rounding error.
"""

import numpy as np
import pytest

from bulkedge.laws.engine.measure.cauchy import NEAR, NODES, Clusters, NearField, _bernstein
from bulkedge.laws.engine.measure.continuum import FEW, Continuum, resolve
from bulkedge.laws.engine.measure.panels import DEGREE, Edge, Panels, UnresolvedDensityError

KINDS = (
    Edge.soft(0.0),
    Edge.hard(0.0),
    Edge.hard(0.0, 4),
    Edge.cusp(0.0),
    Edge.cusp(0.0, -1 / 3),
    Edge.plain(0.0),
    Edge.plain(0.0, 2),
    Edge(0.0, 1.0, 1),
    Edge(0.0, 1.5, 2, even=True),
)
"""Edges of all behaviours, with weights below and above their orders."""


def measure(rng, count):
    """A measure of disjoint panels, each with an edge of its own and a polynomial that is positive."""
    kinds = [KINDS[k] for k in rng.permutation(np.arange(count) % len(KINDS))]
    direction, length = rng.choice([-1.0, 1.0], count), np.exp(rng.uniform(-3, 1, count))
    start, stop = np.sort(rng.uniform(0.05, 0.95, (2, count)), axis=0)
    start, stop = np.where(rng.random(count) < 0.5, 0.0, start), np.where(rng.random(count) < 0.5, 1.0, stop)
    order = np.array([kind.order for kind in kinds])
    near, far = length * start**order, length * stop**order
    gaps = rng.uniform(0.0, 0.5, count)
    low = np.cumsum(gaps + far - near) - (far - near) - 2.0
    location = np.where(direction > 0, low - near, low + far)
    coefficients = rng.uniform(-1, 1, (count, DEGREE)) * 0.2 ** np.arange(DEGREE)
    coefficients[:, 0] = 1 + rng.random(count)
    panels = Panels(
        location=location,
        remainder=np.zeros(count),
        direction=direction,
        length=length,
        middle=location + direction * length,
        order=order,
        exponent=np.array([kind.exponent for kind in kinds]),
        weight=np.array([kind.weight for kind in kinds]),
        even=np.array([kind.even for kind in kinds]),
        start=start,
        stop=stop,
        coefficients=coefficients,
    )
    ends = zip(*np.sort(panels.ends(), axis=0).tolist(), strict=True)
    return Continuum(panels, tuple((Edge.plain(a), Edge.plain(b)) for a, b in ends))


def paths(panels, *, bent):
    """Nodes s and weights ds on a path from start to stop of each panel: straight, or through a point beside it.

    Points of the line are approached from above, so the bent path passes below them, as seen from the line. Nodes
    gather at the ends like fourth powers.
    """
    nodes, weights = np.polynomial.legendre.leggauss(150)
    u, du = (nodes + 1) / 2, weights / 2
    unit, step = u**4, 4 * u**3 * du
    middle = (panels.start + panels.stop) / 2 - (0.2j * panels.direction * (panels.stop - panels.start) if bent else 0)
    first, last = (middle - panels.start)[:, None], (panels.stop - middle)[:, None]
    s = np.concatenate([panels.start[:, None] + first * unit, panels.stop[:, None] - last * unit], axis=1)
    return s, np.concatenate([first * step, last * step], axis=1)


def masses(panels, s):
    """Mass per unit of s, and distance from the panel's edge to the right, from the definition of the panels."""
    start, stop = panels.start[:, None], panels.stop[:, None]
    folded = (panels.even & (panels.start == 0))[:, None]
    t = np.where(folded, 2 * (s / stop) ** 2 - 1, (2 * s - start - stop) / (stop - start))
    g = sum(panels.coefficients[:, k, None] * np.cos(k * np.arccos(t + 0j)) for k in range(DEGREE))
    delta = panels.length[:, None] * s ** panels.order[:, None]
    # density dx = delta**exponent g |dx/ds| ds, with the powers of s put together
    power = panels.length ** (panels.exponent + 1) * panels.order
    return power[:, None] * g * s ** panels.weight[:, None], panels.direction[:, None] * delta


def expected_transforms(panels, z):
    """G, G', psi and psi', by the bent paths."""
    s, ds = paths(panels, bent=True)
    mass, offset = masses(panels, s)
    mass, x = (mass * ds).ravel(), (panels.location[:, None] + offset).ravel()
    # distances from the edge first: points may be closer to it than to zero by many digits
    inverse = 1 / ((z[:, None] - panels.location)[:, :, None] - offset).reshape(len(z), -1)
    return np.stack([inverse @ mass, -(inverse**2) @ mass, inverse @ (mass * x), -(inverse**2) @ (mass * x)])


def on_panels(panels, rng, count):
    """Numbers of panels, values of their variable well inside, and the points of the line."""
    which = rng.integers(0, len(panels), count)
    s = panels.start[which] + (panels.stop - panels.start)[which] * rng.uniform(0.08, 0.92, count)
    return which, s, panels.location[which] + panels.direction[which] * panels.length[which] * s ** panels.order[which]


def points(bulk, rng, count):
    """Points on panels, beside them at all heights, and away from all of them."""
    panels = bulk.panels
    which, _, on = on_panels(panels, rng, count)
    height = np.ptp(panels.ends(), axis=0)[which]
    beside = on + 1j * height * 10.0 ** rng.uniform(-9, 1.5, count)
    low, high = bulk.support[0][0], bulk.support[-1][1]
    away = rng.uniform(low - 5, high + 5, count) + 1j * 10.0 ** rng.uniform(-1, 2, count)
    return np.concatenate([on + 0j, beside, away, np.array([low - 0.3, high + 0.3, low - 40, 1e4]) + 0j])


@pytest.mark.parametrize("count", [4, FEW, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_transforms_are_those_along_another_path(count, seed):
    """To 5e-13, and slopes to 5e-12, of the values and of those of a measure of the same mass about zero."""
    rng = np.random.default_rng(seed)
    bulk = measure(rng, count)
    z = points(bulk, rng, 60)
    found, expected = bulk.transforms(z), expected_transforms(bulk.panels, z)
    size = np.abs(expected) + bulk.mass / (1 + np.abs(z)) ** np.array([[1], [2], [1], [2]])
    assert np.max(np.abs(found - expected)[::2] / size[::2]) < 5e-13
    assert np.max(np.abs(found - expected)[1::2] / size[1::2]) < 5e-12
    # outside of the support transforms are real
    assert not found.imag[:, -4:].any()


@pytest.mark.parametrize("seed", range(3))
def test_every_point_too_close_for_quadrature_is_found(seed):
    """The pairs of points and panels against all pairs, by the definition of the Bernstein radius."""
    rng = np.random.default_rng(seed)
    bulk = measure(rng, 20)
    panels, near = bulk.panels, NearField.of(bulk.panels)
    # about the boundary of the neighbourhood: the ellipse of a radius next to that which decides, in s
    radius, turn = NEAR * np.exp(rng.uniform(-0.3, 0.1, (20, 50))), np.exp(2j * np.pi * rng.random((20, 50)))
    ellipse = (radius * turn + 1 / (radius * turn)) / 2
    even, start, stop = (each[:, None] for each in (panels.even & (panels.start == 0), panels.start, panels.stop))
    s = np.where(even, stop * ellipse, (start + stop + (stop - start) * ellipse) / 2)
    # roots in the sector of principal ones, which are the images of points of the line's upper half-plane
    sector = (np.angle(s) >= 0) & (np.angle(s) < np.pi / panels.order[:, None])
    panel, number = np.nonzero(sector)
    local = s[panel, number] ** panels.order[panel]
    local = np.where(panels.direction[panel] > 0, local, np.conj(local))
    z = panels.location[panel] + panels.direction[panel] * panels.length[panel] * local
    assert np.all(z.imag >= -1e-12)
    found = set(zip(*(each.tolist() for each in near.pairs(z.real + 1j * np.abs(z.imag))), strict=True))
    here = radius[panel, number]
    assert {(k, j) for k, j in enumerate(panel) if here[k] < NEAR * (1 - 1e-9)} <= found
    assert not {(k, j) for k, j in enumerate(panel) if here[k] > NEAR * (1 + 1e-9)} & found


def test_ellipses_through_points_of_the_plane():
    """The sum of the semi-axes from the distances to both foci; minus zero is an imaginary part like zero."""
    rng = np.random.default_rng(8)
    axis = np.append(rng.uniform(-4, 4, 50), [-1.0, 1.0, 0.0])
    t = np.concatenate([axis + 1j * rng.standard_normal(53), axis + 0j, np.conj(axis + 0j), 100 * axis - 3j])
    major = (np.abs(t - 1) + np.abs(t + 1)) / 2
    expected = major + np.sqrt(np.maximum(major - 1, 0.0) * (major + 1))
    assert _bernstein(t) == pytest.approx(expected, rel=1e-7)


def test_discs_about_panels_are_no_larger_than_they_say():
    """A tenth larger than the farthest point of the neighbourhood, by all of its boundary; larger ones cost time."""
    panels = measure(np.random.default_rng(7), 20).panels
    circle = NEAR * np.exp(2j * np.pi * np.arange(5000) / 5000)
    ellipse = (circle + 1 / circle) / 2
    even, start, stop, order = (
        each[:, None] for each in (panels.even & (panels.start == 0), panels.start, panels.stop, panels.order)
    )
    s = np.where(even, stop * ellipse, (start + stop) / 2 + (stop - start) / 2 * ellipse)
    near = NearField.of(panels)
    x = panels.location[:, None] + (panels.direction * panels.length)[:, None] * s**order
    assert near.centre == pytest.approx(np.mean(panels.ends(), axis=0), abs=1e-13)
    assert near.reach == pytest.approx(1.1 * np.abs(x - near.centre[:, None]).max(axis=1), rel=5e-3)


@pytest.mark.parametrize("seed", range(3))
def test_density_mass_quantiles_and_moments(seed):
    """By the definition of the panels; a Gauss rule in s is exact for the masses."""
    rng = np.random.default_rng(seed)
    bulk = measure(rng, 25)
    panels = bulk.panels
    which, s, x = on_panels(panels, rng, 200)
    chosen = panels.take(which)
    mass = masses(chosen, s[:, None])[0][:, 0].real
    # the mass per unit of s is the density times |dx/ds|
    slope = chosen.length * chosen.order * s ** (chosen.order - 1)
    assert bulk.pdf(x) == pytest.approx(mass / slope, rel=1e-10)
    whole = (masses(panels, paths(panels, bent=False)[0])[0] * paths(panels, bent=False)[1]).sum(axis=1).real
    part_of = chosen.replaced(stop=s)
    nodes, steps = paths(part_of, bent=False)
    part = (masses(chosen, nodes)[0] * steps).sum(axis=1).real
    before = np.append(0, np.cumsum(whole))
    upto = np.where(chosen.direction > 0, before[which] + part, before[which + 1] - part)
    # beside the rounding of masses, that of the point
    rounding = 1e-14 * bulk.mass + 4 * np.finfo(float).eps * np.abs(x) * bulk.pdf(x)
    assert np.all(np.abs(bulk.cdf(x) - upto) < rounding)
    quantile = bulk.ppf(upto)
    assert np.all(np.abs(bulk.cdf(quantile) - upto) < 2 * rounding)
    assert quantile == pytest.approx(x, abs=1e-7)
    assert bulk.mass == pytest.approx(whole.sum(), rel=1e-13)
    # in gaps there is no density, and the mass is that of the panels before
    low, high = np.sort(panels.ends(), axis=0)
    gaps = (high[:-1] + low[1:]) / 2
    assert not bulk.pdf(np.concatenate([gaps, low[:1] - 1, high[-1:] + 1])).any()
    assert bulk.cdf(gaps) == pytest.approx(before[1:-1], rel=1e-12)
    assert bulk.cdf(np.array([low[0] - 1, high[-1] + 1])) == pytest.approx([0, whole.sum()], abs=1e-13 * bulk.mass)
    places, steps = paths(panels, bent=False)
    density, offset = masses(panels, places)
    at = panels.location[:, None] + offset
    for k, centre in ((0, 0.0), (1, 0.0), (3, 0.5), (6, -1.0), (30, 0.0)):
        expected = np.sum(density * steps * (at - centre) ** k).real
        assert bulk.moment(k, centre) == pytest.approx(expected, rel=1e-11, abs=1e-11 * np.abs(low).max() ** k)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_structure_is_resolved_beside_every_edge(kind):
    """A peak a thousandth wide, on top of the power with which the density starts: the polynomials are halved to it."""

    def density(x):
        peak = 1 + 1 / (1 + ((x - 0.02) / 1e-3) ** 2)
        return x**kind.exponent * np.sqrt(1 - x) * peak, np.zeros_like(x)

    bulk = resolve([(kind, Edge.soft(1.0))], density)
    x = np.concatenate([np.linspace(0.015, 0.025, 200), np.geomspace(1e-9, 0.9, 50)])
    # a tail of 1e-13 of the largest coefficient of a panel
    assert bulk.pdf(x) == pytest.approx(density(x)[0], rel=1e-9)


def test_bounds_of_masses():
    """Of a constant factor the mass is a power of s, integrated; the bound is its largest value times the length."""
    panels = measure(np.random.default_rng(9), 30).panels
    panels = panels.replaced(coefficients=-3 * np.eye(1, DEGREE).repeat(30, axis=0))
    power = panels.weight + 1
    mass = 3 * panels.scale * (panels.stop**power - panels.start**power) / power
    assert np.all(panels.mass_bound >= mass * (1 - 1e-12))
    first = panels.start == 0
    assert panels.mass_bound[first] == pytest.approx((power * mass)[first])


def test_what_has_no_mass_need_not_be_resolved():
    """Noise of a mass below 1e-17 counts as converged, and noise beyond it does not."""

    def noise(size):
        return lambda x: (size * np.abs(np.sin(1e9 * x)), np.zeros_like(x))

    edges = [(Edge.plain(0.0), Edge.plain(1.0))]
    assert len(resolve(edges, noise(0.9e-17)).panels) == 2
    with pytest.raises(UnresolvedDensityError, match="is not resolved near"):
        resolve(edges, noise(1e-12))


def test_no_density_where_a_factor_vanishes_at_a_pole():
    """A hard edge allows for ``1/sqrt(delta)``; where the factor of it is zero at the edge, so is the density."""
    bulk = resolve([(Edge.hard(0.0), Edge.soft(1.0))], lambda x: (np.sqrt(x * (1 - x)), 1e-16 * np.ones_like(x)))
    first = bulk.panels.start == 0
    assert first.sum() == 2
    coefficients = np.zeros_like(bulk.panels.coefficients)
    coefficients[:, :2] = 1.0
    image = Continuum(bulk.panels.replaced(coefficients=coefficients), bulk.intervals)
    assert image.pdf(np.array([0.0, -1.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 129])
def test_clusters_are_their_leaves_and_few(count):
    """All nodes one by one, but for hidden leaves; a point sees a few clusters for each doubling of their number."""
    rng = np.random.default_rng(count)
    ends = np.sort(rng.uniform(-1, 1, 2 * count)).reshape(count, 2)
    middle, half = ends.mean(axis=1), np.diff(ends, axis=1)[:, 0] / 2
    nodes = middle[:, None] + half[:, None] * np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    masses = rng.uniform(0, 1, (count, NODES))
    masses[-1] = 0.0  # an interval may have lost all of its mass to underflow
    tree = Clusters.of(nodes, masses, middle, 1.1 * half)
    assert tree.levels[-1] == 1
    assert all(above == (below + 1) // 2 for below, above in zip(tree.levels, tree.levels[1:], strict=False))
    on_axis = np.array([-1.5, 1.2, 40.0, -1e6]) + 0j
    for z in (on_axis, np.append(on_axis, rng.uniform(-1, 1, 20) + 1j * 10.0 ** rng.uniform(-3, 2, 20))):
        hidden = np.nonzero(np.hypot(z.real[:, None] - middle, z.imag[:, None]) <= 1.1 * half)
        inverse = 1 / (z[:, None, None] - nodes)
        inverse[hidden] = 0.0
        rows = [np.einsum("zpk,pk->z", inverse**power, masses * nodes**k) for k in (0, 1) for power in (1, 2)]
        expected = np.stack([rows[0], -rows[1], rows[2], -rows[3]])
        bound = np.einsum("zpk,pk->z", np.abs(inverse), masses) + np.einsum("zpk,pk->z", np.abs(inverse) ** 2, masses)
        assert np.max(np.abs(tree.transforms(z, hidden) - expected) / (bound + 1e-300)) < 1e-13
        seen = tree._visible_clusters(z, hidden).sum(axis=1)
        assert seen[on_axis.size - 2 : on_axis.size].tolist() == [1, 1], "from afar the whole law is one cluster"
        assert seen.max() <= 2.5 * np.log2(2 * count)
