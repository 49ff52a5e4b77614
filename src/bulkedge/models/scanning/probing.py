"""What heads do with tokens that repeat: induction, duplicate-token and previous-token scores.

A prompt is a sequence of random tokens, no token twice, and the same sequence again. In its second half every token has
been seen once before, at a place that tokens alone tell: a head that looks there does so because of what the tokens
are. Three scores are means of the attention of rows of the second half, over rows and prompts:

- *induction*: on the key after the first occurrence of the row's token, which is what comes next (Olsson et al. 2022);
- *duplicate*: on the first occurrence of the row's token;
- *previous*: on the key before the row.

A head without preference has scores of about one over the number of keys that its rows see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bulkedge.models.hooks.attention_inputs import AttentionLayer
from bulkedge.models.hooks.capture import stream
from bulkedge.models.scanning.passages import model_inputs, most_tokens, vocabulary_size
from bulkedge.support.arrays import Real
from bulkedge.support.domains import GENERATOR, MODULE, Each, Integers, shown, takes
from bulkedge.support.errors import DomainError
from bulkedge.support.progress import track
from bulkedge.support.random import numpy_generator

SCORES = ("induction", "duplicate", "previous")
FEWEST = 4  # tokens of the shortest prompt: two, twice


@takes(model=MODULE, rng=GENERATOR)
def probe(
    model: nn.Module,
    *,
    tokens: int = 256,
    prompts: int = 4,
    vocabulary: int | Iterable[int] | None = None,
    rng: np.random.Generator,
) -> dict[str, Real]:
    """Scores of every head on random tokens that repeat, one prompt at a time.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model that reads ``input_ids``, encoder or decoder, in evaluation mode; as for
        :func:`bulkedge.models.stream`.
    tokens : int
        Tokens of a prompt, both copies together. Where the model reads no more, or the vocabulary has too few to be
        drawn once each, prompts are as long as that allows.
    prompts : int
        Prompts to average over.
    vocabulary : int or iterable of int, optional
        The ids to draw from, or how many of the first; all of the model's unless given. Special tokens of the model's
        configuration are never pool; those that only a tokenizer knows are to be left out here
        (``bulkedge.models.scanning.probing.ordinary_tokens``).
    rng : numpy.random.Generator
        Draws the prompts.

    Returns
    -------
    dict of arrays of shape (layers, heads)
        Entries ``"induction"``, ``"duplicate"`` and ``"previous"``, in [0, 1]; layers in the order in which the model
        calls its attentions, nan where one has fewer heads than another.

    Raises
    ------
    DomainError
        If the model does not read tokens, or attends to something else than them.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=50))
    >>> scores = probe(model, tokens=64, prompts=1, rng=np.random.default_rng(0))
    >>> sorted(scores)
    ['duplicate', 'induction', 'previous']
    """
    prompts, rng = Integers(1, 10_000).check("prompts", prompts), numpy_generator(rng)
    tokens = Integers(FEWEST, 1_000_000).check("tokens", tokens)
    pool, longest = token_pool(model, vocabulary)
    half = min(tokens, longest) // 2
    half = min(half, len(pool))
    totals: list[Real] | None = None
    for _ in track(range(prompts), "prompts"):
        ids = rng.permutation(pool)[:half]
        scores = _one_prompt(model, np.concatenate([ids, ids]))
        totals = scores if totals is None else [a + b for a, b in zip(totals, scores, strict=True)]
    return _by_score([each / prompts for each in totals or []])


def repeated_scores(attention: Tensor) -> Real:
    """The three scores of attention matrices over a sequence and its repetition."""
    half = attention.shape[-1] // 2
    rows = torch.arange(half, 2 * half, device=attention.device)
    places = (rows - half + 1, rows - half, rows - 1)
    return np.array([attention[:, rows, keys].mean(-1).double().cpu().numpy() for keys in places])


def ordinary_tokens(tokenizer: Any) -> tuple[int, ...]:
    """Ids of the tokens that are text, neither special nor added: a ``vocabulary`` for :func:`probe`."""
    if not all(hasattr(tokenizer, each) for each in ("all_special_ids", "get_added_vocab", "get_vocab")):
        raise DomainError(f"{shown(tokenizer)} is no tokenizer of transformers: it does not tell which tokens are text")
    left_out = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    return tuple(sorted(set(tokenizer.get_vocab().values()) - left_out))


def _one_prompt(model: nn.Module, ids: Real) -> list[Real]:
    """Scores (3, heads) of each attention of the model on a prompt; one layer is held at a time."""
    device = next(model.parameters()).device
    scores: list[Real] = []
    inputs = model_inputs(model, {"input_ids": torch.as_tensor(ids, device=device)[None]})
    inputs.pop("use_cache", None)
    stream(model, lambda visit: scores.append(repeated_scores(_square(model, visit.layer, len(ids)))), **inputs)
    return scores


def _square(model: nn.Module, layer: AttentionLayer, tokens: int) -> Tensor:
    shape = (layer.query.shape[0], layer.query.shape[-2], layer.key.shape[-2])
    if shape != (1, tokens, tokens):
        raise DomainError(
            f"{type(model).__name__}: {layer.name} has {shape[1]} rows and {shape[2]} keys in a batch of {shape[0]}"
            f" for {tokens} tokens; scores on repeated tokens need a row and a key for each"
        )
    return layer.attention()[0]


def token_pool(model: nn.Module, vocabulary: int | Iterable[int] | None) -> tuple[Real, int]:
    """The ids that prompts may have, and how many tokens the model reads."""
    _check_reads_tokens(model)
    pool, longest = _ids(model, vocabulary), most_tokens(_text_config(model))
    if min(longest, 2 * len(pool)) < FEWEST:
        raise DomainError(
            f"{type(model).__name__} leaves {len(pool)} tokens to draw and reads {longest}: too few to repeat"
        )
    return pool, longest


def _check_reads_tokens(model: nn.Module) -> None:
    name = type(model).__name__
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise DomainError(f"{name} reads {model.main_input_name}, not tokens: there is nothing to repeat")
    if vocabulary_size(model) is None:
        raise DomainError(
            f"{name} does not say how many tokens it knows: if it reads tokens, set model.config = "
            "types.SimpleNamespace(vocab_size=..., block_size=...)"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise DomainError(f"{name} has an encoder and a decoder: probe one of them, as model.get_encoder()")


def _text_config(model: nn.Module) -> Any:
    """The configuration of the part that reads tokens."""
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _ids(model: nn.Module, vocabulary: int | Iterable[int] | None) -> Real:
    """Those of a vocabulary without special tokens."""
    config = _text_config(model)
    size = int(config.vocab_size)
    if vocabulary is None or isinstance(vocabulary, int | np.integer):
        ids = np.arange(size if vocabulary is None else Integers(1, size).check("vocabulary", vocabulary))
    else:
        ids = np.unique(Each(Integers(0, size - 1), size).check("vocabulary", vocabulary))
    return np.setdiff1d(ids, _special(config))


def _special(config: Any) -> list[int]:
    """Ids that the configuration gives a role: beginning, end, padding, separation."""
    roles = (getattr(config, f"{role}_token_id", None) for role in ("bos", "eos", "pad", "sep", "cls", "unk", "mask"))
    found: list[int] = []
    for role in roles:
        found += role if isinstance(role, Sequence) else [] if role is None else [role]
    return found


def _by_score(layers: list[Real]) -> dict[str, Real]:
    """Arrays (layers, heads) by score; heads that a layer does not have are nan."""
    heads = max(each.shape[1] for each in layers)
    table = np.full((len(layers), len(SCORES), heads), np.nan)
    for layer, scores in zip(table, layers, strict=True):
        layer[:, : scores.shape[1]] = scores
    return dict(zip(SCORES, table.swapaxes(0, 1), strict=True))
