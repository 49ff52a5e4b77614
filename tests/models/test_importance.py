"""Fisher importance of heads: against Jacobians by finite differences, labels enumerated; and against what is lost."""

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import build as small_model  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.models import default_model, held_out_loss  # noqa: E402
from bulkedge.models.hooks.gates import HeadGates, OutputReader, output_columns  # noqa: E402
from bulkedge.models.loading import default  # noqa: E402
from bulkedge.models.scanning import importance  # noqa: E402
from bulkedge.models.scanning.importance import copied_tokens, gate_samples  # noqa: E402
from bulkedge.models.scanning.results import OUTPUT, Scan  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402
from bulkedge.support.estimates import Estimate  # noqa: E402

TOKENS, WORDS, STEP = 6, 5, 1e-4


def build(kind, seed=0):
    """Two layers of two heads with a vocabulary of five tokens, in double precision."""
    torch.manual_seed(seed)
    if kind == "llama":
        config = transformers.LlamaConfig(
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=8, intermediate_size=8,
            vocab_size=WORDS, max_position_embeddings=16,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=8, vocab_size=WORDS, n_positions=16, bos_token_id=None, eos_token_id=None
        )
        model = (transformers.GPT2LMHeadModel if kind == "gpt2" else transformers.GPT2Model)(config)
    for weight in model.parameters():
        weight.data *= 8 if weight.dim() == 2 else 1
    return model.double().eval(), {"input_ids": torch.arange(TOKENS)[None] % WORDS, "use_cache": False}


def jacobian(gates, inputs, means=None):
    """Derivatives of what the model says in its gates, (tokens, entries, heads), by central differences."""

    def say(values):
        with torch.no_grad(), gates.on(values, means):
            return importance.model_output(gates.model(**inputs))[0][0]

    one, steps = torch.ones(gates.count, dtype=torch.float64), STEP * torch.eye(gates.count, dtype=torch.float64)
    return say(one), torch.stack([(say(one + step) - say(one - step)) / (2 * STEP) for step in steps], -1)


def outputs_of(gates, inputs):
    """What a pass shows of the outputs of the heads of each module."""
    outputs = OutputReader(gates)
    with torch.no_grad(), outputs.reading():
        gates.model(**inputs)
    return [outputs.columns(site.name) for site in gates.sites]


def fisher(said, slopes):
    """J' (diag p - p p') J, in nats a token."""
    share = said.softmax(-1)
    mean = torch.einsum("tv,tvh->th", share, slopes)
    return (torch.einsum("tv,tvh->th", share, slopes**2) - mean**2).mean(0) / 2


def test_with_labels_enumerated_it_is_the_curvature(monkeypatch):
    """One position counts: its samples, weighted with the probabilities of labels, give the curvature exactly."""
    model, inputs = build("gpt2")
    gates = HeadGates.of(model, **inputs)
    said, slopes = jacobian(gates, inputs)
    labels = iter(range(WORDS))
    monkeypatch.setattr(
        importance.torch, "multinomial", lambda share, *_, **__: torch.full((len(share), 1), next(labels))
    )
    samples = gate_samples(gates, inputs, draws=WORDS, generator=torch.Generator(), start=TOKENS - 1)
    found = torch.einsum("v,vh->h", said[-1].softmax(-1), samples**2) / 2
    torch.testing.assert_close(found, fisher(said[-1:], slopes[-1:]), rtol=1e-6, atol=1e-12)
    assert found.min() > 1e-6


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_drawn_labels_have_the_curvature_as_their_mean(kind, replaced):
    model, inputs = build(kind)
    gates = HeadGates.of(model, **inputs)
    means = None
    if replaced:
        means = [each["mean_output"].double() for each in outputs_of(gates, inputs)]
    expected = fisher(*jacobian(gates, inputs, means))
    samples = gate_samples(
        gates, inputs, draws=200, generator=torch.Generator().manual_seed(0), means=means
    ).square().numpy() / 2  # fmt: skip
    errors = samples.std(0, ddof=1) / len(samples) ** 0.5
    assert np.all(np.abs(samples.mean(0) - expected.numpy()) < 4 * errors)
    assert np.all(errors < 0.15 * samples.mean(0))


def test_it_is_what_a_small_step_of_a_gate_costs():
    """Divergence of the predictions from those of the whole model, step squared times importance."""
    model, inputs = build("gpt2")
    gates = HeadGates.of(model, **inputs)
    said, slopes = jacobian(gates, inputs)
    for head, expected in enumerate(fisher(said, slopes).tolist()):
        lost = []
        for step in (1e-3, -1e-3):  # the mean of both has no cubic term
            values = torch.ones(gates.count, dtype=torch.float64)
            values[head] -= step
            with torch.no_grad(), gates.on(values):
                other = model(**inputs).logits[0]
            lost.append(float((said.softmax(-1) * (said.log_softmax(-1) - other.log_softmax(-1))).sum(-1).mean()))
        assert sum(lost) / 2 == pytest.approx(1e-6 * expected, rel=1e-3)


def test_without_logits_it_is_the_change_of_the_output_as_a_share_of_its_variance():
    model, inputs = build("hidden")
    gates = HeadGates.of(model, **inputs)
    said, slopes = jacobian(gates, inputs)
    variance = (said - said.mean(0)).square().sum(-1).mean()
    expected = slopes.square().sum((0, 1)) / variance / TOKENS / 2
    samples = gate_samples(gates, inputs, draws=200, generator=torch.Generator().manual_seed(0)).square().numpy() / 2
    errors = samples.std(0, ddof=1) / len(samples) ** 0.5
    assert np.all(np.abs(samples.mean(0) - expected.numpy()) < 4 * errors)


def test_the_error_of_the_output_covers_more_tokens():
    """Of independent tokens: as often as a standard error should, against a mean over very many."""
    rng = torch.Generator().manual_seed(0)
    maps, residual = torch.randn(1, 4, 8, generator=rng), torch.ones(1)
    many = output_columns(torch.randn(100_000, 1, 4, generator=rng), maps, residual)
    away = []
    for _ in range(200):
        found = output_columns(torch.randn(64, 1, 4, generator=rng), maps, residual)
        away.append(float((found["output"] - many["output"]) / found["output_error"]))
    # Student's t of seven degrees of freedom has a standard deviation of 1.18
    assert np.std(away) == pytest.approx(1.18, abs=0.25)
    assert abs(np.mean(away)) < 0.3


def test_parameters_are_as_they_were():
    model, inputs = build("gpt2")
    model.lm_head.weight.requires_grad = False
    before = {name: each.requires_grad for name, each in model.named_parameters()}
    gates = HeadGates.of(model, **inputs)
    gate_samples(gates, inputs, draws=1, generator=torch.Generator())
    with pytest.raises(IndexError):
        gate_samples(gates, {"input_ids": inputs["input_ids"] + WORDS}, draws=1, generator=torch.Generator())
    assert {name: each.requires_grad for name, each in model.named_parameters()} == before
    assert all(each.grad is None for each in model.parameters())


def test_a_model_that_says_nothing_is_refused():
    with pytest.raises(DomainError, match="str without logits"):
        importance.model_output("nothing")


def test_columns_are_norms_behind_the_projection_over_the_residual_stream():
    """Against the weights, written out."""
    model, inputs = build("gpt2")
    gates, seen = HeadGates.of(model, **inputs), {}
    with torch.no_grad(), gates.reading(lambda site, *each: seen.update({site: each})):
        states = model(**inputs, output_hidden_states=True).hidden_states
    found = columns_of(model, inputs)
    for layer, site in enumerate(gates.sites):
        outputs, weight = seen[site][0][0], model.transformer.h[layer].attn.c_proj.weight.detach()
        residual = states[layer][0].norm(dim=-1).median()
        for head in range(2):
            mapped = outputs[:, head] @ weight[4 * head : 4 * head + 4]
            place = 2 * layer + head
            for name, vectors in (("output", mapped), ("variation", mapped - mapped.mean(0))):
                expected = float(vectors.norm(dim=-1).mean() / residual)
                assert float(found[name][place]) == pytest.approx(expected, rel=1e-4), name
            assert float(found["norm"][place]) == pytest.approx(float(mapped.norm(dim=-1).mean()), rel=1e-4)


def test_copies_are_of_the_pool_and_come_twice():
    drawn = copied_tokens([3, 5, 8], 4, 20, torch.Generator().manual_seed(0))
    assert drawn.shape == (4, 20)
    assert set(drawn.flatten().tolist()) == {3, 5, 8}
    assert torch.equal(drawn[:, :10], drawn[:, 10:])
    assert not torch.equal(drawn[0], drawn[1])


# -- the columns of a scan ---------------------------------------------------------------------------------------------

QUIET = {"draws": 0, "probe": False}


def columns_of(model, inputs):
    """The same of all heads of a model."""
    each = outputs_of(HeadGates.of(model, **inputs), inputs)
    return {name: torch.cat([one[name] for one in each]) for name in ("norm", *OUTPUT)}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "gpt_oss"])
def test_a_scan_has_the_outputs_of_every_text(name):
    """Texts one after the other; random heads run the modules again, and are not read."""
    model, inputs = small_model(name)
    found = be.scan(model, inputs, draws=5, probe=False).data
    for text in range(found.sizes["text"]):
        expected = columns_of(model, {key: each[text : text + 1] for key, each in inputs.items()})
        for column in ("output", "variation"):
            np.testing.assert_allclose(found[column][text], expected[column], rtol=1e-5)


def test_layers_that_were_asked_for_have_their_own_outputs():
    model, inputs = small_model("llama")
    whole, one = be.scan(model, inputs, **QUIET), be.scan(model, inputs, layers=[1], **QUIET, importance=True)
    np.testing.assert_array_equal(one.data["output"], whole.data["output"][:, 4:8])
    assert one.data["importance"].shape == (4,)


def test_torch_attention_has_outputs_and_importance():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    model, inputs = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(1, 40, 16)
    found = be.scan(model, {"src": inputs}, **QUIET, importance=True)
    np.testing.assert_allclose(found.data["output"][0], columns_of(model, {"src": inputs})["output"], rtol=1e-5)
    assert (found.data["importance"] > 0).all()
    assert "importance_copies" not in found.data
    assert all(isinstance(each.out_proj.weight, torch.nn.Parameter) for each in (one.self_attn for one in model.layers))


def test_importance_of_a_scan_is_the_curvature_on_text_and_on_copies():
    model, inputs = build("llama")
    ids = torch.arange(2 * TOKENS)[None] * 3 % WORDS
    found = be.scan(model, ids, **QUIET, importance=True, rng=1)
    gates = HeadGates.of(model, **inputs)
    expected = fisher(*jacobian(gates, {"input_ids": ids, "use_cache": False})).numpy()
    error = expected * (2 / importance.SAMPLES) ** 0.5 * 1.5
    assert np.all(np.abs(found.data["importance_text"] - expected) < 4 * error)
    both = found.data["importance_text"] + found.data["importance_copies"]
    np.testing.assert_allclose(found.data["importance"], both)
    assert np.all((found.data["importance_error"] > 0) & (found.data["importance_error"] < found.data["importance"]))
    assert found.table[["importance", "output", "variation"]].notna().to_numpy().all()
    again = be.scan(model, ids, **QUIET, importance=True, rng=1)
    np.testing.assert_array_equal(again.data["importance"], found.data["importance"])
    more = set(found.warnings) - set(be.scan(model, ids, **QUIET).warnings)
    assert [each[:44] for each in more] == ["Importance was measured on 12 tokens at most"]


def test_enough_tokens_are_not_warned_of():
    model, _ = small_model("llama")
    ids = torch.arange(3 * 48).view(3, 48) % model.config.vocab_size
    found = be.scan(model, ids, **QUIET, importance=True)
    assert not [each for each in found.warnings if "tokens at most" in each]


def test_a_model_without_a_projection_keeps_its_other_columns():
    """Its heads are read; what they are worth is missing, and says why."""

    model, inputs = small_model("llama")
    for layer in model.layers:
        own = layer.self_attn.o_proj.weight
        layer.self_attn.o_proj = Unknown(own)
    found = be.scan(model, inputs, **QUIET, importance=True)
    for name in ("output", "variation", "importance", "importance_error"):
        assert found.data[name].isnull().all()
    assert found.data["beta"].notnull().all()
    assert any("Missing: importance. The model's heads do not meet" in each for each in found.warnings)


# -- which heads can go ------------------------------------------------------------------------------------------------


def test_a_removal_costs_the_curvature_of_its_heads_together():
    """Half the mean square of the sum over heads, against Jacobians of the model."""
    model, _ = build("llama")
    ids = torch.arange(2 * TOKENS)[None] * 3 % WORDS
    found = be.scan(model, ids, **QUIET, importance=True, rng=1)
    gates = HeadGates.of(model, input_ids=ids)
    said, slopes = jacobian(gates, {"input_ids": ids, "use_cache": False})
    text = Scan(found.data.drop_vars("effects_copies"))
    for count in (1, 2, 3, 4):
        removal = text.removable(count)
        away = slopes[..., [2 * layer + head for layer, head in removal]].sum(-1, keepdim=True)
        assert removal.cost.value == pytest.approx(float(fisher(said, away)), abs=4 * removal.cost.error)
        assert 0 < removal.cost.error < 0.3 * removal.cost.value
    both = found.removable(1)
    place = 2 * both.heads[0][0] + both.heads[0][1]
    assert both.cost.value == pytest.approx(float(found.data["importance"].min()))
    assert both.cost.error == pytest.approx(float(found.data["importance_error"][place]))


@pytest.fixture
def heads_that_interact():
    """Six heads in two modules, of which pairs share keys: 0 and 3 undo each other, 1 and 2 do the same, against 0."""
    rng = np.random.default_rng(0)
    a, b, c, d = rng.standard_normal((4, 400)) * np.array([[1.0], [0.8], [1.1], [1.2]])
    b -= a / 4
    module = ["a", "a", "a", "a", "b", "b"]
    return xr.Dataset(
        {"effects_text": (("draw", "item"), np.stack([a, b, b, -a, c, d], 1))},
        coords={
            "layer": ("item", [0, 0, 0, 0, 1, 1]), "head": ("item", [0, 1, 2, 3, 0, 1]), "module": ("item", module),
            "key_head": ("item", [0, 0, 1, 1, 0, 0]),
        },
        attrs={"model": "planted"},
    )  # fmt: skip


def test_heads_go_that_add_least(heads_that_interact):
    scan = Scan(heads_that_interact)
    assert list(scan.removable(1)) == [(0, 1)]  # the smallest effect of all
    assert list(scan.removable(4)) == [(0, 1), (0, 0), (0, 3), (1, 0)]  # what undoes the second makes it free
    assert list(scan.removable(3)) == list(scan.removable(share=0.5)) == list(scan.removable(share=0.6))
    effects = scan.data["effects_text"].to_numpy()
    draws = np.square(effects[:, [1, 0, 3, 4]].sum(1)) / 2
    assert scan.removable(4).cost.value == pytest.approx(draws.mean())
    assert scan.removable(4).cost.error == pytest.approx(draws.std(ddof=1) / 20)
    assert len(scan.removable(6)) == 6


def test_a_budget_is_kept(heads_that_interact):
    scan = Scan(heads_that_interact)
    one, two = (scan.removable(count).cost.value for count in (1, 2))
    assert list(scan.removable(budget=1.001 * one)) == [(0, 1)]
    assert list(scan.removable(budget=(one + two) / 2)) == [(0, 1)]
    assert scan.removable(budget=1.001 * two) == scan.removable(3)  # the third undoes the second, and costs nothing
    assert len(scan.removable(budget=0.9 * one)) == 0
    assert scan.removable(budget=0.9 * one).cost.value == 0


def test_heads_of_a_key_go_together(heads_that_interact):
    scan = Scan(heads_that_interact)
    assert set(scan.removable(2, groups=True)) == {(0, 0), (0, 1)}
    assert list(scan.removable(1, groups=True)) == []
    assert len(scan.removable(5, groups=True)) == 4


def test_a_module_that_is_called_twice_has_one_gate(heads_that_interact):
    """Its heads have a row for each call, and go in all of them."""
    data = heads_that_interact.isel(item=[4, 5, 4, 5]).assign_coords(layer=("item", [0, 0, 1, 1]))
    found = Scan(data).removable(3)
    assert list(found) == [(0, 0), (1, 0)]
    assert found.cost.value == pytest.approx(Scan(heads_that_interact.isel(item=[4, 5])).removable(1).cost.value)


def test_groups_are_those_of_the_model():
    model, inputs = small_model("llama")
    found = be.scan(model, inputs, **QUIET, importance=True, layers=[0, 2])
    assert found.data["key_head"].to_numpy().tolist() == [0, 0, 1, 1] * 2
    removal = list(found.removable(share=0.5, groups=True))
    assert len(removal) == 4
    assert {(layer, head ^ 1) for layer, head in removal} == set(removal)


def test_a_saved_scan_says_the_same(tmp_path):
    model, inputs = small_model("gpt2")
    found = be.scan(model, inputs, **QUIET, importance=True)
    assert be.load_scan(found.save(tmp_path / "scan")).removable(3, groups=True) == found.removable(3, groups=True)
    (head,) = found.removable(share=0.1)
    assert f"The tenth of the heads that costs least: layer {head[0]}, head {head[1]}. Predicted" in found.summary()


def test_what_cannot_be_said_is_refused(heads_that_interact):
    model, inputs = small_model("gpt2")
    found = be.scan(model, inputs, **QUIET)
    assert "remove" not in found.summary()
    with pytest.raises(DomainError, match="importance=True"):
        found.removable(2)
    scan = Scan(heads_that_interact)
    for wrong in ({}, {"heads": 1, "share": 0.1}):
        with pytest.raises(DomainError, match="one of"):
            scan.removable(**wrong)
    for wrong in ({"heads": 0}, {"heads": 7}, {"share": 1.5}, {"budget": -1.0}, {"budget": float("nan")}):
        with pytest.raises(DomainError, match=next(iter(wrong))):
            scan.removable(**wrong)


@pytest.fixture(scope="module", params=[0, 1])
def trained(request):
    """A default decoder, its scan on pages that it has read, and what heads cost on others and on copied letters."""
    model, tokenizer = default_model(seed=request.param)
    learnt, _ = default.text_codes(tokenizer)
    found = be.scan(model, [text[None, at : at + 256] for text in learnt for at in (0, 1000)], tokenizer=tokenizer,
                    draws=0, importance=True)  # fmt: skip
    ids = copied_tokens(range(1, 32), 32, 256, torch.Generator().manual_seed(99))

    def copying(each):
        with torch.no_grad():
            said = each(input_ids=ids).logits[:, 128:-1]
        return float(torch.nn.functional.cross_entropy(said.flatten(0, 1), ids[:, 129:].flatten()))

    return model, found, (held_out_loss, copying)


@pytest.mark.slow
def test_what_a_scan_removes_is_cheap(trained):
    """A tenth and a quarter of the heads of the default decoder, beside random sets; measured: docs/scan.md."""
    model, found, losses = trained
    modules = dict(zip(found.data["layer"].to_numpy().tolist(), found.data["module"].to_numpy().tolist(), strict=True))
    places, rng = [(layer, head) for layer in range(3) for head in range(4)], np.random.default_rng(0)
    gates = HeadGates.of(model, input_ids=torch.ones(1, 5, dtype=torch.long))

    def cost(heads):
        with gates.on(gates.without([(modules[layer], head) for layer, head in heads])):
            without = [loss(model) for loss in losses]
        return np.array(without) - [loss(model) for loss in losses]

    for share in (0.1, 0.25):
        removal = found.removable(share=share)
        drawn = [cost([places[each] for each in rng.choice(12, len(removal), replace=False)]) for _ in range(20)]
        own, random = cost(removal), Estimate.of(np.array(drawn))
        print(list(removal), removal.cost)  # noqa: T201
        for what, mine, mean, error in zip(("held-out text", "copies"), own, random.value, random.error, strict=True):
            print(f"{share:.0%} of {found.data.attrs['model']}, {what}: {mine:.3f}, random {mean:.2f} ± {error:.2f}")  # noqa: T201
        assert np.all(own < 0.5 * (random.value - random.error))
        named = found.table.set_index(["layer", "head"])["kind"]
        assert not {"induction"} & {named[each] for each in removal}


class Unknown(torch.nn.Module):
    """A linear map that does not look like one."""

    def __init__(self, weight):
        super().__init__()
        self.kept = weight

    def forward(self, inputs):
        return inputs @ self.kept.T


def test_in_steps_the_cost_is_what_predictions_are_found_to_lose():
    """Divergence of the predictions without the heads, on the text and on the second copies."""
    model, _ = build("llama")
    ids = torch.arange(2 * TOKENS)[None] * 3 % WORDS
    found = be.scan(model, ids, **QUIET, importance=True, rng=1)
    removal = found.removable(2, steps=2)
    gates, lost = HeadGates.of(model, input_ids=ids), []
    off = gates.without((gates.sites[layer].name, head) for layer, head in removal)
    for several, start in (([{"input_ids": ids}], 0), (found.material.copies(4), None)):
        rows = []
        for inputs in several:
            with torch.no_grad():
                whole = model(**inputs).logits[0].log_softmax(-1)
                with gates.on(off):
                    other = model(**inputs).logits[0].log_softmax(-1)
            rows.append((whole.exp() * (whole - other)).sum(-1)[len(whole) // 2 if start is None else start :].mean())
        lost.append(float(torch.stack(rows).mean()))
    assert removal.cost.value == pytest.approx(sum(lost), rel=0.2)  # blocks of rows are not all as long
    assert removal.cost.error > 0
    budget = found.removable(budget=0.9 * removal.cost.value, steps=3)
    assert budget.cost.value <= 0.9 * removal.cost.value
    assert set(found.removable(3, steps=3)) > set(found.removable(1, steps=2)) == set(found.removable(1))
    with pytest.raises(DomainError, match="no model to measure again"):
        Scan(found.data).removable(2, steps=2)


@torch.no_grad()
def test_copying_is_asked_beside_the_users_loss():
    """The first numbers are the user's; those of the second copies are made by hand."""
    model, _ = build("llama")
    ids = torch.arange(2 * TOKENS)[None] * 3 % WORDS
    found = be.scan(model, ids, **QUIET, rng=1)

    def loss(each):
        with torch.no_grad():
            return each(input_ids=ids).logits[0].square().mean(-1)

    result = found.ablate(loss, [(0, 1)], draws=2)
    prompts, costs = found.material.copies(16), []
    with be.models.ablate_heads(model, {"model.layers.0.self_attn": [1]}):
        changed = [loss(model), [model(**each).logits[0] for each in prompts]]
    for inputs, other in zip(prompts, changed[1], strict=True):
        half, whole = inputs["input_ids"].shape[1] // 2, model(**inputs).logits[0]
        right = inputs["input_ids"][0, half + 1 :]
        each = [torch.nn.functional.cross_entropy(logits[half:-1], right) for logits in (other, whole)]
        costs.append(float(each[0] - each[1]))
    assert result.cost == pytest.approx(float((changed[0] - loss(model)).mean()))
    assert result.error == pytest.approx(float((changed[0] - loss(model)).std() / len(ids[0]) ** 0.5))
    assert result.copies.cost == pytest.approx(np.mean(costs))
    assert result.copies.error == pytest.approx(np.std(costs, ddof=1) / 4)
    assert result.copies.control.error >= 0
    encoder, inputs = small_model("bert")
    read = be.scan(encoder, inputs, **QUIET)
    assert read.ablate(lambda each: each(**inputs).last_hidden_state.mean().item(), [(0, 1)], draws=2).copies is None
