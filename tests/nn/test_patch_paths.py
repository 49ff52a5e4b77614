"""Patched models on every path of transformers: kernels, windows, packed sequences, caches and cross attention.

Each is beside the same model with ``A - C`` written out as a matrix, in double precision.
"""

import itertools
import random
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from small_models import SMALL, build  # noqa: E402

from bulkedge.nn import patches, remove_gap, restore_gap, scale_scores  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402

CLOSE = {"atol": 1e-10, "rtol": 0}
"""Numbers of order one in double precision; rotary angles are rounded to single precision, but alike in both."""


def explicit(_, query, key, value, attention_mask, *_rest, **wanted):
    """``A - C`` as a matrix under the mask that eager attention adds, and a bias of positions."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    scaling = wanted.get("scaling")
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if wanted.get("softcap") is not None:
        scores = wanted["softcap"] * torch.tanh(scores / wanted["softcap"])
    seen = torch.ones_like(scores, dtype=torch.bool)
    if attention_mask is not None:
        seen = (attention_mask > torch.finfo(attention_mask.dtype).min / 2).expand_as(scores)
        scores = scores + attention_mask
    if wanted.get("position_bias") is not None:
        scores = scores + wanted["position_bias"]
    scores = scores.masked_fill(~seen, -torch.inf)
    if wanted.get("s_aux") is not None:  # a sink outside of the keys
        sink = wanted["s_aux"].view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        attention = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    else:
        attention = torch.nan_to_num(scores.softmax(-1))
    centre = seen / seen.sum(-1, keepdim=True, dtype=scores.dtype).clamp(min=1)
    matrix = attention - attention.sum(-1, keepdim=True) * centre
    return (matrix @ value).transpose(1, 2).contiguous(), matrix


@pytest.fixture
def written_out(monkeypatch):
    """What a call of a model returns with the explicit attention in the place of its file's eager one."""

    def run(model, *, gradients=False, **inputs):
        with monkeypatch.context() as patch, torch.set_grad_enabled(gradients):
            patch.setattr(sys.modules[type(model).__module__], "eager_attention_forward", explicit)
            before = model.config._attn_implementation
            model.set_attn_implementation("eager")
            output = model(**inputs)
            model.set_attn_implementation(before)
            return output

    return run


def larger(model):
    """In double precision, with matrices so large that attention is not uniform."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4)
    return model.eval().double()


def decoder(window=None):
    """With shared keys, and a window if wanted."""
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        **SMALL, num_key_value_heads=2, vocab_size=50, max_position_embeddings=64, sliding_window=window,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return larger(transformers.MistralForCausalLM(config))


def tokens(*shape, seed=0):
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(seed))


def logits(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("before", ["eager", "sdpa", "flex_attention", "flash_attention_2"])
def test_whatever_kernel_a_model_had(before, written_out):
    """Those that are no fused kernels of torch are left for it, and that is said."""
    model, ids = decoder(window=5), tokens(2, 12)
    expected = written_out(model, input_ids=ids).logits
    model.config._attn_implementation_internal = before  # transformers refuses kernels that are not installed
    if before in {"eager", "sdpa"}:
        remove_gap(model)
    else:
        with pytest.warns(UserWarning, match=f"attends by {before}; while it is patched, by torch's fused attention"):
            remove_gap(model)
    remove_gap(model)  # is not told again
    torch.testing.assert_close(logits(model, input_ids=ids), expected, **CLOSE)
    restore_gap(model)
    assert model.config._attn_implementation == before


ENDS = torch.tensor([0, 4, 5, 12], dtype=torch.int32)
PACKED = {
    "positions": {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6]])},
    "ends": {"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS, "max_length_q": 7, "max_length_k": 7},
}
PACKED["both"] = PACKED["positions"] | PACKED["ends"]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("way", PACKED)
def test_packed_sequences_are_those_apart(way, window, written_out):
    """Means are over a row's own sequence. Rotary positions are relative: sequences need not begin at zero."""
    model, ids = decoder(window), tokens(1, 12)
    pieces = [ids[:, begin:end] for begin, end in itertools.pairwise(ENDS)]
    expected = torch.cat([written_out(model, input_ids=each).logits for each in pieces], dim=1)
    with remove_gap(model):
        found = logits(model, input_ids=ids, use_cache=False, **PACKED[way])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)  # angles are rounded to single precision


def test_packed_sequences_of_encoders(written_out):
    model, _ = build("bert")
    model, ids = model.double(), tokens(1, 12)
    positions = PACKED["positions"]["position_ids"]
    pieces = [ids[:, begin:end] for begin, end in itertools.pairwise(ENDS)]
    expected = torch.cat([written_out(model, input_ids=each).last_hidden_state for each in pieces], dim=1)
    with remove_gap(model), torch.no_grad():
        found = model(input_ids=ids, position_ids=positions, **PACKED["ends"]).last_hidden_state
        with pytest.raises(DomainError, match="packed sequences are a batch of one"):
            model(input_ids=ids.expand(2, -1), **PACKED["ends"])
        for ends in (ENDS[:-1], ENDS[1:], ENDS[:1], ENDS[:0], None):
            with pytest.raises(DomainError, match="give where sequences begin, from 0 to the number of tokens, 12"):
                model(input_ids=ids, **(PACKED["ends"] | {"cu_seq_lens_k": ends}))
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("inputs", [{}, PACKED["positions"], {"attention_mask": (torch.arange(12) > 2).long()[None]}])
def test_gradients_are_those_of_the_matrices(inputs, written_out):
    model, ids = decoder(window=5), tokens(1, 12)
    rows = inputs.get("attention_mask", torch.ones(1, 12)).bool()  # what padding sees differs by implementation
    given = {"input_ids": ids, "use_cache": False} | inputs
    outputs = [written_out(model, gradients=True, **given).logits]
    remove_gap(model)
    outputs.append(model(**given).logits)
    numbers = torch.randn(outputs[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = list(model.parameters())
    expected, found = (torch.autograd.grad((each * numbers)[rows].sum(), weights) for each in outputs)
    scale = max(float(each.abs().max()) for each in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12 * scale, rtol=0)


def test_packed_queries_and_keys_that_differ_are_refused():
    model = decoder()
    other = {"cu_seq_lens_k": torch.tensor([0, 6, 12], dtype=torch.int32)}
    with remove_gap(model), pytest.raises(DomainError, match="cu_seq_lens_q and cu_seq_lens_k differ in causal"):
        logits(model, input_ids=tokens(1, 12), use_cache=False, **(PACKED["ends"] | other))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed >= 10 else ()) for seed in range(200)]
)
def test_caches_continue_the_whole_pass(seed, written_out):
    """Random windows, padding, kinds of cache and pieces: one token and several, from an empty cache and a full one."""
    draw = random.Random(seed)
    model, ids, length = decoder(draw.choice([None, 3, 6, 40])), tokens(2, 14, seed=seed), 14
    mask = torch.ones(2, length, dtype=torch.long)
    if draw.random() < 0.5:
        mask[0, : draw.randrange(1, 4)] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    expected = written_out(model, input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    cuts = sorted({0, length, draw.randrange(4, 9), *(draw.randrange(4, length) for _ in range(draw.randrange(4)))})
    kind = draw.choice(["dynamic", "static"])
    cache = {
        "dynamic": lambda: transformers.DynamicCache(config=model.config),
        "static": lambda: transformers.StaticCache(config=model.config, max_cache_len=draw.choice([14, 20])),
    }[kind]()
    found = []
    with remove_gap(model):
        for begin, end in itertools.pairwise(cuts):
            found.append(
                logits(
                    model, input_ids=ids[:, begin:end], attention_mask=mask[:, :end],
                    position_ids=positions[:, begin:end], past_key_values=cache, use_cache=True,
                )
            )  # fmt: skip
    seen = mask.bool()
    torch.testing.assert_close(torch.cat(found, dim=1)[seen], expected[seen], **CLOSE)


@pytest.mark.parametrize("window", [None, 5])
def test_generation_by_every_way_writes_the_same(window):
    model, ids = decoder(window), tokens(1, 9)
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    expected = ids
    with remove_gap(model):
        for _ in range(8):
            following = logits(model, input_ids=expected, use_cache=False)[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat([expected, following], dim=1)
        for way in (
            {},
            {"cache_implementation": "static"},
            {"assistant_model": decoder(window)},
            {"prompt_lookup_num_tokens": 3},
            {"prefill_chunk_size": 4},
        ):
            assert torch.equal(model.generate(ids, **given, **way), expected), way


def test_block_masks_of_flex_attention_are_written_out(written_out):
    from torch.nn.attention.flex_attention import create_block_mask

    model, ids = decoder(), tokens(2, 12)
    blocks = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 4), None, None, 12, 12, device="cpu")
    near = torch.ones(12, 12, dtype=torch.bool).tril().triu(-3)
    additive = torch.zeros(2, 1, 12, 12, dtype=torch.float64).masked_fill(~near, -torch.inf)
    expected = written_out(model, input_ids=ids, attention_mask=additive).logits
    with remove_gap(model):
        torch.testing.assert_close(logits(model, input_ids=ids, attention_mask=blocks), expected, **CLOSE)
        torch.testing.assert_close(logits(model, input_ids=ids, attention_mask=additive), expected, **CLOSE)


@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_weights_that_are_asked_for_are_those_without_the_gap(before, written_out):
    model, ids = decoder(window=5), tokens(2, 12)
    expected = written_out(model, input_ids=ids, output_attentions=True)
    model.set_attn_implementation(before)
    with remove_gap(model), torch.no_grad():
        found = model(input_ids=ids, output_attentions=True)
        assert patches(model)
    assert len(found.attentions) == 3
    for one, other in zip(found.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    torch.testing.assert_close(found.logits, expected.logits, **CLOSE)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
@pytest.mark.parametrize("padding", [False, True])
def test_capped_scores_and_sinks(name, padding, written_out):
    """A cap so low that it matters, sinks with half of a row, windows in every other layer; and what these change."""
    model, inputs = build(name)
    model = model.double()
    if name == "gpt_oss":
        model.set_experts_implementation("eager")  # which alone takes double precision
    if padding:
        inputs["attention_mask"] = (torch.arange(20) < torch.tensor([[9], [20], [14]])).long()
    rows = inputs.get("attention_mask", torch.ones(3, 20)).bool()
    expected = written_out(model, **inputs).last_hidden_state
    with remove_gap(model), torch.no_grad():
        found = model(**inputs).last_hidden_state
        cache = transformers.DynamicCache(config=model.config)
        cut = {"input_ids": inputs["input_ids"][1:2], "past_key_values": cache}
        parts = [
            model(**(cut | {"input_ids": each})).last_hidden_state for each in cut["input_ids"].split([12, 1, 7], 1)
        ]
    torch.testing.assert_close(found[rows], expected[rows], **CLOSE)
    torch.testing.assert_close(torch.cat(parts, 1), expected[1:2], **CLOSE)
    for layer in model.layers:
        if name == "gemma2":
            layer.self_attn.attn_logit_softcapping = None
        else:
            layer.self_attn.sinks.data.fill_(-100.0)
    with remove_gap(model), torch.no_grad():
        assert (model(**inputs).last_hidden_state - found)[rows].abs().max() > 0.01


def test_sinks_get_gradients_and_factors_leave_them_alone():
    """Scores times zero give every key the same share, and the sink what its own score says."""
    model, inputs = build("gpt_oss")
    with remove_gap(model):
        model(**inputs).last_hidden_state.square().mean().backward()
    assert all(layer.self_attn.sinks.grad.abs().max() > 0 for layer in model.layers)
    model.set_attn_implementation("eager")
    with scale_scores(model, 1e-9), torch.no_grad():
        rows = model(**inputs, output_attentions=True).attentions[0][0]
    shares = 1 / (1 + model.layers[0].self_attn.sinks.detach().exp())  # of the first row, with a single key
    torch.testing.assert_close(rows[:, 0, 0], shares, atol=1e-6, rtol=0)


def test_what_patched_attention_has_not_is_refused():
    model = decoder()
    with remove_gap(model), pytest.raises(DomainError, match="MistralAttention asks for 'cache'"):
        logits(model, input_ids=tokens(1, 5), cache=torch.ones(4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
def test_a_step_of_decoding_is_one_graph():
    model, ids, mask = decoder(window=5), tokens(2, 12), torch.ones(2, 12, dtype=torch.long)
    with remove_gap(model):
        expected = logits(model, input_ids=ids, use_cache=False)[:, 11:]
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        logits(model, input_ids=ids[:, :11], attention_mask=mask[:, :11], past_key_values=cache)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        step = {"input_ids": ids[:, 11:], "position_ids": torch.full((2, 1), 11), "attention_mask": mask}
        torch.testing.assert_close(logits(compiled, **step, past_key_values=cache), expected, **CLOSE)


def bart():
    sizes = {f"{part}_{name}": number for part in ("encoder", "decoder") for name, number in
             {"layers": 2, "attention_heads": 4, "ffn_dim": 64}.items()}  # fmt: skip
    return transformers.BartModel(
        transformers.BartConfig(d_model=32, **sizes, vocab_size=50, max_position_embeddings=64)
    )


def t5():
    config = transformers.T5Config(
        d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=64, vocab_size=50, decoder_start_token_id=0
    )
    return transformers.T5Model(config)


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("build_model", [bart, t5])
def test_cross_attention_and_biases_of_positions(build_model, padding, written_out):
    torch.manual_seed(0)
    model = larger(build_model())
    inputs = {"input_ids": tokens(2, 11), "decoder_input_ids": tokens(2, 7, seed=1)}
    if padding:
        inputs["attention_mask"] = (torch.arange(11) < torch.tensor([[6], [11]])).long()
    expected = written_out(model, **inputs)
    with remove_gap(model), torch.no_grad():
        found = model(**inputs)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, **CLOSE)
    with torch.no_grad():
        assert (model(**inputs).last_hidden_state - found.last_hidden_state).abs().max() > 0.01


SHARED = {"num_key_value_heads": 2}
ARCHITECTURES = {
    "Cohere2": {"sliding_window": 5, **SHARED},
    "DeepseekV3": {
        "first_k_dense_replace": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 6,
    },
    "Doge": SHARED,
    "Gemma3Text": {
        "head_dim": 8, "sliding_window": 5, "layer_types": 2 * ["sliding_attention", "full_attention"], **SHARED,
    },
    "GPTNeoX": {},
    "Llama4Text": {
        "head_dim": 8, "attention_chunk_size": 5, "num_local_experts": 2, "intermediate_size_mlp": 64,
        "layer_types": 2 * ["chunked_attention", "full_attention"], **SHARED,
    },
    "ModernBert": {"local_attention": 5, "global_attn_every_n_layers": 2},
    "NomicBert": {"pad_token_id": 0},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "Phi3": SHARED,
    "Qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2, **SHARED},
    "Roberta": {"pad_token_id": 1},
}  # fmt: skip
"""Windows, chunks, values narrower than keys, masks that are learnt, norms of queries, positions of all kinds."""


@pytest.mark.slow
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name, padding, written_out):
    configuration, build_model = (getattr(transformers, name + kind, None) for kind in ("Config", "Model"))
    if build_model is None:
        pytest.skip(f"this transformers has no {name}")
    torch.manual_seed(0)
    sizes = SMALL | {"num_hidden_layers": 4, "vocab_size": 50, "max_position_embeddings": 64}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    model, ids = larger(build_model(configuration(**(sizes | ends | ARCHITECTURES[name])))), tokens(2, 14)
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[0, {None: slice(0), "left": slice(3), "right": slice(-3, None)}[padding]] = 0
    given = {"input_ids": ids} if padding is None else {"input_ids": ids, "attention_mask": mask}
    expected = written_out(model, **given).last_hidden_state[mask.bool()]
    with torch.no_grad():
        plain = model(**given).last_hidden_state[mask.bool()]
        with remove_gap(model):
            found = model(**given).last_hidden_state[mask.bool()]
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)  # four layers, each of which may amplify
    assert (found - plain).abs().max() > 1e-3
