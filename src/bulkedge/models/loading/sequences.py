"""What a model is asked to read: texts, token ids or ready inputs, one sequence at a time.

>>> tokenizer = lambda text, **_: {"input_ids": [len(word) for word in text.split()]}
>>> [(each.title, each.inputs["input_ids"].tolist()) for each in sequences(["a first text", "a second"], tokenizer)]
[('a first text', [[1, 5, 4]]), ('a second', [[1, 6]])]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bulkedge.support.errors import DomainError

LONGEST_TITLE = 60
TOKENS = ("input_ids", "decoder_input_ids", "token_type_ids", "position_ids")
"""Inputs with an entry for every token."""


class Passage(NamedTuple):
    """One sequence: what to call it, and what the model is called with."""

    title: str
    inputs: dict[str, Any]

    @property
    def length(self) -> int:
        """Number of tokens, zero where these are not tokens."""
        return max((each.shape[-1] for name, each in self.inputs.items() if name in TOKENS), default=0)

    def cut(self, tokens: int) -> Passage:
        """The first tokens alone."""
        inputs = {name: each[:, :tokens] if name in TOKENS else each for name, each in self.inputs.items()}
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
        raise DomainError(f"there is nothing to read in {given!r}: give texts, token ids, or inputs by name")
    found: list[Passage] = []
    for place, each in enumerate(given):
        if isinstance(each, str):
            found.append(_text(each, tokenizer, tokens))
        else:
            found.extend(_inputs(each if isinstance(each, Mapping) else {"input_ids": each}, place, tokens))
    return found


def _text(text: str, tokenizer: Any, tokens: int) -> Passage:
    import torch

    if tokenizer is None:
        raise DomainError("texts need tokenizer=; without one give token ids: scan(model, ids)")
    if not text.strip():
        raise DomainError("a text has nothing in it")
    encoded = tokenizer(text, truncation=True, max_length=tokens)
    ids = torch.as_tensor(encoded["input_ids"])
    title = " ".join(text.split())
    short = title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1] + "…"
    return Passage(short, {"input_ids": ids.reshape(1, -1)[:, :tokens]})


def _inputs(named: Mapping[str, Any], place: int, tokens: int) -> list[Passage]:
    """Inputs of several sequences, one by one, without what pads them."""
    import torch

    arrays = {name: torch.as_tensor(each) for name, each in named.items() if each is not None}
    if not arrays:
        raise DomainError("inputs are empty; give at least input_ids, or whatever the model is called with")
    if "input_ids" in arrays and arrays["input_ids"].ndim == 1:
        arrays = {name: each[None] for name, each in arrays.items()}
    count = min(len(each) for each in arrays.values())
    found = []
    for row in range(count):
        one = {name: each[row : row + 1] for name, each in arrays.items()}
        for ids, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
            if ids in one:
                kept = one.pop(mask).bool()[0] if mask in one else torch.ones(one[ids].shape[-1], dtype=torch.bool)
                one = {name: _along(each, kept, tokens, one[ids].shape) for name, each in one.items()}
        found.append(Passage(f"sequence {place + row + 1}", one))
    return found


def _along(array: Any, kept: Any, tokens: int, shape: Any) -> Any:
    """What has an entry for every token, without those that are not kept and those beyond the first ``tokens``."""
    return array[:, kept.to(array.device)][:, :tokens] if array.shape == shape else array
