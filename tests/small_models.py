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


def tokens():
    return {"input_ids": torch.randint(0, 50, (3, 20))}


def padded(inputs, side):
    lengths = torch.tensor([[7], [20], [13]])
    mask = torch.arange(20) < lengths
    return inputs | {"attention_mask": (mask.flip(-1) if side == "left" else mask).long()}


MODELS = {each.__name__: each for each in (gpt2, llama, bert, vit)}


def build(name, factor=4, seed=0):
    """A model at random, its matrices larger than usual: else attention is uniform, and small beside the skips."""
    torch.manual_seed(seed)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(factor)
    return model.eval(), inputs


def hidden(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state
