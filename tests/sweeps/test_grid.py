"""Axes, cells and their random streams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import Toy

from bulkedge.lab.studies.base import studies
from bulkedge.lab.sweeps import Sweep, parse_axis


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("rate", "0.5:3:0.25", tuple(0.5 + 0.25 * k for k in range(11))),
        ("rate", "0.1:0.3:0.1", (0.1, 0.2, 0.3)),  # not 0.30000000000000004
        ("rate", "3:1:-1", (3.0, 2.0, 1.0)),
        ("size", "256,512,1e3", (256, 512, 1000)),
        ("kind", "normal,uniform", ("normal", "uniform")),
    ],
)
def test_axes(name, text, values):
    assert parse_axis(Toy, name, text) == values


def test_texts_are_separated_by_commas_and_may_have_colons():
    family = studies()["heads/scan"]
    assert parse_axis(family, "model", "C:\\runs\\1, a:b:c,") == ("C:\\runs\\1", "a:b:c", "")
    with pytest.raises(ValueError, match="equal values"):
        parse_axis(family, "model", "minilm, minilm")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rate", "1:2", "first:last:step"),
        ("rate", "1:2:0", "first:last:step"),
        ("rate", "a:b:c", "first:last:step"),
        ("rate", "2:1:1", "the range has 0 values"),
        ("size", "50:10:50", "the range has 0 values; .* the step leads from the first towards the last"),
        ("rate", "1:2:-5", "the range has 0 values"),
        ("rate", "0:inf:1", "first:last:step"),
        ("rate", "nan:1:1", "first:last:step"),
        ("rate", "0:10:1e-9", "between 1 and 100000"),
        ("rate", "1,,2", "rate = '' is outside its domain"),
        ("rate", "11", r"rate = '11' is outside its domain \[0, 10\]"),
        ("size", "1.5", "outside its domain"),
        ("rate", "1,1.0", "equal values"),
        ("kind", "cauchy", "outside its domain"),
        ("speed", "1", "speed is not a parameter of toys.Toy that can be an axis; there are rate, size, kind, pause"),
    ],
)
def test_bad_axes_are_refused_with_a_reason(name, text, message):
    with pytest.raises(ValueError, match=message):
        parse_axis(Toy, name, text)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(-70, 70).filter(bool))
def test_a_range_is_what_counting_finds(first, last, step):
    """All ``first + k * step`` between first and last, and none but an error if there is no such."""
    found, value = [], first
    while min(first, last) <= value <= max(first, last) and (last - first) * step >= 0:
        found.append(value)
        value += step
    if found:
        assert list(parse_axis(Toy, "size", f"{first}:{last}:{step}")) == found
    else:
        with pytest.raises(ValueError, match="the range has 0 values"):
            parse_axis(Toy, "size", f"{first}:{last}:{step}")


def test_the_order_of_axes_and_values_changes_no_stream():
    one = Sweep(Toy(), {"rate": (1.0, 2.0), "kind": ("normal", "uniform")}, repetitions=2)
    two = Sweep(Toy(), {"kind": ("uniform", "normal"), "rate": (2.0, 1.0)}, repetitions=2)
    assert streams(one) == streams(two)
    assert two.with_axes_in_order(one.manifest()["axes"]).manifest() == one.manifest()
    for other in (
        None,
        3,
        [],
        {"rate": [1.0, 2.0]},
        [["rate", [1.0, 2.0]]],
        [["rate", [1.0, 3.0]], ["kind", ["normal"]]],
    ):
        assert two.with_axes_in_order(other) is two


def streams(sweep):
    return {
        tuple(sorted(sweep.cell(index).changes.items())) + index[-1:]: sweep.cell(index).seed.generate_state(4).tolist()
        for index in sweep.indices()
    }


def test_streams_belong_to_coordinates_not_to_places():
    small = streams(Sweep(Toy(), {"rate": (1.0, 2.0)}, repetitions=2))
    large = streams(Sweep(Toy(), {"rate": (0.5, 2.0, 1.0)}, repetitions=3))
    assert all(large[key] == state for key, state in small.items())
    assert len({tuple(state) for state in large.values()}) == len(large)


def test_the_root_seed_changes_every_stream():
    one, two = (streams(Sweep(Toy(), {"rate": (1.0, 2.0)}, 2, seed)) for seed in (0, 1))
    assert all(one[key] != two[key] for key in one)


def test_streams_of_neighbours_are_uncorrelated():
    sweep = Sweep(Toy(), {"size": tuple(range(1, 101))})
    draws = [np.random.default_rng(sweep.cell(index).seed).standard_normal(1000) for index in sweep.indices()]
    correlation = np.corrcoef(draws) - np.eye(100)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(1000)  # 4950 pairs, about N(0, 1/1000) each


def test_a_sweep_without_axes_is_its_repetitions():
    assert Sweep(Toy(), {}, repetitions=3).shape == (3,)


@pytest.mark.parametrize(
    ("keywords", "message"), [({"repetitions": 0}, "repetitions = 0"), ({"seed": -1}, "seed = -1")]
)
def test_numbers_are_checked(keywords, message):
    with pytest.raises(ValueError, match=message):
        Sweep(Toy(), {}, **keywords)
