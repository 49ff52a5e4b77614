"""What happens closer to an edge than points of the line can tell: its place, and the Cauchy transform beside it."""

import mpmath as mp
import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.engine.measure.continuum import resolve
from bulkedge.laws.engine.measure.panels import Edge


def squares(z):
    """Cauchy transform of the squares of the values of MarchenkoPastur(1), beyond their edge at 16."""
    root = mp.sqrt(z)
    plus, minus = ((1 - mp.sqrt(1 - 4 / y)) / 2 for y in (root, -root))
    return (plus - minus) / (2 * root)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_edge_of_a_wide_law_and_a_narrow_one_is_right_to_rounding(scale):
    """At the edge the variable of the wide law is 1e-9 beyond that law's own edge, where it has a root singularity.

    With y the variable of the wide law and u that of the atoms, ``G(y) = G_atoms(u)`` and ``x = y + u - 1/G``, which
    is smallest at the edge.
    """
    values = [scale * value for value in (0.397, 0.242, 0.381, 0.124)]
    law = be.free_add(be.EmpiricalLaw(values), be.FussCatalan(1).squared())
    with mp.workdps(40):
        atoms = [mp.mpf(value) for value in values]

        def place(v):
            y = 16 + mp.e**v
            f = 1 / squares(y)
            u = mp.findroot(lambda u: 4 / sum(1 / (u - atom) for atom in atoms) - f, f + sum(atoms) / 4)
            return y + u - f

        # the minimum of x is where its slope changes sign
        low, high = mp.mpf(-32), mp.mpf(-10)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if mp.diff(place, middle) < 0 else (low, middle)
        expected = float(place(low))
    assert law.edge == pytest.approx(expected, rel=4e-16)


@pytest.mark.parametrize("miss", [1e-11, 1e-10, 1e-9])
@pytest.mark.parametrize("centre", [2.0, 4.5, 20.0])
def test_the_transform_beside_panels_shorter_than_the_rounding_of_their_points(centre, miss):
    """A density that starts a little beyond its edge: panels there are so short that the line is coarse for them."""
    edge = centre + 2 - miss * centre

    def density(x):
        return np.sqrt(np.maximum((centre + 2 - x) * (x - centre + 2), 0)) / (2 * np.pi), 1e-15

    bulk = resolve([(Edge.soft(centre - 2), Edge.soft(edge))], density)
    x = edge + centre * np.array([1e-14, 3e-14, 1e-13, 3e-13, 1e-12, 1e-11, 1e-9])
    expected = np.zeros(len(x))
    nodes, weights = np.polynomial.legendre.leggauss(200)
    for k in range(len(bulk.panels)):
        panel = bulk.panels.take(np.array([k]))
        s = panel.sites(nodes)
        mass = panel.mass_density(s)[0] * weights * (panel.stop - panel.start) / 2
        away = panel.direction * (x - panel.location)
        expected += panel.direction * (mass / (away[:, None] - panel.distance(s)[0])).sum(axis=1)
    # 200 nodes on [0, 1e-6] see the root singularity at a distance of 1e-14 to eight digits
    assert bulk.transforms(x + 0j)[0].real == pytest.approx(expected, rel=1e-7)
