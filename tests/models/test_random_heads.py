"""Random heads: what is random and what stays, interpolation, and p-values."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scipy import stats  # noqa: E402
from small_models import SMALL, build, hidden  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.heads.measures.attention_measures import measure_heads, spread  # noqa: E402
from bulkedge.heads.measures.singular_values import LEVELS  # noqa: E402
from bulkedge.models import stream  # noqa: E402
from bulkedge.models.hooks import capture as captures  # noqa: E402
from bulkedge.models.hooks.capture import map_heads  # noqa: E402
from bulkedge.models.scanning import random_heads as room  # noqa: E402
from bulkedge.models.scanning.random_heads import (  # noqa: E402
    Deviations,
    RandomHeads,
    benjamini_hochberg,
    deviations,
    draw_random_heads,
    interpolate,
    p_values,
    random_weights,
    spectral_distance,
)
from bulkedge.support.errors import DomainError  # noqa: E402


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_only_directions_are_random(name):
    """Queries change, the mask and the scale stay, and the model is bit for bit what it was."""
    model, inputs = build(name)
    before = hidden(model, inputs)
    seen = []

    def visit(each):
        with random_weights(each.module, generator()):
            layer = each.again()
        assert not torch.allclose(layer.query, each.layer.query)
        assert layer.query.shape == each.layer.query.shape
        assert (layer.causal, layer.scale, layer.mask) == (each.layer.causal, each.layer.scale, each.layer.mask)
        assert torch.equal(each.again().query, each.layer.query)
        seen.append(layer)

    stream(model, visit, **inputs)
    assert len(seen) == 3
    assert torch.equal(hidden(model, inputs), before)


def test_torchs_own_attention_has_random_weights_too():
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 1).eval()
    weights = encoder.layers[0].self_attn.in_proj_weight
    kept, place = weights.detach().clone(), weights.data_ptr()

    def visit(each):
        with random_weights(each.module, generator()) as module:
            assert not torch.allclose(each.again(module).query, each.layer.query)

    stream(encoder, visit, input=torch.randn(1, 9, 32))
    assert torch.equal(weights, kept)
    assert weights.data_ptr() == place


def test_queries_of_random_weights_have_the_inputs_geometry():
    """``E q q' = x . x'/width`` over draws: Gaussian maps of variance one over the width."""
    model, inputs = build("bert")
    found = []

    def visit(each):
        if "layer.0" not in each.layer.name:
            return
        x = each.inputs[0].double()
        draws = []
        for seed in range(60):
            with random_weights(each.module, generator(seed)):
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
        stream(model, lambda each: draw_random_heads(each, None, np.ones(4), 2, generator()), **inputs)


def spaced(draws, low=0.5, high=3.0):
    """Nodes of draws between two inverse temperatures, as they are chosen."""
    return np.log(room._grid(np.array([low, high]), draws))


@pytest.mark.parametrize(("draws", "degree"), [(5, 2), (8, 3), (19, 5), (99, 5)])
def test_lines_of_their_own_and_a_common_curve_are_interpolated_exactly(draws, degree):
    """Between the nodes and a little beyond, whatever is behind the first two axes."""
    rng = np.random.default_rng(draws)
    common, lines = rng.standard_normal(degree + 1), rng.standard_normal((draws, 2))

    def curve(x):
        return np.polynomial.polynomial.polyval(x, common) + lines[:, :1] + lines[:, 1:] * x

    nodes = spaced(draws)
    for place in (-0.8, -0.6, 0.0, 0.5, 1.0, 1.2):
        found = interpolate(nodes, np.stack([curve(nodes)] * 2, axis=-1), np.full(draws, place))
        np.testing.assert_allclose(found, np.stack([curve(np.full((draws, 1), place))[:, 0]] * 2, axis=-1), atol=1e-9)


def test_values_at_the_nodes_are_those_that_were_given():
    rng = np.random.default_rng(3)
    nodes = spaced(19)
    values = rng.standard_normal((19, 3))
    for place in range(3):
        np.testing.assert_allclose(interpolate(nodes, values, nodes[:, place]), values[:, place], atol=1e-9)


@pytest.mark.parametrize("hidden_step", [0, 1])
def test_a_step_that_a_sink_hides_magnifies_nothing(hidden_step):
    """Of one draw two nodes are next to each other with different values; no draw goes far beyond its values."""
    rng = np.random.default_rng(4)
    nodes, values = spaced(19), rng.random((19, 3))
    nodes[7, hidden_step + 1] = nodes[7, hidden_step] + 1e-9
    nodes[7, 2] = max(nodes[7, 2], nodes[7, 1] + 1e-9)
    for place in np.linspace(nodes[:, 0].min() - 0.2, nodes[:, 2].max() + 0.2, 25):
        assert np.abs(interpolate(nodes, values, np.full(19, place))).max() < 50


def test_random_heads_are_read_at_a_temperature():
    betas = np.exp(spaced(7))
    value = 0.3 + 0.2 * np.log(betas)
    null = RandomHeads(betas, dict.fromkeys(room.TESTED, value), np.stack([value] * len(LEVELS), axis=-1))
    for beta, read in ((0.1, 0.4), (1.3, 1.3), (20.0, 3.75)):
        numbers, spectra = null.at(beta)
        np.testing.assert_allclose(numbers["largest"], 0.3 + 0.2 * np.log(read))
        np.testing.assert_allclose(spectra[:, 5], 0.3 + 0.2 * np.log(read))


@pytest.mark.parametrize("betas", [[1.0, 1.0], [0.2, 9.0], [1e-4, 1e4]])
def test_every_draw_has_a_middle_of_its_own(betas):
    low, middle, high = room._grid(np.array(betas), 19).T
    assert np.ptp(low) == np.ptp(high) == 0
    assert (np.diff(middle) > 0).all()
    assert (low < middle).all()
    assert (middle < high).all()
    assert low[0] <= min(betas) or low[0] <= room.FLATTEST
    assert high[0] >= max(betas)


@pytest.mark.parametrize("at_once", [1, 2**20])
def test_draws_are_tempered_to_their_own_grid(at_once, monkeypatch):
    """However heads are cut into portions, and over several runs of the module."""
    monkeypatch.setitem(captures.AT_ONCE, "cpu", at_once)
    model, inputs = build("bert")
    ids = inputs["input_ids"][0]
    betas, grid = np.array([0.2, 0.9]), room._grid(np.array([0.2, 0.9]), 7)
    found = []
    stream(model, lambda each: found.append(draw_random_heads(each, ids, betas, 7, generator()).betas), **inputs)
    np.testing.assert_allclose(np.stack(found), np.stack([grid] * 3), rtol=1e-6)


@pytest.mark.parametrize("cap", [2.0, 0.5])
def test_random_heads_are_capped_as_the_head_is(cap, monkeypatch):
    """Heated before the cap, to the temperature that is wanted after it, or to what the cap allows."""
    model, inputs = build("gemma2")
    for each in model.layers:
        each.self_attn.attn_logit_softcapping = cap
    inputs = {"input_ids": inputs["input_ids"][:1]}
    largest, found, measures = [], [], room.comparison_measures

    def noted(content, visibility, operator):
        largest.append(float(content(slice(None)).abs().max()))
        return measures(content, visibility, operator)

    monkeypatch.setattr(room, "comparison_measures", noted)
    wanted = np.array([0.02, 0.3]) * cap  # at the second, a tenth of the spread is lost to the cap
    stream(model, lambda each: found.append(draw_random_heads(each, None, wanted, 6, generator())), **inputs)
    assert 0.5 * cap < max(largest) <= cap
    for each in found:
        np.testing.assert_allclose(each.betas[:, 0], room._grid(wanted, 6)[:, 0], rtol=1e-2)
        np.testing.assert_allclose(each.betas[:, 2], room._grid(wanted, 6)[:, 2], rtol=1e-2)


def test_random_heads_do_not_depend_on_sinks_outside_of_the_keys():
    """Nor does what they are compared by: that share is told and taken away."""
    model, inputs = build("gpt_oss")
    inputs = {"input_ids": inputs["input_ids"][:1]}

    def numbers():
        found = []
        stream(
            model,
            lambda each: found.append(draw_random_heads(each, None, np.array([0.5, 1.0]), 6, generator())),
            **inputs,
        )
        return [each.numbers["evenness"] for each in found[:1]]

    before = numbers()
    with torch.no_grad():
        model.layers[0].self_attn.sinks += 3
    np.testing.assert_array_equal(numbers(), before)


def test_spectral_distance_is_kolmogorovs():
    rng = np.random.default_rng(0)
    one, other = np.sort(rng.random(len(LEVELS))), np.sort(rng.random(len(LEVELS)) ** 1.5)
    expected = stats.ks_2samp(one, other).statistic
    assert spectral_distance(one, other) == pytest.approx(expected, abs=2.5 / len(LEVELS))
    assert spectral_distance(one, one) == pytest.approx(0.0, abs=1e-12)


def test_benjamini_hochberg_against_scipy():
    p = np.random.default_rng(1).random(40) ** 2
    np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p))


def test_a_planted_stripe_is_told():
    """A head that looks at the token before it, among random ones: the smallest p-value that its draws allow."""
    model, _ = build("bert")
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 50, 60))
    found = []

    def visit(each):
        content, visibility = map_heads(lambda scores: (scores.content(), scores.visibility), each.layer, ids)[0]
        content = content / spread(content, visibility)[:, None, None]
        content[1] += 4.0 * torch.eye(60, dtype=torch.float64).roll(-1, 1)
        measures = measure_heads(content, visibility=visibility)
        found.append(
            deviations(measures, draw_random_heads(each, ids, measures["beta_without_sink"], 19, generator(1)))
        )

    stream(model, visit, input_ids=ids[None])
    p = p_values(found)
    stripes = np.arange(len(p["p"])) % 4 == 1
    assert (p["p_offset_mass"][stripes] == 1 / (3 * 19 + 1)).all()
    assert (p["p"][stripes] <= 2 / (3 * 19 + 1)).all()


@pytest.mark.parametrize("skew", [False, True])
def test_p_values_are_ranks_also_within_one_layer(skew):
    """Nine independent measures, 19 draws, one layer: p <= 0.05 in 0.05 of the heads, within four standard errors.

    Random heads that are compared without the head gave 0.12: where they happen to be alike the head is far from them,
    and they are not far from each other.
    """
    rng, rates = np.random.default_rng(5), []
    for _ in range(250):
        layer = Deviations({}, {}, {}, {}, None, None, None)
        for name in range(9):
            values = rng.standard_exponential((20, 4)) if skew and name % 2 else rng.standard_normal((20, 4))
            values[:-1] = values[:-1, :1]  # heads share their draws
            ranked = np.abs(room._leave_one_out(values))
            layer.heads[name], layer.peers[name] = ranked[-1], ranked[:-1]
            layer.others[name] = np.abs(room._leave_one_out(values[:-1]))
        rates.append(np.mean(p_values([layer])["p"] <= 0.05))
    assert np.mean(rates) == pytest.approx(0.05, abs=4 * np.std(rates) / len(rates) ** 0.5)


def test_heads_that_are_uniform_have_no_p_values():
    """Below the flattest random heads nothing is compared; other heads keep their p-values."""
    assert np.isnan(benjamini_hochberg(np.array([0.01, np.nan, 0.5]))).tolist() == [False, True, False]
    model, _ = build("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight[:8] *= 1e-9
        model.encoder.layer[1].attention.self.query.bias[:8] = 0
    scan = be.scan(model, torch.arange(48)[None] % 13, draws=5, probe=False)
    assert np.flatnonzero(np.isnan(scan.data["p"].isel(text=0))).tolist() == [4]
    assert np.flatnonzero(np.isnan(scan.data["q"].isel(text=0))).tolist() == [4]


@pytest.mark.parametrize("size", [0.02, 0.01])
def test_flat_heads_are_compared_at_their_own_temperature(size):
    """Models as they start, beta down to 0.003: the mean of random heads is within a quarter of what they differ by.

    Measured: 0.16. A quarter makes 5.7 % of random heads have p <= 0.05. When random heads were no flatter than 0.05,
    flatter heads differed from them by all that beta does.
    """
    config = transformers.LlamaConfig(**SMALL, vocab_size=50, initializer_range=size)
    torch.manual_seed(3)
    model, off, ids = transformers.LlamaModel(config).eval(), [], torch.arange(64)[None] % 23

    def visit(each):
        parts = map_heads(lambda scores: spread(scores.products, scores.visibility), each.layer)
        beta = torch.cat(parts).numpy()
        wide, own = ([low, high] for low, high in ((beta.min() / 2, beta.max() * 2), (beta[1], 2 * beta[1])))
        among, exact = (draw_random_heads(each, ids[0], np.array(betas), 19, generator()) for betas in (wide, own))
        found, right = among.at(beta[1])[0], exact.numbers
        off.extend((found[name].mean() - right[name][:, 0].mean()) / right[name][:, 0].std() for name in room.TESTED)

    stream(model, visit, input_ids=ids)
    assert np.nanmax(np.abs(off)) < 0.25


def test_values_that_are_rounding_are_the_same_for_heads_and_random_heads():
    """Half of the values are zero at the flat end, and interpolation goes below them in between.

    A head at the flat end with the same zeros is as far from random heads as these are. It was 0.5 away: zeros of
    random heads counted as some small number, and those of heads as the least that any interpolation gave.
    """
    rng, draws = np.random.default_rng(0), 19
    spectra = np.sort(rng.random((draws + 2, len(LEVELS))), axis=1) * (np.arange(len(LEVELS)) > 128)
    nodes = spaced(draws)
    logs = np.log(np.maximum(spectra[:draws, None], 1e-8)) + np.zeros((1, 3, 1))
    logs[:, 2, :129] += 15.0 * rng.random((draws, 1))
    numbers = {name: np.zeros((draws, 3)) for name in room.TESTED}
    measures = {name: np.full(2, 0.5) for name in room.TESTED} | {"spectrum": spectra[draws:]}
    betas = np.array([np.exp(nodes[0, 0]), np.exp(nodes[0, 0]) / 1.2])
    found = deviations(measures | {room.COORDINATE: betas}, RandomHeads(np.exp(nodes), numbers, logs))
    assert (found.distance < 2 * found.null_distance).all()
    assert (found.null_distance < 0.2).all()
