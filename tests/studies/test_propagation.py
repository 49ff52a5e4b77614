"""*propagation*: closed forms, exact moments at few tokens, lemmas, and the helpers of its studies."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.ensembles.markov import RandomMarkov, without_gap
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.lab.studies import propagation as setting
from bulkedge.lab.studies.propagation import gap_free_stack, mean_with_gap, rigidity
from bulkedge.lab.studies.propagation.kernel import PropagationKernel
from bulkedge.lab.studies.propagation.key_query import distance
from bulkedge.lab.studies.propagation.plateau import _crossing
from bulkedge.lab.studies.propagation.rank_collapse import PropagationRankCollapse, fitted_slope
from bulkedge.lab.studies.propagation.spectrum import edge_at, finite_share
from bulkedge.propagation.gradients import estimated_gradient_norms
from bulkedge.propagation.moments import finite_moments, tradeoff
from bulkedge.support.estimates import Estimate


def drawn_moments(tokens, width, depth, count, seed):
    """First and second moments of kernel and Jacobian of ``count`` gap-free stacks at once: axes moment, draw."""
    rng = np.random.default_rng(seed)
    signal = np.broadcast_to(np.eye(tokens, width), (count, tokens, width))
    product, values = (np.broadcast_to(np.eye(size), (count, size, size)) for size in (tokens, width))
    for _ in range(depth):
        attention = rng.standard_exponential((count, tokens, tokens))
        attention = attention / attention.sum(axis=2, keepdims=True) - 1 / tokens
        weights = rng.standard_normal((count, width, width)) * np.sqrt(tokens / width)
        signal, product, values = attention @ signal @ weights, attention @ product, values @ weights

    def moments(matrix, size):
        return np.array(
            [np.sum(matrix**2, axis=(1, 2)), np.sum((matrix @ matrix.swapaxes(1, 2)) ** 2, axis=(1, 2))]
        ) / size  # fmt: skip

    return np.concatenate([moments(signal, tokens), moments(product, tokens) * moments(values, width)])


@pytest.mark.parametrize(("tokens", "width", "depth"), [(4, 6, 1), (4, 6, 2), (6, 4, 2), (8, 12, 2), (5, 5, 2)])
def test_finite_moments_are_exact(tokens, width, depth):
    """Against a hundred thousand draws at a few tokens, where 1/T is large: five standard errors."""
    stack = gap_free_stack(depth, tokens, tokens / width)
    expected = [*finite_moments(stack), *finite_moments(stack, of="jacobian")]
    found = Estimate.of(drawn_moments(tokens, width, depth, 100_000, 31), axis=1)
    assert np.all(np.abs(found.value - expected) < 5 * found.error)
    assert np.all(found.error < 0.03 * np.array(expected))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_finite_moments_tend_to_those_of_the_laws(ratio, depth):
    """At 20,000 tokens a few 1/T are left; the limits are those of Propositions 7 and 8."""
    stack = gap_free_stack(depth, 10_000, ratio)
    for of, mean in (("kernel", stack.mean_eigenvalue), ("jacobian", stack.passed)):
        found = finite_moments(stack, of)
        assert found.mean == pytest.approx(mean, rel=1e-3)
        assert found.second == pytest.approx(mean**2 * (1 + tradeoff(stack, of).spread), rel=5e-3)


def test_finite_moments_are_refused_elsewhere():
    for stack in (
        be.AttentionStack(2, 20, 20, gap=False),
        be.AttentionStack(2, 20, 20, gap=False, entries="exponential", values="orthogonal"),
        be.AttentionStack(2, 20, 20, entries="exponential"),
    ):
        with pytest.raises(ValueError, match="finite-size moments"):
            finite_moments(stack)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_variance_of_the_jacobian(depth):
    """Proposition 8: ``l (l + 2)`` at mean one, not the ``2 l`` of a free product; by the law and by the trade-off."""
    stack = gap_free_stack(depth, 100, 0.5)
    assert stack.jacobian_law().var() == pytest.approx(depth * (depth + 2), rel=1e-8)
    assert tradeoff(stack, "jacobian").spread == depth * (depth + 2)
    assert be.FussCatalan(2 * depth).var() == pytest.approx(2 * depth, rel=1e-8)


@pytest.mark.parametrize("ratios", [(0.5,), (1.0, 0.25), (1.0, 1.0, 2.0, 2.0), (0.3, 0.7, 1.9)])
def test_lemma_4_moments_of_free_products(ratios):
    """Mean: the product of the scales; variance over squared mean: the sum of the ratios."""
    law = be.ProductLaw(ratios, 1.7)
    assert law.mean() == pytest.approx(1.7, rel=1e-9)
    assert law.var() == pytest.approx(1.7**2 * sum(ratios), rel=1e-7)


@pytest.mark.parametrize(("width", "depth"), [(20, 1), (20, 3), (60, 3)])
def test_lemma_1_length_behind_gaussian_matrices(width, depth):
    """A product of l independent chi-squared variables: mean d^l, relative variance ``(1 + 2/d)**l - 1``."""
    rng = np.random.default_rng(32)
    vectors = np.zeros((4000, width))
    vectors[:, 0] = 1.0
    for _ in range(depth):
        # a fresh matrix for each vector acts as fresh Gaussian entries of its length
        vectors = np.linalg.norm(vectors, axis=1, keepdims=True) * rng.standard_normal(vectors.shape)
    squares = np.sum(vectors**2, axis=1) / width**depth
    matrix, direct = rng.standard_normal((depth, 500, width, width)), np.zeros((500, width))
    direct[:, 0] = 1.0
    for layer in matrix:
        direct = np.einsum("nij,nj->ni", layer, direct)
    for found in (squares, np.sum(direct**2, axis=1) / width**depth):
        assert abs(found.mean() - 1) < 4 * found.std() / np.sqrt(len(found))
        assert found.var() == pytest.approx((1 + 2 / width) ** depth - 1, rel=0.35)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_lemma_2_products_of_markov_matrices(depth):
    """400 tokens: first near one, second below ``(2 sigma)**l T**(-l/2)`` and that of the product without the gap."""
    rng, tokens = np.random.default_rng(33), 400
    whole = bulk = np.eye(tokens)
    for _ in range(depth):
        attention = RandomMarkov(tokens, 1.0, "exponential").sample(rng)
        whole, bulk = attention @ whole, without_gap(attention) @ bulk
    first, second, *_ = np.linalg.svd(whole, compute_uv=False)
    assert first == pytest.approx(1.0, abs=2 / tokens)
    assert second == pytest.approx(np.linalg.norm(bulk, 2), rel=0.02)
    edge = np.sqrt(be.FussCatalan(depth).edge)
    assert second * tokens ** (depth / 2) == pytest.approx(edge, rel=2 * depth * tokens ** (-2 / 3))
    assert edge <= 2**depth


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_theorems_9_and_10_singular_values_of_the_network(depth):
    """200 tokens: the first is ``d**(l/2)`` on average of squares, the second smaller by ``T**(-l/2)``, about."""
    stack, rng = be.AttentionStack(depth, 200, 200, entries="exponential"), np.random.default_rng(34)
    values = np.array([np.linalg.svd(stack.sample(rng), compute_uv=False)[:2] for _ in range(30)])
    squares = values[:, 0] ** 2 / 200**depth
    assert abs(squares.mean() - 1) < 4 * squares.std() / np.sqrt(30) + 2 / 200
    free = be.AttentionStack(depth, 200, 200, gap=False, entries="exponential").law()
    assert values[:, 1].mean() == pytest.approx(np.sqrt(free.edge), rel=0.1)
    assert np.all(values[:, 1] / values[:, 0] < 5 * (2 / 200**0.5) ** depth)


def test_rigidity_is_what_gaussian_matrices_show():
    """Without the exact zero: draws stay below it on average, and are within a factor of three."""
    rng, law = np.random.default_rng(35), be.MarchenkoPastur(1.0)
    for size in (100, 300):
        found = [
            distance(np.linalg.svd(rng.standard_normal((size, size)), compute_uv=False)[::-1] ** 2 / size, law)
            for _ in range(12)
        ]
        assert rigidity(size) / 3 < np.mean(found) < rigidity(size)


def test_distances_with_and_without_what_lies_beyond():
    """All values count here, where ``compare`` sets aside those beyond the edge."""
    law = be.MarchenkoPastur(1.0)
    values = law.ppf((np.arange(100) + 0.5) / 100)
    assert distance(values, law) == pytest.approx(0.005)
    assert distance(np.append(values[:50], np.full(50, 9.0)), law) == pytest.approx(0.5)
    assert distance(values, law) == pytest.approx(be.compare(be.Spectrum.of(values, "eigenvalues"), law).ks)


def test_edges_at_finite_size():
    """Of Gaussian matrices of one column less than rows, by simulation; below two at any size."""
    rng = np.random.default_rng(36)
    found = Estimate.of([np.linalg.norm(rng.standard_normal((80, 79)), 2) / np.sqrt(80) for _ in range(400)])
    assert abs(found.value - edge_at(80)) < 4 * found.error + 1e-3
    assert 1.9 < edge_at(80) < edge_at(800) < 2.0


@pytest.mark.parametrize("entries", ["lognormal", "exponential"])
def test_variance_that_normalised_rows_keep(entries):
    model, rng = RandomMarkov(60, 1.0, entries), np.random.default_rng(37)
    found = Estimate.of([60**2 * model.sample(rng).var() for _ in range(200)])
    assert abs(found.value - finite_share(model)) < 5 * found.error


@pytest.mark.parametrize(("entries", "variance"), [("lognormal", 0.7), ("exponential", 1.0), ("uniform", 0.2)])
def test_definition_1_1_random_markov_matrices(entries, variance):
    """Not negative, rows sum to one, and T times an entry has mean one and the variance asked for, up to 10/T."""
    tokens, rng = 300, np.random.default_rng(39)
    attention = RandomMarkov(tokens, variance, entries).sample(rng)
    assert attention.min() >= 0
    assert attention.sum(axis=1) == pytest.approx(np.ones(tokens))
    assert (tokens * attention).var() == pytest.approx(variance, rel=10 / tokens + 0.03)


def test_the_mean_with_the_gap():
    """Ratio of the mean eigenvalue with the gap to that without it: the quotient of the expected gradients."""
    for depth in (1, 2, 3):
        stacks = [be.AttentionStack(depth, 40, 60, gap=gap, entries="exponential") for gap in (True, False)]
        kept, removed = (stack.predicted_gradient() for stack in stacks)
        assert mean_with_gap(stacks[1]) == pytest.approx(kept / removed)


@pytest.mark.parametrize("gap", [True, False])
def test_gradients_of_one_layer_under_layer_norm_do_not_know_of_the_gap(gap):
    """``T (d - 2)/(d - 3)``: a token's squared length cancels against that of its input, but for ``E 1/chi**2``."""
    stack, rng = (
        be.AttentionStack(1, 20, 30, gap=gap, layer_norm=True, entries="exponential"),
        np.random.default_rng(38),
    )
    found = Estimate.of([estimated_gradient_norms(stack, stack.layers(rng), rng, 8)[0][0] for _ in range(400)])
    assert abs(found.value - 20 * 28 / 27) < 4 * found.error
    assert found.error < 0.2


def test_a_fitted_slope_finds_the_power_behind_a_correction():
    sizes = np.array([32.0, 64.0, 128.0, 256.0])
    found = fitted_slope(
        sizes, 2 - 3 * np.log(sizes) + 5 / sizes, np.full(4, 0.01), np.array([100.0, 50.0, 25.0, 12.0])
    )
    assert found.value == pytest.approx(-3.0, abs=1e-9)
    assert 0 < found.error < 0.05
    assert 11 < found.freedom < 190


@pytest.mark.parametrize(
    ("height", "steps"),
    [
        ([3.0, 2.0, 1.0], 2),  # never below zero: all steps
        ([3.0, 1.0, -1.0, -2.0], 1.5),
        ([3.0, 1.0, -3.0, 5.0, -1.0], 1.25),  # the first time counts
        ([1.0, -9.0], 1),  # a plateau is not shorter than a step
        ([-1.0, -2.0], 1),
    ],
)
def test_a_plateau_ends_where_the_curve_first_crosses_zero(height, steps):
    assert _crossing(np.array(height)) == pytest.approx(steps, rel=1e-15)


# -- planted errors of physics -----------------------------------------------------------------------------------------


def failed(study):
    return [claim.statement for claim in study.claims(study.simulate(1)) if claim.verdict == "fails"]


@pytest.mark.slow
def test_a_lost_factor_of_order_1_over_t_is_noticed(monkeypatch):
    """Rows of attention that sum to one vary by (T - 1)/(T + 1) of what free entries do."""

    def wrong(stack, of):
        right, size = finite_moments(stack, of), stack.tokens
        return right._replace(mean=right.mean * ((size + 1) / (size - 1)) ** stack.depth)

    monkeypatch.setattr(setting, "finite_moments", wrong)
    study = PropagationKernel(tokens=40, ratios=(0.25, 0.5), depth=2, draws=40)
    assert "layer 2: mean eigenvalue over its expectation, all ratios" in failed(study)


@pytest.mark.slow
def test_a_wrong_exponent_of_rank_collapse_is_noticed(monkeypatch):
    """A power of T for each layer instead of two: T^(-l) for T^(1 - 2 l)."""
    right = AttentionStack.predicted_stable_rank_excess

    def wrong(self):
        return right(self) * (self.tokens ** (self.depth - 1) if self.collapsing else 1)

    monkeypatch.setattr(AttentionStack, "predicted_stable_rank_excess", wrong)
    study = PropagationRankCollapse(**PropagationRankCollapse.small)
    found = [each for each in failed(study) if "over its prediction" in each]
    assert [each.split(" after ")[1][0] for each in found] == ["2", "3"]
