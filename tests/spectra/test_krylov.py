"""The recurrence and its Ritz values by the quick routes, against the careful ones that they replace."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge import testing
from bulkedge.spectra import MatrixOperator, krylov
from bulkedge.spectra import quadrature as ritz
from bulkedge.spectra.krylov import GolubKahan
from bulkedge.spectra.matrix_free import frame
from bulkedge.spectra.quadrature import density

SIZE = 200


def stepped(operator, probes=8, steps=12, **options):
    run = GolubKahan(operator, frame(operator, probes), **options)
    while run.steps < steps and not run.exhausted:
        run.step()
    return run


def head(tokens, kind=np.float64, dim=16):
    query, key = np.random.default_rng(0).standard_normal((2, tokens, dim)).astype(kind)
    return tokens**0.5 * be.AttentionOperator(query, key).centred()


def operator_of(values, kind, rows=SIZE):
    matrix = testing.with_singular_values(values, np.random.default_rng(1), rows=rows)
    if kind == "torch":
        return MatrixOperator(pytest.importorskip("torch").tensor(matrix).float())
    return MatrixOperator(matrix.astype(kind))


# -- blocks made orthonormal by their Gram matrix ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_gram_matrices_and_reflections_find_the_same(monkeypatch, kind):
    """Nodes, weights and locked values to rounding: squares of coordinates to that over the gap of their values."""
    operator = head(SIZE, kind)
    quick = stepped(operator).projection()
    monkeypatch.setattr(krylov, "FAIR", 0.0)
    careful = stepped(operator).projection()
    found, known = density(quick, SIZE), density(careful, SIZE)
    assert len(found.locked) == len(known.locked) > 0
    assert found.locked == pytest.approx(known.locked, abs=quick.rounding)
    assert found.nodes == pytest.approx(known.nodes, abs=10 * quick.rounding)
    assert found.weights == pytest.approx(known.weights, abs=10 * quick.rounding)
    assert quick.rounding == pytest.approx(careful.rounding, rel=1e-4)


@pytest.mark.parametrize("kind", [np.float32, np.float64, "torch"])
@pytest.mark.parametrize("two_sided", [True, False])
def test_bases_stay_orthonormal_where_blocks_are_poor_or_wide_in_range(kind, two_sided):
    """One huge value, then values over a decade: most blocks are small beside what was there before them."""
    values = np.concatenate([[300.0], np.geomspace(0.1, 1, SIZE - 1)])
    operator = operator_of(values, kind, rows=SIZE + 20)
    run = stepped(operator, steps=10, two_sided=two_sided)
    unit = 1.2e-7 if operator.like.dtype != np.float64 else 2.3e-16
    right = np.concatenate([np.asarray(each, dtype=float) for each in run.right], axis=1)
    assert np.abs(right.T @ right - np.eye(right.shape[1])).max() <= 30 * unit
    left = np.asarray(run.left[-1], dtype=float)
    assert np.abs(left.T @ left - np.eye(left.shape[1])).max() <= 30 * unit
    if not two_sided:  # blocks of U before the last are not kept, and it need not be orthogonal to them
        return
    matrix, last = np.asarray(operator.matrix, dtype=float), run.projection().matrix[-left.shape[1] :]
    assert left.T @ matrix @ right[:, : last.shape[1]] == pytest.approx(last, abs=10 * 300 * unit)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("fair", [krylov.FAIR, 0.0])
def test_what_a_block_adds_to_a_basis_is_orthogonal_to_it(monkeypatch, kind, fair):
    """Though nearly all of it lies in the basis: to the rounding of what is left, not of what was taken off."""
    run, rng, unit = (
        stepped(operator_of(np.linspace(0.5, 1, SIZE), kind)),
        np.random.default_rng(3),
        float(np.finfo(kind).eps),
    )
    right = np.concatenate(run.right, axis=1).astype(float)
    new = rng.standard_normal((SIZE, 8))
    block = 1e3 * right @ rng.standard_normal((right.shape[1], 8)) + new - right @ (right.T @ new)
    monkeypatch.setattr(krylov, "FAIR", fair)
    basis, factor = run._orthonormal(block.astype(kind), run.right)
    assert np.abs(right.T @ basis).max() <= 5 * unit
    assert basis.T @ basis == pytest.approx(np.eye(8), abs=10 * unit)
    assert basis @ factor.matrix == pytest.approx(block - right @ (right.T @ block), abs=1e5 * unit)


@pytest.mark.parametrize("power", [-1, 1])
@pytest.mark.parametrize(("kind", "decades"), [(np.float64, 160), (np.float32, 30)])
def test_squares_out_of_range_change_nothing(kind, decades, power):
    """Gram matrices that leave the range are not used."""
    matrix = testing.with_singular_values(np.linspace(0.1, 1, SIZE), np.random.default_rng(2))
    values, noise = [], []
    for scale in (1.0, 10.0 ** (power * decades)):
        projection = stepped(MatrixOperator((scale * matrix).astype(kind))).projection()
        values.append(np.linalg.svd(projection.matrix / scale, compute_uv=False))
        noise.append(projection.noise / scale)
    assert values[1] == pytest.approx(values[0], abs=10 * noise[0])
    assert noise[1] == pytest.approx(noise[0], rel=1e-3)


def off(found, values):
    """Kolmogorov distance of a spectrum in single precision from values, above its rounding."""
    points, counts = np.unique(values, return_counts=True)
    upto, known, law = np.cumsum(counts) / len(values), points > found.rounding, found.distribution()
    after, before = law.cdf(1.00001 * points) - upto, law.cdf(0.99999 * points) - (upto - counts / len(values))
    return np.abs(np.concatenate([after[known], before[known]])).max(initial=0.0)


@pytest.mark.parametrize("name", testing.hard_spectra(8))
@pytest.mark.parametrize("kind", [np.float32, "torch"])
def test_hard_spectra_in_single_precision(name, kind):
    values = testing.hard_spectra(SIZE)[name]
    found = be.spectrum(operator_of(values, kind), tolerance=0.05)
    assert found.weights.sum() == pytest.approx(1)
    assert off(found, values) <= 0.05


def test_one_small_matrix_travels_each_way_in_half_a_step(monkeypatch):
    """A GPU waits for every transfer: two a step to the processor, in single precision, and no tall decomposition."""
    torch = pytest.importorskip("torch")
    run = stepped(MatrixOperator(torch.tensor(head(SIZE, np.float32).dense())), steps=1)
    fetched = []
    monkeypatch.setattr(krylov, "as_numpy", lambda array: fetched.append(tuple(array.shape)) or array.numpy())
    monkeypatch.setattr(torch.linalg, "qr", None)
    for _ in range(5):
        run.step()
    assert fetched == 10 * [(9, 8)]


# -- Ritz values -------------------------------------------------------------------------------------------------------


def by_both(monkeypatch, projection):
    found = ritz.ritz(projection)
    with monkeypatch.context() as patch:
        patch.setattr(ritz, "SINGLE", 1.0)
        return found, ritz.ritz(projection)


@pytest.mark.parametrize("tokens", [40, SIZE])
def test_squares_and_values_have_the_same_ritz_values(monkeypatch, tokens):
    """From the same B in double precision: what squares lose is far below the rounding of single precision."""
    projection = stepped(head(tokens, np.float32)).projection()
    (values, weights, residuals), known = by_both(monkeypatch, projection)
    large = known[0] > projection.rounding
    assert values[large] == pytest.approx(known[0][large], abs=1e-4 * projection.noise)
    assert np.all(values[~large] <= projection.rounding)
    assert weights.sum(axis=0) == pytest.approx(np.ones(8))
    apart = np.flatnonzero(np.diff(known[0]) < -100 * projection.noise)
    alone = np.intersect1d(apart + 1, apart)
    assert len(alone) > 0.8 * len(values)
    assert weights[alone] == pytest.approx(known[1][alone], abs=1e-9)
    assert residuals[alone] == pytest.approx(known[2][alone], abs=1e-9)
    assert ritz.count_converged(values, weights, residuals, tokens) == ritz.count_converged(*known, tokens)


def test_a_gpu_is_asked_the_same_question(monkeypatch):
    """The route of a GPU, taken by tensors of the processor."""
    torch = pytest.importorskip("torch")
    operator = MatrixOperator(torch.tensor(head(SIZE, np.float32).dense()))
    projection = stepped(operator).projection()
    known = ritz.ritz(projection)
    asked = []
    monkeypatch.setattr(ritz, "LARGE", 1)
    monkeypatch.setattr(ritz, "_on_gpu", lambda projection: asked.append(projection) or True)
    found = ritz.ritz(projection)
    assert asked
    for each, other in zip(found, known, strict=True):
        assert each == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize("values", [[2.0, 2.0, 1.0, 0, 0, 0], [3.0] * 6, [1e-9, 1e-8, 1, 1, 2, 2]])
def test_ritz_values_of_spaces_that_are_exhausted(monkeypatch, values):
    """Blocks of different widths, kernels and values that are rounding."""
    matrix = testing.with_singular_values(values, np.random.default_rng(6), rows=9).astype(np.float32)
    run = stepped(MatrixOperator(matrix), probes=3)
    assert run.exhausted
    (found, weights, residuals), known = by_both(monkeypatch, run.projection())
    assert found == pytest.approx(known[0], abs=run.projection().rounding)
    assert weights.sum(axis=0) == pytest.approx(np.ones(3))
    assert not residuals.any()
    assert not known[2].any()


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """The routes of a GPU, taken by tensors of the processor."""
    monkeypatch.setattr(ritz, "_on_gpu", lambda projection: {each.shape for each in projection.diagonal} == {(8, 8)})
    monkeypatch.setattr(ritz, "LARGE", 100)


@pytest.mark.parametrize("name", testing.hard_spectra(8))
def test_hard_spectra_on_the_way_of_a_gpu(gpu, name):
    values = testing.hard_spectra(600)[name]
    found = be.spectrum(operator_of(values, "torch", rows=600), tolerance=0.03)
    assert found.weights.sum() == pytest.approx(1)
    assert off(found, values) <= 0.03


def test_a_run_that_keeps_one_basis_has_room_for_one_left_block():
    operator = head(SIZE, np.float32)
    run = GolubKahan(operator, frame(operator, 8), two_sided=False)
    for _ in range(5):
        run.step()
    assert [array.shape for array, _ in run.left._arrays] == [(SIZE, 8)]
    assert len(run.right) == 6
