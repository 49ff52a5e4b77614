"""Attention watched in training: right numbers, nothing changed, nothing waited for."""

import json
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import MODELS, build, padded  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.errors import DomainError  # noqa: E402
from bulkedge.models import capture  # noqa: E402
from bulkedge.models.alarms import FIRST, drift_level, find_alarms  # noqa: E402
from bulkedge.models.listening import _listeners  # noqa: E402
from bulkedge.models.readings import BLOCKS, NAMES, Visible, gaussian_entropy, readings  # noqa: E402
from bulkedge.nn import apply_patch, patches, transform  # noqa: E402
from bulkedge.propagation.trainability import softmax_of_gaussians  # noqa: E402


def training(name, **wanted):
    """A model in training mode without dropout, and its inputs."""
    model, inputs = build(name, **wanted)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for key, value in vars(model.config).items():
        if key.endswith(("pdrop", "dropout_prob", "dropout")) and isinstance(value, float):
            setattr(model.config, key, 0.0)
    return model.train(), inputs


def read(model, inputs, **wanted):
    with be.watch(model, every=1, **wanted) as watched:
        model(**inputs)
    return watched.data.isel(step=0)


def by_hand(layer, rows):
    """Entropy, largest score and sinks of the rows at a stride, and spreads of all rows, from whole matrices."""
    scores = layer.scale * layer.query.double() @ layer.key.double().mT
    bias = layer.bias()
    bias = torch.zeros(scores.shape) if bias is None else bias.expand(scores.shape)
    seen = bias > -torch.inf
    count = seen.sum(-1)
    weights, rows_all = (scores + bias).softmax(-1), scores.shape[-2]
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
    own = seen.any(-2) if layer.mask is not None else torch.ones((*scores.shape[:2], rows_all)).bool()
    real = (count >= 2) & own
    some = (2 * torch.arange(min(rows, rows_all)) + 1) * rows_all // (2 * min(rows, rows_all))
    chosen = real[..., some]

    def mean(values, of):
        return torch.where(of, values, 0.0).sum((0, 2)) / of.sum((0, 2))

    first = seen[..., some, :].any(-2).double().argmax(-1)[..., None, None].expand(*chosen.shape, 1)
    largest = torch.where(chosen[..., None], (scores + bias)[..., some, :], -torch.inf)
    # spreads over the keys that any row of the block sees, as the moments have them
    varies = layer.causal or (layer.mask is not None and layer.mask.shape[-2] > 1 and layer.mask.stride(-2) > 0)
    blocks = min(BLOCKS, rows_all) if varies else 1
    ends = [rows_all * each // blocks for each in range(blocks + 1)]
    variance = torch.empty(scores.shape[:-1]).double()
    for low, high in pairwise(ends):
        among = seen[..., low:high, :].any(-2, keepdim=True).double()
        centre = (scores[..., low:high, :] * among).sum(-1, keepdim=True) / among.sum(-1, keepdim=True)
        variance[..., low:high] = ((scores[..., low:high, :] - centre) ** 2 * among).sum(-1) / among.sum(-1)
    return {
        "beta": mean(variance, real).sqrt(),
        "keys": count.amax((0, 2)),
        "entropy": mean(entropy[..., some], chosen),
        "uniform_entropy": mean(count[..., some].log(), chosen),
        "logit": largest.amax((0, 2, 3)),
        "first_mass": mean(weights[..., some, :].gather(-1, first)[..., 0], chosen),
    }


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_readings_are_those_of_the_whole_matrices(name, padding):
    model, inputs = training(name)
    if padding is not None:
        if name == "vit":
            pytest.skip("images have no padding")
        inputs = padded(inputs, padding)
    found = read(model, inputs, rows=64)
    for n, layer in enumerate(capture(model, **inputs)):
        for reading, expected in by_hand(layer, 64).items():
            # single precision: scores of some tens, and spreads from squares of centred keys
            np.testing.assert_allclose(found[reading][n], expected, rtol=2e-4, atol=2e-4, err_msg=reading)


def test_a_stride_of_rows_is_read():
    model, inputs = training("llama")
    layers = capture(model, **inputs)
    found = read(model, inputs, rows=5)
    for n, layer in enumerate(layers):
        for reading, expected in by_hand(layer, 5).items():
            np.testing.assert_allclose(found[reading][n], expected, rtol=2e-4, atol=2e-4, err_msg=reading)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_implementations_agree_and_stay(name, implementation):
    model, inputs = training(name)
    expected = read(model, inputs)
    model.set_attn_implementation(implementation)
    found = read(model, inputs)
    assert model.config._attn_implementation == implementation
    for reading in NAMES:
        np.testing.assert_allclose(found[reading], expected[reading], rtol=1e-3, atol=1e-4, err_msg=reading)


def gradients(model, inputs, *, checkpointing, bfloat):
    model.zero_grad()
    if checkpointing:
        model.gradient_checkpointing_enable()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat):
        output = model(**inputs).last_hidden_state
        output.float().square().sum().backward()
    if checkpointing:
        model.gradient_checkpointing_disable()
    return [output.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]


@pytest.mark.parametrize("bfloat", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_outputs_and_gradients_are_bit_for_bit_the_same(name, checkpointing, bfloat):
    model, inputs = training(name)
    before = gradients(model, inputs, checkpointing=checkpointing, bfloat=bfloat)
    with be.watch(model, every=1) as watched:
        found = gradients(model, inputs, checkpointing=checkpointing, bfloat=bfloat)
    assert len(before) == len(found)
    assert all(torch.equal(one, other) for one, other in zip(before, found, strict=True))
    assert watched.data.sizes == {"step": 1, "layer": 3, "head": 4}  # the second pass of checkpointing is not heard
    assert np.isfinite(watched.data.beta).all()


def test_the_host_waits_for_nothing(monkeypatch):
    model, inputs = training("llama")
    inputs = padded(inputs, "right")
    read(model, inputs)  # the table is made

    def refuse(*_, **__):
        raise AssertionError("the host asked for a number")

    with be.watch(model, every=1) as watched:
        plain, shown = readings, []

        def strict(*arguments):
            with monkeypatch.context() as patch:
                for name in (
                    "item",
                    "__bool__",
                    "__float__",
                    "__int__",
                    "__index__",
                    "cpu",
                    "numpy",
                    "tolist",
                    "nonzero",
                ):
                    patch.setattr(torch.Tensor, name, refuse)
                shown.append(plain(*arguments))
            return shown[-1]

        monkeypatch.setattr("bulkedge.models.watching.readings", strict)
        model(**inputs)
    assert len(shown) == 3
    assert watched.data.sizes["layer"] == 3


def test_multihead_attention_is_read():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model, inputs = torch.nn.TransformerEncoder(layer, 2), torch.randn(3, 20, 32)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(20)
    layers = capture(model, input=inputs, mask=causal)
    with be.watch(model, every=1) as watched:
        model(inputs, mask=causal)
    found = watched.data.isel(step=0)
    assert found.module.values.tolist() == ["layers.0.self_attn", "layers.1.self_attn"]
    for n, each in enumerate(layers):
        for reading, expected in by_hand(each, 32).items():
            np.testing.assert_allclose(found[reading][n], expected, rtol=2e-4, atol=2e-4, err_msg=reading)


def test_patches_are_seen():
    @transform("doubled")
    def doubled(call, parameters):
        return call._replace(query=2 * call.query)

    model, inputs = training("bert")
    plain = read(model, inputs).isel(layer=0)
    with apply_patch(model, "doubled"):
        changed = read(model, inputs).isel(layer=0)
    np.testing.assert_allclose(changed.beta, 2 * plain.beta, rtol=1e-5)


@pytest.mark.parametrize("window", [3, 50])
def test_windows_that_only_the_kernel_knows(window):
    torch.manual_seed(1)
    query, key = torch.randn(2, 4, 24, 8), torch.randn(2, 2, 24, 8)
    place = torch.arange(24)
    written = (place <= place[:, None]) & (place > place[:, None] - window)
    found = readings(query, key, 0.5, Visible(None, causal=True, window=window, rows=24, keys=24), 24)
    expected = readings(query, key, 0.5, Visible(written[None, None], causal=False, window=None, rows=24, keys=24), 24)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("beta", [0.5, 1.5, 3.0, 6.0])
@pytest.mark.parametrize("causal", [False, True])
def test_predicted_entropy_of_gaussian_heads(beta, causal):
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 2, 4, 512, 64, generator=generator)
    sight = Visible(None, causal, None, 512, 512)
    found = dict(zip(NAMES, readings(query, key, beta / 8, sight, 512).double(), strict=True))
    assert found["beta"].numpy() == pytest.approx(beta, rel=0.05)
    # 4096 rows, whose entropies differ by less than a nat from each other; keys that rows share leave some 0.01
    assert (found["entropy"] - found["predicted_entropy"]).abs().max() < 0.05
    assert (found["entropy"] - found["expected_entropy"]).abs().max() < 0.05
    assert 30 < found["dimension"].mean() < 70


def test_table_of_entropies():
    rng = np.random.default_rng(0)
    for _ in range(60):
        count, spread = int(np.exp(rng.uniform(np.log(2), np.log(1e6)))), float(rng.uniform(0, 20))
        found = float(gaussian_entropy(torch.tensor(spread), torch.tensor(float(count))))
        assert found == pytest.approx(softmax_of_gaussians(spread, count).entropy, abs=0.008)
    assert float(gaussian_entropy(torch.tensor(2.0), torch.tensor(1.0))) == 0


def test_steps():
    model, inputs = training("bert")
    with be.watch(model, every=3) as watched:
        for _ in range(5):
            model(**inputs)
        model.eval()
        model(**inputs)
        model.train()
        watched.at(9)
        for _ in range(2):  # gradients are accumulated: one step
            model(**inputs)
        watched.at(10)
        model(**inputs)
    assert watched.data.step.values.tolist() == [0, 3, 9]
    assert len(watched.table) == 3 * 3 * 4
    assert {"step", "layer", "head", "module", "beta", "residual"} <= set(watched.table)


def test_a_watch_that_sees_nothing_says_so():
    model = torch.nn.Linear(3, 3)
    with pytest.raises(DomainError, match="neither"), be.watch(model):
        model(torch.zeros(1, 3))
    other, inputs = build("bert")
    with pytest.raises(DomainError, match="training mode"), be.watch(other):
        other(**inputs)
    model._compiled_call_impl = model.forward  # what model.compile() sets, without the import of the compiler
    with pytest.raises(DomainError, match="compiled"), be.watch(model):
        pass
    for wrong in ({"every": 0}, {"rows": 0}, {"rate": 0.9}):
        with pytest.raises(DomainError, match=next(iter(wrong))):
            be.watch(model, **wrong)


def test_the_model_is_left_as_it_was_found():
    model, inputs = training("llama")
    interface = transformers.AttentionInterface.get_interface
    hooks = [(len(each._forward_hooks), len(each._forward_pre_hooks)) for each in model.modules()]
    with pytest.raises(DomainError, match="later"), be.watch(model, every=1):  # noqa: PT012 - after a pass
        model(**inputs)
        raise DomainError("later")
    with pytest.raises(ValueError, match="input_ids"), be.watch(model, every=1), be.watch(model, every=1):
        model()
    assert transformers.AttentionInterface.get_interface is interface
    assert (patches(model), _listeners) == ((), [])
    assert [(len(each._forward_hooks), len(each._forward_pre_hooks)) for each in model.modules()] == hooks


def test_metrics_callback_and_file(tmp_path):
    model, inputs = training("gpt2")
    with be.watch(model, every=1) as watched:
        callback = watched.callback()
        state = transformers.TrainerState(global_step=7, log_history=[{}])
        callback.on_step_begin(None, state, None)
        model(**inputs)
        logs = {"loss": 1.0}
        callback.on_log(None, state, None, logs=logs)
    data = watched.data
    assert data.step.values.tolist() == [7]
    assert logs["attention/layer_2/beta_max"] == float(data.beta.sel(layer=2).max())
    assert logs["attention/layer_0/entropy"] == pytest.approx(float(data.entropy.sel(layer=0).mean()))
    assert state.log_history[0]["attention/alarms"] == logs["attention/alarms"]
    watched.save(tmp_path / "run")
    loaded = xr.open_zarr(tmp_path / "run", consolidated=False)
    xr.testing.assert_equal(loaded.beta.load(), data.beta)
    assert len(json.loads(loaded.attrs["alarms"])) == len(watched.alarms)
    assert len(watched.plot().axes) == 3


def run(residual, beta=1.0, **changes):
    """Readings as a run of 12 heads has them, of this residual and spread."""
    residual = np.asarray(residual)
    shape = residual.shape
    values = {name: np.ones(shape) for name in NAMES} | {"keys": np.full(shape, 128.0), "residual": residual}
    values |= {"beta": np.broadcast_to(beta, shape), "popular_mass": np.full(shape, 4.0)} | changes
    data = {name: (("step", "layer", "head"), each) for name, each in values.items()}
    return xr.Dataset(data, {"step": 10 * np.arange(len(residual))}, attrs={"rate": 0.01})


def test_residuals_that_move_at_random_raise_no_alarm():
    rng = np.random.default_rng(3)
    # 40 runs of 12 heads and 120 readings, changes as large as are notable: 0.4 false alarms expected at the most
    found = [find_alarms(run(np.cumsum(0.3 * rng.standard_normal((120, 3, 4)), axis=0))) for _ in range(40)]
    # a chance of 0.01 each: four and more of forty have a probability of 1e-3
    drifts = [[each for each in one if each.kind == "drift"] for one in found]
    assert sum(len(each) > 0 for each in drifts) <= 3
    assert sum(drift_level(k, 12, 0.01) * 12 for k in range(1, 100_000)) == pytest.approx(0.01, rel=1e-4)


def test_alarms_of_planted_faults():
    rng = np.random.default_rng(4)
    quiet = 0.02 * rng.standard_normal((40, 3, 4))
    sink = quiet.copy()
    sink[30:, 1, 2] -= 1.0
    (alarm,) = find_alarms(run(sink))
    assert (alarm.step, alarm.layer, alarm.head, alarm.kind, alarm.grade) == (300, 1, 2, "drift", "alarm")
    assert alarm.numbers["residual"] == pytest.approx(sink[30, 1, 2])
    assert "first_mass" in alarm.remedy
    broken = np.ones((40, 3, 4))
    broken[5, 2, 3] = np.nan
    assert [(each.step, each.kind) for each in find_alarms(run(quiet, broken))] == [(50, "not finite")]
    still = {"popular_mass": np.ones(quiet.shape)}
    assert {(each.step, each.kind) for each in find_alarms(run(quiet, 0.0, **still))} == {(10 * FIRST, "dead")}
    flat = {"entropy": np.full(quiet.shape, 0.05)}
    assert {(each.layer, each.head, each.kind) for each in find_alarms(run(quiet, **flat))} == {
        (layer, None, "collapse") for layer in range(3)
    }


def test_a_planted_sink_is_an_alarm():
    @transform("sink")
    def sink(call, parameters):
        # the first key, turned to the mean query and made long: all rows look there
        mean = call.query.mean(-2, keepdim=True)
        return call._replace(key=torch.cat([60 * mean / mean.norm(dim=-1, keepdim=True), call.key[..., 1:, :]], dim=-2))

    model, _ = training("bert")
    generator = torch.Generator().manual_seed(5)

    def passes(count):
        for _ in range(count):
            model(input_ids=torch.randint(0, 50, (8, 64), generator=generator))

    with be.watch(model, every=1) as watched, torch.no_grad():
        passes(15)
        assert [each for each in watched.alarms if each.kind == "drift"] == []
        with apply_patch(model, "sink"):
            passes(1)
    alarms = [each for each in watched.alarms if each.kind == "drift"]
    assert {each.step for each in alarms} == {15}
    assert len(alarms) >= 6  # of twelve heads, in some of which queries have no common direction
    assert all(watched.data.first_mass.sel(step=15).values[each.layer, each.head] > 0.3 for each in alarms)


@pytest.mark.slow
def test_three_hundred_healthy_steps_are_silent():
    from bulkedge.studies.heads.watch import Watch

    data = Watch(seeds=2, steps=300, tokens=64, every=10).run(np.random.default_rng(6)).sel(way="low")
    assert data.alarm.isnull().all()
    assert data.alarms.sum() == 0
