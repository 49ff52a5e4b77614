"""Parameters outside their domain are refused by name, value and domain."""

import inspect
import json
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import bulkedge as be
from bulkedge.support.domains import POSITIVE, Choice, Each, Integers, Interval, Parametric, Text, parameter

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
