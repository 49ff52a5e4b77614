"""What steps do to the scores: the maps that are found, changes in factors, and random updates as a null."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import PlainGPT, training  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.models.watching.updates import factors, relative_change, update_spectra  # noqa: E402


def random_weights(heads, key_heads, dim, width, *, seed=0, size=1.0):  # noqa: PLR0913
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        size * torch.randn(n, dim, width, generator=generator, dtype=torch.float64) / width**0.5
        for n in (heads, key_heads)
    )


@pytest.mark.parametrize("shape", [(4, 2, 8, 64), (3, 3, 16, 20), (2, 1, 4, 4)])
def test_changes_in_factors_are_those_of_whole_matrices(shape):
    before, step = random_weights(*shape), random_weights(*shape, seed=1, size=0.1)
    after = tuple(one + other for one, other in zip(before, step, strict=True))
    group = shape[0] // shape[1]
    whole = [each[0].mT @ each[1].repeat_interleave(group, 0) for each in (before, after)]
    left, right = factors(before, after)
    # in single precision
    torch.testing.assert_close((left.mT @ right).double(), whole[1] - whole[0], rtol=1e-4, atol=1e-5)
    expected = torch.linalg.matrix_norm(whole[1] - whole[0]) / torch.linalg.matrix_norm(whole[1])
    torch.testing.assert_close(relative_change(before, after).double(), expected, rtol=1e-4, atol=0)
    assert relative_change(before, before).isnan().all()


@pytest.mark.parametrize("shape", [(8, 64), (8, 12), (16, 16)])
def test_draws_of_the_null_are_those_of_whole_random_updates(shape):
    """Means of the largest singular value, of draws by cores and of matrices that are formed."""
    dim, width = shape
    before = random_weights(1, 1, dim, width)
    generator = torch.Generator().manual_seed(2)
    size, tops, ratios = 0.1, [], []
    for _ in range(60):
        step = [size * torch.randn(1, dim, width, generator=generator, dtype=torch.float64) for _ in range(2)]
        after = tuple(one + other for one, other in zip(before, step, strict=True))
        left, right = factors(before, after)
        tops.append(float(torch.linalg.matrix_norm((left.mT @ right).double(), 2)))
        ratios.append(float(update_spectra(before, after, draws=64, generator=generator)["update_top"]))
    assert np.std(tops) / np.mean(tops) == pytest.approx(np.std(ratios), rel=0.35)
    # the null has the lengths of each update, so that ratios scatter about one: error of 60 updates and 64 draws
    assert np.mean(ratios) == pytest.approx(1.0, abs=4 * np.std(ratios) / np.sqrt(60) + 0.01)


def test_p_values_of_random_updates_keep_their_level_and_signals_do_not():
    before = random_weights(600, 600, 8, 64)
    step = random_weights(600, 600, 8, 64, seed=1, size=0.02)
    after = tuple(one + other for one, other in zip(before, step, strict=True))
    generator = torch.Generator().manual_seed(3)
    found = update_spectra(before, after, generator=generator)
    # of 600 heads 30 and 6 in the mean, with standard deviations of 5.3 and 2.4
    assert 12 <= int((found["update_p"] < 0.05).sum()) <= 48
    assert int((found["update_p"] < 0.01).sum()) <= 15
    signal = torch.einsum("hd,hw->hdw", *(torch.randn(600, n, generator=generator).double() for n in (8, 64)))
    planted = after[0] + 0.3 * signal / signal.flatten(1).norm(dim=1)[:, None, None], after[1]
    found = update_spectra(before, planted, generator=generator)
    assert float((found["update_p"] < 0.01).double().mean()) > 0.95
    assert (found["update_outliers"] >= 1).double().mean() > 0.95


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "qwen3", "nanoGPT", "torch's own"])
def test_a_watch_reads_what_a_step_changed(name):
    """Against the change of the weights themselves, whose names are known here and to no one else."""
    torch.manual_seed(0)
    if name == "nanoGPT":
        model, inputs = PlainGPT(), {"idx": torch.arange(40)[None]}
        maps = [(each.qkv.weight[:32], each.qkv.weight[32:64]) for each in model.layers]
    elif name == "torch's own":
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        model, inputs = torch.nn.TransformerEncoder(layer, 2), {"src": torch.randn(2, 12, 32)}
        maps = [each.self_attn.in_proj_weight[:64].chunk(2) for each in model.layers]
    elif name == "qwen3":
        import transformers

        config = transformers.Qwen3Config(
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=64,
            vocab_size=50, head_dim=8,
        )  # fmt: skip
        model, inputs = transformers.Qwen3Model(config).train(), {"input_ids": torch.arange(40)[None]}
        maps = [(each.self_attn.q_proj.weight, each.self_attn.k_proj.weight) for each in model.layers]
    else:
        model, inputs = training(name)
        maps = {
            "gpt2": lambda: [each.attn.c_attn.weight.T[:64].chunk(2) for each in model.h],
            "llama": lambda: [(each.self_attn.q_proj.weight, each.self_attn.k_proj.weight) for each in model.layers],
            "bert": lambda: [
                (each.attention.self.query.weight, each.attention.self.key.weight) for each in model.encoder.layer
            ],
        }[name]()

    def copied():
        return [tuple(each.detach().double().unflatten(0, (-1, 8)) for each in pair) for pair in maps]

    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    states = []
    with be.watch(model.train(), every=2, updates=True) as watched:
        for _ in range(5):
            states.append(copied())
            adam.zero_grad()
            output = model(**inputs)
            output = output if torch.is_tensor(output) else output.last_hidden_state
            (output * torch.linspace(-1, 1, output.shape[-1])).sum().backward()
            adam.step()
    data = watched.data
    assert data.step.values.tolist() == [0, 2, 4]
    assert np.isnan(data["update"].sel(step=0)).all()  # no step was seen before
    for n, (before, after) in enumerate(zip(states[3], states[4], strict=True)):
        expected = relative_change(before, after)
        np.testing.assert_allclose(data["update"].sel(step=4)[n], expected, rtol=1e-4)
    tops = data["update_top"].sel(step=4)
    assert (tops > 0.5).all()
    assert (data["update_p"].sel(step=4) <= 1).all()
    assert np.isnan(data["update_top"].sel(step=0)).all()


def test_weights_that_did_not_move_are_no_update():
    model, inputs = training("llama")
    with be.watch(model, every=1, updates=True) as watched:
        for _ in range(2):
            model(**inputs)
    assert np.isnan(watched.data["update"]).all()
    assert np.isnan(watched.data["update_p"]).all()
