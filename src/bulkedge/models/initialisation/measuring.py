"""What a random instance of a model does, layer by layer: the truth for predictions, and the answer for unknown models.

>>> from transformers import LlamaConfig
>>> sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
>>> config = LlamaConfig(**sizes, vocab_size=99)
>>> found = measure(config, tokens=64, seed=0)
>>> found["beta"].shape, bool(found["entropy"][0] > 3)
((2,), True)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bulkedge.models.hooks.attention_inputs import AttentionLayer
from bulkedge.models.hooks.capture import capture
from bulkedge.support.arrays import Real
from bulkedge.support.errors import DomainError

FEWEST = 16  # keys of a row that counts
READOUT = 0.02  # deviation of the weights that a gradient comes from, where the configuration has none


def make_instance(config: Any, seed: int) -> torch.nn.Module:
    """A random model of this configuration in single precision; of an encoder-decoder, its encoder."""
    from transformers import AutoModel

    auto: Any = AutoModel  # it has no types

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config, dtype=torch.float32)
    model = model.get_encoder() if getattr(config, "is_encoder_decoder", False) else model
    return model.eval()


def random_inputs(config: Any, tokens: int, seed: int) -> dict[str, Tensor]:
    """Uniform random tokens, or an image of white noise."""
    rng = torch.Generator().manual_seed(seed)
    text = config.get_text_config()
    if getattr(config, "image_size", None) and getattr(text, "vocab_size", None) is None:
        side = config.image_size if isinstance(config.image_size, tuple | list) else [config.image_size] * 2
        return {"pixel_values": torch.randn(1, config.num_channels, *side, generator=rng)}
    vocabulary = getattr(text, "vocab_size", None)
    if not vocabulary:
        raise DomainError(f"the configuration ({config.model_type}) reads neither tokens nor images")
    ids = torch.randint(vocabulary, (1, tokens), generator=rng)
    padding = getattr(text, "pad_token_id", None)
    return {"input_ids": torch.where(ids == padding, (ids + 1) % vocabulary, ids) if padding is not None else ids}


def measure(config: Any, tokens: int, seed: int, readout: float = READOUT) -> dict[str, Real]:
    """Numbers of every layer of one random instance on random tokens."""
    model, inputs = make_instance(config, seed), random_inputs(config, tokens, seed)
    heads = [_heads(layer) for layer in capture(model, **inputs) if not layer.cross]
    states, gradients = _stream(model, inputs, readout, seed)
    if len(states) != len(heads):
        raise DomainError(
            f"{type(model).__name__} has {len(heads)} attentions and {len(states)} layers with hidden states; preflight"
            " measures models with one attention a layer"
        )
    found = {name: np.array([each[name] for each in heads]) for name in heads[0]}
    tokenwise = [_tokens(each) for each in states]
    found |= {name: np.array([each[name] for each in tokenwise]) for name in tokenwise[0]}
    return found | {"gradient": np.array([float(each.norm()) for each in gradients])}


def _stream(
    model: torch.nn.Module, inputs: dict[str, Tensor], readout: float, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """What enters every layer, and its gradient for random labels: of the mean over tokens of a random readout."""
    with torch.enable_grad():
        output = model(**inputs, output_hidden_states=True)
        states, last = output.hidden_states[:-1], output.last_hidden_state
        labels = readout * torch.randn(last.shape, generator=torch.Generator().manual_seed(seed))
        gradients = torch.autograd.grad((last * labels).sum() / last.shape[1], states)
    return [each[0].detach() for each in states], [each[0] for each in gradients]


def _tokens(state: Tensor) -> dict[str, float]:
    """Power, mean cosine and stable rank of the tokens of a stream."""
    x = state.double()
    power, count = float(x.square().mean()), len(x)
    unit = x / x.norm(dim=1, keepdim=True)
    cosine = float((unit.sum(0).square().sum() - count) / (count * (count - 1)))
    largest = float(torch.linalg.matrix_norm(unit, 2)) ** 2
    return {"cosine": cosine, "token_rank": count / largest, "power": power}


def _heads(layer: AttentionLayer) -> dict[str, float]:
    """Means over the heads of a layer, and over rows of at least :data:`FEWEST` keys."""
    weights = layer.attention()[0]
    scores = layer.cap(layer.scale * (layer.query.double() @ layer.key.double().mT))[0]
    bias = layer.bias()
    seen = (
        torch.ones_like(scores, dtype=torch.bool)
        if bias is None
        else torch.isfinite(bias).expand(scores[None].shape)[0]
    )
    count = seen.sum(-1)
    rows = count >= min(FEWEST, int(count.max()))
    mean = torch.where(seen, scores, 0.0).sum(-1) / count
    variance = torch.where(seen, scores - mean[..., None], 0.0).square().sum(-1) / count
    entropy = torch.special.entr(weights).sum(-1)
    values = torch.linalg.eigvalsh(weights @ weights.mT).flip(-1).clamp(min=0).sqrt()  # the largest two matter
    return {
        "beta": float(variance[rows].mean().sqrt()),
        "entropy": float(entropy[rows].mean()),
        "largest": float(weights.amax(-1)[rows].mean()),
        "gap": float((1 - values[:, 1] / values[:, 0]).mean()) if values.shape[1] > 1 else 1.0,
        "rank": float((values.square().sum(-1) / values[:, 0].square()).mean()),
    }
