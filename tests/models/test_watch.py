"""Attention watched in training: what is heard, nothing changed, nothing waited for."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import MODELS, UNFUSED, build, checkpoint_activations, padded, training  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.models import capture  # noqa: E402
from bulkedge.models.hooks import attention_hooks  # noqa: E402
from bulkedge.models.watching.measures import NAMES, UNCAPPED, readings  # noqa: E402
from bulkedge.nn import apply_patch, patches, transform  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402


def read(model, inputs, **wanted):
    with be.watch(model, every=1, **wanted) as watched:
        model(**inputs)
    return watched.data.isel(step=0)


def by_hand(layer, rows):
    """Entropy, largest score and sinks of the rows at a stride, and spreads of all rows, from whole matrices."""
    scores = layer.cap(layer.scale * layer.query.double() @ layer.key.double().mT)
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
    # of a few tokens all keys are near their row, so that nothing is taken as Gaussian
    centre = torch.where(seen, scores, 0.0).sum(-1, keepdim=True) / count[..., None]
    variance = torch.where(seen, (scores - centre) ** 2, 0.0).sum(-1) / count
    future = torch.ones(weights.shape[-2:]).triu(1) * (weights.shape[-2] == weights.shape[-1])
    outside = 1 - layer.attention().sum(-1)[..., some]
    return {
        "beta": mean(variance, real).sqrt(),
        "beta_mean": mean(variance.sqrt(), real),
        "keys": count.amax((0, 2)),
        "expected_entropy": mean(entropy, real),
        "entropy": mean(entropy[..., some], chosen),
        "uniform_entropy": mean(count[..., some].log(), chosen),
        "logit": largest.amax((0, 2, 3)),
        "first_mass": mean(weights[..., some, :].gather(-1, first)[..., 0], chosen),
        "future_mass": mean((weights * future).sum(-1)[..., some], chosen),
        "outside_mass": mean(outside, chosen),
    }


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", sorted(MODELS | UNFUSED))
def test_readings_are_those_of_the_whole_matrices(name, padding):
    model, inputs = training(name)
    if padding is not None:
        if name == "vit":
            pytest.skip("images have no padding")
        inputs = padded(inputs, padding)
    found = read(model, inputs, rows=64)
    for n, layer in enumerate(capture(model, **inputs)):
        for reading, expected in by_hand(layer, 64).items():
            if layer.softcap is not None and reading in UNCAPPED:
                assert np.isnan(found[reading]).all()
                continue
            # single precision: scores of some tens, and spreads from squares of centred keys
            np.testing.assert_allclose(found[reading][n], expected, rtol=2e-4, atol=2e-4, err_msg=reading)


def test_capped_scores_and_outer_sinks_leave_runs_silent_and_words_right():
    capped, inputs = training("gemma2")
    with be.watch(capped, every=1) as watched:
        for _ in range(10):
            capped(**inputs)
    assert not [each for each in watched.alarms if each.grade == "alarm"]  # nan of moments is not a broken head
    data = watched.data
    assert (data.logit <= 0.5).all()
    assert (data.logit_bound <= 0.5).all()
    assert (data.beta <= 0.5).all()  # of the scores as they are, not of what they would be without the cap
    assert (data.outside_mass == 0).all()
    sunk, inputs = training("gpt_oss")
    found = read(sunk, inputs)
    assert 0.05 < float(found.outside_mass.max()) < 1
    assert np.isfinite(found.expected_entropy).all()


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
        checkpoint_activations(model, on=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat):
        output = model(**inputs).last_hidden_state
        output.float().square().sum().backward()
    if checkpointing:
        checkpoint_activations(model, on=False)
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


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_readings_in_half_precision_are_those_of_the_scores(name):
    model, inputs = training(name)
    expected = read(model, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = read(model, inputs)
    for reading in ("beta", "entropy", "expected_entropy", "likeness"):
        # eight bits of queries and keys
        np.testing.assert_allclose(found[reading], expected[reading], rtol=0.05, atol=0.05, err_msg=reading)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_a_wrapped_model_is_read(tmp_path, how):
    model, inputs = training("llama")
    expected = read(model, inputs)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        if how == "ddp":
            wrapped = torch.nn.parallel.DistributedDataParallel(model)
        else:
            mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
            for layer in model.layers:
                torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
            wrapped = torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        found = read(wrapped, inputs)
        wrapped(**inputs).last_hidden_state.sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert found.module.values[0] == "layers.0.self_attn"
    for reading in NAMES:
        np.testing.assert_array_equal(found[reading], expected[reading], err_msg=reading)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler looks at what it passes on
@pytest.mark.parametrize("how", ["returned", "in place", "layers"])
def test_compiled_models_are_read_in_passes_without_the_compiler(how):
    calls = []

    def backend(graph, _inputs):
        def run_graph(*arguments):
            calls.append(1)
            return graph.forward(*arguments)

        return run_graph

    torch._dynamo.reset()
    model, inputs = training("llama")
    expected = read(model, inputs)
    called = torch.compile(model, backend=backend) if how == "returned" else model
    for part in [model] if how == "in place" else model.layers if how == "layers" else []:
        part.compile(backend=backend)
    compiled = []
    with be.watch(called, every=3) as watched:
        for _ in range(5):
            calls.clear()
            called(**inputs).last_hidden_state.square().mean().backward()
            compiled.append(bool(calls))
    assert compiled == [False, True, True, False, True]
    assert watched.data.module.values.tolist() == expected.module.values.tolist()
    for reading in NAMES:
        np.testing.assert_array_equal(watched.data[reading].isel(step=0), expected[reading], err_msg=reading)
    called(**inputs)
    assert calls  # and nothing is left of the watch


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

        monkeypatch.setattr("bulkedge.models.watching.read_pass.readings", strict)
        model(**inputs)
    assert [each.shape[1] for each in shown] == [3]  # all layers together
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
    with pytest.raises(DomainError, match="Neither transformers"), be.watch(model):
        model(torch.zeros(1, 3))
    other, inputs = build("bert")
    with pytest.raises(DomainError, match="training mode"), be.watch(other):
        other(**inputs)
    for wrong in ({"every": 0}, {"rows": 0}, {"rate": 0.9}, {"group": "world"}):
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
    assert (patches(model), attention_hooks._thread.passes, attention_hooks._begun) == ((), (), {})
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


def test_lightning_is_told():
    model, inputs = training("gpt2")
    logged, state = {}, SimpleNamespace(global_step=0, log_every_n_steps=2)
    module = SimpleNamespace(log_dict=lambda found: logged.update({state.global_step: found}))
    with be.watch(model, every=2) as watched:
        callback = watched.lightning()
        for step in range(4):
            state.global_step = step
            callback.on_train_batch_start(state, None, None, 0)
            model(**inputs)
            state.global_step = step + 1
            callback.on_train_batch_end(state, module, None, None, 0)
    assert watched.data.step.values.tolist() == [0, 2]
    assert list(logged) == [2, 4]
    assert "attention/layer_1/entropy" in logged[2]


def test_lightning_calls_hooks_by_their_names_and_keeps_the_readings():
    model, inputs = training("gpt2")
    with be.watch(model, every=1) as watched:
        callback = watched.lightning()
        callback.setup(None, None, stage="fit")  # whatever hook there is
        callback.on_validation_epoch_end(None, None)
        model(**inputs)
    with pytest.raises(AttributeError):
        callback.some_attribute  # noqa: B018
    again = be.watch(model, every=1)
    again.lightning().load_state_dict(callback.state_dict())
    xr.testing.assert_identical(again.data, watched.data)
    assert again.step == 1


@pytest.mark.parametrize("how", ["state", "file"])
@pytest.mark.parametrize("updates", [False, True])
def test_a_run_that_is_resumed_goes_on_with_its_readings(tmp_path, how, updates):
    def steps(model, watched, number):
        adam = torch.optim.Adam(model.parameters(), lr=0.05)
        with watched:
            for _ in range(number):
                adam.zero_grad()
                model(**inputs).last_hidden_state.square().mean().backward()
                adam.step()

    model, inputs = training("llama")
    first = be.watch(model, every=2, updates=updates)
    steps(model, first, 8)
    second = be.watch(model, every=2, updates=updates)
    if how == "state":
        torch.save(first.state_dict(), tmp_path / "state.pt")
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    else:
        first.save(tmp_path / "run")
        second.resume(tmp_path / "run")
    assert second.alarms == first.alarms != ()
    assert second.step == 7  # the last reading was of step 6
    second.at(8)
    second._counting = True
    steps(model, second, 3)
    assert second.data.step.values.tolist() == [0, 2, 4, 6, 8, 10]
    xr.testing.assert_identical(second.data.isel(step=slice(4)), first.data)
    back = be.watch(model, every=2, updates=updates)
    back.load_state_dict(first.state_dict(), step=4)  # from an earlier checkpoint
    assert (back.step, back.readings) == (4, 2)
    with pytest.raises(DomainError, match="readings already"):
        back.load_state_dict(first.state_dict())
    with pytest.raises(DomainError, match="another version"):
        be.watch(model).load_state_dict(first.state_dict() | {"names": ["beta"]})


def test_trackers_get_what_is_new():
    """The recipes of docs/watch.md, with trackers that only remember."""
    model, inputs = training("bert")
    runs = {name: [] for name in ("wandb", "tensorboard", "opentelemetry")}
    wandb = SimpleNamespace(log=lambda found, step: runs["wandb"].append((step, found)))
    writer = SimpleNamespace(add_scalar=lambda key, value, step: runs["tensorboard"].append((key, value, step)))

    def create_gauge(name):
        return SimpleNamespace(set=lambda value, where: runs["opentelemetry"].append((name, where, value)))

    page = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")
    recipes = re.findall(r"```python\n# (W&B|TensorBoard|OpenTelemetry).*?\n(.*?)```", page, flags=re.DOTALL)
    assert [name for name, _ in recipes] == ["W&B", "TensorBoard", "OpenTelemetry"]
    watched = be.watch(model, every=2)
    names = {"watched": watched, "wandb": wandb, "writer": writer, "meter": SimpleNamespace(create_gauge=create_gauge)}
    loggers = []
    for _, code in recipes:
        assert len(code.splitlines()) <= 10
        exec(code, names)  # noqa: S102 - of our own page
        loggers.append(names["after"])
    with watched:
        for step in range(4):
            model(**inputs)
            for after in loggers:
                after(step)
    assert [step for step, _ in runs["wandb"]] == [0, 2]
    found = runs["wandb"][1][1]
    assert ("attention/layer_1/beta", found["attention/layer_1/beta"], 2) in runs["tensorboard"]
    assert ("bulkedge.attention.beta", {"layer": 1}, found["attention/layer_1/beta"]) in runs["opentelemetry"]
    assert ("bulkedge.attention.alarms", {}, found["attention/alarms"]) in runs["opentelemetry"]
    assert all(np.isfinite(value) for *_, value in runs["opentelemetry"])


def test_new_alarms_are_told_once():
    model, inputs = training("llama")
    for layer in model.layers:
        layer.self_attn.q_proj.weight.data *= 60
    with be.watch(model, every=1) as watched:
        model(**inputs)
        assert watched.new_alarms() == watched.alarms != ()
        assert watched.new_alarms() == ()
