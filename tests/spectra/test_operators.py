"""Every operator: its products are those of the written matrix, its transpose is adjoint, both are linear."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import bulkedge as be
from bulkedge.spectra.operators import (
    AttentionOperator,
    Gram,
    Hermitised,
    MapOperator,
    MatrixOperator,
    Operator,
    Product,
)
from bulkedge.spectra.operators.attention import sums_before
from bulkedge.visibility import hidden_patches, softmax

torch = pytest.importorskip("torch")

ROWS, KEYS, DIM = 37, 29, 6
"""Odd numbers, which no block divides."""


@dataclass(frozen=True)
class Case:
    """An operator, the matrix that it should be, in double precision, and the size of its largest scores."""

    operator: Operator
    matrix: Any
    scores: float = 1.0

    @property
    def tolerance(self):
        """A hundred roundings of the operator's type, of the largest score if that is more: weights have its error."""
        return 100 * self.scores * float(np.finfo(str(self.operator.like.dtype).removeprefix("torch.")).eps)


def heads(rows=ROWS, keys=KEYS, batch=(), size=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return size * rng.standard_normal((*batch, rows, DIM)), rng.standard_normal((*batch, keys, DIM))


def attention(mask, backend="rows", dtype="float64", library="numpy", batch=(), size=1.0):  # noqa: PLR0913, PLR0917
    square = not isinstance(mask, str) or mask != "full"
    query, key = heads(ROWS, ROWS if square else KEYS, batch, size)
    query, key = query.astype(dtype), key.astype(dtype)
    visible = be.visibility.mask_for(mask, ROWS).visible() if square else None
    matrix = softmax(0.7 * query.astype(float) @ key.astype(float).swapaxes(-1, -2), visible)
    if library == "torch":
        query, key = torch.tensor(query), torch.tensor(key)
    return Case(AttentionOperator(query, key, 0.7, mask, backend), matrix, max(size, 1.0))


def written(shape=(ROWS, KEYS)):
    matrix = np.random.default_rng(1).standard_normal(shape)
    return Case(MatrixOperator(matrix), matrix)


BOOLEAN = np.tril(np.ones((ROWS, ROWS), dtype=bool)) | (np.random.default_rng(2).random((ROWS, ROWS)) < 0.2)
MASKS = {
    "full": "full",
    "causal": "causal",
    "window": be.Mask.window(ROWS, 5),
    "padding": be.Mask.padding(np.arange(ROWS) < 30),
    "boolean": be.Mask.of(BOOLEAN),
}


def difference():
    case, mean = attention("causal"), be.Mask.causal(ROWS).mean()
    return Case(case.operator.centred(), case.matrix - mean)


def low_rank():
    case, (left, right) = written(), heads()
    return Case(case.operator.less(left, right), case.matrix - left @ right.T)


def projected():
    case, directions = written(), np.random.default_rng(3).standard_normal((KEYS, 4))
    basis = np.linalg.qr(directions)[0]
    return Case(case.operator.without(directions), case.matrix @ (np.eye(KEYS) - basis @ basis.T))


def popular():
    case = attention("full")
    return Case(case.operator.less_popularity(), case.matrix - case.matrix.mean(axis=0))


def jacobian():
    """Of a layer of a network, by products with vectors forwards and backwards."""
    weight, at = torch.randn(ROWS, KEYS, dtype=torch.float64), torch.randn(KEYS, dtype=torch.float64)

    def layer(x):
        return torch.tanh(weight @ x)

    forward = torch.func.vmap(lambda v: torch.func.jvp(layer, (at,), (v,))[1], 1, 1)
    backward = torch.func.vmap(lambda u: torch.func.vjp(layer, at)[1](u)[0], 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch warns of itself when it first loads its rules
        forward(torch.eye(KEYS, dtype=torch.float64))
    dense = (1 - torch.tanh(weight @ at) ** 2)[:, None] * weight
    return Case(MapOperator(forward, backward, (ROWS, KEYS), at), dense.numpy())


CASES = {
    **{f"rows, {name}": lambda mask=mask: attention(mask) for name, mask in MASKS.items()},
    **{f"rows, torch, {name}": lambda mask=mask: attention(mask, library="torch") for name, mask in MASKS.items()},
    **{f"sdpa, {name}": lambda mask=mask: attention(mask, "sdpa", library="torch") for name, mask in MASKS.items()},
    "rows, single": lambda: attention("causal", dtype="float32"),
    "rows, torch, single": lambda: attention("full", dtype="float32", library="torch"),
    "sdpa, single": lambda: attention("causal", "sdpa", "float32", "torch"),
    "batch": lambda: attention("causal", batch=(2, 3)),
    "batch, sdpa": lambda: attention("causal", "sdpa", library="torch", batch=(2, 3)),
    "large scores": lambda: attention("full", size=1e3),
    "large scores, causal, sdpa": lambda: attention("causal", "sdpa", library="torch", size=1e3),
    "written": written,
    "one row": lambda: written((1, KEYS)),
    "one column": lambda: written((ROWS, 1)),
    "transposed": lambda: Case(written().operator.T, written().matrix.T),
    "scaled": lambda: Case(-3 * written().operator, -3 * written().matrix),
    "less the mean": difference,
    "less low rank": low_rank,
    "less popularity": popular,
    "without directions": projected,
    "product": lambda: Case(
        Product([written().operator, written((KEYS, 11)).operator]), written().matrix @ written((KEYS, 11)).matrix
    ),
    "Gram": lambda: Case(Gram(written().operator), written().matrix.T @ written().matrix),
    "hermitised": lambda: Case(
        Hermitised(written().operator),
        np.block([[np.zeros((ROWS, ROWS)), written().matrix], [written().matrix.T, np.zeros((KEYS, KEYS))]]),
    ),
    "Jacobian": jacobian,
}


@pytest.fixture(params=CASES, scope="module")
def case(request):
    return CASES[request.param]()


def vectors(operator, count, seed, *, left=False):
    drawn = np.random.default_rng(seed).standard_normal((operator.shape[-2 if left else -1], count))
    return torch.tensor(drawn) if isinstance(operator.like, torch.Tensor) else drawn


def test_products_are_those_of_the_matrix(case):
    operator, matrix = case.operator, case.matrix
    right, left = vectors(operator, 3, 4), vectors(operator, 70, 5, left=True)
    scale = np.abs(matrix).sum(axis=-1).max()
    assert operator.shape == matrix.shape
    assert np.asarray(operator @ right) == pytest.approx(matrix @ np.asarray(right), abs=case.tolerance * 10 * scale)
    expected = matrix.swapaxes(-1, -2) @ np.asarray(left)
    assert np.asarray(operator.T @ left) == pytest.approx(expected, abs=case.tolerance * 10 * np.abs(expected).max())


def test_the_written_operator_is_the_matrix(case):
    assert np.asarray(case.operator.dense()) == pytest.approx(
        case.matrix, abs=case.tolerance * np.abs(case.matrix).max()
    )


def test_the_transpose_is_adjoint(case):
    operator = case.operator
    right, left = vectors(operator, 4, 6), vectors(operator, 4, 7, left=True)
    forward, backward = np.asarray(operator @ right), np.asarray(operator.T @ left)
    there = (np.asarray(left) * forward).sum(axis=-2)
    back = (backward * np.asarray(right)).sum(axis=-2)
    assert there == pytest.approx(back, abs=case.tolerance * 10 * max(np.abs(case.matrix).max() * ROWS, 1))
    assert operator.T.T.shape == operator.shape


def test_a_sweep_is_a_product_and_that_of_the_transpose_with_it(case):
    operator, matrix = case.operator, case.matrix
    block, less = vectors(operator, 4, 14), vectors(operator, 4, 15, left=True)
    scale = case.tolerance * 10 * max(np.abs(matrix).sum(axis=-1).max(), 1)
    for taken in (None, less):
        image, back = (np.asarray(each) for each in operator.sweep(block, taken))
        expected = matrix @ np.asarray(block) - (0 if taken is None else np.asarray(taken))
        assert image == pytest.approx(expected, abs=scale)
        expected = matrix.swapaxes(-1, -2) @ expected
        assert back == pytest.approx(expected, abs=case.tolerance * 20 * max(np.abs(expected).max(), 1))


def test_products_are_linear_and_vectors_are_columns(case):
    operator = case.operator
    block = vectors(operator, 2, 8)
    product, scale = np.asarray(operator @ block), np.abs(case.matrix).sum(axis=-1).max()
    together = np.asarray(operator @ (2 * block[:, 0] - 3 * block[:, 1]))
    assert together == pytest.approx(2 * product[..., 0] - 3 * product[..., 1], abs=case.tolerance * 10 * scale)


def test_members_of_a_batch():
    case = attention("causal", batch=(2, 3))
    member = case.operator.centred()[1, 2]
    assert member.dense() == pytest.approx(case.matrix[1, 2] - be.Mask.causal(ROWS).mean(), abs=1e-12)
    with pytest.raises(be.DomainError, match="no members"):
        MapOperator(np.asarray, np.asarray, (3, 3), np.ones(1))[0]


def test_numbers_of_numpy_multiply_operators():
    case = written()
    assert (np.sqrt(4.0) * case.operator).dense() == pytest.approx(2 * case.matrix)
    with pytest.raises(TypeError):
        case.matrix @ case.operator


@pytest.mark.parametrize("size", [1e4, 1e-4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_of_any_size_make_rows_that_sum_to_one(size, dtype):
    query, key = (each.astype(dtype) for each in heads(size=size))
    operator = AttentionOperator(query, key, 1.0)
    assert np.abs(query @ key.T).max() > 3 * size
    sums = (operator @ np.ones(KEYS, dtype=dtype)).astype(float)
    # rounding of a score is its error, and that of the logarithm of a weight
    assert sums == pytest.approx(1.0, abs=20 * float(np.finfo(dtype).eps) * max(size, 10))
    assert np.all(operator.dense() >= 0)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_blocks_of_rows_do_not_matter(monkeypatch, name, library):
    monkeypatch.setattr("bulkedge.spectra.operators.products.ENTRIES", {"cpu": 1})
    monkeypatch.setattr("bulkedge.spectra.operators.products.LEAST_ROWS", 7)
    case = attention(MASKS[name], library=library)
    block, less = vectors(case.operator, 3, 9), vectors(case.operator, 3, 10, left=True)
    with threadpool_limits(2 if library == "numpy" else 1):
        products = case.operator @ block, case.operator.T @ less, *case.operator.sweep(block, less)
    image = case.matrix @ np.asarray(block)
    swept = image - np.asarray(less)
    expected = image, case.matrix.T @ np.asarray(less), swept, case.matrix.T @ swept
    for found, written_out in zip(products, expected, strict=True):
        assert np.asarray(found) == pytest.approx(written_out, abs=1e-13)


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_what_rows_of_a_window_do_not_see(tokens, width, data):
    mask = be.Mask.window(tokens, width)
    start = data.draw(st.integers(0, tokens - 1))
    stop = data.draw(st.integers(start + 1, tokens))
    columns, patches = hidden_patches(mask, start, stop, np.ones(1))
    found = np.zeros((stop - start, tokens), dtype=bool)
    found[:, columns] = True
    for place, unseen in patches:
        found[:, columns][:, place][unseen] = False
    assert np.array_equal(found, mask.visible()[start:stop])


@given(st.integers(0, 70), st.sampled_from([(), (3,)]), st.booleans())
def test_sums_before(rows, batch, in_torch):
    """Integers, whose sums are exact in any order."""
    block = np.random.default_rng(rows).integers(-9, 9, (*batch, rows, 2)).astype(float)
    expected = np.concatenate([np.zeros((*batch, 1, 2)), np.cumsum(block, axis=-2)], axis=-2)
    assert np.array_equal(np.asarray(sums_before(torch.tensor(block) if in_torch else block)), expected)


def test_the_number_of_threads_does_not_change_a_digit(monkeypatch):
    monkeypatch.setattr("bulkedge.spectra.operators.products.LEAST_ROWS", 5)
    monkeypatch.setattr("bulkedge.spectra.operators.products.ENTRIES", {"cpu": 1})
    operator = attention("causal", dtype="float32").operator
    block = vectors(operator, 4, 11)
    found = []
    for threads in (1, 2, 3):
        with threadpool_limits(threads):
            found.append(operator.sweep(block))
    for image, back in found[1:]:
        assert np.array_equal(image, found[0][0])
        assert np.array_equal(back, found[0][1])


def test_factors_whose_squares_overflow_take_two_products():
    operator = attention("causal", dtype="float32").operator
    assert (1e3 * operator).one_pass
    expected = be.spectrum(operator, tolerance=0.1).values
    for factor in (1e25, 1e-25):
        assert not (factor * operator).one_pass
        assert be.spectrum(factor * operator, tolerance=0.1).values / factor == pytest.approx(expected, abs=1e-5)


def test_half_precision_is_kept_by_the_fused_kernels_only():
    query, key = (torch.tensor(each).bfloat16() for each in heads(ROWS, ROWS))
    block = torch.ones(ROWS, 2)
    assert (AttentionOperator(query, key, backend="sdpa") @ block).dtype == torch.bfloat16
    assert (AttentionOperator(query, key) @ block).dtype == torch.float32


def test_the_backend_says_its_name():
    query, key = heads()
    assert AttentionOperator(query, key).backend == "rows"
    assert AttentionOperator(torch.tensor(query), torch.tensor(key)).backend == "rows"
    assert AttentionOperator(torch.tensor(query), torch.tensor(key), backend="sdpa").backend == "sdpa"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*heads(), None, "causal"), "queries and keys|29 keys"),
        ((heads()[0], heads()[1][:, :3]), "must have shapes"),
        ((heads()[0], np.full((KEYS, DIM), np.nan)), "NaN"),
        ((heads()[0], heads()[1].astype("float32")), "one type"),
        ((*heads(), None, "full", "sdpa"), "torch's tensors"),
        ((*heads(), None, "full", "cuda"), "outside its domain"),
        ((*heads(), np.inf), "scale"),
        ((heads(size=1e30)[0].astype("float32"), heads()[1].astype("float32"), 1e30), "overflow"),
    ],
)
def test_what_is_no_attention_is_refused(arguments, message):
    with pytest.raises(be.DomainError, match=message), np.errstate(over="ignore", invalid="ignore"):
        AttentionOperator(*arguments)


def test_kernels_need_a_gpu():
    query, key = (torch.tensor(each) for each in heads())
    with pytest.raises(be.DomainError, match="needs Triton"):
        AttentionOperator(query, key, backend="triton")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda op: op @ np.ones(ROWS), "multiplies a block"),
        (lambda op: op @ [1.0] * KEYS, "not an array"),
        (lambda op: op @ torch.ones(KEYS), "no array of numpy"),
        (lambda op: op - op.T, "no operator of shape"),
        (lambda op: op.sweep(np.ones((ROWS, 2))), "multiplies a block"),
        (lambda op: op.sweep(np.ones((KEYS, 2)), np.ones((ROWS, 3))), "less must have shape"),
        (lambda op: op * np.inf, "factor"),
        (lambda op: op.less(np.ones((ROWS, 2)), np.ones((KEYS, 3))), "left and right"),
        (lambda op: op.without(np.ones((ROWS, 2))), "directions"),
        (lambda op: Product([op, op]), "do not multiply"),
        (lambda op: MatrixOperator(np.full((2, 2), np.inf)), "infinite"),
        (lambda op: MatrixOperator(np.ones(3)), "2 or more axes"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(be.DomainError, match=message):
        make(written().operator)
