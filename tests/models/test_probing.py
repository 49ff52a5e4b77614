"""Scores on repeated tokens: planted heads, heads at random, a head that learnt, and models that have none."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import build  # noqa: E402

from bulkedge.models.hooks.attention_inputs import AttentionLayer  # noqa: E402
from bulkedge.models.loading import default  # noqa: E402
from bulkedge.models.scanning import probing  # noqa: E402
from bulkedge.models.scanning.probing import ordinary_tokens, probe  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402
from bulkedge.visibility import Visibility  # noqa: E402

LARGE = 60.0
"""A score beside which others have no weight."""


def planted(half, offsets):
    """A layer with a head for each offset, whose rows look at the key so far from them; scores are the mask."""
    tokens = 2 * half
    scores = torch.zeros(len(offsets), tokens, tokens)
    rows = torch.arange(tokens)
    for head, offset in zip(scores, offsets, strict=True):
        seen = (rows + offset).clamp(0, tokens - 1)
        head[rows, seen] = LARGE
    nothing = torch.zeros(1, len(offsets), tokens, 4)
    seen = Visibility(scores[None], causal=False, window=None, rows=scores.shape[-2], keys=scores.shape[-1])
    return AttentionLayer("planted", nothing, nothing, seen, scale=1.0)


def test_planted_heads_have_their_scores():
    half = 9
    layer = planted(half, [1 - half, -half, -1, 0])
    found = probing.repeated_scores(layer.attention()[0])
    np.testing.assert_allclose(found, np.eye(3, 4), atol=1e-12)


def test_layers_of_different_width_and_several_prompts(monkeypatch):
    """Layers that were heard are scored in their order, prompts are averaged, absent heads are nan."""
    model, _ = build("gpt2")
    prompts = []

    def heard(model, visit, input_ids):
        prompts.append(input_ids[0].numpy())
        half = input_ids.shape[1] // 2
        second = [-1] if len(prompts) == 1 else [-half]
        for layer in (planted(half, [1 - half, 0]), planted(half, second)):
            visit(SimpleNamespace(layer=layer))

    monkeypatch.setattr(probing, "stream", heard)
    scores = probe(model, tokens=20, prompts=2, rng=np.random.default_rng(0))
    np.testing.assert_allclose(scores["induction"], [[1, 0], [0, np.nan]], atol=1e-12)
    np.testing.assert_allclose(scores["previous"], [[0, 0], [0.5, np.nan]], atol=1e-12)
    np.testing.assert_allclose(scores["duplicate"], [[0, 0], [0.5, np.nan]], atol=1e-12)
    assert not np.array_equal(*prompts)
    for prompt in prompts:
        assert len(prompt) == 20
        np.testing.assert_array_equal(prompt[:10], prompt[10:])
        assert len(set(prompt.tolist())) == 10


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_heads_at_random_look_everywhere_alike(name):
    model, _ = build(name, factor=1)
    scores = probe(model, tokens=40, prompts=8, rng=np.random.default_rng(1))
    visible = np.arange(21, 41) if name != "bert" else np.full(20, 40)
    for each in scores.values():
        assert each.shape == (3, 4)
        # weights of 0.02 give scores of some hundredths: attention is uniform to as many parts
        np.testing.assert_allclose(each, np.mean(1 / visible), rtol=0.15)


@pytest.mark.always
def test_a_head_that_learnt_induction_is_found():
    """Two layers of attention and nothing else, on sequences that repeat: from no score to the best in seconds.

    The probe is tested, not the training: of the starts 0 to 3, three learnt induction within 200 steps, and start
    2 did not within 500.
    """
    letters, tokens, rows = 16, 32, 32
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_size=64,
        head_dim=32,
        intermediate_size=1,
        vocab_size=letters + 1,
        max_position_embeddings=64,
        initializer_range=64**-0.5,
        tie_word_embeddings=True,
        attention_bias=True,
        bos_token_id=0,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    before = probe(model.eval(), tokens=tokens, prompts=20, rng=np.random.default_rng(2))
    adam = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99))
    rng = np.random.default_rng(1)
    for step in range(500):
        inputs, labels = repeating(rng, rows, tokens, letters)
        adam.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 20)
        adam.zero_grad()
        loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        adam.step()
        if loss < 0.2:
            break
    after = probe(model, tokens=tokens, prompts=20, rng=np.random.default_rng(2))
    assert before["induction"].max() < 0.1
    assert after["induction"].max() > 0.5
    assert after["previous"].max() > 0.3  # the head in the layer below, that induction is made with
    assert after["induction"].argmax() // 4 == 1
    single = [probe(model, tokens=tokens, prompts=1, rng=np.random.default_rng(each)) for each in range(100, 200)]
    found = [each["induction"].max() > 0.5 and each["induction"].argmax() // 4 == 1 for each in single]
    assert sum(found) >= 99


def repeating(rng, rows, tokens, letters):
    """Sequences that repeat after four to sixteen letters, and what counts in the loss."""
    inputs = torch.empty((rows, tokens), dtype=torch.long)
    labels = torch.empty_like(inputs)
    for row in range(rows):
        size = int(rng.integers(4, 17))
        segment = rng.permutation(letters)[:size] + 1
        inputs[row] = labels[row] = torch.from_numpy(np.resize(segment, tokens))
        labels[row, :size] = -100
    return inputs, labels


def test_special_tokens_are_not_drawn(monkeypatch):
    model, _ = build("bert")
    model.config.pad_token_id, model.config.eos_token_id = 0, [3, 4]
    model.config.bos_token_id = 7
    drawn = set()
    real = probing.stream

    def heard(model, visit, input_ids):
        drawn.update(input_ids.flatten().tolist())
        return real(model, visit, input_ids=input_ids)

    monkeypatch.setattr(probing, "stream", heard)
    probe(model, tokens=64, prompts=20, rng=np.random.default_rng(0))
    assert drawn == set(range(50)) - {0, 3, 4, 7}
    drawn.clear()
    probe(model, tokens=64, vocabulary=[0, 5, 6, 9], rng=np.random.default_rng(0))
    assert drawn == {5, 6, 9}
    drawn.clear()
    probe(model, tokens=64, vocabulary=6, rng=np.random.default_rng(0))
    assert drawn == {1, 2, 5}


def test_special_tokens_of_a_tokenizer():
    assert ordinary_tokens(default.letters()) == tuple(range(1, 32))


def test_prompts_are_no_longer_than_the_model_reads():
    model, _ = build("gpt2")  # 64 positions
    assert probe(model, tokens=1000, prompts=1, rng=np.random.default_rng(0))["previous"].shape == (3, 4)


def test_what_has_no_tokens_is_refused_in_words():
    rng = np.random.default_rng(0)
    with pytest.raises(DomainError, match="pixel_values, not tokens"):
        probe(build("vit")[0], rng=rng)
    small = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 30}
    with pytest.raises(DomainError, match="an encoder and a decoder"):
        probe(transformers.BartModel(transformers.BartConfig(**small, **heads)), rng=rng)
    with pytest.raises(DomainError, match="does not say how many tokens it knows"):
        probe(torch.nn.TransformerEncoderLayer(8, 2), rng=rng)
    with pytest.raises(DomainError, match="no tokenizer of transformers"):
        ordinary_tokens(str.split)
    with pytest.raises(DomainError, match="too few"):
        probe(build("bert")[0], vocabulary=[7], rng=rng)
    with pytest.raises(DomainError, match="vocabulary"):
        probe(build("bert")[0], vocabulary=[7, 50], rng=rng)
    with pytest.raises(DomainError, match="rng"):
        probe(build("bert")[0], rng=3)
