"""What a configuration of transformers says of a model at initialisation: sizes, norms, positions, and weights' scales.

No weight is made. A family is known by its ``model_type``; :func:`read_blueprint` returns None for others.

>>> from transformers import LlamaConfig
>>> found = read_blueprint(LlamaConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4))
>>> found.head_dim, found.placement, len(found.layers), found.score_scale
(16, 'pre', 2, 0.25)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bulkedge.support.arrays import Real
from bulkedge.support.errors import DomainError

Placement = Literal["pre", "post", "sandwich", "branch"]
"""Where norms stand: before branches, after the sum (BERT), on both sides of branches (Gemma), after them (OLMo 2)."""
QKNorm = Literal["none", "head", "all"]


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """What differs from layer to layer."""

    window: int | None  # keys that a row sees, itself included; None for all
    frequencies: Real  # of rotary positions, radians a token; empty without
    rotary_gain: float = 1.0  # factor of the scores that comes with scaled rotary positions


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A model at initialisation. Deviations are of weights; powers are mean squares of an entry of the stream."""

    family: str
    layers: tuple[LayerPlan, ...]
    width: int
    heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    activation: str
    placement: Placement
    eps: float
    score_scale: float
    query: float
    key: float
    value: float
    output: float
    up: float
    down: float
    embedding_power: float  # of what differs from token to token, at entry
    position_power: float = 0.0  # of learned positions, which differ too, and do so for equal tokens
    common_power: float = 0.0  # of what all tokens share at entry (BERT's token type)
    first_power: float | None = None  # of the first token's own part, where it is not one of the others (ViT's class)
    shared_heads: int | None = None  # heads of keys and values, where several heads of queries share one
    readout: float = 0.02  # deviation of the weights that make logits
    gated: bool = False
    causal: bool = True
    qk_norm: QKNorm = "none"
    softcap: float | None = None
    alibi: bool = False
    position_bias: float = 0.0  # deviation of T5's bias of a bucket of distances
    entry_norm: bool = False  # a norm before the first layer
    final_norm: bool = True
    norm_gain: float = 1.0  # weight of norms
    context: int | None = None  # the longest that the configuration declares
    tied: bool = False
    gap_free: bool = False  # attention less the mean of what a row sees
    notes: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def score_deviation(self) -> float:
        """Standard deviation of the scores of tokens of unit power that have nothing in common."""
        if self.qk_norm != "none":
            return self.score_scale * math.sqrt(self.head_dim)
        return self.score_scale * math.sqrt(self.head_dim) * self.query * self.key * self.width


def read_blueprint(config: Any) -> Blueprint | None:
    """The model of a configuration, or None if its family is not known."""
    config = config.get_text_config() if getattr(config, "text_config", None) is not None else config
    reader = FAMILIES.get(str(getattr(config, "model_type", "")))
    return None if reader is None else reader(config)


def _size(config: Any, *names: str) -> int:
    """A positive number of the configuration, by the first of its names that is there."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    raise DomainError(
        f"the configuration ({getattr(config, 'model_type', None) or type(config).__name__}) has no {names[0]} above"
        " zero: preflight is for models with attention heads"
    )


# -- decoders ----------------------------------------------------------------------------------------------------------


def _decoder(config: Any, **changes: Any) -> Blueprint:
    """Llama, and what differs from it in a word."""
    width, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    head_dim = getattr(config, "head_dim", None) or width // heads
    sigma = float(config.initializer_range)
    scaled = getattr(config, "query_pre_attn_scalar", None) or head_dim
    base = Blueprint(
        family=config.model_type,
        layers=_layers(config, head_dim),
        width=width,
        heads=heads,
        head_dim=head_dim,
        feed_forward=_size(config, "intermediate_size"),
        vocabulary=_size(config, "vocab_size"),
        activation=str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", "silu")),
        placement="pre",
        eps=float(config.rms_norm_eps),
        score_scale=scaled**-0.5,
        query=sigma,
        key=sigma,
        value=sigma,
        output=sigma,
        up=sigma,
        down=sigma,
        embedding_power=sigma**2,
        readout=sigma,
        shared_heads=getattr(config, "num_key_value_heads", None),
        gated=True,
        context=getattr(config, "max_position_embeddings", None),
        tied=bool(config.tie_word_embeddings),
    )
    return replace(base, **changes)


def _gemma(config: Any, **changes: Any) -> Blueprint:
    """Embeddings times the root of the width; norms on both sides from the second generation on."""
    base = _decoder(config)
    return replace(
        base,
        embedding_power=base.embedding_power * base.width,
        softcap=getattr(config, "attn_logit_softcapping", None),
        causal=not getattr(config, "use_bidirectional_attention", False),
        **changes,
    )


def _layers(config: Any, head_dim: int) -> tuple[LayerPlan, ...]:
    """Window and rotary frequencies of every layer."""
    kinds = getattr(config, "layer_types", None) or [None] * _size(config, "num_hidden_layers")
    size = getattr(config, "sliding_window", None)
    known: dict[str | None, LayerPlan] = {}
    for kind in dict.fromkeys(kinds):
        slides = size is not None and (kind == "sliding_attention" or (kind is None and config.model_type == "mistral"))
        frequencies, gain = _rotary(config, kind, head_dim)
        known[kind] = LayerPlan(size if slides else None, frequencies, gain)
    return tuple(known[kind] for kind in kinds)


def _rotary(config: Any, kind: str | None, head_dim: int) -> tuple[Real, float]:
    """Frequencies of rotary positions as transformers computes them, and the factor on the scores."""
    asked = dict(getattr(config, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10_000.0})
    nested = kind is not None and isinstance(asked.get(kind), dict)
    asked = dict(asked[kind]) if nested else asked
    sort = asked.get("rope_type", "default")
    if sort == "default":
        turned = int(head_dim * asked.get("partial_rotary_factor", 1.0))
        return float(asked["rope_theta"]) ** (-np.arange(0, turned, 2) / turned), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    keywords = {"layer_type": kind} if nested else {}
    frequencies, gain = ROPE_INIT_FUNCTIONS[sort](config, "cpu", **keywords)
    return frequencies.double().numpy(), float(gain) ** 2


# -- others ------------------------------------------------------------------------------------------------------------


def _gpt2(config: Any) -> Blueprint:
    width, heads, depth = _size(config, "n_embd"), _size(config, "n_head"), _size(config, "n_layer")
    sigma = float(config.initializer_range)
    last = sigma / math.sqrt(2 * depth)  # projections into the stream
    notes: tuple[str, ...] = ()
    if config.scale_attn_by_inverse_layer_idx:
        notes = ("scale_attn_by_inverse_layer_idx is not taken into account",)
    return Blueprint(
        family="gpt2", layers=(LayerPlan(None, np.empty(0)),) * depth, width=width, heads=heads,
        head_dim=width // heads,
        feed_forward=config.n_inner or 4 * width, vocabulary=_size(config, "vocab_size"),
        activation=config.activation_function, placement="pre", eps=config.layer_norm_epsilon,
        score_scale=(width // heads) ** -0.5 if config.scale_attn_weights else 1.0, query=sigma, key=sigma, value=sigma,
        output=last, up=sigma, down=last, embedding_power=sigma**2, position_power=sigma**2, readout=sigma,
        context=config.n_positions, tied=bool(config.tie_word_embeddings), notes=notes,
    )  # fmt: skip


def _bloom(config: Any) -> Blueprint:
    width, heads, sigma = _size(config, "hidden_size"), _size(config, "n_head"), float(config.initializer_range)
    if config.apply_residual_connection_post_layernorm:
        raise DomainError("apply_residual_connection_post_layernorm is on: preflight knows Bloom without it only")
    return Blueprint(
        family="bloom", layers=(LayerPlan(None, np.empty(0)),) * _size(config, "n_layer"), width=width, heads=heads,
        head_dim=width // heads, feed_forward=4 * width, vocabulary=_size(config, "vocab_size"), activation="gelu_new",
        placement="pre", eps=config.layer_norm_epsilon, score_scale=(width // heads) ** -0.5, query=sigma, key=sigma,
        value=sigma, output=sigma, up=sigma, down=sigma, embedding_power=sigma**2, readout=sigma, entry_norm=True,
        alibi=True, tied=bool(config.tie_word_embeddings),
    )  # fmt: skip


def _bert(config: Any) -> Blueprint:
    width, heads, sigma = _size(config, "hidden_size"), _size(config, "num_attention_heads"), config.initializer_range
    depth = _size(config, "num_hidden_layers")
    return Blueprint(
        family=config.model_type, layers=(LayerPlan(None, np.empty(0)),) * depth, width=width, heads=heads,
        head_dim=width // heads, feed_forward=_size(config, "intermediate_size"),
        vocabulary=_size(config, "vocab_size"), activation=config.hidden_act, placement="post",
        eps=config.layer_norm_eps, score_scale=(width // heads) ** -0.5, query=sigma, key=sigma, value=sigma,
        output=sigma, up=sigma, down=sigma, embedding_power=sigma**2, position_power=sigma**2,
        common_power=sigma**2, readout=sigma,
        causal=bool(config.is_decoder), entry_norm=True, final_norm=False, context=config.max_position_embeddings,
        tied=bool(config.tie_word_embeddings),
    )  # fmt: skip


def _vit(config: Any) -> Blueprint:
    width, heads, sigma = _size(config, "hidden_size"), _size(config, "num_attention_heads"), config.initializer_range
    sides = [
        each if isinstance(each, tuple | list) else (each, each) for each in (config.image_size, config.patch_size)
    ]
    pixels = config.num_channels * math.prod(sides[1])
    patches = math.prod(side // size for side, size in zip(*sides, strict=True))
    return Blueprint(
        family="vit", layers=(LayerPlan(None, np.empty(0)),) * _size(config, "num_hidden_layers"), width=width,
        heads=heads, head_dim=width // heads, feed_forward=_size(config, "intermediate_size"), vocabulary=2**31,
        activation=config.hidden_act, placement="pre", eps=config.layer_norm_eps,
        score_scale=(width // heads) ** -0.5, query=sigma, key=sigma, value=sigma, output=sigma, up=sigma, down=sigma,
        embedding_power=pixels * sigma**2, position_power=sigma**2, first_power=sigma**2, readout=sigma, causal=False,
        context=patches + 1,
        notes=("images are white noise of unit power",),
    )  # fmt: skip


def _t5(config: Any) -> Blueprint:
    width, heads, dim = _size(config, "d_model"), _size(config, "num_heads"), _size(config, "d_kv")
    factor, inner = float(config.initializer_factor), _size(config, "d_ff")
    return Blueprint(
        family="t5", layers=(LayerPlan(None, np.empty(0)),) * _size(config, "num_layers"), width=width, heads=heads,
        head_dim=dim, feed_forward=inner, vocabulary=_size(config, "vocab_size"), activation=config.dense_act_fn,
        placement="pre", eps=config.layer_norm_epsilon, score_scale=1.0,
        query=factor * (width * dim) ** -0.5, key=factor * width**-0.5, value=factor * width**-0.5,
        output=factor * (heads * dim) ** -0.5, up=factor * width**-0.5, down=factor * inner**-0.5,
        embedding_power=factor**2, readout=factor * width**-0.5, gated=config.is_gated_act, causal=False,
        position_bias=factor * width**-0.5, norm_gain=factor, tied=bool(config.tie_word_embeddings),
        notes=("the encoder; the decoder and its cross-attention are not predicted",),
    )  # fmt: skip


FAMILIES: dict[str, Callable[[Any], Blueprint]] = {
    "llama": _decoder,
    "mistral": _decoder,
    "qwen2": _decoder,
    "qwen3": lambda config: _decoder(config, qk_norm="head"),
    "olmo2": lambda config: _decoder(config, qk_norm="all", placement="branch"),
    "gemma": _gemma,
    "gemma2": lambda config: _gemma(config, placement="sandwich"),
    "gemma3_text": lambda config: _gemma(config, placement="sandwich", qk_norm="head"),
    "gpt2": _gpt2,
    "bloom": _bloom,
    "bert": _bert,
    "vit": _vit,
    "t5": _t5,
}
"""Families whose models preflight predicts without making them."""
