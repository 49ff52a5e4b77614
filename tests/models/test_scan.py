"""A whole scan: right heads, planted ones found, the model left as it was, saved and loaded, in words and as a page."""

import json
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import MODELS, UNFUSED, build, hidden  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.heads.measures.attention_measures import MEASURES, measure_heads  # noqa: E402
from bulkedge.models import capture  # noqa: E402
from bulkedge.models.scanning.random_heads import TESTED  # noqa: E402
from bulkedge.models.scanning.scanner import sequences  # noqa: E402
from bulkedge.support.errors import DomainError, RegimeWarning, StoreError  # noqa: E402

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
    assert [each.inputs["input_ids"].shape[1] for each in passages] == [30, 32]
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
    with pytest.raises(DomainError, match="no idle candidates"):
        type(scan)(scan.data.assign(idle=scan.data["idle"] & False), model=model).ablate(loss)
