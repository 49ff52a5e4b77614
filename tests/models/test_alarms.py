"""Alarms of runs: silent where nothing is wrong, and early where something is."""

import copy
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import xarray as xr
from scipy import optimize, stats

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import training  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.models.watching.alarms import (  # noqa: E402
    BEYOND,
    FIRST,
    HASTY,
    AlarmLog,
    confidence,
    find_jumps,
    record_factor,
)
from bulkedge.models.watching.measures import NAMES  # noqa: E402
from bulkedge.nn import apply_patch, transform  # noqa: E402


def run(residual, beta=1.0, **changes):
    """Readings as a run of 12 heads has them, of this residual and spread."""
    residual = np.asarray(residual)
    shape = residual.shape
    values = {name: np.ones(shape) for name in NAMES} | {"keys": np.full(shape, 128.0), "residual": residual}
    values |= {"beta": np.broadcast_to(beta, shape), "popular_mass": np.full(shape, 0.3)}
    values |= {
        "popular_uniform": np.full(shape, 1.0 if "popular_mass" in changes else 0.1),
        "likeness": np.full(shape, 0.2),
        "coupling": np.zeros(shape),
        "future_mass": np.zeros(shape),
        "update": np.full(shape, 0.001),
    }
    values |= changes
    data = {name: (("step", "layer", "head"), each) for name, each in values.items()}
    return xr.Dataset(data, {"step": 10 * np.arange(len(residual))}, attrs={"rate": 0.01})


def log_of(data):
    log = AlarmLog(data.attrs["rate"])
    for n, step in enumerate(data.step.values.tolist()):
        log.add(step, {name: each.values[n] for name, each in data.items()})
    return log


def find_alarms(data):
    return log_of(data).alarms


def kinds(data, *wanted):
    """Step, layer, head and kind of the alarms above notes, or of those of the kinds that are asked for."""
    found = find_alarms(data)
    return [
        (each.step, each.layer, each.head, each.kind)
        for each in found
        if (each.kind in wanted if wanted else each.grade != "note")
    ]


def test_changes_of_the_heaviest_tails_keep_the_rate():
    rng = np.random.default_rng(3)
    assert record_factor(10, 1 / 11) == pytest.approx(1.0)
    # 300 runs of one head and 100 readings; the rate is raised so that there is something to count
    signs = rng.choice((-1, 1), (300, 100, 1, 1))
    runs = np.cumsum(signs * rng.pareto(4.0, signs.shape) + signs, axis=1)

    def jumped(run):
        return any(find_jumps(run[: n + 1], 0.5, 0.0)[0].any() for n in range(1, len(run)))

    false = [jumped(each) for each in runs]
    # 91 tests at a level of 0.005: 0.37 of the runs at the most, with a standard error of 0.03
    assert 0.2 < np.mean(false) < 0.46
    gaussian = np.cumsum(rng.standard_normal((300, 100, 3, 4)), axis=1)
    assert not any(jumped(each) for each in gaussian)


def test_alarms_of_planted_faults():
    rng = np.random.default_rng(4)
    quiet = 0.02 * rng.standard_normal((40, 3, 4))
    assert kinds(run(quiet)) == []
    drift = quiet.copy()
    drift[30:, 1, 2] -= 1.0
    assert kinds(run(drift)) == [(300, 1, 2, "drift")]
    (alarm,) = (each for each in find_alarms(run(drift)) if each.kind == "drift")
    assert alarm.numbers["now"] == pytest.approx(drift[30, 1, 2])
    assert "first_mass" in alarm.remedy
    popular = np.full(quiet.shape, 0.05) + 0.02 * quiet
    popular[20:, 0, 1] = 0.6
    assert kinds(run(quiet, popular_mass=popular)) == [(200, 0, 1, "sink")]
    likeness = np.full(quiet.shape, 0.2) + 0.1 * quiet
    likeness[25:, 2] = 0.6
    assert kinds(run(quiet, likeness=likeness)) == [(250, 2, None, "copies")]
    assert kinds(run(quiet, likeness=np.full(quiet.shape, 0.95))) == [
        (10 * FIRST, layer, None, "alike") for layer in range(3)
    ]
    broken = np.ones((40, 3, 4))
    broken[5, 2, 3] = np.nan
    assert kinds(run(quiet, broken)) == [(50, 2, 3, "not finite")]
    flat = {"entropy": np.full(quiet.shape, 0.05)}
    assert kinds(run(quiet, **flat)) == [(0, layer, None, "collapse") for layer in range(3)]


def test_dead_heads_are_those_that_others_leave_behind():
    quiet = np.zeros((40, 3, 4))
    even = {"popular_mass": np.ones(quiet.shape)}
    assert kinds(run(quiet, 0.0, **even)) == []  # all sleep, as at the start
    beta = np.ones(quiet.shape)
    beta[:, 0, 0] = 0.0
    assert kinds(run(quiet, beta, **even)) == [(10 * FIRST, 0, 0, "dead")]
    beta = np.zeros(quiet.shape)
    beta[:12, 1, 1] = 1.0
    assert kinds(run(quiet, beta, **even)) == [(10 * (12 + FIRST), 1, 1, "dead")]


def test_notes_of_growth_and_gaps():
    quiet = np.zeros((40, 1, 2))
    beta = np.ones(quiet.shape)
    beta[:, 0, 1] = 0.05 * np.arange(40)
    beta[3, 0, 1] = 0.3
    (note,) = (each for each in find_alarms(run(quiet, beta)) if each.kind == "growing")
    assert (note.head, note.grade, note.step % 10) == (1, "note", 0)
    freezing = np.sqrt(2 * np.log(128))
    assert note.numbers["step"] == pytest.approx(10 * freezing / 0.05)  # where the line meets freezing
    assert note.step == 10 * np.ceil(freezing / 0.05 / 2)  # it was said when half of the way was gone
    assert f"step {freezing / 0.005:.0f}" in note.words
    coupling = np.full(quiet.shape, 0.2)
    coupling[8:, 0, 0] = 0.7
    assert kinds(run(quiet, coupling=coupling), "gap") == [(80, 0, 0, "gap")]


@pytest.mark.parametrize("tokens", [64, 1024, 2**17])
def test_eight_times_freezing_leaves_the_second_key_less_than_bfloat16_resolves(tokens):
    x = np.linspace(-8, 10, 20001)

    def beyond(gap):  # chance that the largest of the scores is so far above all others
        return tokens * np.trapezoid(stats.norm.pdf(x) * stats.norm.cdf(x - gap) ** (tokens - 1), x)

    assert beyond(0.0) == pytest.approx(1.0, abs=1e-6)
    median = np.sqrt(2 * np.log(tokens)) * optimize.brentq(lambda gap: beyond(gap) - 0.5, 0.0, 2.0)
    # log 2 in the limit of many keys, which comes as slowly as log log l/log l
    assert 1.0 < median / np.log(2) < 1.2
    assert np.exp(-BEYOND * median) < 2.0**-8 < np.exp(-0.75 * BEYOND * median)


def test_a_runaway_is_of_half_the_heads_of_a_layer_and_grows_fast():
    quiet, freezing = np.zeros((40, 2, 4)), np.sqrt(2 * np.log(128))
    quick = np.minimum(0.1 * 1.5 ** np.arange(40), 50.0) * freezing
    beta = np.ones(quiet.shape)
    beta[:, 1, :1] = quick[:, None]
    assert kinds(run(quiet, beta), "runaway") == []  # one head may do what it likes
    beta[:, 1, :3] = quick[:, None]
    first = 10 * int(np.argmax(quick >= BEYOND * freezing))
    assert kinds(run(quiet, beta), "runaway") == [(first, 1, None, "runaway")]
    for healthy in (np.minimum(quick, 0.99 * BEYOND * freezing), np.full(40, 20 * freezing)):
        beta[:, 1] = healthy[:, None]
        assert kinds(run(quiet, beta), "runaway") == []
    beta[:, 1] = (freezing * np.linspace(9, 12, 40))[:, None]  # sharp from the start, and slow
    assert kinds(run(quiet, beta), "runaway") == []


def test_steps_that_change_scores_too_much_are_hasty():
    quiet = np.zeros((12, 2, 4))
    update = np.full(quiet.shape, 0.02)
    update[6, 1, 2] = update[8:10, 0, 3] = 0.1
    (alarm,) = (each for each in find_alarms(run(quiet, 1.5, update=update)) if each.grade == "alarm")
    assert (alarm.step, alarm.layer, alarm.head, alarm.kind) == (90, 0, 3, "hasty")  # one reading is none
    assert alarm.numbers == {"turn": pytest.approx(0.15), "before": pytest.approx(0.15)}
    assert "confidence 97%" in str(alarm)
    freezing = np.sqrt(2 * np.log(128))
    for beta, change, expected in ((24.0, HASTY / freezing, 0), (24.0, 1.1 * HASTY / freezing, 8), (0.05, 1.0, 0)):
        # of frozen rows the spread counts up to freezing; heads that hardly look anywhere may turn as they like
        found = kinds(run(quiet, beta, update=np.full(quiet.shape, change)), "hasty")
        assert len(found) == expected


def test_confidence_is_an_upper_bound_on_false_alarms():
    assert confidence("hasty") == pytest.approx(0.05 ** (1 / 90))  # none of 90
    assert confidence("sharp") is None
    false = 1 - confidence("frozen")  # five of 90, or fewer, come with a chance of 5 %
    assert stats.binom.cdf(5, 90, false) == pytest.approx(0.05)


def test_planted_sinks_and_copies_are_alarms():
    @transform("sink")
    def sink(call, parameters):
        # the first key, turned to the mean query and made long: all rows look there
        mean = call.query.mean(-2, keepdim=True)
        return call._replace(key=torch.cat([60 * mean / mean.norm(dim=-1, keepdim=True), call.key[..., 1:, :]], dim=-2))

    model, _ = training("bert")
    generator = torch.Generator().manual_seed(5)

    def one_pass(copies=1):
        ids = torch.randint(0, 50, (8, 64 // copies), generator=generator)
        model(input_ids=ids.repeat(1, copies))

    def alarms(watched):
        return [each for each in watched.alarms if each.kind in {"drift", "sink", "copies"}]

    for fault, expected in (("sink", {"drift", "sink"}), ("copies", {"copies"})):
        with be.watch(model, every=1) as watched, torch.no_grad():
            for _ in range(15):
                one_pass()
            assert alarms(watched) == []
            if fault == "sink":
                with apply_patch(model, "sink"):
                    one_pass()
            else:
                one_pass(copies=32)
        found = alarms(watched)
        assert {each.step for each in found} == {15}
        assert expected <= {each.kind for each in found}
        if fault == "sink":  # of twelve heads, in some of which queries have no common direction
            sunk = [each for each in found if each.kind == "sink"]
            assert len(sunk) >= 6
            assert all(watched.data.first_mass.sel(step=15).values[each.layer, each.head] > 0.3 for each in sunk)


def trained(model, windows, rate, every, steps, fault=None):  # noqa: PLR0913, PLR0917 - as a script has them
    """Alarms above notes of a run of Adam, without those of frozen heads; ``fault`` is put in for two readings more."""
    from bulkedge.lab.studies.heads.watch import loss_of

    adam = torch.optim.Adam(model.parameters(), lr=rate)
    with be.watch(model.train(), every=every) as watched, ExitStack() as stack:
        for step in range(steps + (2 * every if fault else 0)):
            ids = windows()
            if step >= steps and fault == "copies":
                ids = ids[:, :8].repeat(1, ids.shape[1] // 8)
            if step == steps and fault == "sink":
                stack.enter_context(apply_patch(model, "sink of a head"))
            adam.zero_grad()
            loss_of(model, ids).backward()
            adam.step()
    return [each for each in watched.alarms if each.grade != "note" and each.kind != "frozen"]


@pytest.mark.parametrize("steps", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_healthy_steps_are_silent(steps):
    from bulkedge.lab.studies.heads import watch as study

    tokens, batch = (128, 4) if steps > 100 else (48, 2)
    generator = torch.Generator().manual_seed(30)
    windows = partial(study.batch_of, study.texts()[0], batch, tokens, generator)
    assert trained(study.decoder(30, tokens), windows, 0.001, 10 if steps > 100 else 2, steps) == []


@pytest.mark.slow
def test_faults_in_the_training_of_a_trained_decoder_are_found():
    from bulkedge.lab.studies.heads import watch as study
    from bulkedge.models import default_model

    @transform("sink of a head")
    def sink(call, parameters):
        group = call.query.shape[1] // call.key.shape[1]
        mean = call.query[:, :group].mean((1, 2))
        length, key = mean.norm(dim=-1, keepdim=True), call.key.clone()
        key[:, 0, 0] = key[:, 0].mean(-2) + 8 * mean / (call.scale * length.square())  # a mean score of eight
        return call._replace(key=key)

    weights = default_model(0)[0]
    for fault in (None, "sink", "copies"):
        model, generator = copy.deepcopy(weights), torch.Generator().manual_seed(7)
        windows = partial(study.batch_of, study.texts()[0], 8, 128, generator)
        found = trained(model, windows, 3e-4, 4, 120, fault)
        assert {each.step for each in found} == ({120} if fault else set()), found
        if fault:
            assert fault in {each.kind for each in found}
