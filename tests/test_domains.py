"""Parameters outside their domain are refused by name, value and domain."""

import inspect
import json
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import bulkedge as be
from bulkedge.support.domains import POSITIVE, Choice, Each, Integers, Interval, Parametric, Text, parameter, takes
from bulkedge.support.errors import MissingPackageError

BAD = [
    (be.Semicircle, {"variance": 0}, r"variance = 0 is outside its domain \[1e-60, 1e\+60\]"),
    (be.Semicircle, {"variance": float("nan")}, "variance = nan"),
    (be.Semicircle, {"variance": "large"}, "variance = 'large'"),
    (be.QuarterCircle, {"variance": -1}, "variance = -1"),
    (be.MarchenkoPastur, {"ratio": 0}, r"ratio = 0 is outside its domain \[1e-06, 1e\+06\]"),
    (be.MarchenkoPastur, {"ratio": float("inf")}, "ratio = inf"),
    (be.MarchenkoPastur, {"ratio": 1, "scale": 0}, "scale = 0"),
    (be.FussCatalan, {"order": 0}, r"order = 0 is outside its domain \{1, ..., 30\}"),
    (be.FussCatalan, {"order": 2.5}, "order = 2.5"),
    (be.ProductLaw, {"ratios": ()}, r"ratios = \(\) is outside its domain tuples of 1 to 30 members"),
    (be.ProductLaw, {"ratios": (0.5, -1)}, r"ratios\[1\] = -1 is outside its domain"),
    (be.ProductLaw, {"ratios": 0.5}, "ratios = 0.5"),
    (be.SumLaw, {"variances": (1.0,), "ratios": (1.0, 2.0)}, "as many members"),
    (be.SumLaw, {"variances": (1.0, 1e-20), "ratios": (1.0, 2.0)}, "leave it out"),
    (be.AttentionLaw, {"beta": 50, "head_ratio": 1}, r"beta = 50 is outside its domain \[0.001, 6\]"),
    (be.AttentionLaw, {"beta": 1, "head_ratio": 0}, "head_ratio = 0"),
    (be.PoissonLaw, {"rate": 0}, "rate = 0"),
    (be.Wigner, {"size": 1}, "size = 1"),
    (be.GaussianSum, {"tokens": 10, "variances": (1.0,), "ratios": (1.0, 1.0)}, "as many members"),
]


@pytest.mark.parametrize(("cls", "arguments", "message"), BAD)
def test_parameters_are_checked(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "values"),
        (([1.0, float("nan")],), "values"),
        (([1.0, 2.0], [1.0]), "weights"),
        (([1.0], [-1.0]), "weights"),
        (([1.0], [0.0]), "weights"),
    ],
)
def test_empirical_law_checks_its_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        be.EmpiricalLaw(*arguments)


def test_free_operations_check_their_operands():
    signed, skew = be.Semicircle(), be.EmpiricalLaw([-1.0, 2.0])
    with pytest.raises(ValueError, match="free_mul needs a law on"):
        be.free_mul(signed, skew)
    with pytest.raises(ValueError, match="rectangular_add needs laws on"):
        be.rectangular_add(skew, signed, 0.5)
    with pytest.raises(ValueError, match=r"ratio = 2 is outside its domain"):
        be.rectangular_add(signed, signed, 2)
    with pytest.raises(ValueError, match=r"sqrt\(\) needs a law on"):
        signed.sqrt()
    with pytest.raises(ValueError, match="factor = inf is outside its domain"):
        signed.scaled(float("inf"))


def test_law_methods_check_their_arguments():
    law = be.MarchenkoPastur(0.5)
    for call, message in [
        (lambda: law.moment(-1), "k = -1"),
        (lambda: law.moment(1.5), "k = 1.5"),
        (lambda: law.spike(0.0), "theta = 0.0"),
        (lambda: law.sample_spike(2.0, 0.0), "ratio = 0.0"),
        (lambda: be.Semicircle().sample_spike(2.0, 0.5), "positive"),
        (lambda: law.inverse_cauchy(0.0), "w = 0.0 is outside its domain"),
        (lambda: law.inverse_cauchy(100.0), "w = 100.0 is outside its domain"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_domains_describe_themselves():
    assert str(Interval(0, 1, "(]")) == "(0, 1]"
    assert str(Interval(1, 2, infinity=True)) == "[1, 2] or infinity"
    assert str(Integers(1, 3)) == "{1, ..., 3}"
    assert str(Choice((1, 2))) == "{1, 2}"
    assert str(Text(9)) == "texts of one line and up to 9 characters"
    assert str(Each(Integers(1, 3), most=2)) == "tuples of 1 to 2 members in {1, ..., 3}"


def test_values_are_canonical():
    assert be.FussCatalan(order=2.0).order == 2
    assert isinstance(be.MarchenkoPastur(ratio=1).ratio, float)
    assert be.ProductLaw(ratios=[1, 2]).ratios == (1.0, 2.0)
    assert be.SumLaw((1.0,), (float("inf"),)).ratios == (float("inf"),)


def test_tuples_of_tuples_are_read_row_by_row():
    rows = Each(Each(Interval(0, 10)))
    assert rows.parse("variances", "1,2;3,4") == ((1.0, 2.0), (3.0, 4.0))
    with pytest.raises(ValueError, match=r"variances\[1\]\[0\] = '30'"):
        rows.parse("variances", "1,2;30,4")


def test_declarations_reach_help():
    """Meaning, domain, default and the paper's value, in NumPy's form; a hand-written section is left alone."""

    @dataclass(frozen=True)
    class Shape(Parametric):
        """A shape."""

        ratio: float = parameter(Interval(0, 1, "(]"), "width over height", 0.5, paper=1.0)
        label: str = parameter(Choice(("a", "b")), "its name", "a")

    assert inspect.getdoc(Shape) == (
        "A shape.\n\nParameters\n----------\nratio : (0, 1]\n    Width over height; 0.5 by default; 1.0 in the "
        "paper.\nlabel : {'a', 'b'}\n    Its name; 'a' by default."
    )

    @dataclass(frozen=True)
    class Wide(Shape):
        """A wide shape."""

        height: float = parameter(Interval(0, 9), "height", 2.0)

    assert [line.split(" ")[0] for line in inspect.getdoc(Wide).splitlines() if " : " in line] == [
        "ratio",
        "label",
        "height",
    ]


def test_examples_stay_behind_the_parameters():
    @dataclass(frozen=True)
    class Shape(Parametric):
        """A shape.

        >>> from math import pi

        >>> Shape(0.5).ratio
        0.5
        """

        ratio: float = parameter(Interval(0, 1, "(]"), "width over height")

    assert inspect.getdoc(Shape) == (
        "A shape.\n\nParameters\n----------\nratio : (0, 1]\n    Width over height.\n\n"
        "Examples\n--------\n>>> from math import pi\n\n>>> Shape(0.5).ratio\n0.5"
    )


@pytest.mark.always
def test_declarations_are_as_written_down():
    """Bounds, defaults and the paper's values change on purpose only: ``python tools/declared.py`` accepts a change."""
    path = Path(__file__).parent.parent / "tools" / "declared.py"
    tool = module_from_spec(spec_from_file_location("declared", path))
    tool.__spec__.loader.exec_module(tool)
    now, before = tool.declared(), json.loads(tool.RECORD.read_text(encoding="utf-8"))
    assert [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)] == []


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (Interval(0, 1), (0, 1, 0.5), (-1e-12, 1 + 1e-12, float("nan"), float("inf"))),
        (Interval(0, 1, "()"), (1e-300, 0.5, 1 - 1e-16), (0, 1)),
        (Interval(0, 1, "(]"), (1e-300, 1), (0, 1 + 1e-12)),
        (Interval(0, 1, infinity=True), (0, 1, float("inf")), (2, float("-inf"))),
        (Integers(2, 5), (2, 5, 3.0), (1, 6, 2.5, float("nan"), float("inf"))),
        (Choice(("a", 2)), ("a", 2), ("b", 3)),
        (Text(3), ("", "abc", "a b", "β/"), ("abcd", "a\nb", "a\x00", "\udc80", "\u2028", b"abc", 3, None)),
        (Each(Interval(0, 1), most=2), ((0,), (0, 1)), ((), (0, 0, 0), (0, 2), (0, float("nan")))),
    ],
)
def test_first_accepted_and_first_refused(domain, inside, outside):
    for value in inside:
        domain.check("value", value)
    for value in outside:
        with pytest.raises(be.DomainError, match="is outside its domain"):
            domain.check("value", value)


def test_positive_numbers_are_a_vector_of_them():
    found = POSITIVE.check("popularity", [2, 0.5])
    assert found.dtype == float
    assert found.tolist() == [2.0, 0.5]
    for wrong, words in (
        ([[1.0, 2.0]], "one or more numbers; got shape"),
        (3.0, "one or more numbers; got shape"),
        ([], "one or more numbers"),
        ([1.0, 0.0], r"popularity\[1\] = 0"),
        ([1.0, float("nan")], "popularity"),
    ):
        with pytest.raises(be.DomainError, match=words):
            POSITIVE.check("popularity", wrong)


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (25, 25)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_complex_matrices_have_their_own_singular_values(shape, library):
    """Against NumPy's dense decomposition; the imaginary part used to be dropped (15.2 for 21.4)."""
    rng = np.random.default_rng(sum(shape))
    matrix = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    values = np.linalg.svd(matrix, compute_uv=False)
    given = pytest.importorskip("torch").tensor(matrix) if library == "torch" else matrix
    found = be.top_singular(given, 3)
    left, right = np.asarray(found.left), np.asarray(found.right)
    np.testing.assert_allclose(found.values, values[:3], rtol=1e-9)  # residuals are 1e-5, values their squares
    np.testing.assert_allclose(np.abs(left.conj().T @ matrix @ right), np.diag(values[:3]), atol=1e-3)
    np.testing.assert_allclose(left.conj().T @ left, np.eye(3), atol=1e-9)
    assert found.residuals.max() < 1e-4 * values[0]
    # sixteen probes of forty or more dimensions: within four of their errors
    for estimate, exact in (
        (be.schatten_norm(given, 1), values.sum()),
        (be.schatten_norm(given, 2), np.linalg.norm(matrix)),
        *zip(be.trace_moments(given, (1, 2)), (np.mean(values**2), np.mean(values**4)), strict=True),
    ):
        assert abs(estimate.value - exact) <= 4 * estimate.error + 1e-9 * exact
    np.testing.assert_allclose(be.spectrum(given).values[::-1], values, rtol=1e-12)


def test_equal_values_of_a_complex_matrix():
    """The real matrix has each four times, and its vectors may mix."""
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12, 2)).view(complex)[..., 0])[0]
    matrix = turned @ np.diag([3.0, 3.0, 2.0, *np.linspace(1, 0, 9)])
    found = be.top_singular(matrix, 2)
    np.testing.assert_allclose(found.values, [3.0, 3.0], rtol=1e-9)
    np.testing.assert_allclose(np.asarray(found.right).conj().T @ found.right, np.eye(2), atol=1e-9)


def test_what_is_no_matrix_of_an_operator_is_refused():
    complex_matrix = np.eye(3) * 1j
    for call in (be.spectra.MatrixOperator, be.denoise, be.attention_spectrum, be.cosine_similarity):
        with pytest.raises(be.DomainError, match="complex entries"):
            call(complex_matrix)


def test_half_precision_is_widened():
    """Squares of entries of 300 overflow in half precision: the cosine was -0.002 for 0.0999."""
    tokens = (300 * (np.random.default_rng(0).standard_normal((50, 400)) + 1 / 3)).astype(np.float16)
    exact = be.cosine_similarity(tokens.astype(float))
    assert be.cosine_similarity(tokens) == pytest.approx(exact, rel=1e-12)
    assert be.stable_rank(tokens) == pytest.approx(be.stable_rank(tokens.astype(float)), rel=1e-12)


def test_single_precision_is_widened():
    """Bounds such as 1e60 do not fit into it, and spikes were computed in it."""
    law, theta = be.MarchenkoPastur(0.5), np.array([2.1, 3.3], dtype=np.float32)
    exact = theta.astype(float)
    assert [each.location for each in law.spikes(theta)] == [each.location for each in law.spikes(exact)]
    assert np.array_equal(law.singular_spike(theta).location, law.singular_spike(exact).location)
    assert np.array_equal(law.scaled(0.5).pdf(theta), law.scaled(0.5).pdf(exact))


@pytest.mark.parametrize(
    "labels",
    [[[1, 2], [3]], [1.5] * 20, [1 + 2j] * 20, [None] * 20, np.ma.masked_array(np.arange(20), np.arange(20) == 3)],
    ids=["ragged", "floating", "complex", "objects", "masked"],
)
def test_labels_are_integers_or_texts(labels):
    rows = np.random.default_rng(0).standard_normal((20, 4))
    for call in (be.heads.ChannelLaw.from_qk, be.heads.matrix_and_law):
        with pytest.raises(be.DomainError, match=r"^labels = .* outside its domain arrays of integers or texts"):
            call(rows, rows, labels=labels)
    with pytest.raises(be.DomainError, match=r"^tokens = "):
        be.recovery.pool(np.eye(3), labels, [1.0])


def test_columns_of_tables_are_labels():
    rows = np.random.default_rng(0).standard_normal((20, 4))
    words = np.array(["the", "word"] + [f"word {k}" for k in range(18)], dtype=object)
    one, other = (be.heads.matrix_and_law(rows, rows, labels=each) for each in (words, np.arange(20)))
    np.testing.assert_allclose(np.linalg.norm(one.matrix), np.linalg.norm(other.matrix), rtol=1e-12)


def test_masked_arrays_are_not_read_through_their_mask():
    rows = np.ma.masked_array(np.random.default_rng(0).standard_normal((20, 4)), np.zeros((20, 4), dtype=bool))
    unmasked = be.heads.Channel.from_qk(rows, rows).couplings
    np.testing.assert_array_equal(unmasked, be.heads.Channel.from_qk(rows.data, rows.data).couplings)
    rows[3, 1] = np.ma.masked
    for call in (
        lambda: be.heads.Channel.from_qk(rows, rows),
        lambda: be.heads.CausalChannel.from_qk(rows, rows),
        lambda: be.heads.ChannelLaw.from_qk(rows, rows),
        lambda: be.heads.Channel(rows),
        lambda: be.score_scales(np.ma.masked_array([1.0, 2.0], [False, True]), 512, 4096),
        lambda: be.spectrum(rows),
        lambda: be.spectra.MatrixOperator(rows),
        lambda: be.SoftmaxAttention(20, 64, inputs=rows),
        lambda: be.spectra.MatrixOperator(np.eye(20)) @ rows,
        lambda: be.visibility.seen_keys(rows),
    ):
        with pytest.raises(be.DomainError, match=r"mask|not an array of NumPy or torch"):
            call()


def test_decorated_functions_look_like_themselves():
    @takes(count=Integers(1, 9))
    def repeat(text, *rest, count=None):
        """Doc."""
        return text, rest, count

    assert repeat("a", 1, 2) == ("a", (1, 2), None)
    assert (repeat.__doc__, list(inspect.signature(repeat).parameters)) == ("Doc.", ["text", "rest", "count"])
    with pytest.raises(be.DomainError, match=r"count = 10 is outside its domain \{1, ..., 9\}"):
        repeat("a", count=10)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        repeat("a", nope=1)
    # doctest goes by the globals, and by nothing else
    assert be.propagation.softmax_overlap.__globals__["__name__"] == "bulkedge.propagation.overlap"


def test_tab_shows_public_names_only():
    shown = set(dir(be))
    assert shown == {
        *be.__all__,
        "scan",
        "Scan",
        "load_scan",
        "compare_scans",
        "watch",
        "check_attention",
        "preflight",
        "lab",
        "models",
        "nn",
        "plots",
        "testing",
    }
    assert not [name for name in shown if name.startswith("_") and name != "__version__"]
    for name in shown:
        with suppress(MissingPackageError):  # which says what to install
            assert getattr(be, name) is not None
