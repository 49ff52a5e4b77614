"""The law of heads at any beta: its equations against known laws and explicit matrices, its two ends, what a table is.

Checks against simulated heads are in tests/limits/test_head.py.
"""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.attention.head import deepened, tabulated
from bulkedge.laws.attention.head_graph import causal_graph, head_graph
from bulkedge.laws.attention.sharp_head import LogTable, SphereScores, sharp_graph
from bulkedge.laws.engine.cavity import Cavity, Degrees, Graph, HalfCircle
from bulkedge.laws.engine.masked_cavity import MaskedCavity, MaskedGraph
from bulkedge.laws.engine.masked_density import solve, solve_ray
from bulkedge.laws.engine.masked_equations import MaskedProblem, SizeGroups, mesh
from bulkedge.laws.engine.measure.continuum import resolve
from bulkedge.support.errors import DomainError


def test_degrees_without_edges_are_a_sum_law():
    """Noise of variance one and two terms of low rank: the sum law, to the tolerance of the equations."""
    tokens, size, numbers = 1000, 8, np.array([50.0, 800.0])
    sizes = np.sqrt(np.array([2.0, 0.7]) / numbers)[:, None] * np.ones(size)
    none = np.zeros(0, dtype=np.intp)
    terms = Degrees(tokens, numbers, sizes, np.ones((2, size)), np.zeros((2, 0)))
    graph = Graph(none, none, np.zeros(0), np.ones((size, 1)), np.zeros(size, dtype=np.intp), terms)
    law = be.SumLaw((2.0, 0.7, 1.0), (0.05, 0.8, np.inf)).squared()
    solver, circle, levels = Cavity(graph, 1e-6), HalfCircle.nodes(24), [0.05, 0.3, 0.6, 0.9]
    assert [solver.mass(float(x), circle) for x in law.ppf(levels)] == pytest.approx(levels, abs=1e-4)


def test_edges_that_go_along_with_a_degree():
    """One term of rank 64 and a strong entry wherever a cosine is large, explicitly: to three values of 400.

    With the same entries at other places, as if they did not know of the term, the mass is 0.035 away at one level.
    """
    tokens, dim, strength, size, rng = 400, 64, 0.15, 1.5, np.random.default_rng(20261121)
    query, key = (each / np.linalg.norm(each, axis=1)[:, None] for each in rng.standard_normal((2, tokens, dim)))
    cosine = query @ key.T
    strong = cosine > np.quantile(cosine, 1 - 4 / tokens)
    low = dim * strength * cosine / tokens**0.5
    matrix = low + np.where(strong, size, rng.standard_normal((tokens, tokens)) / tokens**0.5)
    levels = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    places = np.quantile(np.linalg.svd(matrix, compute_uv=False) ** 2, levels)
    (rows, columns), one = np.nonzero(strong), np.ones((1, tokens))
    terms = Degrees(tokens, np.array([float(dim)]), strength * one, one, size * cosine[strong][None])
    noise, alike = np.full((tokens, 1), 1 - 4 / tokens), np.zeros(tokens, dtype=np.intp)
    graph = Graph(rows, columns, np.full(len(rows), size**2), noise, alike, terms)
    apart = graph._replace(degrees=terms._replace(entries=0 * terms.entries))
    found, rival = ([Cavity(each, 1e-4).mass(x, HalfCircle.nodes(8)) for x in places] for each in (graph, apart))
    assert np.abs(found - levels).max() < 3 / tokens
    assert np.abs(rival - levels).max() > 0.025


def test_causal_heads_without_edges_are_the_equations_of_flat_ones():
    """Noise of variance 0.7 and a term of rank 40 behind a mask: the boundary value problem, to 1/cells**2.

    The term as noise, too, is farther by ten times that.
    """
    tokens, root = 512, 1.1 * np.exp(0.3j)
    none, one = np.zeros(0, dtype=np.intp), np.ones((tokens, 1))
    seen, alike = np.maximum(np.arange(tokens) + 1.0, 2.0), np.zeros(tokens, dtype=np.intp)
    weak = (1.2 / 40) ** 0.5 * one[None]
    graph = MaskedGraph(
        tokens, seen, none, none, np.zeros(0), np.zeros((1, 0)), np.array([40.0]), 1.9 * one, weak, alike, alike
    )
    noise = graph._replace(numbers=np.zeros(0), harmonics=np.zeros((0, 0)), weak=weak[:0])
    grid = mesh(tokens, 60)
    pulls = (tokens / grid.places**2)[:, None] * np.array([1.2, 0.7])
    groups = SizeGroups(np.ones((len(grid.places), 1)), np.ones((len(grid.places), 2, 1)))
    problem = MaskedProblem(grid, tokens, pulls, np.array([1 / 40, 0.0]), groups, groups)
    log = 2 * np.log(root)
    start = solve_ray(problem, np.arange(problem.top, log.real, -0.5), log.imag)
    wanted, done = solve(problem, start.state[:, -1:], np.array([log]))
    found, rival = ((root * state.columns.mean()) for state in (_solved(each, root) for each in (graph, noise)))
    assert done.all()
    assert abs(found - wanted.moment[0]) < 0.003
    assert abs(rival - wanted.moment[0]) > 0.03


def _solved(graph, root):
    equations = MaskedCavity(graph, 1e-6)
    state = equations.empty(-1j / abs(root))
    for _ in range(300):
        state = equations.sweep(root, state)
    return state


@pytest.mark.parametrize("qk_norm", [False, True])
def test_causal_graph_has_the_variance_of_the_matrix(qk_norm):
    """Strong and weak entries of rows from 128 on, beta 1.5: 4 % of the mean over six matrices; no edge looks ahead."""
    tokens = 512
    model, rng = be.SoftmaxAttention(tokens, 64, 1.5, qk_norm, "causal"), np.random.default_rng(20261126)
    wanted = np.mean([np.sum((model.sample(rng) - model.mask.mean())[128:] ** 2) for _ in range(6)])
    graph = causal_graph(1.5, 64, tokens, qk_norm=qk_norm, size=tokens)
    strong = np.bincount(graph.rows, graph.entries**2, tokens)
    found = strong + tokens * graph.noise.mean(axis=1) * np.arange(1, tokens + 1) / graph.seen**2
    assert found[128:].sum() / tokens == pytest.approx(wanted, rel=0.04)
    assert (graph.columns <= graph.rows).all()


def test_tables_of_causal_heads_go_on_as_one_over_the_logarithm():
    table = deepened(LogTable(np.array([-20.0, -10.0, 2.0]), np.array([0.04, 0.08, 1.0])), -70.0)
    assert 1 / table.cdf(np.array([-70.0, -20.0])) == pytest.approx([87.5, 25.0])


@pytest.mark.parametrize("qk_norm", [False, True])
def test_graph_has_the_variance_of_the_matrix(qk_norm):
    """Edges, noise and degrees together, beta 1.5: 3 % of the mean over four matrices of 500 tokens."""
    model = be.SoftmaxAttention(500, 64, 1.5, qk_norm)
    rng = np.random.default_rng(20261122)
    wanted = np.mean([np.sum((model.sample(rng) - 1 / 500) ** 2) for _ in range(4)])
    graph = head_graph(1.5, 64, 500, qk_norm=qk_norm, sizes=(256, 256))
    terms = graph.degrees
    low = (terms.numbers * (terms.rows**2).mean(axis=1)).sum()
    along = terms.numbers[:, None] * terms.rows[:, graph.rows] * terms.columns[:, graph.columns] * terms.entries
    found = (graph.squares.sum() + 2 * along.sum() / 500**0.5) / graph.size + graph.noise.mean() + low
    assert found == pytest.approx(wanted, rel=0.03)


def test_scores_on_the_sphere():
    """Against a closed form in three dimensions, where cosines are uniform: mean of ``exp(2 sqrt(3) t)``, t < 0.4."""
    scores, root = SphereScores(2.0, 3), 3**0.5
    assert scores.largest(np.array([0.25])) == pytest.approx([0.5 * root])
    exact = (np.exp(2 * root * 0.4) - np.exp(-2 * root)) / (2 * root) / 1.4
    assert np.exp(scores.below(np.array([0.4 * root]), 1)) == pytest.approx([exact], rel=1e-5)


def test_independent_scores_are_the_limit_of_many_dimensions():
    """4096 dimensions for 64 tokens: the first degree is noise, and edges are those of independent scores."""
    graph, rival = head_graph(3.0, 4096, 64, qk_norm=True, sizes=(256, 256)), sharp_graph(3.0, 64, sizes=(256, 256))
    assert not len(graph.degrees.numbers)
    found, wanted = (np.quantile(each.squares, [0.6, 0.8, 0.95]) for each in (graph, rival))
    assert found == pytest.approx(wanted, rel=0.05)


def test_density_is_that_of_the_table():
    table = LogTable(np.log([0.01, 0.1, 1.0, 3.0, 4.0]), np.array([0.1, 0.3, 0.6, 0.6, 1.0]))
    bulk = resolve(*tabulated(table, 0.9))
    assert bulk.mass == pytest.approx(0.9, abs=1e-10)
    places = np.array([0.01, 0.1, 1.0, 4.0])
    assert bulk.cdf(places) == pytest.approx(0.9 * np.array([0.1, 0.3, 0.6, 1.0]), abs=2e-5)
    assert bulk.cdf(np.array([0.0025])) == pytest.approx([0.9 * 0.05], rel=1e-3)  # the power of the table is near 1/2
    assert bulk.pdf(np.array([4.0 - 1e-9])) == pytest.approx([0.0], abs=1e-6)


def test_flat_heads_have_the_law_of_flat_heads():
    law = be.HeadLaw(0.5, 64, 1000)
    assert law.is_flat
    assert law.atoms == ()
    assert law.edge == be.FiniteHeadLaw(0.5, 64, 1000).edge
    assert law.accuracy == be.FiniteHeadLaw(0.5, 64, 1000).accuracy
    assert not be.HeadLaw(3.0, 64, 1000).is_flat


@pytest.mark.parametrize(("dim", "tokens", "beta"), [(64, 1000, 51), (64, 63, 1), (4, 1000, 1), (16, 1000, 1.0)])
def test_domain(dim, tokens, beta):
    with pytest.raises(DomainError, match="is outside its domain"):
        be.HeadLaw(beta, dim, tokens)


@pytest.mark.parametrize(("dim", "tokens", "beta"), [(8, 512, 2.0), (12, 400, 3.0)])
def test_few_dimensions_have_the_law_of_flat_heads(dim, tokens, beta):
    """Near keys have near neighbours there: the table was 0.15 away from draws at d = 8, where it stated 0.04."""
    law, model = be.HeadLaw(beta, dim, tokens, qk_norm=True), be.SoftmaxAttention(tokens, dim, beta, qk_norm=True)
    rng = np.random.default_rng([20261124, dim])
    distances = [be.compare(model.spectrum(rng), law).ks for _ in range(2)]
    assert law.is_flat
    assert max(distances) < min(law.accuracy, 0.07)


def test_sharp_heads_of_few_dimensions_warn():
    """Draws of 1000 tokens at d = 8 and beta = 5 are 0.08 to 0.09 away; the law stated 0.04."""
    with pytest.warns(be.RegimeWarning, match=r"head_dim = 8 and beta = 5: .* up to 0\.12.*be\.null_of"):
        law = be.HeadLaw(5.0, 8, 1000, qk_norm=True)
    assert law.accuracy > 0.09
    assert be.HeadLaw(50.0, 8, 800, qk_norm=True).accuracy < 0.07
    assert be.HeadLaw(5.0, 16, 1000, qk_norm=True).accuracy < 0.05
