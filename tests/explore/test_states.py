"""Every state that a page can be in: addresses, random parameters, seeds; and curves against the library."""

import io
import json
import types
from base64 import b64encode
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.lab.explore.jobs import Jobs, PageJob
from bulkedge.lab.explore.room import MOST_ADDRESS, MOST_PROBLEMS, control_kind, read_address, slider_place, stops
from bulkedge.lab.explore.rooms import ROOMS, ChannelRoom, CollapseRoom, HeadsRoom, RecoveryRoom, WidthRoom
from bulkedge.lab.explore.rooms.heads import ACCURACY, LARGEST
from bulkedge.lab.explore.rooms.recovery import pooled
from bulkedge.support.domains import Choice, Integers
from bulkedge.support.errors import DomainError

pytest.importorskip("dash")

from bulkedge.lab.explore import app as application
from bulkedge.lab.explore import pages

TEN_DIGITS = 2e-11


def drawn(family, rng):
    """A room with parameters drawn from their domains, the ends more often than not."""
    values = {}
    for each in family.declared():
        domain = each.domain
        if isinstance(domain, Choice):
            values[each.name] = domain.options[rng.integers(len(domain.options))]
        elif isinstance(domain, Integers):
            values[each.name] = int(rng.integers(domain.low, domain.high + 1))
        else:
            inside = float(rng.uniform(domain.low, domain.high))
            values[each.name] = (domain.low, domain.high, inside, inside)[rng.integers(4)]
    return family(**values)


@pytest.fixture
def jobs(monkeypatch):
    """Jobs that never begin: what a page gets at once is looked at here."""
    monkeypatch.setattr("bulkedge.lab.explore.jobs.REST", 1000)
    made = Jobs(apart=False)
    yield made
    made.stop()


def asked(room, **more):
    values = {each.name: str(getattr(room, each.name)) for each in room.declared()}
    return {"room": room.name, "page": "a", "values": values, "version": -1, "order": "", "seed": 0} | more


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("beta=nan", "beta = 'nan' is outside"),
        ("beta=-inf", "beta = '-inf' is outside"),
        ("beta=1e400", "beta = '1e400' is outside"),
        ("beta=", "beta = '' is outside"),
        ("beta", "beta = '' is outside"),
        ("beta=0.5&beta=0.6", "beta is given more than once"),
        ("x" * 5000, "longer than 2000 characters"),
        ("seed=-1", "seed = '-1' is outside"),
        ("seed=nan", "seed = 'nan' is outside"),
        ("tokens=512.5", "tokens = '512.5' is outside"),
    ],
)
def test_nothing_of_an_address_is_left_out_without_a_word(query, told):
    room, problems = HeadsRoom.read(query)
    assert any(told in each for each in problems)
    assert replace(room, beta=0.8) == HeadsRoom()
    assert room.beta in {0.8, 0.5}


def test_faults_of_an_address_are_few_and_short():
    _, problems = HeadsRoom.read("&".join(f"unknown{number}={'z' * 50}" for number in range(200)))
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1].endswith("more")
    assert all(len(each) < 200 for each in problems)
    assert len(HeadsRoom.read("a" * MOST_ADDRESS + "&beta=0.5")[1]) == 2


@given(st.sampled_from(list(ROOMS.values())), st.sampled_from([-0.0, 0.0, -1e-320, 5e-324, 1.0, 0.1 + 0.2]))
def test_pages_open_at_any_number_in_its_domain(family, value):
    """Zero with a sign is zero: a slider that looks for its text would not find it."""
    for each in family.declared():
        if control_kind(each.domain) == "slider":
            room, problems = family.read(f"{each.name}={value!r}")
            assert problems == [] or getattr(room, each.name) == each.default
            texts = stops(each.domain, getattr(room, each.name))
            assert each.domain.parse(each.name, texts[slider_place(texts, getattr(room, each.name))]) == getattr(
                room, each.name
            )
            assert slider_place(stops(each.domain, each.default), each.default) >= 0
    assert slider_place(["0.0", "1.0"], -0.0) == 0


def test_the_page_of_matrices_reads_its_address():
    def texts(component):
        return json.dumps(component, default=lambda each: each.to_plotly_json())

    assert '"n_clicks": 1' not in texts(pages.matrix_page("?layer=1"))
    bad = texts(pages.matrix_page("?layer=9&nothing=1"))
    assert "layer = '9' is outside its domain" in bad
    assert "'nothing' is no parameter" in bad
    assert read_address("head=3", pages.HEADS) == ({"head": 3}, [])
    pytest.importorskip("transformers", reason="heads are those of a decoder of transformers")
    assert '"n_clicks": 1' in texts(pages.matrix_page("?layer=1&head=2"))


# -- what a page gets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ROOMS.values())
def test_any_state_of_a_room_has_a_figure_that_is_its_own(family, jobs):
    rng = np.random.default_rng(8)
    for number in range(10):
        room = drawn(family, rng)
        figure, _, status, back = application.answer_page(jobs, asked(room, dark=number % 2, narrow=number % 3 == 0))
        assert json.loads(json.dumps(figure, allow_nan=False))["layout"]["meta"] == room.query() == back["query"]
        assert "fault" not in str(status)
        assert figure["data"]
        shown = [each for each in figure["data"] if each["type"] == "scatter"]
        expected = application.curves_of(jobs, room)[0].curves
        for trace, curve in zip(shown, [each for each in expected if each.shape in {"line", "points"}], strict=True):
            sent = np.array(trace["y"], dtype=float)
            assert np.allclose(sent, np.asarray(curve.y, dtype=float), rtol=TEN_DIGITS, atol=0)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"room": "heads", "values": {"beta": "nan"}},
        {"room": "heads", "values": {}, "seed": -3},
        {"room": "heads", "values": {}, "seed": "x"},
        {"room": "width", "values": {"heads": ["1"]}},
        {"room": ["heads"], "values": {}},
    ],
)
def test_what_no_page_sends_is_refused(bad, jobs):
    with pytest.raises((DomainError, TypeError)):
        application.answer_page(jobs, bad)


def test_simulations_that_are_asked_for_again_are_others(jobs):
    room = CollapseRoom(tokens=32, depth=1)
    *_, first = application.answer_page(jobs, asked(room))
    jobs.pages["a"].samples.append(1)  # stopped in the middle
    *_, on = application.answer_page(jobs, asked(room, order="again"))
    assert on["seed"] == first["seed"] == 0
    jobs.pages["a"] = PageJob(room, 0, [1] * room.draws)
    *_, fresh = application.answer_page(jobs, asked(room, order="again"))
    assert fresh["seed"] == room.draws
    assert fresh["query"] == f"{room.query()}&seed={room.draws}"
    assert CollapseRoom.read(fresh["query"]) == (room, [])
    assert f"default_rng({room.draws})" in room.script(room.draws)


# -- against the library -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::bulkedge.support.errors.RegimeWarning")
def test_recovery_agrees_with_the_library_to_ten_digits():
    rng = np.random.default_rng(1)
    for _ in range(12):
        room = drawn(RecoveryRoom, rng)
        finite, endless, *_ = curves = room.theory()
        for k in rng.integers(0, len(finite.x), 3):
            model = pooled(replace(room, signal=float(finite.x[k])))
            assert finite.y[k] == pytest.approx(model.alignment().total, rel=TEN_DIGITS, abs=1e-14)
        model = pooled(room)
        assert (curves[2].x, curves[3].x) == (model.threshold().sample, model.threshold().population)
        bulk = next(each for each in curves if each.panel == 1 and each.shape == "line")
        assert np.allclose(bulk.y, model.bulk().pdf(bulk.x), rtol=TEN_DIGITS)
        assert np.all(endless.y >= finite.y - 1e-12)
        assert curves[8].x == [model.vocab_ratio]
        assert room.facts([])["rows V, sequences N in 200 dimensions"] == f"{model.vocab}, {model.samples}"


@pytest.mark.filterwarnings("ignore::bulkedge.support.errors.RegimeWarning")
def test_channel_width_and_collapse_agree_with_the_library_to_ten_digits():
    rng = np.random.default_rng(2)
    for _ in range(8):
        room = drawn(ChannelRoom, rng)
        channel = be.heads.Channel(
            room.coupling * room.decay ** np.arange(room.directions), room.mean * np.eye(1, room.directions)[0]
        )
        curve, *others = room.theory()
        here = next(each for each in others if each.label == "these parameters")
        k = rng.integers(len(curve.x))
        assert curve.y[k] == pytest.approx(be.heads.Channel([curve.x[k]]).ratio, rel=TEN_DIGITS)
        assert here.y[0] == channel.ratio
        room = replace(drawn(WidthRoom, rng), scaling="sqrt")
        gram = np.full((room.inputs, room.inputs), room.correlation)
        np.fill_diagonal(gram, 1.0)
        mixture = be.programs.HeadMixture(gram, room.heads, score_variance=room.score_variance)
        size = mixture.variance() ** 0.5
        assert np.allclose(room.theory()[0].y, size * mixture.pdf(size * room.theory()[0].x), rtol=TEN_DIGITS)
        room = replace(drawn(CollapseRoom, rng), skip=0.0, layer_norm=False)
        stack = be.AttentionStack(room.depth, room.tokens, room.tokens, gap=room.gap, variance=room.variance)
        assert room.theory()[0].y[-1] == pytest.approx(stack.predicted_stable_rank_excess(), rel=TEN_DIGITS)
        assert room.theory()[1].y[0] == pytest.approx(stack.predicted_gradient(), rel=TEN_DIGITS)


@pytest.mark.parametrize(
    "room",
    [
        pytest.param(
            HeadsRoom(beta=0.24, head_dim=32, tokens=16384, popularity=0.93, axes="quantiles"), marks=pytest.mark.slow
        ),
        pytest.param(
            HeadsRoom(beta=1.46, head_dim=128, tokens=16384, causal=True, axes="quantiles"), marks=pytest.mark.slow
        ),
        HeadsRoom(beta=0.21, head_dim=64, tokens=16384, qk_norm=True, popularity=0.37, axes="quantiles"),
        HeadsRoom(beta=0.47, head_dim=32, tokens=16384, axes="quantiles"),
        HeadsRoom(beta=1.19, head_dim=256, tokens=4096, qk_norm=True, popularity=0.68, axes="quantiles"),
        HeadsRoom(beta=0.32, head_dim=32, tokens=2048, qk_norm=True, popularity=0.07, axes="quantiles"),
    ],
)
def test_what_is_drawn_from_the_table_is_as_near_as_the_page_says(room):
    quick, law = room.quick()[0], room.theory()[0]
    share = np.interp(np.log(law.y[::-1]), np.log(quick.y[::-1]), quick.x[::-1])
    above = law.y[::-1] > 1.01e-6  # what figures show
    assert np.max(np.abs(share - law.x[::-1])[above]) < ACCURACY
    assert quick.y[0] == pytest.approx(law.y[0], rel=LARGEST)
    assert quick.y[0] != law.y[0]


def test_one_layer_is_a_point_that_can_be_seen():
    room = CollapseRoom(depth=1, tokens=256, variance=0.1)
    for trace in application.plotly(room.panels(), room.theory())["data"]:
        assert trace["mode"] == "markers"


@pytest.mark.parametrize(
    ("matrices", "tensor", "names", "chosen", "hidden"),
    [
        (1, None, ["a.npy"], "a.npy", True),
        (2, None, ["a.npy[0]", "a.npy[1]"], "a.npy[0]", False),
        (2, "a.npy[1]", ["a.npy[0]", "a.npy[1]"], pages.no_update, False),
    ],
)
def test_the_choice_of_matrices_is_shown_where_there_is_one(matrices, tensor, names, chosen, hidden):
    stream, known = io.BytesIO(), types.SimpleNamespace(of=lambda _key, *work: work[-1])
    np.save(stream, np.ones((20, 20) if matrices == 1 else (matrices, 20, 20)))
    sent = "data:;base64," + b64encode(stream.getvalue()).decode()
    found, said, *rest, where = pages.fit_upload(known, sent, "a.npy", tensor)
    assert rest == [names, chosen, hidden]
    assert found == (tensor or names[0])
    assert (", 'a.npy[" in said, where) == (matrices > 1, "")
