"""What a scan reads: single sequences out of whatever was given, checked, and as the model is called with them.

>>> [each.inputs["input_ids"].tolist() for each in sequences([[5, 6, 7]])]
[[[5, 6, 7]]]
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bulkedge.nn.patching.interface import unwrap
from bulkedge.support.domains import shown
from bulkedge.support.errors import DomainError, RegimeWarning

UNREADABLE = 0.9  # share of unknown tokens beyond which a text is refused
TOKEN_INPUTS = ("input_ids", "decoder_input_ids", "token_type_ids", "position_ids")
"""Inputs with an entry for every token."""


class Passage(NamedTuple):
    """One sequence: what to call it, and what the model is called with."""

    title: str
    inputs: dict[str, Any]

    @property
    def length(self) -> int:
        """Number of tokens, zero where these are not tokens."""
        return max((each.shape[-1] for name, each in self.inputs.items() if name in TOKEN_INPUTS), default=0)

    def cut(self, tokens: int) -> Passage:
        """The first tokens alone."""
        inputs = {name: each[:, :tokens] if name in TOKEN_INPUTS else each for name, each in self.inputs.items()}
        return self._replace(inputs=inputs)

    def ids(self, layer_name: str, tokens: int) -> Any:
        """Token of every position of a layer, or None where these are not tokens."""
        names = ["decoder_input_ids", "input_ids"] if "decoder" in layer_name else ["input_ids"]
        found = next((self.inputs[name] for name in names if name in self.inputs), None)
        return found[0] if found is not None and found.shape[-1] == tokens else None


def sequences(given: Any, tokenizer: Any = None, tokens: int = 512) -> list[Passage]:
    """Whatever is given to a scan as single sequences."""
    if isinstance(given, str | Mapping) or hasattr(given, "shape"):
        given = [given]
    if not isinstance(given, Sequence) or not given:
        raise DomainError(
            f"inputs_or_texts = {shown(given)}: there is nothing to read; give texts, token ids, or inputs by name"
        )
    found: list[Passage] = []
    for place, each in enumerate(given):
        if isinstance(each, str):
            found.append(_text_passage(each, tokenizer, tokens))
        else:
            floating = getattr(
                getattr(each, "dtype", None), "is_floating_point", False
            )  # images, and what else is read
            named = each if isinstance(each, Mapping) else {"input" if floating else "input_ids": each}
            found.extend(_input_passages(named, place, tokens))
    return found


def _text_passage(text: str, tokenizer: Any, tokens: int) -> Passage:
    if tokenizer is None:
        raise DomainError("inputs_or_texts: texts need tokenizer=; without one give token ids: scan(model, ids)")
    if not text.strip():
        raise DomainError("a text has nothing in it")
    encoded = tokenizer(text, truncation=True, max_length=tokens)
    ids = torch.as_tensor(encoded["input_ids"])
    title = " ".join(text.split())
    short = title if len(title) <= 60 else title[:59] + "…"
    return Passage(short, {"input_ids": ids.reshape(1, -1)[:, :tokens]})


def _input_passages(named: Mapping[str, Any], place: int, tokens: int) -> list[Passage]:
    """Inputs of several sequences, one by one, without what pads them."""
    arrays = {str(name): _input_tensor(name, each) for name, each in named.items() if each is not None}
    if not arrays:
        raise DomainError(
            "inputs_or_texts is empty; give at least input_ids, or whatever the model is called with, by name"
        )
    if "input_ids" in arrays and arrays["input_ids"].ndim == 1:
        arrays = {name: each[None] for name, each in arrays.items()}
    count = min(len(each) for each in arrays.values())
    found = []
    for row in range(count):
        one = {name: each[row : row + 1] for name, each in arrays.items()}
        for ids, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
            if ids in one:
                kept = one.pop(mask).bool()[0] if mask in one else torch.ones(one[ids].shape[-1], dtype=torch.bool)
                one = {name: _kept_tokens(each, kept, tokens, one[ids].shape) for name, each in one.items()}
                if not one[ids].numel():
                    raise DomainError(f"sequence {place + row + 1} has no tokens in {ids}: there is nothing to read")
        found.append(Passage(f"sequence {place + row + 1}", one))
    return found


def _input_tensor(name: object, value: Any) -> Tensor:
    """An input of a model as a tensor with an axis of sequences; token ids are whole numbers."""
    wanted = "token ids, whole numbers" if name in TOKEN_INPUTS else "an array of real numbers"
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DomainError(f"inputs_or_texts: {name} = {shown(value)} is not {wanted}: {error}") from None
    counted = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    unreadable = tensor.is_complex() or tensor.is_meta or not tensor.ndim or isinstance(value, np.ma.MaskedArray)
    if unreadable or (name in TOKEN_INPUTS and not counted):
        raise DomainError(f"inputs_or_texts: {name} = {shown(value)} is not {wanted}")
    return tensor


def _kept_tokens(array: Any, kept: Any, tokens: int, shape: Any) -> Any:
    """What has an entry for every token, without those that are not kept and those beyond the first ``tokens``."""
    return array[:, kept.to(array.device)][:, :tokens] if array.shape == shape else array


def check_tokens(passages: Sequence[Passage], tokenizer: Any, size: int | None) -> None:
    """Refuse tokens that the model does not have, and texts that the tokenizer does not know."""
    for each in passages:
        ids = each.inputs.get("input_ids")
        if size is not None and ids is not None and ids.numel() and int(ids.max()) >= size:
            raise DomainError(
                f"{each.title!r} has token {int(ids.max())}, but the model has tokens 0 to {size - 1}: give the "
                "tokenizer that belongs to this model"
            )
        share = token_facts(each, tokenizer)["unknown_share"]
        if share > UNREADABLE:
            raise DomainError(
                f"{share:.1%} of the tokens of {each.title!r} are unknown to the tokenizer, so there is next to "
                "nothing to read: give the tokenizer that belongs to this model"
            )


def token_facts(passage: Passage, tokenizer: Any) -> dict[str, float]:
    """Share of tokens that the tokenizer does not know, and number of different tokens; nan for what is no text."""
    ids, unknown = passage.inputs.get("input_ids"), getattr(tokenizer, "unk_token_id", None)
    if ids is None or not ids.numel():
        return {"unknown_share": np.nan, "distinct_tokens": np.nan}
    share = np.nan if unknown is None else float((ids == unknown).double().mean())
    return {"unknown_share": share, "distinct_tokens": float(len(ids.unique()))}


def vocabulary_size(model: Any) -> int | None:
    """Number of tokens that the model has, if its configuration says so."""
    config: Any = getattr(model, "config", None)
    size = getattr(config.get_text_config() if hasattr(config, "get_text_config") else config, "vocab_size", None)
    return size if isinstance(size, int) else None


POSITIONS = ("max_position_embeddings", "block_size", "max_seq_len")  # by which configurations call them
# RoBERTa and its kin number their positions from the padding token on
POSITIONS_AFTER_PADDING = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "xlm-roberta-xl"}


def most_tokens(config: Any) -> int:
    """The most tokens that a model reads, as far as its configuration says."""
    numbers = (getattr(config, name, None) for name in POSITIONS)
    longest = next((each for each in numbers if isinstance(each, int) and each), 10**9)
    offset = getattr(config, "model_type", "") in POSITIONS_AFTER_PADDING
    return longest - offset * ((getattr(config, "pad_token_id", None) or 0) + 1)


def cut_to_positions(model: Any, passages: list[Passage]) -> list[Passage]:
    """No more tokens than the model has positions for."""
    places = most_tokens(getattr(model, "config", None))
    if max(each.length for each in passages) <= places:
        return passages
    long = [each for each in passages if each.length > places]
    warnings.warn(
        f"{len(long)} of {len(passages)} sequences are cut to the model's {places} positions",
        RegimeWarning,
        stacklevel=3,
    )
    return [each.cut(places) for each in passages]


def model_inputs(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs on the model's device, without a cache; models of two parts read the same text with both."""
    device = next((each.device for each in model.parameters()), None)
    found = {name: each.to(device) if hasattr(each, "to") else each for name, each in inputs.items()}
    accepted = inspect.signature(model.forward).parameters
    first, takes_any = next(iter(accepted.values()), None), any(x.kind is x.VAR_KEYWORD for x in accepted.values())
    if first is not None and first.kind is first.POSITIONAL_OR_KEYWORD:
        names = {"input"} if takes_any and first.default is not first.empty else {"input_ids", "input"}
        for name in names & found.keys() - accepted.keys():  # by whatever name the model has for it
            found[first.name] = _input_tensor(first.name, found.pop(name))
    if "use_cache" in accepted:
        found["use_cache"] = False
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and "input_ids" in found:
        found.setdefault("decoder_input_ids", found["input_ids"])
    return found


@contextmanager
def on_device(model: nn.Module, device: Any) -> Iterator[None]:
    """Keep a model on a device and in evaluation mode until the end of the ``with`` block."""
    before = next((each.device for each in model.parameters()), None)
    training = [each for each in model.modules() if each.training]
    try:
        if device is not None:
            from bulkedge.models.loading.loader import device_of

            model.to(device_of(device))
        model.eval()
        yield
    finally:
        for each in training:
            each.training = True
        if device is not None and before is not None:
            model.to(before)


class CalledModel(nn.Module):
    """A model that is called as a function of the model and its inputs says; all else is the model's own."""

    def __init__(self, model: nn.Module, function: Callable[[Any, dict[str, Any]], Any]) -> None:
        """Modules keep the names that they have in the model."""
        super().__init__()
        self.model, self.function = model, function

    def forward(self, **inputs: Any) -> Any:
        """Call the model."""
        return self.function(self.model, inputs)

    def named_modules(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, nn.Module]]:
        """Those of the model."""
        yield from self.model.named_modules(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        """What the model says of itself."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


def inner_model(model: nn.Module, passages: Sequence[Passage]) -> Any:
    """The model in what stands around it, unless that has prompts of its own or takes the inputs by their names."""
    inner = unwrap(model)
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return model
    own = inspect.signature(model.forward).parameters
    whole = sum(1 for _ in model.parameters()) == sum(1 for _ in inner.parameters())
    known = hasattr(model, "_orig_mod") or hasattr(model, "active_peft_config") or hasattr(model, "device_ids")
    return inner if known or (whole and not set(passages[0].inputs) <= set(own)) else model
