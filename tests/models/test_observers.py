"""Observers of models: a pass of its own for each thread, nothing on the model, and a cost that stays the same."""

import copy
import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import build, training  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.models import capture  # noqa: E402
from bulkedge.models.hooks import attention_hooks  # noqa: E402
from bulkedge.models.scanning.random_heads import random_weights  # noqa: E402
from bulkedge.support import threads  # noqa: E402
from bulkedge.support.errors import DomainError, RegimeWarning  # noqa: E402
from bulkedge.support.threads import one_thread  # noqa: E402


def encoder():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, dropout=0.1, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def in_threads(work, number):
    """Results of four threads that begin together."""
    together = Barrier(4, timeout=60)

    def begin(place):
        together.wait()
        return [work(place + 4 * n) for n in range(number)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(begin, range(4)))
    return [found[k % 4][k // 4] for k in range(4 * number)]


def same(one, other):
    return all(np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in one.variables)


def nothing_is_left():
    return not (threads._changes or threads._limited or attention_hooks._begun or attention_hooks._thread.passes)


def inputs_of(name, number):
    generator = torch.Generator().manual_seed(1)
    if name == "torch's own":
        return [{"src": torch.randn(1, 24, 16, generator=generator)} for _ in range(number)]
    return [{"input_ids": torch.randint(0, 50, (1, 24), generator=generator)} for _ in range(number)]


@pytest.mark.parametrize("name", ["gpt2", "llama", "torch's own"])
def test_threads_that_share_a_model_read_it_as_one_does(name):
    """Queries and keys of every layer, its own and those of random weights."""
    model = encoder().eval() if name == "torch's own" else build(name)[0]
    inputs = inputs_of(name, 32)

    def read(k):
        found, generator = [], torch.Generator().manual_seed(k)

        def visit(each):
            with random_weights(each.module, generator) as module:
                found.extend((each.layer, each.again(module)))

        be.models.stream(model, visit, **inputs[k])
        return [tensor for layer in found for tensor in (layer.query, layer.key)]

    expected = [read(k) for k in range(32)]
    found = in_threads(read, 8)
    assert all(all(map(torch.equal, *both)) for both in zip(found, expected, strict=True))
    assert not torch.equal(expected[0][0], expected[0][2])
    assert nothing_is_left()


@pytest.mark.filterwarnings("ignore::bulkedge.RegimeWarning")
@pytest.mark.parametrize(
    ("name", "number"),
    [("torch's own", 1), *(pytest.param(each, 8, marks=pytest.mark.slow) for each in ("gpt2", "torch's own"))],
)
def test_threads_that_share_a_model_scan_it_as_one_does(name, number):
    # in training mode, so that a scan has to switch dropout off until the last of them has ended
    model = encoder() if name == "torch's own" else build(name)[0].train()
    inputs, plain = inputs_of(name, 4 * number), torch.nn.Module.__call__

    def scan(k):
        return be.scan(model, inputs[k], draws=5, probe=False, rng=k).data

    with one_thread(("torch",)):
        expected = [scan(k) for k in range(4 * number)]
        found = in_threads(scan, number)
    assert [each.sizes for each in found] == [each.sizes for each in expected]
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert nothing_is_left()
    assert torch.nn.Module.__call__ is plain
    assert all(each.training for each in model.modules())


def test_threads_that_share_a_watched_model_are_read_pass_by_pass():
    model, _ = training("llama")
    inputs = [torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(k)) for k in range(16)]

    def read(k):
        with be.watch(model, every=1) as own:
            model(input_ids=inputs[k])
        return own.data.isel(step=0, drop=True).drop_attrs()

    expected = [read(k) for k in range(16)]
    with be.watch(model, every=1) as watched:
        in_threads(lambda k: model(input_ids=inputs[k]), 4)
    data = watched.data.drop_attrs()
    assert data.sizes["step"] == 16
    steps = [data.isel(step=n, drop=True) for n in range(16)]
    # which pass had which number is not known, but each has the readings of one batch
    assert all(sum(same(one, other) for other in expected) == 1 for one in steps)
    assert nothing_is_left()


@pytest.mark.parametrize("name", ["gpt2", "torch's own"])
def test_copies_of_a_watched_model_carry_no_observer(name):
    model, inputs = (encoder(), {"src": torch.randn(1, 9, 16)}) if name == "torch's own" else training(name)
    before = model.state_dict()
    with be.watch(model, every=1) as watched:
        model(**inputs)
        average = AveragedModel(model, use_buffers=True)
        average.update_parameters(model)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), average]  # noqa: S301 - of our own
        for each in copies:
            each.train()(**inputs)
        assert model.state_dict().keys() == before.keys()
        assert watched.data.sizes["step"] == 1  # of the model, and none of the copies
        with be.watch(copies[0], every=1) as other:
            copies[0](**inputs)
            model(**inputs)
        assert (watched.data.sizes["step"], other.data.sizes["step"]) == (2, 1)
    for each in (model, *copies):
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in each.modules())
    assert "__call__" not in vars(type(model))
    copies[1](**inputs)
    assert nothing_is_left()


def test_a_watch_is_entered_once_at_a_time_and_goes_on_later():
    model, inputs = training("gpt2")
    with be.watch(model, every=1) as watched:
        with pytest.raises(DomainError, match="on already"):
            watched.__enter__()
        model(**inputs)
        assert watched.data.sizes["layer"] == 3
    model(**inputs)
    with watched:
        model(**inputs)
    assert watched.data.step.values.tolist() == [0, 1]
    one, other = be.watch(model, every=1), be.watch(model, every=1)
    one.__enter__()
    other.__enter__()
    one.__exit__(RuntimeError)  # in an order of their own
    model(**inputs)
    other.__exit__(None)
    assert (one.seen, other.data.sizes["layer"]) == (False, 3)
    assert nothing_is_left()


@pytest.mark.parametrize("name", ["gpt2", "bert", "torch's own"])
def test_batches_of_one_token_have_no_scores_to_compare(name):
    model = encoder() if name == "torch's own" else training(name)[0]
    with be.watch(model, every=1) as watched:
        model(torch.randn(2, 1, 16)) if name == "torch's own" else model(input_ids=torch.ones(2, 1, dtype=torch.long))
    data = watched.data
    for reading in data.data_vars:
        values = data[reading].values
        assert (data["keys"] == 1).all() if reading == "keys" else np.isnan(values).all(), reading
    metrics = watched.metrics()
    assert metrics.pop("attention/alarms") == 0
    assert np.isnan(list(metrics.values())).all()
    assert watched.summary() == "no alarms"


class Broken(torch.nn.Module):
    """Has keys of its own, which are not read."""

    def __init__(self, *, broken=True):
        super().__init__()
        self.good = torch.nn.MultiheadAttention(8, 2)
        self.bad = torch.nn.MultiheadAttention(8, 2, add_zero_attn=True)
        self.broken = broken

    def forward(self, x):
        return (self.bad if self.broken else self.good)(x, x, x)[0]


class ByHand(torch.nn.Module):
    """Multiplies out its scores itself."""

    def __init__(self):
        super().__init__()
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return (self.query(x) @ self.key(x).mT).softmax(-1) @ x


@pytest.mark.parametrize(
    ("make", "words"),
    [(Broken, "add_zero_attn"), (ByHand, "multiplies out itself"), (lambda: torch.nn.Linear(8, 8), "")],
)
@pytest.mark.parametrize("around", ["plain", "wrapped", "compiled"])
def test_a_model_that_cannot_be_read_raises_at_its_first_pass(make, words, around):
    model, x = make(), torch.randn(4, 1, 8)
    if around == "wrapped":
        model = torch.nn.Sequential(model)
    if around == "compiled":
        model = torch.compile(model, backend="eager")
    wanted = f"could not be read in its first pass.*{words}"
    with pytest.raises(RuntimeError, match="enough"), be.watch(model, every=5):  # noqa: PT012 - in a pass, not later
        with pytest.raises(DomainError, match=wanted):
            model(x)
        raise RuntimeError("enough")
    model(x)
    assert nothing_is_left()


def test_a_model_that_is_an_attention_itself_is_read():
    model, x = torch.nn.MultiheadAttention(8, 2), torch.randn(4, 1, 8)
    with be.watch(model, every=1) as watched:
        model(x, x, x)
    assert watched.data.module.values.tolist() == [""]


def test_a_later_reading_that_fails_breaks_no_pass_and_says_why():
    model, x = Broken(broken=False), torch.randn(4, 1, 8)
    with be.watch(model, every=1) as watched:
        model(x)
        model.broken = True
        expected = model.bad(x, x, x)[0]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert all(torch.equal(model(x), expected) for _ in range(3))
    assert [each.category for each in caught] == [RegimeWarning]  # once
    assert "step 1 of the watch was not read" in str(caught[0].message)
    assert "add_zero_attn" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert watched.data.step.values.tolist() == [0]


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler looks at what it passes on
@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_model_is_read_when_what_was_compiled_from_it_is_called(when):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = torch.nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0), torch.randn(9, 1, 16)
    with be.watch(model, every=1) as alone:
        model(x)
    before = torch.compile(model, backend="eager")
    with be.watch(model, every=2) as watched:
        compiled = before if when == "before" else torch.compile(model, backend="eager")
        for _ in range(3):
            compiled(x)
    assert watched.data.step.values.tolist() == [0, 2]
    for name, values in alone.data.isel(step=0).items():
        np.testing.assert_array_equal(watched.data[name].isel(step=0), values, err_msg=name)
    assert nothing_is_left()


def test_metrics_cost_the_same_along_a_run():
    model, x = encoder(), torch.randn(1, 9, 16)

    def calls(work):
        count = 0

        def note(_frame, event, _argument):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        return count

    costs = []
    with be.watch(model, every=1) as watched, torch.no_grad():
        for _ in range(90):
            model(x)
            costs.append(calls(watched.metrics))
    assert costs[85] < 1.1 * costs[40]  # the record of changes is full after 34 readings


def test_a_flood_of_alarms_is_ten_lines():
    torch.manual_seed(0)
    model, inputs = training("llama")
    for layer in model.layers:
        layer.self_attn.q_proj.weight.data *= 60
    with be.watch(model, every=2) as watched:
        for _ in range(12):
            model(**inputs)
    lines = watched.summary().splitlines()
    kinds = {(each.kind, each.layer) for each in watched.alarms}
    grades = [each.alarm.grade for each in watched._log.groups]
    assert len(watched.alarms) > 20
    assert grades == sorted(grades, key=("alarm", "warning", "note").index)
    assert len(lines) == min(len(kinds), 11)
    assert "steps 0 to 10" in lines[0]  # from the first to the last at which it held
    assert len(lines) < 11 or lines[-1] == f"and {len(kinds) - 10} more kinds/layers: watch.alarms"
    assert len(watched.plot().axes[0].lines) <= 4 + 4  # three layers, the line of freezing, and a mark for each kind


def test_who_visits_a_pass_may_read_the_model_meanwhile():
    model, inputs = build("llama")
    expected = [layer.name for layer in capture(model, **inputs)]
    inner, outer = [], []

    def visit(each):
        outer.append(each.layer.name)
        if not inner:
            inner.extend(layer.name for layer in capture(model, **inputs))

    be.models.stream(model, visit, **inputs)
    assert inner == outer == expected
