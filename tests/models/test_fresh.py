"""Fresh heads: what is random and what stays, interpolation, and p-values that are uniform for random heads."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scipy import stats  # noqa: E402
from small_models import build, hidden  # noqa: E402

from bulkedge.errors import DomainError  # noqa: E402
from bulkedge.heads.measures import LEVELS, measured, spread  # noqa: E402
from bulkedge.models import fresh as room  # noqa: E402
from bulkedge.models import stream  # noqa: E402
from bulkedge.models.fresh import FreshHeads, draw_fresh, fresh_weights, spectral_distance  # noqa: E402
from bulkedge.models.scores import for_heads  # noqa: E402
from bulkedge.models.surprise import benjamini_hochberg, beside, p_values  # noqa: E402


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_only_directions_are_random(name):
    """Queries change, the mask and the scale stay, and the model is bit for bit what it was."""
    model, inputs = build(name)
    before = hidden(model, inputs)
    seen = []

    def visit(each):
        with fresh_weights(each.module, generator()):
            layer = each.again()
        assert not torch.allclose(layer.query, each.layer.query)
        assert layer.query.shape == each.layer.query.shape
        assert (layer.causal, layer.scale, layer.mask) == (each.layer.causal, each.layer.scale, each.layer.mask)
        assert torch.equal(each.again().query, each.layer.query)
        seen.append(layer)

    stream(model, visit, **inputs)
    assert len(seen) == 3
    assert torch.equal(hidden(model, inputs), before)


def test_torchs_own_attention_has_fresh_weights_too():
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 1).eval()
    weights = encoder.layers[0].self_attn.in_proj_weight
    kept, place = weights.detach().clone(), weights.data_ptr()

    def visit(each):
        with fresh_weights(each.module, generator()):
            assert not torch.allclose(each.again().query, each.layer.query)

    stream(encoder, visit, input=torch.randn(1, 9, 32))
    assert torch.equal(weights, kept)
    assert weights.data_ptr() == place


def test_queries_of_fresh_weights_have_the_inputs_geometry():
    """``E q q' = x . x'/width`` over draws: Gaussian maps of variance one over the width."""
    model, inputs = build("bert")
    found = []

    def visit(each):
        if "layer.0" not in each.layer.name:
            return
        x = each.inputs[0].double()
        draws = []
        for seed in range(60):
            with fresh_weights(each.module, generator(seed)):
                q = each.again().query[0].double()
            draws.append(torch.einsum("hid,hjd->ij", q, q) / (q.shape[0] * q.shape[2]))
        found.append((torch.stack(draws), x @ x.mT / x.shape[1]))

    stream(model, visit, **inputs)
    draws, expected = found[0]
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - expected).abs() < 5 * error).all()


def test_queries_that_come_from_elsewhere_are_refused(monkeypatch):
    model, inputs = build("bert")
    monkeypatch.setattr(room, "_is_linear", lambda module: False)
    with pytest.raises(DomainError, match="draws=0"):
        stream(model, lambda each: draw_fresh(each, None, np.ones(4), 2, generator()), **inputs)


def test_parabolas_are_interpolated_exactly():
    nodes = np.log(np.array([[0.5, 1.0, 2.5], [0.6, 0.9, 3.0]]))
    value = 0.3 + 0.2 * nodes - 0.7 * nodes**2
    fresh = FreshHeads(nodes, dict.fromkeys(room.TESTED, value), np.stack([value] * len(LEVELS), axis=-1))
    for beta in (0.55, 1.3, 2.8):
        numbers, spectra = fresh.at(beta)
        x = np.clip(np.log(beta), nodes[:, 0] - np.log(room.APART), nodes[:, -1] + np.log(room.APART))
        np.testing.assert_allclose(numbers["largest"], 0.3 + 0.2 * x - 0.7 * x**2)
        np.testing.assert_allclose(spectra[:, 5], 0.3 + 0.2 * x - 0.7 * x**2)


def test_spectral_distance_is_kolmogorovs():
    rng = np.random.default_rng(0)
    one, other = np.sort(rng.random(len(LEVELS))), np.sort(rng.random(len(LEVELS)) ** 1.5)
    expected = stats.ks_2samp(one, other).statistic
    assert spectral_distance(one, other) == pytest.approx(expected, abs=2.5 / len(LEVELS))
    assert spectral_distance(one, one) == pytest.approx(0.0, abs=1e-12)


def test_benjamini_hochberg_against_scipy():
    p = np.random.default_rng(1).random(40) ** 2
    np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p))


def random_heads(name, seed, betas=(0.5, 1.0, 2.0, 3.0), tokens=96, draws=19):
    """P-values of the heads of a random model, tempered to several inverse temperatures."""
    torch.manual_seed(seed)
    small = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 64}
    if name == "bert":
        model = transformers.BertModel(transformers.BertConfig(**small, vocab_size=200))
    else:
        config = transformers.LlamaConfig(**small, num_key_value_heads=2, vocab_size=200)
        model = transformers.LlamaModel(config)
    ids = torch.from_numpy((200 * np.random.default_rng(seed).random(tokens) ** 3).astype(int))
    found = []

    def visit(each):
        content, sight, _ = for_heads(lambda scores: scores, each.layer, ids)[0]
        targets = torch.tensor(betas, dtype=torch.float64)
        content = content * (targets / spread(content, sight))[:, None, None]
        measures = measured(content, sight=sight)
        fresh = draw_fresh(each, ids, measures["beta_without_sink"], draws, generator(seed))
        found.append(beside(measures, fresh))

    stream(model.eval(), visit, input_ids=ids[None])
    return p_values(found)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_random_heads_are_not_told_from_fresh_ones(name):
    """Eight models of eight heads: p-values below 5 % as often as chance allows, and none after the correction.

    The heads of a layer share their draws, so the number of small p-values scatters more than independent ones would:
    an upper bound of a fifth is 3 standard deviations of what 16 independent layers would show.
    """
    found = [random_heads(name, seed) for seed in range(8)]
    small = np.mean([each["p"] <= 0.05 for each in found])
    assert small <= 0.2
    assert np.mean([each["q"] <= 0.05 for each in found]) <= 0.05
    assert min(each["p"].min() for each in found) >= 1 / (2 * 19 + 1)


def test_a_planted_stripe_is_told():
    """A head that looks at the token before it, among random ones: the smallest p-value that its draws allow."""
    model, _ = build("bert")
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 50, 60))
    found = []

    def visit(each):
        content, sight, _ = for_heads(lambda scores: scores, each.layer, ids)[0]
        content = content / spread(content, sight)[:, None, None]
        content[1] += 4.0 * torch.eye(60, dtype=torch.float64).roll(-1, 1)
        measures = measured(content, sight=sight)
        found.append(beside(measures, draw_fresh(each, ids, measures["beta_without_sink"], 19, generator(1))))

    stream(model, visit, input_ids=ids[None])
    p = p_values(found)
    stripes = np.arange(len(p["p"])) % 4 == 1
    assert (p["p_offset_mass"][stripes] == 1 / (3 * 19 + 1)).all()
    assert (p["p"][stripes] <= 2 / (3 * 19 + 1)).all()
