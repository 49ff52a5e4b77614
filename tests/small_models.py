"""Transformers models of a few thousand weights, one for each way to attend."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}


def gpt2():
    config = transformers.GPT2Config(n_layer=3, n_head=4, n_embd=32, vocab_size=50, n_positions=64)
    return transformers.GPT2Model(config), tokens()


def llama():
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=50, max_position_embeddings=64)
    return transformers.LlamaModel(config), tokens()


def bert():
    config = transformers.BertConfig(**SMALL, vocab_size=50, max_position_embeddings=64)
    return transformers.BertModel(config), tokens()


def vit():
    config = transformers.ViTConfig(**SMALL, image_size=16, patch_size=4)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def gemma2():
    """Caps its scores, so low that it matters, and sees every other layer through a window."""
    config = transformers.Gemma2Config(
        **SMALL, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, vocab_size=50, max_position_embeddings=64,
        sliding_window=8, attn_logit_softcapping=0.5,
    )  # fmt: skip
    return transformers.Gemma2Model(config), tokens()


def gpt_oss():
    """Has a sink outside of its keys, of a few units, and windows."""
    config = transformers.GptOssConfig(
        **SMALL, num_key_value_heads=2, head_dim=8, vocab_size=50, max_position_embeddings=64, sliding_window=8,
        num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    model = transformers.GptOssModel(config)
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.sinks.normal_(std=2.0)
    return model, tokens()


def checkpoint_activations(model, *, on):
    """Recompute activations in the backward pass, or not; transformers 5.23 renamed the methods."""
    state = "enable" if on else "disable"
    names = f"activation_checkpointing_{state}", f"gradient_checkpointing_{state}"
    next(getattr(model, name) for name in names if hasattr(model, name))()


def tokens():
    return {"input_ids": torch.randint(0, 50, (3, 20))}


def padded(inputs, side):
    lengths = torch.tensor([[7], [20], [13]])
    mask = torch.arange(20) < lengths
    return inputs | {"attention_mask": (mask.flip(-1) if side == "left" else mask).long()}


MODELS = {each.__name__: each for each in (gpt2, llama, bert, vit)}
UNFUSED = {each.__name__: each for each in (gemma2, gpt_oss)}
"""Models that attend by more than torch's fused kernels compute."""


def build(name, factor=4, seed=0):
    """A model at random, its matrices larger than usual: else attention is uniform, and small beside the skips."""
    torch.manual_seed(seed)
    model, inputs = (MODELS | UNFUSED)[name]()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(factor)
    return model.eval(), inputs


def hidden(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def training(name, **wanted):
    """A model in training mode without dropout, and its inputs."""
    model, inputs = build(name, **wanted)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for key, value in vars(model.config).items():
        if key.endswith(("pdrop", "dropout_prob", "dropout")) and isinstance(value, float):
            setattr(model.config, key, 0.0)
    return model.train(), inputs


class PlainAttention(torch.nn.Module):
    """As nanoGPT has it, with bugs on demand."""

    def __init__(self, bug=""):
        super().__init__()
        self.qkv, self.proj, self.bug = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32), bug

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.qkv(x).split(32, dim=2))
        tokens = x.shape[1]
        if self.bug == "one ahead":
            mask = torch.ones(tokens, tokens, dtype=torch.bool).tril(1)
        elif self.bug == "added":  # zeros and ones, which are added to the scores and hide nothing
            mask = torch.ones(tokens, tokens).tril()
        else:
            mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        return self.proj(torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class PlainGPT(torch.nn.Module):
    """A decoder that calls torch's attention itself; bugs are of its layers."""

    def __init__(self, *bugs):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.place = torch.nn.Embedding(50, 32), torch.nn.Embedding(64, 32)
        self.layers = torch.nn.ModuleList([PlainAttention(bug) for bug in bugs or ("", "", "")])
        self.head, self.mixes, self.zero = torch.nn.Linear(32, 50), False, False

    def forward(self, idx):
        x = self.token(idx) + self.place(torch.arange(idx.shape[1]) * (not self.zero))
        if self.mixes:
            x = x - x.mean(1, keepdim=True)  # a norm over tokens, which is none over features
        for each in self.layers:
            x = x + each(x)
        return self.head(x)
