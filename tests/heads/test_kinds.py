"""Kinds of heads: planted ones are called by their name, and random ones by none."""

from functools import partial

import numpy as np
import planted
import pytest

from bulkedge.heads.measures.attention_measures import measure_heads
from bulkedge.heads.measures.kinds import KINDS, NEEDED, kinds_of
from bulkedge.support.errors import DomainError

PROBED = {"induction": "induction", "duplicate": "duplicate", "previous": "previous token"}
NAMES = tuple(kind.name for kind in KINDS)
PLANTED = {
    "uniform": ("collapsed", planted.uniform),
    "permutation": ("content", planted.permutation),
    "three directions": ("low-rank content", planted.three_directions),
    "sink": ("sink", planted.sink),
    "fixed columns": ("fixed columns", planted.fixed_columns),
    "offset": ("offset", planted.offset),
    "local": ("local", planted.local),
    "same token": ("same token", planted.same_token),
    "random": ("content", lambda rng, heads, tokens, mask: planted.random_head(rng, heads, tokens)),
}
SIZES = [128, pytest.param(256, marks=pytest.mark.slow)]


def measures_of(plant, heads, tokens, mask, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, tokens // 4, tokens)
    plant = partial(plant, ids=ids) if plant is planted.same_token else plant
    return measure_heads(plant(rng, heads, tokens, mask), planted.BIAS[mask](tokens), ids)


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_heads_are_called_right(name, tokens, mask):
    """99 of 100 at least."""
    kind, plant = PLANTED[name]
    measures = measures_of(plant, 100, tokens, mask, seed=1)
    first = kinds_of(measures).first
    assert sum(each == kind for each in first) >= 99, first


@pytest.fixture(scope="module")
def some():
    """Measures of 60 heads of all sorts."""
    found = [measures_of(plant, 6, 64, "causal", seed=2) for _, plant in PLANTED.values()]
    return {name: np.concatenate([each[name] for each in found]) for name in NEEDED}


def test_every_head_has_a_kind_and_scores_say_which(some):
    found = kinds_of(some)
    assert tuple(found.scores) == NAMES
    for head, labels in enumerate(found.labels):
        above = [name for name in NAMES if found.scores[name][head] > 0.5]
        assert list(labels) == above
        assert found.first[head] == labels[0]
        assert ("content" in labels) == (len(labels) == 1 and labels[0] == "content")


@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.name)
def test_scores_rise_through_one_half_at_the_line(kind, some):
    """Monotone in the number that is read, and between zero and one."""
    some = some | dict.fromkeys(("p_spectrum", *PROBED), np.linspace(0, 1, len(some["entropy"])))
    reading, score = kind.reading(some), kind.score(some)
    order = np.argsort(reading)
    steps = np.diff(score[order]) * np.sign(kind.width)
    assert np.all(steps >= 0)
    assert np.all((score >= 0) & (score <= 1))
    np.testing.assert_array_equal(score > 0.5, (reading - kind.threshold) * np.sign(kind.width) > 0)


def test_a_random_spectrum_hides_nothing(some):
    plain = kinds_of(some)
    assert np.isnan(plain.scores["random spectrum"]).all()
    heads = len(plain.labels)
    p = np.resize([0.05, 0.0501, 0.9, np.nan], heads)  # one in twenty is the least that 19 draws can say
    found = kinds_of(some | {"p_spectrum": p})
    for head in range(heads):
        others = tuple(each for each in found.labels[head] if each != "random spectrum")
        assert others == plain.labels[head]
        assert ("random spectrum" in found.labels[head]) == (p[head] > 0.05)
        assert found.first[head] == plain.first[head] or plain.first[head] == "content"


@pytest.mark.parametrize("measure", PROBED)
def test_what_the_probe_names_comes_first(measure, some):
    plain, scores = kinds_of(some), np.resize([0.29, 0.31, np.nan], len(some["entropy"]))
    found = kinds_of(some | {measure: scores})
    for named, labels, others in zip(scores > 0.3, found.labels, plain.labels, strict=True):
        without = tuple(each for each in others if each != "content")
        assert labels == ((PROBED[measure], *without) if named else others)


def test_what_does_not_apply_is_not_labelled(some):
    """Cross-attention has no places, and heads of nothing have no kind."""
    nothing = np.full_like(some["entropy"], np.nan)
    places = ("offset_mass", "near_mass", "same_token_excess")
    found = kinds_of(some | dict.fromkeys(places, nothing))
    assert not {"offset", "local", "same token"} & {each for labels in found.labels for each in labels}
    assert all(found.labels)
    assert set(kinds_of({name: np.full(3, np.nan) for name in NEEDED}).first) == {""}


def test_missing_measures_are_named(some):
    with pytest.raises(DomainError, match="content_rank"):
        kinds_of({name: values for name, values in some.items() if name != "content_rank"})


def test_beside_a_strong_sink_the_rest_counts_for_little():
    """A local head that leaves ever more to a sink: local, then local and a sink, then a sink."""
    rng = np.random.default_rng(3)
    heads, tokens = 20, 128
    target = np.zeros((heads, tokens, tokens))
    target[:, :, 0] = 1.0
    mass = np.linspace(0, 0.98, heads)[:, None, None]
    content = planted.mixed(planted.local(rng, heads, tokens, "full"), "full", target, mass)
    labels = kinds_of(measure_heads(content, None, np.arange(tokens))).labels
    told = [tuple(each for each in those if each in ("local", "sink")) for those in labels]
    order = [("local",), ("local", "sink"), ("sink",)]
    assert set(told) == set(order)
    assert [order.index(each) for each in told] == sorted(order.index(each) for each in told)
