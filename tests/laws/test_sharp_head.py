"""The law of sharp heads: its equations against matrices and closed forms, its limits, and what a distribution is.

Checks against simulated attention are in tests/limits/test_sharp_head.py.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.attention.sharp_head import LogTable, _rows, sharp_graph
from bulkedge.laws.engine import cavity
from bulkedge.laws.engine.cavity import Cavity, Degrees, Graph, HalfCircle
from bulkedge.support.errors import DomainError, UnresolvedError


@pytest.fixture(scope="module")
def law():
    return be.SharpHeadLaw(beta=1.0, tokens=2000)


def graph_of(rows, columns, squares, noise):
    """Entries and even noise, without terms of low rank."""
    size = len(noise)
    alike = np.zeros(size, dtype=np.intp)
    return Graph(rows, columns, squares, noise[:, None], alike, Degrees.none(size, len(rows)))


def test_half_circle_turns_a_single_value_into_a_step():
    """``Re z/(z - 1)`` over ``|z| = x``: a step at one, to 0.005 at a distance of 0.02 in the logarithm."""
    circle = HalfCircle.nodes(12)
    x = np.exp([-3.0, -0.1, -0.02, 0.02, 0.1, 3.0])
    found = (1 / (1 - np.exp(-1j * circle.angles) / x[:, None])).real @ circle.weights
    assert found == pytest.approx([0, 0, 0, 1, 1, 1], abs=0.005)


def test_cavity_without_edges_is_marchenko_pastur():
    """Noise alone: the equations are ``h = 1/(w - v g)``, solved by the quarter circle's transform."""
    none = np.zeros(0, dtype=np.intp)
    solver, circle = Cavity(graph_of(none, none, np.zeros(0), np.full(8, 2.0)), 1e-6), HalfCircle.nodes(24)
    x = be.MarchenkoPastur(1.0, 2.0).ppf([0.05, 0.3, 0.6, 0.95])
    assert [solver.mass(each, circle) for each in x] == pytest.approx([0.05, 0.3, 0.6, 0.95], abs=1e-4)


def test_cavity_on_a_tree_is_exact():
    """A path of rows and columns without noise: its singular values are those of a matrix with two diagonals."""
    squares = np.array([1.0, 0.5, 2.0, 0.7, 3.0, 0.2, 1.5])
    rows, columns = np.array([0, 0, 1, 1, 2, 2, 3]), np.array([0, 1, 1, 2, 2, 3, 3])
    matrix = np.zeros((4, 4))
    matrix[rows, columns] = np.sqrt(squares)
    values = np.sort(np.linalg.svd(matrix, compute_uv=False) ** 2)
    solver, circle = Cavity(graph_of(rows, columns, squares, np.zeros(4)), 1e-6), HalfCircle.nodes(24)
    between = np.sqrt(values[1:] * values[:-1])
    assert [solver.mass(each, circle) for each in between] == pytest.approx([0.25, 0.5, 0.75], abs=1e-3)


def test_cavity_with_entries_far_apart_in_size():
    """Two rows on one column and one on another, joined by entries of 1e-12: the squares are 2, 1 and 1e-48/2.

    The smallest is the squared determinant over the others; sums less their largest term do not have it.
    """
    rows, columns = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 0, 1, 2])
    squares = np.array([1.0, 1e-24, 1.0, 1.0, 1e-24])
    solver, circle = Cavity(graph_of(rows, columns, squares, np.zeros(3)), 1e-5), HalfCircle.nodes(12)
    found = [solver.mass(x, circle) for x in (1e-49, 2e-48, 1e-20, 0.5, 1.5, 4.0)]
    assert found == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 2 / 3, 1], abs=0.002)


def test_unsolved_equations_are_an_error(monkeypatch):
    monkeypatch.setattr(cavity, "MOST", 2)
    solver = Cavity(sharp_graph(3.0, 500), 1e-6)
    with pytest.raises(UnresolvedError, match="still move by"):
        solver.mass(50.0, HalfCircle.nodes(8))


@pytest.mark.parametrize(("beta", "tokens"), [(0.5, 64), (2.0, 500), (10.0, 500), (30.0, 10**6)])
def test_rows_are_weights(beta, tokens):
    rows = _rows(beta, tokens, 512, 0)
    assert rows.weights.sum(axis=1) + rows.first == pytest.approx(np.ones(512))
    assert np.all(np.diff(rows.weights, axis=1) <= 0)
    assert np.all(rows.second >= 0)
    assert np.all(rows.second <= rows.first * rows.weights[:, -1] * (1 + 1e-9))


@pytest.mark.parametrize("beta", [1.0, 3.0, 10.0])
def test_rows_have_the_law_of_softmax(beta):
    """Mean of the largest weight and of the sum of squares, against 4000 rows of 300 scores; five standard errors."""
    scores = beta * np.random.default_rng(20261116).standard_normal((4000, 300))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    rows = _rows(beta, 300, 2048, 0)
    pairs = [
        (weights.max(axis=1), rows.weights[:, 0]),
        (np.sum(weights**2, axis=1), np.sum(rows.weights**2, axis=1) + rows.second),
    ]
    for drawn, made in pairs:
        assert abs(drawn.mean() - made.mean()) < 5 * drawn.std() / 4000**0.5


def test_columns_get_as_many_weights_as_poisson_says():
    """Numbers of weights above one half: mean and variance alike, probability of none exp(-mean)."""
    graph = sharp_graph(10.0, 500)
    counts = np.bincount(graph.columns[graph.squares > 500 / 4], minlength=graph.size)
    assert counts.var() == pytest.approx(counts.mean(), rel=0.05)
    assert np.mean(counts == 0) == pytest.approx(np.exp(-counts.mean()), abs=0.01)


def test_small_beta_is_marchenko_pastur():
    """A million tokens, beta 0.5: ratio one and mean exp(beta**2) - 1, to 0.001."""
    levels = np.linspace(0.02, 0.98, 33)
    quarter = be.MarchenkoPastur(1.0, float(np.expm1(0.25)))
    assert be.SharpHeadLaw(0.5, 10**6).cdf(quarter.ppf(levels)) == pytest.approx(levels, abs=0.001)
    assert be.SharpHeadLaw(0.5, 10**6).mean() == pytest.approx(quarter.mean(), rel=1e-3)


def test_distribution(law):
    x = np.geomspace(1e-12, 1e5, 3000)
    mass = law.cdf(x)
    assert np.all(np.diff(mass) >= 0)
    assert law.atoms == ((0.0, 1 / 2000),)
    assert law.cdf([-1.0, 0.0, np.inf]).tolist() == [0.0, 1 / 2000, 1.0]
    assert np.isnan(law.cdf(np.nan))
    levels = np.array([1e-4, 0.0005, 0.01, 0.2, 0.5, 0.9, 0.999])
    assert law.cdf(law.ppf(levels))[2:] == pytest.approx(levels[2:], abs=1e-9)
    assert law.ppf([0.0, 1e-4, 1 / 2000]).tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(law.ppf([-0.1, 1.1])).all()
    assert law.cdf(3.0).shape == law.ppf(0.3).shape == ()
    assert str(law.unit) == "squared singular values"
    draws = law.rvs((40, 25), np.random.default_rng(3))
    assert draws.shape == (40, 25)
    assert np.abs(np.sort(law.cdf(draws[draws > 0])) - (np.arange(np.sum(draws > 0)) + 0.5) / 1000).max() < 0.06


def test_mean_is_that_of_the_distribution_function(law):
    """The integral of the quantiles, to what the table leaves in its last percent."""
    levels = (np.arange(20_000) + 0.5) / 20_000
    assert law.ppf(levels).mean() == pytest.approx(law.mean(), rel=0.02)


def test_equal_parameters_give_equal_numbers(law):
    """In this process without its memory, and in a fresh one."""
    x = [0.03, 0.8, 5.0]
    code = f"import bulkedge as be; print(be.SharpHeadLaw(1, 2000).cdf({x}).tolist())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(other) == law.cdf(x).tolist()
    assert hash(be.SharpHeadLaw(1, 2000)) == hash(law)


def test_points_of_the_sequence_matter_little():
    """Other shifts of the sequence, at one point each where rows are dense and where they are not."""
    circle = HalfCircle.nodes(8)
    for beta, x, close in ((1.0, 1.0, 0.001), (4.0, 120.0, 0.012)):
        found = [Cavity(sharp_graph(beta, 1000, stream), 2e-4).mass(x, circle) for stream in (0, 1)]
        assert found[0] == pytest.approx(found[1], abs=close)


def test_table_below_its_first_point():
    table = LogTable(np.log([0.01, 0.04, 1.0, 4.0]), np.array([0.1, 0.2, 0.6, 1.0]))
    assert table.cdf(np.log([0.0001, 0.0025])) == pytest.approx([0.01, 0.05])
    assert np.exp(table.log_quantile(np.array([0.05, 0.2, 1.0]))) == pytest.approx([0.0025, 0.04, 4.0])


@pytest.mark.parametrize(("beta", "tokens"), [(0.05, 500), (51, 500), (1, 63), (1, 10**7), (1, 100.5), ("sharp", 500)])
def test_domain(beta, tokens):
    with pytest.raises(DomainError, match="is outside its domain"):
        be.SharpHeadLaw(beta, tokens)
