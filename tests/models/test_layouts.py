"""Every layout splits as the model itself does: circuits against those that come out of the models' own code.

The oracle never touches the weights. Each attention of a model of ``WIDTH`` tokens gets the identity as its input, so
that the queries, keys and values which arrive at the kernel are the projections themselves; a kernel that passes on
the values of one head makes the output projection show that head's OV circuit. What a zero input gives, the biases, is
taken off. Dense products are decomposed.
"""

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bulkedge.models import scan_weights  # noqa: E402
from bulkedge.models.circuits import circuits  # noqa: E402

WIDTH, HEADS, DIM = 24, 4, 6
BASIC = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2, "intermediate_size": 16}
TEXT = BASIC | {"vocab_size": 30, "max_position_embeddings": 64}
NO_TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
IDS = torch.arange(WIDTH)[None]
TWO_SIDED = {"input_ids": IDS, "decoder_input_ids": IDS}


def gpt2():
    config = transformers.GPT2Config(n_layer=2, n_head=HEADS, n_embd=WIDTH, vocab_size=30, n_positions=64)
    return transformers.GPT2Model(config)


def llama():
    return transformers.LlamaModel(transformers.LlamaConfig(**TEXT, num_key_value_heads=2))


def gemma():
    """Heads whose dimensions do not add up to the width, one key head for all."""
    return transformers.GemmaModel(transformers.GemmaConfig(**TEXT, num_key_value_heads=1, head_dim=8))


def bert():
    return transformers.BertModel(transformers.BertConfig(**TEXT))


def neox():
    return transformers.GPTNeoXModel(transformers.GPTNeoXConfig(**TEXT))


def phi3():
    return transformers.Phi3Model(transformers.Phi3Config(**TEXT, num_key_value_heads=2, **NO_TOKENS))


def opt():
    return transformers.OPTModel(transformers.OPTConfig(**TEXT, ffn_dim=16, word_embed_proj_dim=WIDTH))


def distilbert():
    config = transformers.DistilBertConfig(n_layers=2, n_heads=HEADS, dim=WIDTH, hidden_dim=16, vocab_size=30)
    return transformers.DistilBertModel(config)


def albert():
    return transformers.AlbertModel(transformers.AlbertConfig(**TEXT, embedding_size=8, num_hidden_groups=2))


def modernbert():
    return transformers.ModernBertModel(transformers.ModernBertConfig(**TEXT, **NO_TOKENS))


def bigcode(*, multi_query=True):
    config = transformers.GPTBigCodeConfig(
        n_layer=2, n_head=HEADS, n_embd=WIDTH, vocab_size=30, n_positions=64, multi_query=multi_query
    )
    return transformers.GPTBigCodeModel(config)


def bigcode_of_many_keys():
    return bigcode(multi_query=False)


def t5():
    config = transformers.T5Config(d_model=WIDTH, d_kv=DIM, num_heads=HEADS, num_layers=2, d_ff=16, vocab_size=30)
    return transformers.T5Model(config)


def bart():
    """Towers with different numbers of heads."""
    config = transformers.BartConfig(
        d_model=WIDTH, encoder_layers=1, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=HEADS,
        encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=30, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.BartModel(config)


def whisper():
    config = transformers.WhisperConfig(
        d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=3, decoder_attention_heads=HEADS,
        encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=30, max_source_positions=WIDTH, num_mel_bins=4,
        **NO_TOKENS, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.WhisperModel(config)


def vit():
    return transformers.ViTModel(transformers.ViTConfig(**BASIC, image_size=(4, 92), patch_size=4, num_channels=1))


MODELS = (gpt2, llama, gemma, bert, neox, phi3, opt, distilbert, albert, modernbert, bigcode, bigcode_of_many_keys)
INPUTS = {make: {"input_ids": IDS} for make in MODELS} | {
    t5: TWO_SIDED,
    bart: TWO_SIDED,
    whisper: {"input_features": torch.zeros(1, 4, 2 * WIDTH, dtype=torch.float64), "decoder_input_ids": IDS},
    vit: {"pixel_values": torch.zeros(1, 1, 4, 92, dtype=torch.float64)},
}
OUTPUTS = ("c_proj", "o_proj", "out_proj", "out_lin", "Wo", "dense", "o")
"""Names that modules of the output have in some architecture; the first call after a kernel's is that of its module."""


class Probe:
    """One pass of a model whose attentions see the identity (or zero) and let one head through.

    Of the batch, the first ``HEADS`` members see the identity and the others zero; member k lets head k through.
    """

    def __init__(self, model):
        self.model, self.calls = model, []
        for config in {id(each.config): each.config for each in model.modules() if hasattr(each, "config")}.values():
            config._attn_implementation = "probe"
        transformers.AttentionInterface.register("probe", self.kernel)
        seen = torch.cat([torch.eye(WIDTH).expand(HEADS, -1, -1), torch.zeros(HEADS, WIDTH, WIDTH)]).double()
        for name, module in model.named_modules():
            own = name.split(".")[-1]
            if own in OUTPUTS:
                module.register_forward_hook(self.after_output)
            if own in INPUT_NAMES and hasattr(module, "weight"):
                module.register_forward_pre_hook(lambda module, args: (seen,))
            if "rotary" in own:  # every token at position zero
                module.register_forward_hook(lambda module, args, output: (output[0] * 0 + 1, output[1] * 0))

    def kernel(self, module, query, key, value, *args, **options):
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
        kept = torch.zeros_like(value)
        for member in range(len(value)):
            head = min(member % HEADS, value.shape[1] - 1)
            kept[member, head] = value[member, head]
        self.calls.append([query, key, None])
        return kept.transpose(1, 2), None

    def after_output(self, module, args, output):
        if self.calls and self.calls[-1][2] is None:
            self.calls[-1][2] = output

    def circuits(self, inputs):
        """Of each attention, in the order of calls: products (heads, WIDTH, WIDTH), and what the queries' bias adds."""
        with torch.no_grad():
            self.model(**{name: each.expand(2 * HEADS, *each.shape[1:]) for name, each in inputs.items()})
        for call in self.calls:
            query, key, written = (each.numpy() for each in call)
            left, right, written = (each[:HEADS] - each[HEADS:] for each in (query, key, written))
            heads = query.shape[1]
            yield left[0] @ right[0].transpose(0, 2, 1), written[:heads], right[0] @ query[HEADS, :, 0, :, None]


INPUT_NAMES = {"q_proj", "k_proj", "v_proj", "query", "key", "value", "q_lin", "k_lin", "v_lin", "q", "k", "v"}
INPUT_NAMES |= {"c_attn", "query_key_value", "qkv_proj", "Wqkv"}


def built(make):
    torch.manual_seed(1)
    model = make()
    with torch.no_grad():
        for each in model.parameters():
            each.normal_(std=0.5 if each.dim() > 1 else 0.2)
    return model.double().eval()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # one architecture still calls it when it is imported
@pytest.mark.parametrize("make", INPUTS, ids=lambda make: make.__name__)
def test_circuits_are_those_of_the_model(make, tmp_path, monkeypatch):
    model = built(make)
    model.save_pretrained(tmp_path)
    found = scan_weights(tmp_path)
    monkeypatch.setattr(circuits, "ENTRIES", 1)  # one group of heads at a time
    for together, apart in zip(found.members, scan_weights(tmp_path).members, strict=True):
        np.testing.assert_allclose(together.singular, apart.singular, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(together.bias_norm, apart.bias_norm, rtol=1e-9, atol=1e-12)
    wanted = list(Probe(model).circuits(INPUTS[make]))
    assert len(found.members) == 2 * len(wanted) > 0
    for k, (scores, written, added) in enumerate(wanted):
        # these two multiply queries by the scale of the scores, which is not part of the circuit
        factor = found.members[2 * k].null.size ** 0.5 if make in (opt, whisper) else 1.0
        for circuit, matrices in zip(found.members[2 * k : 2 * k + 2], (factor * scores, written), strict=True):
            dense = np.linalg.svd(matrices, compute_uv=False)
            assert circuit.layer == k
            assert len(circuit.singular) == len(matrices)
            np.testing.assert_allclose(circuit.singular[:, ::-1], dense[:, : circuit.null.size], rtol=1e-9, atol=1e-9)
            assert dense[:, circuit.null.size :].max(initial=0) < 1e-9
        lengths = factor * np.linalg.norm(added[:, :, 0], axis=1)
        np.testing.assert_allclose(found.members[2 * k].bias_norm, lengths, rtol=1e-9, atol=1e-9)


def split_by(module, fused):
    """Queries, keys and values as the module itself takes them apart, each (heads, WIDTH, dim)."""
    if hasattr(module, "_reshape"):
        return [each[0].numpy() for each in module._reshape(fused)]
    return [each[0].transpose(0, 1).numpy() for each in module._split_heads(fused)]


@pytest.mark.parametrize("kind", ["bloom", "persimmon", "falcon", "falcon, many keys", "falcon, new"])
def test_fused_projections_are_taken_apart_as_the_model_does(kind, tmp_path):
    """Architectures without transformers' interface: their own split of the fused projection, of the identity."""
    if kind == "bloom":
        config = transformers.BloomConfig(n_layer=1, n_head=HEADS, hidden_size=WIDTH, vocab_size=30)
        model = built(lambda: transformers.BloomModel(config))
    elif kind == "persimmon":
        config = transformers.PersimmonConfig(**TEXT | {"num_hidden_layers": 1}, **NO_TOKENS)
        model = built(lambda: transformers.PersimmonModel(config))
    else:
        options = {"multi_query": kind == "falcon", "new_decoder_architecture": kind.endswith("new"), "num_kv_heads": 2}
        config = transformers.FalconConfig(**BASIC | {"num_hidden_layers": 1, "vocab_size": 30} | options)
        model = built(lambda: transformers.FalconModel(config))
    module = model.layers[0].self_attn if kind == "persimmon" else model.h[0].self_attention
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        fused = torch.eye(WIDTH).double() @ module.query_key_value.weight.T
        query, key, value = split_by(module, fused[None])
        output = module.dense.weight.numpy().reshape(WIDTH, HEADS, DIM)
    found = scan_weights(tmp_path)
    products = query @ key.transpose(0, 2, 1), value @ output.transpose(1, 2, 0)
    for circuit, matrices in zip(found.members, products, strict=True):
        dense = np.linalg.svd(matrices, compute_uv=False)[:, :DIM]
        np.testing.assert_allclose(circuit.singular[:, ::-1], dense, rtol=1e-9, atol=1e-9)


def test_towers_have_configurations_of_their_own(tmp_path):
    tower = BASIC | {"num_hidden_layers": 1}
    text = transformers.CLIPTextConfig(**tower | {"num_attention_heads": 2, "vocab_size": 30})
    vision = transformers.CLIPVisionConfig(**tower | {"num_attention_heads": 3, "image_size": 8, "patch_size": 4})
    config = transformers.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict())
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    heads = {each.module.split("_")[0]: len(each.singular) for each in scan_weights(tmp_path).members}
    assert heads == {"text": 2, "vision": 3}


def test_the_order_of_modules_is_that_of_the_calls(tmp_path):
    built(t5).save_pretrained(tmp_path)
    modules = [each.module for each in scan_weights(tmp_path).members if each.circuit == "QK"]
    first = ["decoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"]
    assert modules == [
        *(f"encoder.block.{k}.layer.0.SelfAttention" for k in range(2)),
        *first,
        *(each.replace("block.0", "block.1") for each in first),
    ]


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "circuits.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], {})  # noqa: S102 - our own page
    said = capsys.readouterr().out.splitlines()
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1].splitlines()
    assert said[-1] == shown[-1]
    assert ("QK circuits: 4 of 16" in said[1], "OV circuits: 0 of 16" in said[2]) == (True, True)
