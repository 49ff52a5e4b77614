"""Spectra from products alone: against written matrices and prescribed spectra, with error bars that are true."""

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit

import bulkedge as be
from bulkedge import testing
from bulkedge.spectra import MapOperator, MatrixOperator, Product, trace_of
from bulkedge.spectra.krylov import GolubKahan
from bulkedge.spectra.matrix_free import _Accuracy, _assess, _Densities, _next, _probes, frame, operator_spectrum
from bulkedge.spectra.stopping import IterationState, MostSeconds, MostSteps, Placed, Reached

SIZE = 240


def distance(found, values):
    """Kolmogorov distance from values, each of which counts within a millionth of itself; above the rounding."""
    points, counts = np.unique(values, return_counts=True)
    upto, law, known = np.cumsum(counts) / len(values), found.distribution(), points > found.rounding
    after, before = law.cdf(1.000001 * points) - upto, law.cdf(0.999999 * points) - (upto - counts / len(values))
    return float(np.abs(np.concatenate([after[known], before[known]])).max(initial=0.0))


def head(tokens=SIZE, seed=0, mask="full", dim=32):
    query, key = np.random.default_rng(seed).standard_normal((2, tokens, dim))
    return tokens**0.5 * be.AttentionOperator(query, key, mask=mask).centred()


@pytest.mark.parametrize("name", testing.hard_spectra(8))
def test_hard_spectra(name):
    values = testing.hard_spectra(SIZE)[name]
    matrix = testing.with_singular_values(values, np.random.default_rng(0))
    found = be.spectrum(MatrixOperator(matrix), tolerance=0.05)
    assert np.all(np.isfinite(found.values))
    assert found.size == SIZE
    assert found.weights.sum() == pytest.approx(1)
    assert distance(found, values) <= 0.05


def test_the_spectrum_of_attention_is_that_of_its_matrix():
    """Stated at a confidence of 0.9 and met here, as it is in nine of ten."""
    operator = head(600, dim=64)
    found = be.spectrum(operator, tolerance=0.02)
    exact = be.spectrum(operator.dense())
    assert found.error <= 0.02
    assert be.compare(found, exact).ks <= found.error
    assert found.values[-20:] == pytest.approx(exact.values[-20:], rel=1e-9)
    law = be.FiniteHeadLaw(beta=1.0, head_dim=64, tokens=600)
    assert be.compare(found, law).error == found.error


def test_causal_values_close_to_zero_are_counted_and_not_told_apart():
    operator = head(900, mask="causal", dim=64)
    with pytest.warns(be.AccuracyWarning, match="not told apart"):
        found = operator_spectrum(operator, 0.05, stop=MostSteps(12))
    exact = be.spectrum(operator.dense())
    assert 0 < found.rounding < 0.1 * exact.values[-1]
    assert be.compare(found, exact).ks <= found.error


def test_attention_spectrum_takes_operators():
    query, key = np.random.default_rng(1).standard_normal((2, 300, 32))
    operator = be.AttentionOperator(query, key, mask="causal")
    found = be.attention_spectrum(operator)
    assert found.unit is be.Unit.SQUARED
    assert be.compare(found, be.attention_spectrum(operator.dense(), "causal")).ks <= 0.01
    with pytest.raises(be.DomainError, match="has its own"):
        be.attention_spectrum(operator, be.Mask.window(300, 5))


def test_attention_spectrum_passes_a_tolerance_on():
    """To operators; a matrix that is written out has no use for one, and says so."""
    query, key = np.random.default_rng(1).standard_normal((2, 300, 32))
    operator = be.AttentionOperator(query, key)
    rough = be.attention_spectrum(operator, tolerance=0.1)
    same = be.spectrum(300**0.5 * operator.centred(), tolerance=0.1).squared()
    np.testing.assert_array_equal(rough.values, same.values)
    assert 0 < rough.error <= 0.1
    assert len(be.attention_spectrum(operator)) != len(rough)  # at 0.01 all three hundred values are found
    with pytest.raises(be.DomainError, match="is for an AttentionOperator"):
        be.attention_spectrum(operator.dense(), tolerance=0.1)
    with pytest.raises(be.DomainError, match="tolerance = 2"):
        be.attention_spectrum(operator, tolerance=2)


@pytest.mark.parametrize("shape", [(150, 40), (40, 150), (7, 1), (1, 1)])
def test_rectangles(shape):
    matrix = np.random.default_rng(2).standard_normal(shape)
    found, exact = be.spectrum(MatrixOperator(matrix)), be.spectrum(matrix)
    assert (found.size, found.kernel) == (exact.size, exact.kernel)
    assert distance(found, exact.values) <= 0.01


def test_batches_and_backends():
    torch = pytest.importorskip("torch")
    query, key = np.random.default_rng(3).standard_normal((2, 2, 90, 16))
    found = be.spectrum(be.AttentionOperator(query, key).centred(), tolerance=0.05)
    assert found.shape == (2,)
    single = be.AttentionOperator(torch.tensor(query[1]).float(), torch.tensor(key[1]).float()).centred()
    other = be.spectrum(single, tolerance=0.05)
    assert be.compare(other, found[1]).ks <= 0.05
    assert np.array_equal(be.spectrum(single, tolerance=0.05).values, other.values)


def test_stacks_and_functions():
    rng = np.random.default_rng(4)
    first, second = rng.standard_normal((2, SIZE, SIZE)) / SIZE**0.5
    stack = Product([MatrixOperator(first), MatrixOperator(second)])
    exact = be.spectrum(first @ second)
    found = be.spectrum(stack, tolerance=0.05)
    assert be.compare(found, exact).ks <= 0.05
    same = MapOperator(lambda v: first @ (second @ v), lambda u: second.T @ (first.T @ u), stack.shape, first)
    assert testing.check_operator(same).adjointness < 1e-14
    assert np.allclose(be.spectrum(same, tolerance=0.05).values, found.values)


def test_what_is_not_reached_is_said():
    """Five narrow bands are more than eight steps tell apart."""
    bands = np.concatenate([np.linspace(place, place + 0.02, 100) for place in (0.2, 0.4, 0.6, 0.8, 1.0)])
    operator = MatrixOperator(testing.with_singular_values(bands, np.random.default_rng(0)))
    with pytest.warns(be.AccuracyWarning, match="known to .*, not to"):
        found = operator_spectrum(operator, tolerance=0.02, stop=MostSteps(3))
    assert found.error > 0.02
    assert distance(found, bands) > 0.02
    assert "known to" in repr(found)
    with pytest.raises(be.DomainError, match="only singular values"):
        be.spectrum(head(), kind="eigen")
    with pytest.raises(be.DomainError, match="tolerance"):
        be.spectrum(head(), tolerance=0)


def test_operators_that_are_not_finite_are_refused():
    broken = MapOperator(lambda v: v * np.nan, lambda u: u, (20, 20), np.ones(1))
    with pytest.raises(be.DomainError, match="not finite"):
        be.spectrum(broken)


@pytest.mark.parametrize("power", [1.2, 2.0, 3.5])
def test_checkpoints_are_where_an_error_that_falls_as_a_power_is_reached(power):
    """Within a step of the earliest, and none where it is known that there is more to do."""
    tolerance, course = 0.01, [(8, 0.2)]
    earliest = 8 * (0.2 / tolerance) ** (1 / power)
    while course[-1][1] > tolerance:
        steps = int(np.ceil(_next(course, tolerance)))
        assert course[-1][0] < steps <= np.ceil(1.4 * course[-1][0])
        course.append((steps, 0.2 * (8 / steps) ** power))
    assert course[-1][0] <= earliest + 2
    # it is confirmed a tenth later
    assert _next(course, tolerance) == pytest.approx(1.1 * course[-1][0])
    assert _next([(8, 0.02), (11, 0.5)], tolerance) == pytest.approx(1.4 * 11)


def test_rules_are_joined():
    point = IterationState(steps=10, columns=320, seconds=2.0, errors=(0.5, 0.01, 0.01))
    assert Reached(0.01)(point)
    assert not Reached(0.01, times=3)(point)
    assert not (Reached(0.001) & MostSteps(5))(point)
    assert (Reached(0.001) | MostSteps(5))(point)
    assert MostSeconds(1)(point)
    assert Placed(1.0)(point)
    few = replace(point, placed=0.4)
    assert Placed(0.4)(few)
    assert Placed(0.0)(few)
    assert not (Reached(0.01) & Placed(0.5))(few)
    assert (Reached(0.01) & Placed(0.5) | MostSteps(10))(few)
    with pytest.raises(be.DomainError, match=r"share = 1\.5"):
        Placed(1.5)


# -- the recurrence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("two_sided", [True, False])
def test_bases_are_orthonormal_and_project_the_matrix(two_sided):
    matrix = testing.with_singular_values(np.linspace(0.1, 1, 90), np.random.default_rng(5), rows=120)
    operator = MatrixOperator(matrix)
    run = GolubKahan(operator, frame(operator, 6), two_sided=two_sided)
    for _ in range(8):
        run.step()
    right = np.concatenate(run.right[:8], axis=1)
    projection = run.projection()
    assert right.T @ right == pytest.approx(np.eye(48), abs=1e-13)
    images = matrix @ right
    left = np.linalg.lstsq(projection.matrix.T, images.T, rcond=None)[0].T
    assert left.T @ left == pytest.approx(np.eye(48), abs=1e-10)
    assert run.projection(3).matrix == pytest.approx(projection.matrix[:18, :18])


class OnePass(MatrixOperator):
    """A written matrix that says that it finds both products in one pass, and counts what it is asked for."""

    one_pass = True

    def __init__(self, matrix):
        super().__init__(matrix)
        self.asked = {"sweep": 0, "forward": 0, "backward": 0}

    def _sweep(self, block, less=None):
        self.asked["sweep"] += 1
        image = self.matrix @ block - (0 if less is None else less)
        return image, self.matrix.T @ image

    def _forward(self, block):
        self.asked["forward"] += 1
        return super()._forward(block)

    def _backward(self, block):
        self.asked["backward"] += 1
        return super()._backward(block)


def test_one_pass_finds_what_two_products_find():
    """To rounding, not to its root: the smallest values are those of the matrix, and no squares come in between."""
    matrix = testing.with_singular_values(np.geomspace(1e-10, 1, 60), np.random.default_rng(13), rows=70)
    plain, swept = MatrixOperator(matrix), OnePass(matrix)
    runs = [GolubKahan(each, frame(each, 5)) for each in (plain, swept)]
    for run in runs:
        while not run.exhausted and run.steps < 40:
            run.step()
    values = [np.linalg.svd(run.projection().matrix, compute_uv=False) for run in runs]
    assert len(values[1]) == len(values[0]) == 60
    assert values[1] == pytest.approx(np.geomspace(1, 1e-10, 60), abs=1e-14)
    right = np.concatenate(runs[1].right[: runs[1].steps], axis=1)
    assert right.T @ right == pytest.approx(np.eye(60), abs=1e-13)


def test_one_pass_takes_one_pass_for_attention():
    operator = OnePass(head(300, dim=64).dense())
    run = GolubKahan(operator, frame(operator, 16))
    for _ in range(12):
        run.step()
    assert operator.asked == {"sweep": 12, "forward": 0, "backward": 0}


def test_where_a_block_is_ill_conditioned_the_second_product_is_made():
    values = np.concatenate([np.full(4, 1e6), np.linspace(0.5, 1, 116)])
    operator = OnePass(testing.with_singular_values(values, np.random.default_rng(14)))
    run = GolubKahan(operator, frame(operator, 8))
    for _ in range(8):
        run.step()
    assert operator.asked["backward"] > 0
    images = operator.matrix.T @ run.left[2]
    recurrence = run.right[2] @ run._diagonal[2].T + run.right[3] @ run._coupling[2]
    # rounding of one product, not times the condition of a million
    assert images == pytest.approx(recurrence, abs=20 * 1e6 * np.finfo(float).eps)


@pytest.mark.parametrize("name", testing.hard_spectra(8))
def test_hard_spectra_in_one_pass(name):
    values = testing.hard_spectra(SIZE)[name]
    operator = OnePass(testing.with_singular_values(values, np.random.default_rng(0)))
    assert distance(be.spectrum(operator, tolerance=0.05), values) <= 0.05


def test_an_exhausted_space_ends_the_recurrence():
    matrix = testing.with_singular_values([2.0, 2.0, 1.0, 0.0, 0.0, 0.0], np.random.default_rng(6))
    run = GolubKahan(MatrixOperator(matrix), frame(MatrixOperator(matrix), 3))
    for _ in range(10):
        run.step()
    assert run.exhausted
    assert run.projection().matrix.shape[1] <= 6
    with pytest.raises(be.DomainError, match="orthonormal"):
        GolubKahan(MatrixOperator(matrix), np.ones((6, 1)))


# -- the largest values ------------------------------------------------------------------------------------------------


def test_the_largest_values_with_bounds():
    values = np.concatenate([[5.0, 3.0, 3.0, 2.0], np.linspace(0, 1.5, 196)])
    matrix = testing.with_singular_values(values, np.random.default_rng(7), rows=300)
    for given in (matrix, MatrixOperator(matrix.T)):
        found = be.top_singular(given, 4, tolerance=1e-9)
        assert found.values == pytest.approx([5, 3, 3, 2], abs=1e-9)
        assert found.residuals.max() <= 1e-8
        dense = matrix if given is matrix else matrix.T
        assert dense @ found.right == pytest.approx(found.left * found.values, abs=1e-8)
        assert np.linalg.norm(dense.T @ found.left - found.right * found.values, axis=0) == pytest.approx(
            found.residuals, abs=1e-9
        )


def test_the_largest_values_of_a_batch_or_to_nothing_are_refused():
    with pytest.raises(be.DomainError, match="batch"):
        be.top_singular(np.ones((2, 3, 3)))
    with pytest.raises(be.DomainError, match="count"):
        be.top_singular(np.eye(3), 4)
    assert be.top_singular(np.zeros((5, 4)), 2).values.tolist() == [0, 0]


def test_values_that_are_too_close_are_not_returned(monkeypatch):
    monkeypatch.setattr("bulkedge.spectra.top.RESTARTS", 1)
    matrix = testing.with_singular_values(np.linspace(0.999, 1, 400), np.random.default_rng(8))
    with pytest.raises(be.UnresolvedError, match="residuals of the 3 largest"):
        be.top_singular(matrix, 3, tolerance=1e-12)


# -- sums over the spectrum --------------------------------------------------------------------------------------------


def test_sums_of_a_matrix_that_is_found_whole_have_no_error():
    matrix = np.random.default_rng(9).standard_normal((30, 20))
    assert be.schatten_norm(matrix, 1).value == pytest.approx(np.linalg.norm(matrix, "nuc"))
    assert be.schatten_norm(matrix, 2) == pytest.approx((np.linalg.norm(matrix), 0.0, np.inf))
    assert be.stable_rank(MatrixOperator(matrix)).value == pytest.approx(be.stable_rank(matrix))
    first, second = be.trace_moments(matrix, [1, 2])
    values = np.linalg.svd(matrix, compute_uv=False)
    assert (first.value, second.value) == pytest.approx((np.mean(values**2), np.mean(values**4)))
    assert be.schatten_norm(np.zeros((4, 4)), 3).value == 0
    with pytest.raises(be.DomainError, match="zeros"):
        be.stable_rank(MatrixOperator(np.zeros((4, 4))))
    with pytest.raises(be.DomainError, match="batch"):
        be.schatten_norm(np.ones((2, 3, 3)))


def test_peers_own_tests_of_stochastic_quadrature_and_schatten_norms():
    """What matfree and cola test themselves with, asked of ours; matrices that small are found whole.

    matfree, ``tests/test_funm/test_integrand_funm_product_schatten_norm.py``: singular values 1 to 30 of a square
    matrix, powers 1 to 3, seeds 1 to 3, 20 products, one per cent. matfree, ``test_integrand_funm_product_logdet.py``:
    ``log det A'A`` of a matrix of 50 x 30 with the same values, one per cent. cola, ``tests/algorithms/
    test_stochastic_lanczos_quad.py``: trace of the logarithm, ten eigenvalues ``1 - sqrt(k/10)``, ten per cent.
    """
    values = np.arange(30) + 1.0
    for seed in (1, 2, 3):
        rng = np.random.default_rng(seed)
        for power in (1, 2, 3):
            norm = be.schatten_norm(testing.with_singular_values(values, rng), power, steps=20, rng=rng)
            assert norm.value**power == pytest.approx(np.sum(values**power), abs=0.01, rel=0.01)
        product = trace_of(lambda s: 2 * np.log(s), testing.with_singular_values(values, rng, rows=50), 16, 20, rng)
        assert product.value == pytest.approx(2 * np.log(values).sum(), abs=0.01, rel=0.01)
        eigenvalues = 1 - np.sqrt(np.arange(10) / 10)
        logarithm = trace_of(np.log, testing.with_singular_values(eigenvalues, rng), rng=rng)
        assert logarithm.value == pytest.approx(np.log(eigenvalues).sum(), rel=0.1)


def test_the_same_where_a_matrix_is_not_found_whole():
    """Sixteen probes of 500 dimensions know a sum to about ``sqrt(2/8000)``, so the stated error is what is asked for.

    A value from 16 draws is more than four of its own errors off once in a thousand times.
    """
    rng, values = np.random.default_rng(10), np.arange(500) + 1.0
    matrix = testing.with_singular_values(values, rng)
    for power in (1, 2, 3):
        norm = be.schatten_norm(matrix, power, probes=16, steps=16, rng=rng)
        assert 0 < norm.error < 0.03 * norm.value
        assert norm.value == pytest.approx(np.sum(values**power) ** (1 / power), abs=4 * norm.error)


# -- error bars --------------------------------------------------------------------------------------------------------

WISHART = np.random.default_rng(11).standard_normal((200, 150)) / 200**0.5


def nuclear(seed):
    return be.schatten_norm(WISHART, 1, probes=8, steps=10, rng=np.random.default_rng(seed))


def stated(matrix, probes, steps, kind=MatrixOperator):
    """Actual and stated error of a distribution after so many steps, for a generator."""
    exact = np.sort(np.linalg.svd(matrix, compute_uv=False))
    size, middle = len(exact), (np.arange(len(exact)) + 0.5) / len(exact)

    def run(rng):
        operator = kind(matrix)
        recurrence = GolubKahan(operator, frame(operator, probes, rng))
        while recurrence.steps < steps:
            recurrence.step()
        found = _assess(recurrence, _Densities(None), _Accuracy(tolerance=1.0, confidence=0.9, placed=0.0))
        actual = float(np.abs(found.density.cdf(exact) - middle).max()) + 0.5 / size
        return actual, found.error

    return run


def test_error_bars_of_sums_cover_the_truth():
    """The standard deviation of a share of 0.9 in 60 is 0.04: this fails once in a thousand if bars are true."""
    share = testing.coverage((nuclear(seed) for seed in range(60)), np.linalg.norm(WISHART, "nuc"))
    assert 0.77 <= share <= 1.0


@pytest.mark.slow
def test_error_bars_cover_the_truth_in_four_hundred_runs():
    """Shares of 0.9 in 400 scatter by 0.015."""
    assert 0.85 <= testing.coverage((nuclear(seed) for seed in range(400)), np.linalg.norm(WISHART, "nuc")) <= 0.95
    head_values = head(300, dim=64).dense()
    for matrix, probes, steps, kind in ((WISHART, 8, 12, MatrixOperator), (head_values, 8, 16, OnePass)):
        assert 0.85 <= testing.covered(stated(matrix, probes, steps, kind), 400) <= 0.95


@pytest.mark.slow
def test_errors_of_spectra_that_stopped_by_themselves_cover_the_truth():
    """As stated where the run stopped, not at a number of steps that was set: the choice of the moment costs nothing.

    The sampling error is stated at 0.9, what more steps would change is added to it, so that more than 0.9 are covered:
    a share of 0.9 in 100 is below 0.81 once in a thousand times.
    """
    operator = OnePass(head(700, dim=64).dense())
    exact = be.spectrum(operator.matrix)
    runs = [be.spectrum(operator, tolerance=0.03, rng=np.random.default_rng(seed)) for seed in range(100)]
    assert all(run.error <= 0.03 for run in runs)
    assert np.mean([be.compare(run, exact).ks <= run.error for run in runs]) >= 0.81


def test_the_quantile_is_that_of_student():
    estimates = [be.Estimate(value, 1.0, 3.0) for value in (0.0, stdtrit(3, 0.95) - 1e-6, stdtrit(3, 0.95) + 1e-6)]
    assert testing.coverage(estimates, 0.0) == pytest.approx(2 / 3)
    with pytest.raises(be.DomainError, match="estimates = "):
        testing.coverage([], 0.0)


# -- oracles -----------------------------------------------------------------------------------------------------------


def test_laws_are_references():
    law = be.MarchenkoPastur(0.5)
    values = testing.values_of(law, SIZE)
    matrix = testing.with_singular_values(values, np.random.default_rng(12))
    found = be.spectrum(MatrixOperator(matrix), tolerance=0.04)
    assert be.compare(found.squared(), law).ks <= found.error + 1 / SIZE
    with pytest.raises(be.DomainError, match="singular"):
        testing.values_of(be.Semicircle(), 10)


def test_prescribed_values_are_checked():
    with pytest.raises(be.DomainError, match="negative"):
        testing.with_singular_values([1.0, -1.0], np.random.default_rng(0))
    with pytest.raises(be.DomainError, match="rows"):
        testing.with_singular_values([1.0, 2.0], np.random.default_rng(0), rows=1)


def test_the_benchmark_for_a_gpu_runs_without_one(tmp_path):
    """At sizes that say nothing of speed: every line is there, and the spectrum is as close as it states."""
    pytest.importorskip("torch")
    path = Path(__file__).parents[2] / "benchmarks" / "operator_gpu.py"
    spec = spec_from_file_location("operator_gpu", path)
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    sizes = ["--tokens", "128", "--products", "128", "--kinds", "full"]
    found = script.main([*sizes, "--json", str(tmp_path / "found.json")])
    assert (tmp_path / "found.json").exists()
    assert [each["kind"] for each in found["spectra"]] == ["full"]
    assert all(each["distance to the matrix"] <= 0.011 for each in found["spectra"])
    exact, rows, half = (each["forward error"] for each in found["products"][0]["backends"])
    assert max(exact, rows) < 1e-5 < half < 0.05
    more = ["--tokens", "96", "128", "--products", "--kinds", "full", "--json", str(tmp_path / "found.json")]
    again = script.main(more)  # in the place of what was there, or beside it
    assert [each["tokens"] for each in again["spectra"]] == [128, 96]
    assert again["products"] == found["products"]


def test_probes_are_as_many_as_sampling_and_memory_ask_for():
    """A hundred values need all of them, a million half of what finds large values quickly."""
    found = [_probes(size, 0.01) for size in (100, 2048, 2**19, 2**20)]
    assert found == [100, 32, 32, 16]
    assert _probes(2**20, 0.0005) > 16
