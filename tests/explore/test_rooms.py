"""Rooms without a browser: parameters, addresses, theory, simulation, tables, and the Python that they hand out."""

import csv
import io
import json
import warnings
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.lab.explore.course import COURSE
from bulkedge.lab.explore.export import plotly
from bulkedge.lab.explore.jobs import theory_of
from bulkedge.lab.explore.room import Trace, control_kind, mean_error, stops
from bulkedge.lab.explore.rooms import ROOMS, ChannelRoom, CollapseRoom, HeadsRoom, RecoveryRoom, WidthRoom
from bulkedge.lab.explore.rooms.heads import (
    ACCURACY,
    FLATTEST,
    HEAD_DIMS,
    LARGEST,
    SHARPEST,
    SHOWN_FROM,
    TOKENS,
    Shape,
    distance,
    head_law,
    quantiles,
)
from bulkedge.support.domains import Choice, Integers, Interval

SMALL = {
    "heads": HeadsRoom(tokens=256, qk_norm=True, beta=0.7),
    "channel": ChannelRoom(tokens=64),
    "recovery": RecoveryRoom(vocab_ratio=1.0, sample_ratio=1.0),
    "width": WidthRoom(width=16, inputs=3),
    "collapse": CollapseRoom(tokens=32, depth=3, variance=0.2),
}
"""Each room at a size that takes little time."""


@st.composite
def rooms(draw):
    family = draw(st.sampled_from(list(ROOMS.values())))
    values = {}
    for each in family.declared():
        if isinstance(each.domain, Choice):
            values[each.name] = draw(st.sampled_from(each.domain.options))
        elif isinstance(each.domain, Integers):
            values[each.name] = draw(st.integers(each.domain.low, each.domain.high))
        else:
            values[each.name] = draw(st.floats(each.domain.low, each.domain.high))
    return family(**values)


@given(rooms())
def test_addresses_read_back(room):
    assert type(room).read("?" + room.query()) == (room, [])


@given(rooms())
def test_sliders_stop_at_values_of_their_domain_in_order_and_at_the_value_itself(room):
    for each in room.declared():
        if control_kind(each.domain) == "slider":
            texts, value = stops(each.domain, getattr(room, each.name)), getattr(room, each.name)
            found = [each.domain.parse(each.name, text) for text in texts]
            assert found == sorted(found)
            assert value in found
            assert len(found) < 300
            assert found[0] == getattr(each.domain, "low", found[0])
            assert found[-1] == getattr(each.domain, "high", found[-1])


@given(st.text("&=?%+;beta0.7\x00é", max_size=40))
def test_any_address_gives_a_room(text):
    for family in ROOMS.values():
        room, _ = family.read(text)
        assert isinstance(room, family)


def test_what_is_wrong_with_an_address_is_told_and_has_its_default():
    room, problems = HeadsRoom.read("beta=7&tokens=1024&foo=1&qk_norm=yes")
    assert (room.beta, room.tokens, room.qk_norm) == (0.8, 1024, False)
    assert problems == [
        f"beta = '7' is outside its domain [{FLATTEST}, {SHARPEST}]",
        "'foo' is no parameter of this room",
        "qk_norm = 'yes' is outside its domain {False, True}",
    ]


def test_logarithmic_sliders_are_for_domains_of_several_decades():
    assert stops(Interval(0.01, 1), 0.5)[1].startswith("0.01")
    assert len(stops(Integers(1, 10), 3)) == 10
    with pytest.raises(TypeError):
        stops(be.support.domains.Text(), "a")


@pytest.mark.parametrize("room", [*SMALL.values(), *(each() for each in COURSE.values())], ids=lambda room: room.name)
def test_the_python_of_a_room_is_short_public_and_runs(room, tmp_path, monkeypatch, capsys):
    script = room.script(3)
    assert len([line for line in script.splitlines() if line]) <= 12
    assert "bulkedge." not in script  # nothing but the facade
    monkeypatch.chdir(tmp_path)
    np.save("head.npy", be.SoftmaxAttention(64, 32, 0.5, qk_norm=True).sample(np.random.default_rng(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", be.RegimeWarning)
        exec(compile(script, room.name, "exec"), {})  # noqa: S102 - what readers run
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "room",
    [HeadsRoom(causal=True, qk_norm=True), HeadsRoom(popularity=0.5), WidthRoom(scaling="linear"),
     RecoveryRoom(weights="optimal"), CollapseRoom(skip=0.3, tokens=32)],
    ids=repr,
)  # fmt: skip
def test_the_python_of_other_parameters_is_python(room):
    compile(room.script(), room.name, "exec")
    assert all(f"{each}" in room.script() for each in (be.__name__, "print"))


@pytest.mark.parametrize("name", ROOMS)
def test_a_legend_has_five_entries_at_most_and_simulations_have_errors(name):
    for room in (SMALL[name], type(SMALL[name])()):
        samples = [room.simulate(number) for number in range(4)] if room is SMALL[name] else []
        curves = [*room.theory(), *(room.observations(samples) if samples else [])]
        assert len({each.label for each in curves if each.shape != "map"}) <= 5
        drawn = [each for each in curves if each.look == "simulation"]
        assert all(each.error is not None and np.all(np.isfinite(each.error)) for each in drawn)


def test_help_says_more_than_the_name():
    for room in [*ROOMS.values(), *COURSE.values()]:
        for each in room.declared():
            named = {each.name, room.symbols.get(each.name, ""), each.name.replace("_", " ")}
            assert each.doc not in named
            assert len(each.doc.split()) >= 3, (room, each)


def test_few_draws_have_no_error():
    mean, error = mean_error([1.0, 3.0])
    assert (mean, np.isnan(error)) == (2.0, True)
    mean, error = mean_error([[1.0], [2.0], [3.0]])
    assert (mean[0], error[0]) == pytest.approx((2.0, 1 / np.sqrt(3)))


@pytest.mark.parametrize("name", ROOMS)
def test_rooms_say_what_they_show_and_what_they_do_not(name):
    room = ROOMS[name]
    for sentence in (room.shows, room.not_claimed):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert len(sentence) < 130
    assert room().draws
    assert all(each.default is not None and each.doc for each in room.declared())


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", ROOMS)
def test_figures_of_plotly_are_plain_json_and_hold_every_curve(name, narrow):
    room = SMALL[name]
    curves = [*room.theory(), *room.observations([room.simulate(0)])]
    drawn = json.loads(json.dumps(plotly(room.panels(), curves, dark=narrow, narrow=narrow), allow_nan=False))
    errors = sum(each.shape == "bars" for each in curves)  # of bars stand apart
    assert len(drawn["data"]) + len(drawn["layout"]["shapes"]) == len(curves) + errors
    assert len(json.dumps(drawn)) < 150_000


def test_the_curve_of_heads_is_the_density_of_the_law():
    room = replace(SMALL["heads"], axes="density")
    law = be.FiniteHeadLaw(0.7, 64, 256, qk_norm=True)
    curve = room.theory()[0]
    assert np.allclose(curve.y, curve.x * law.pdf(curve.x), rtol=1e-12)
    larger = replace(room, axes="quantiles").theory()[0]
    assert np.allclose(larger.y, law.ppf(1 - larger.x), rtol=1e-12)


@pytest.mark.parametrize("change", [{}, {"popularity": 0.6}, {"causal": True}])
def test_simulated_heads_are_nearer_to_their_law_than_to_the_rival(change):
    room = replace(SMALL["heads"], tokens=256, head_dim=32, qk_norm=True, **change)
    samples = [room.simulate(k) for k in range(4)]
    law, rival = (float(each) for each in room.facts(samples).values())
    # 1/sqrt(1024) would be the noise of independent values; those of a matrix are far stiffer
    assert law < 0.025
    assert rival > 2 * law


def interpolated_cdf(found, x):
    return np.interp(np.log(x), np.log(found.values), found.levels, left=0.0, right=1.0)


@pytest.mark.filterwarnings("ignore::bulkedge.support.errors.RegimeWarning")  # two forms of one law are compared
@pytest.mark.parametrize(
    ("shape", "beta", "spread"),
    [
        (Shape(64, 512, qk_norm=True, causal=False), 0.83, 0.0),
        (Shape(32, 256, qk_norm=True, causal=False), 1.31, 0.7),
        (Shape(64, 1024, qk_norm=False, causal=False), 0.47, 0.0),
        (Shape(32, 2048, qk_norm=False, causal=False), 0.63, 0.0),
    ],
)
def test_interpolated_laws_are_within_what_the_page_says(shape, beta, spread):
    found, law = quantiles(shape, beta, spread), head_law(HeadsRoom(beta=beta, popularity=spread, **shape._asdict()))
    x = np.geomspace(found.values[2], found.values[-1], 300)
    assert np.max(np.abs(interpolated_cdf(found, x) - law.cdf(x))) < ACCURACY


@pytest.mark.filterwarnings("ignore::bulkedge.support.errors.RegimeWarning")
@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_interpolated_laws_anywhere(number):
    rng = np.random.default_rng(number)
    shape = Shape(*(rng.choice(each) for each in (HEAD_DIMS, TOKENS, (0, 1), (0, 1))))
    shape = Shape(int(shape[0]), int(shape[1]), bool(shape[2]), bool(shape[3]))
    beta, spread = rng.uniform(FLATTEST, SHARPEST), 0.0 if shape.causal else rng.uniform(0, 1)
    found, law = quantiles(shape, beta, spread), head_law(HeadsRoom(beta=beta, popularity=spread, **shape._asdict()))
    x = np.geomspace(1.01 * SHOWN_FROM, 1.2 * found.values[-1], 600)
    assert np.max(np.abs(interpolated_cdf(found, x) - law.cdf(x))) < ACCURACY
    level = 1 - 0.5 / shape.tokens  # where figures end
    largest = np.exp(np.interp(level, found.levels, np.log(found.values)))
    assert largest == pytest.approx(float(law.ppf(level)), rel=LARGEST)


def test_what_is_not_in_the_table_shows_the_rival_alone():
    assert len(HeadsRoom(causal=True, popularity=0.5).quick()) == 1
    assert [each.look for each in HeadsRoom().quick()] == ["theory", "rival"]
    assert "interpolated" in HeadsRoom().quick()[0].label


@pytest.mark.slow
@pytest.mark.parametrize("family", [ChannelRoom, RecoveryRoom, WidthRoom, CollapseRoom])
def test_every_corner_of_a_room_has_a_theory_and_a_simulation(family):
    ends = [
        (each.domain.options[0], each.domain.options[-1])
        if isinstance(each.domain, Choice)
        else (each.domain.low, each.domain.high)
        for each in family.declared()
    ]
    for number, values in enumerate(product(*ends)):
        room = family(**{each.name: value for each, value in zip(family.declared(), values, strict=True)})
        curves = theory_of(room).curves
        assert all(each.y is None or np.all(np.isfinite(each.y)) for each in curves), room
        if number % 16 == 0 and getattr(room, "tokens", 0) < 100:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert room.observations([room.simulate(0), room.simulate(1)])


def test_large_heads_are_not_simulated_and_say_so():
    assert HeadsRoom(tokens=4096).draws == 0
    assert "minutes" in HeadsRoom(tokens=4096).quiet


def test_theories_say_where_they_end():
    told = theory_of(CollapseRoom(tokens=32, depth=8))
    assert any("light tails" in each or "many more tokens" in each for each in told.cautions)
    assert theory_of(SMALL["heads"]).cautions == ()


def test_past_the_threshold_only_the_slope_is_drawn():
    cool, sharp = (ChannelRoom(coupling=each).theory() for each in (0.6, 0.8))
    assert any(each.panel == 1 and each.look == "theory" for each in cool)
    (slope,) = [each for each in sharp if each.panel == 1 and each.look == "rival"]
    growth = be.heads.Channel([0.8]).growth
    assert np.polyfit(np.log(slope.x), np.log(slope.y), 1)[0] == pytest.approx(growth)


def test_the_thresholds_of_recovery_are_where_the_alignment_begins():
    room = RecoveryRoom()
    line = room.theory()[0]
    limit = room.theory()[2].x
    assert np.all(line.y[line.x < limit - 0.02] == 0)
    assert np.all(line.y[line.x > limit + 0.05] > 0)


def test_a_channel_is_drawn_at_sizes_up_to_that_of_the_room():
    from bulkedge.lab.explore.rooms.channel import sizes_of

    for tokens, last in ((512, 512), (700, 512), (64, 64)):
        assert sizes_of(SimpleNamespace(tokens=tokens)).tolist() == [2**k for k in range(5, int(np.log2(last)) + 1)]


def test_tables_for_other_programs():
    app = pytest.importorskip("bulkedge.lab.explore.app")
    curves = [
        Trace("a, b", [1.0, 2.0], [3.0, 4.0]),
        Trace("ends", [0.0, 1.0, 2.0], [5.0, 6.0], shape="bars"),
        Trace("mark", 0.5, shape="mark"),
        Trace("map", [0.0, 1.0], [2.0], shape="map", z=[[7.0, 8.0]]),
    ]
    rows = list(csv.reader(io.StringIO(app.as_csv(curves))))
    assert rows[1:3] == [["a, b", "0", "1.0", "3.0", ""], ["a, b", "0", "2.0", "4.0", ""]]
    assert len(rows) == 1 + 2 + 3 + 1 + 2
    assert rows[-1] == ["map", "0", "1.0", "2.0", "8.0"]


def test_distances_are_those_of_kolmogorov():
    law = head_law(SMALL["heads"])
    values = law.ppf((np.arange(100) + 0.5) / 100)
    assert distance(values, law) == pytest.approx(0.005)
