"""Large values set aside before a run: what is stated about them is true, and the rest is resolved in fewer steps."""

import tracemalloc
import warnings

import numpy as np
import pytest

import bulkedge as be
from bulkedge.spectra import MatrixOperator, Product, deflation, matrix_free
from bulkedge.spectra.deflation import Deflation, deflate
from bulkedge.spectra.matrix_free import frame, full_precision, operator_spectrum
from bulkedge.spectra.operators import directions
from bulkedge.spectra.operators.base import Operator
from bulkedge.spectra.operators.directions import Polynomials, orthonormalise
from bulkedge.spectra.stopping import MostSteps, Rule

torch = pytest.importorskip("torch")

TOKENS = 720


def sphere(points):
    return points * points.shape[1] ** 0.5 / np.linalg.norm(points, axis=1, keepdims=True)


def uneven(points):
    scales = np.geomspace(3, 0.3, points.shape[1])
    return points * scales / np.mean(scales**2) ** 0.5


def grouped(points):
    rng = np.random.default_rng(9)
    return 0.5 * points + 2 * rng.standard_normal((5, points.shape[1]))[rng.integers(0, 5, len(points))]


def heavy(points):
    return np.random.default_rng(10).standard_t(4, points.shape) / 2**0.5


KEYS = {"Gaussian": np.array, "QK-norm": sphere, "uneven": uneven, "grouped": grouped, "heavy-tailed": heavy}


def head(kind="QK-norm", tokens=TOKENS, dim=8, beta=1.0, queries=None, dtype=float):  # noqa: PLR0913, PLR0917
    """A centred head of Gaussian queries, and keys of some kind."""
    rng = np.random.default_rng(dim)
    query, key = rng.standard_normal((queries or tokens, dim)), KEYS[kind](rng.standard_normal((tokens, dim)))
    query = sphere(query) if kind == "QK-norm" else query
    pair = query.astype(dtype), key.astype(dtype)
    return tokens**0.5 * be.AttentionOperator(*pair, scale=beta / dim**0.5).centred()


def singular(operator):
    """All singular values in increasing order; the rounding of their squares does not matter here."""
    return np.linalg.svd(np.asarray(operator.dense(), dtype=float), compute_uv=False)[::-1]


class Exact:
    """A distribution of values that are known, as far as an error asks for one."""

    def __init__(self, values, rest):
        self.values, self.nodes, self.top = values, rest, float(rest[-1])

    def cdf(self, x):
        return np.searchsorted(self.values, x, side="right") / len(self.values)


def apart(found: Deflation, operator):
    """Kolmogorov distance between the values of M and those that are taken for them, and the one that is stated.

    Values that are zero but for rounding are not compared.
    """
    matrix, basis = np.asarray(operator.dense(), dtype=float), np.asarray(found.basis, dtype=float)
    exact = singular(operator)
    rest = np.linalg.svd(matrix - (matrix @ basis) @ basis.T, compute_uv=False)[::-1][found.count :]
    together = np.sort(np.concatenate([rest, found.values]))
    x = np.concatenate([exact, together])
    x = x[x > 1e-6 * exact[-1]] * (1 + 1e-10)
    counts = (np.searchsorted(each, x, side="right") for each in (exact, together))
    distance = float(np.abs(np.subtract(*counts)).max()) / len(exact)
    return distance, found.error(Exact(together, rest))


# -- directions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_basis_is_that_of_all_polynomials_of_two_degrees(library, dtype):
    points = uneven(np.random.default_rng(0).standard_normal((300, 5))) + 3
    given = points.astype(dtype) if library == "numpy" else torch.tensor(points.astype(dtype))
    basis = np.asarray(Polynomials(given).basis(), dtype=float)
    rounding = 100 * float(np.finfo(dtype).eps)
    assert basis.shape == (300, Polynomials(given).count) == (300, 20)
    assert basis.T @ basis == pytest.approx(np.eye(20), abs=rounding)
    assert basis.sum(axis=0) == pytest.approx(0, abs=300**0.5 * rounding)
    polynomial = (points @ [1.0, 2, 0, -1, 3]) ** 2 - points @ [0, 1.0, 1, 1, 5]
    polynomial -= polynomial.mean()
    polynomial /= np.linalg.norm(polynomial)
    assert basis @ (basis.T @ polynomial) == pytest.approx(polynomial, abs=10 * rounding)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_polynomials_that_are_constant_or_dependent_are_left_out(dtype):
    points = np.random.default_rng(1).standard_normal((400, 4))
    # the squares of coordinates on a sphere sum to a constant
    assert Polynomials(sphere(points).astype(dtype)).basis().shape[1] == 13
    # points in a plane of four dimensions
    flat = points[:, :2] @ np.random.default_rng(2).standard_normal((2, 4))
    basis = Polynomials(flat.astype(dtype)).basis()
    assert basis.shape[1] == 5
    assert basis.T @ basis == pytest.approx(np.eye(5), abs=100 * float(np.finfo(dtype).eps))


def test_tall_matrices_are_made_orthonormal_in_their_own_memory(monkeypatch):
    monkeypatch.setattr(directions, "ROWS", 512)
    rng = np.random.default_rng(3)
    columns = rng.standard_normal((6000, 30)).astype("float32") * np.geomspace(1, 1e-3, 30, dtype="float32")
    before, sizes = columns.copy(), np.linalg.svd(columns, compute_uv=False)
    basis, squares, vectors = orthonormalise(columns)
    assert np.shares_memory(basis, columns)
    assert squares**0.5 == pytest.approx(sizes, rel=1e-4)
    assert basis.T @ basis == pytest.approx(np.eye(30), abs=1e-5)
    assert basis * squares**0.5 == pytest.approx(before @ vectors, abs=1e-5 * float(sizes[0]))
    points = rng.standard_normal((10000, 12)).astype("float32")
    tracemalloc.start()
    basis = Polynomials(points).basis()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # beside it the points once more and blocks of rows in double precision; a second copy would be one more
    assert peak < 1.6 * basis.nbytes


def test_who_knows_directions():
    rng = np.random.default_rng(4)
    query, key = rng.standard_normal((30, 3)), rng.standard_normal((40, 3))
    op = be.AttentionOperator(query, key)
    assert op.leading().points is op.key
    assert op.T.leading().points is op.query
    for wrapped in (2 * op, op.centred(), op.less_popularity(), 3 * op.less(np.ones((30, 1)), np.ones((40, 1)))):
        assert wrapped.leading().points is op.key
        assert wrapped.T.leading().points is op.query
        assert wrapped.T.T.leading().points is op.key
    square = be.AttentionOperator(key, key, mask="causal")
    half = be.AttentionOperator(torch.tensor(query).bfloat16(), torch.tensor(key).bfloat16(), backend="sdpa")
    batch = be.AttentionOperator(np.stack([query, query]), np.stack([key, key]))
    for unknown in (square, half, batch, op - op, Product([op.T, op]), MatrixOperator(np.eye(3)), op.without(key)):
        assert unknown.leading() is None
    assert batch[1].leading().points.shape == (40, 3)


# -- what is stated ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.0, 4.0])
@pytest.mark.parametrize("kind", KEYS)
def test_the_stated_coupling_is_not_exceeded(kind, beta, monkeypatch):
    """After one product with ``M' M``, which leaves much, and after two; at most by one value."""
    operator = head(kind, beta=beta)
    monkeypatch.setattr(deflation, "LITTLE", 0.0)
    block, distances = frame(operator, 16), []
    for rounds in (1, 2):
        monkeypatch.setattr(deflation, "ROUNDS", rounds)
        found = deflate(operator, block, 0.9)
        distance, stated = apart(found, operator)
        assert distance <= stated + 1 / TOKENS
        assert stated <= found.count / TOKENS
        distances.append(stated)
    assert distances[1] < distances[0]
    # large values are those of the matrix
    assert found.values[-4:] == pytest.approx(singular(operator)[-4:], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [6, 10, 16])
@pytest.mark.parametrize("kind", KEYS)
def test_the_stated_coupling_is_not_exceeded_for_many_heads(kind, dim, monkeypatch):
    """Shares up to a fifth, far beyond those up to which directions are set aside, and ones that are not worth it."""
    monkeypatch.setattr(deflation, "LITTLE", 0.0)
    monkeypatch.setattr(deflation, "LARGE", 0.0)
    monkeypatch.setattr(deflation, "MOST_SHARE", 0.2)
    for beta in (0.5, 1.0, 2.0, 4.0):
        operator = head(kind, 800, dim, beta)
        for rounds in (1, 2):
            monkeypatch.setattr(deflation, "ROUNDS", rounds)
            distance, stated = apart(deflate(operator, frame(operator, 16), 0.9), operator)
            assert distance <= stated + 1 / 800


class Guessing(MatrixOperator):
    """A matrix with directions that somebody thinks are those of large values."""

    def __init__(self, matrix, guess):
        super().__init__(matrix)
        self.guess = guess

    def leading(self, *, left=False):
        return self.guess


class Span:
    """Directions that are given."""

    def __init__(self, columns):
        self.columns, self.count = columns, columns.shape[1]

    def basis(self):
        return orthonormalise(self.columns.copy())[0]


def test_directions_that_are_not_those_of_large_values_are_dropped():
    matrix = head().dense()
    random = np.random.default_rng(5).standard_normal((TOKENS, 30))
    useless, plain = Guessing(matrix, Span(random)), MatrixOperator(matrix)
    assert deflate(useless, frame(useless, 32), 0.02) is None
    stop = MostSteps(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", be.AccuracyWarning)
        found, same = (operator_spectrum(each, 0.05, stop=stop) for each in (useless, plain))
    np.testing.assert_array_equal(found.values, same.values)
    assert found.error == same.error


def test_directions_with_too_much_coupling_are_dropped(monkeypatch):
    """Beside a large value each has some of everything, and a product with ``M' M`` leaves too much of it."""
    matrix = head("uneven", beta=4.0).dense()
    monkeypatch.setattr(deflation, "ROUNDS", 1)
    mixed = np.linalg.svd(matrix)[2][:40].T + 0.05 * np.random.default_rng(6).standard_normal((TOKENS, 40))
    operator = Guessing(matrix, Span(mixed))
    assert deflate(operator, frame(operator, 32), 0.5) is not None
    assert deflate(operator, frame(operator, 32), 0.01) is None


def test_few_directions_of_many_tokens_are_used_as_they_are(monkeypatch):
    """Their share is stated, and the products spent on them are those of a few steps."""
    monkeypatch.setattr(deflation, "CHEAP", 0)
    operator = head()
    found = deflate(operator, frame(operator, 16), 0.3)
    assert found.squares is None
    distance, stated = apart(found, operator)
    assert distance <= stated == found.count / TOKENS
    basis = np.asarray(found.basis)
    exact = np.linalg.svd(operator.dense() @ basis, compute_uv=False)[::-1]
    assert found.values == pytest.approx(exact, rel=0.05)
    spectrum = operator_spectrum(operator, 0.3)
    assert be.compare(spectrum, be.Spectrum.of(singular(operator), be.Unit.SINGULAR)).ks <= spectrum.error


class Untouchable(Operator):
    """Of a size at which nothing may be made, with directions that say how many they would be."""

    def __init__(self, size, count):
        self.shape, self.like = (size, size), np.ones(1)
        self.count = count

    def leading(self, *, left=False):
        return Span(np.empty((0, self.count)))

    def _forward(self, block):
        raise AssertionError

    _backward = _forward


@pytest.mark.parametrize(("size", "dim"), [(16384, 64), (2**21, 64), (2**20, 128)])
def test_where_directions_are_many_or_large_none_are_made(size, dim):
    assert deflate(Untouchable(size, dim + dim * (dim + 1) // 2), None, 0.01) is None


# -- spectra -----------------------------------------------------------------------------------------------------------


def runs(operator, tolerance, steps, monkeypatch):
    """Spectra with directions set aside and without, after at most so many steps, and the steps that were made."""
    found = []
    for aside in (deflate, lambda *_: None):
        monkeypatch.setattr(matrix_free, "deflate", aside)
        points = []
        stop = Rule(lambda point, points=points: points.append(point) or point.steps >= steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", be.AccuracyWarning)
            found.append(operator_spectrum(operator, tolerance, stop=stop))
        assert points[-1].steps <= 1.4 * steps
    return found


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_at_equal_steps_the_rest_is_known_better(library, monkeypatch):
    """14 dimensions have 118 large values with QK-norm; eight probes find few of them by themselves.

    With them 20 steps resolve all values; without, the distribution is wrong, or most values are not told apart.
    """
    tokens = 1904
    monkeypatch.setattr(matrix_free, "LEAST_PROBES", 8)
    operator = head("QK-norm", tokens, 14, dtype="float32")
    exact = be.Spectrum.of(np.sqrt(np.linalg.eigvalsh(operator.T.dense() @ operator.dense()).clip(0)), be.Unit.SINGULAR)
    if library == "torch":
        attention = operator.operator.operator
        pair = torch.tensor(attention.query), torch.tensor(attention.key)
        operator = tokens**0.5 * be.AttentionOperator(*pair, scale=attention.scale).centred()
    found, plain = runs(operator, 0.02, 20, monkeypatch)
    assert be.compare(found, exact).ks <= found.error < 0.03
    assert found.distribution().cdf(found.rounding) < 0.001
    assert plain.error > 0.06 or plain.distribution().cdf(plain.rounding) > 0.3
    assert found.values[-60:] == pytest.approx(exact.values[-60:], rel=0.01)


@pytest.mark.parametrize(("queries", "kind"), [(900, "Gaussian"), (740, "uneven")])
def test_rectangles_and_transposes(queries, kind, monkeypatch):
    """Wide ones are turned, and the polynomials are those of the queries."""
    monkeypatch.setattr(deflation, "LITTLE", 0.0)
    for tokens, rows in ((TOKENS, queries), (queries, TOKENS)):
        operator = head(kind, tokens, 6, queries=rows)
        exact = be.Spectrum.of(singular(operator), be.Unit.SINGULAR)
        for each in (operator, operator.T):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", be.AccuracyWarning)
                found = operator_spectrum(each, 0.05, stop=MostSteps(12))
            assert (found.size, found.kernel) == (TOKENS, queries - TOKENS)
            assert be.compare(found, exact).ks <= found.error


def test_members_of_a_batch_are_what_they_are_alone():
    rng = np.random.default_rng(7)
    query, key = rng.standard_normal((2, 2, 400, 5))
    operator = be.AttentionOperator(query, key).centred()
    found = be.spectrum(operator, tolerance=0.1)
    for index in range(2):
        alone = be.spectrum(be.AttentionOperator(query[index], key[index]).centred(), tolerance=0.1)
        np.testing.assert_array_equal(found[index].values, alone.values)


# -- digits ------------------------------------------------------------------------------------------------------------


def test_products_of_torch_have_all_digits_inside_and_settings_come_back():
    def settings():
        backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
        return [torch.get_float32_matmul_precision(), *(getattr(each, "fp32_precision", None) for each in backends)]

    before = settings()
    try:
        for setting in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(setting)
            chosen = settings()
            with full_precision(torch.ones(1)):
                assert settings()[0] == "highest"
                assert all(each in {None, "none", "ieee"} for each in settings()[1:])
            assert settings() == chosen
        with full_precision(np.ones(1)):  # which have nothing to do with it
            assert settings() == chosen
    finally:
        torch.set_float32_matmul_precision(before[0])
