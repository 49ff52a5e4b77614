"""Heads switched off: what a model does without them.

A head is switched off by zeros in the place of its values, before the projection that mixes the heads. Nothing else of
its layer changes: other heads that share its keys and values keep theirs.

>>> from transformers import GPT2Config, GPT2Model
>>> import torch
>>> model = GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32)).eval()
>>> tokens = torch.arange(10)[None]
>>> before = model(tokens).last_hidden_state
>>> with ablate_heads(model, {"h.1.attn": [0, 3]}):
...     without = model(tokens).last_hidden_state
>>> torch.equal(without, before), torch.equal(model(tokens).last_hidden_state, before)
(False, True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from torch import Tensor, nn

from bulkedge.models.hooks.capture import transformers_models
from bulkedge.nn import Call, apply_patch, transform
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

_switches: dict[str, _HeadSwitch] = {}
"""Those that are on now, by the name that the patch of each has."""


@contextmanager
def ablate_heads(model: nn.Module, heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Switch heads off for the length of a ``with`` block, and leave the model as it was found.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model whose attention goes through the interface (as for :func:`bulkedge.nn.apply_patch`), or any
        module with ``torch.nn.MultiheadAttention`` inside, which gets copies of its output projections for that time.
    heads : mapping of str to sequence of int
        Heads of attention modules, by the path of the module in the model, which is the ``name`` of its
        :class:`~bulkedge.models.AttentionLayer`.

    Yields
    ------
    None
        While the heads are off.

    Raises
    ------
    DomainError
        If the model has no such module or that module no such head; by the forward pass, if the module computed its
        attention past transformers' interface, so that nothing was switched off.
    """
    modules = dict(model.named_modules())
    unknown = sorted(set(heads) - set(modules))
    if unknown:
        raise DomainError(f"heads = {dict(heads)!r}: {type(model).__name__} has no modules {unknown}")
    chosen = {modules[name]: tuple(sorted({int(each) for each in heads[name]})) for name in heads}
    chosen = {module: those for module, those in chosen.items() if those}
    through = {module: those for module, those in chosen.items() if not isinstance(module, nn.MultiheadAttention)}
    with ExitStack() as stack:
        for module in chosen.keys() - through.keys():
            stack.enter_context(_without_columns(module, chosen[module]))
        if through:
            stack.enter_context(_HeadSwitch(model, through).on())
        yield


class Ablation(NamedTuple):
    """What switching heads off costs, compared with random heads of the same layers."""

    heads: int
    """How many are off."""
    cost: float
    """The loss without them minus the loss with all heads."""
    control: Estimate
    """Mean cost of as many random heads of the same layers, over draws."""

    @property
    def ratio(self) -> float:
        """Cost of the heads over that of random ones; small for heads that are idle."""
        return self.cost / self.control.value if self.control.value else float("nan")


def ablation_cost(  # noqa: PLR0913 - two lists of heads, what to ask, and how often
    model: nn.Module,
    loss: Callable[[Any], float],
    heads: Sequence[tuple[str, int]],
    members: Mapping[str, Sequence[int]],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Ablation:
    """Cost of switching heads off together, and of as many random heads of the same layers."""
    grouped: dict[str, list[int]] = {}
    for name, head in heads:
        grouped.setdefault(name, []).append(head)
    whole = float(loss(model))

    def cost(off: Mapping[str, Sequence[int]]) -> float:
        with ablate_heads(model, off):
            return float(loss(model)) - whole

    controls = []
    for _ in track(range(draws), "ablations"):
        drawn = {}
        for name, those in grouped.items():
            others = [each for each in members[name] if each not in those]
            pool = others if len(others) >= len(those) else list(members[name])
            drawn[name] = rng.choice(pool, len(those), replace=False).tolist()
        controls.append(cost(drawn))
    return Ablation(len(heads), cost(grouped), Estimate.of(np.array(controls)))


@dataclass(eq=False)
class _HeadSwitch:
    """Heads that are off, and whether the patch was reached in the module that runs now."""

    model: nn.Module
    heads: Mapping[nn.Module, tuple[int, ...]]
    reached: bool = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """A patch on the transformers models, and hooks on the modules concerned; all come off in the end."""
        key = uuid4().hex
        with ExitStack() as stack:
            _switches[key] = self
            stack.callback(_switches.pop, key)
            for each in transformers_models(self.model):
                stack.enter_context(apply_patch(each, "ablated", {"ablation": key}))
            for module in self.heads:
                stack.callback(module.register_forward_pre_hook(self._enter).remove)
                stack.callback(module.register_forward_hook(self._leave).remove)
            yield

    def _enter(self, *_: Any) -> None:
        self.reached = False

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if not self.reached:
            raise DomainError(f"{type(module).__name__} computed its attention past transformers' AttentionInterface")


@transform("ablated")
def _zero_values(call: Call, parameters: Mapping[str, Any]) -> Call:
    """Zeros in the place of the values of some heads; keys and values that heads share are repeated for each first."""
    switch = _switches.get(parameters["ablation"])
    if switch is None or all(call.module is not each for each in switch.model.modules()):
        raise DomainError("this model was copied while heads of it were off; restore it: bulkedge.nn.restore")
    switch.reached = True
    heads = switch.heads.get(call.module, ())
    if not heads:
        return call
    number = call.query.shape[1]
    _check(heads, number, call.module)
    key, value = (each.repeat_interleave(number // each.shape[1], dim=1) for each in (call.key, call.value))
    return call._replace(key=key, value=value.masked_fill(_head_mask(heads, value)[:, None, None], 0.0))


@contextmanager
def _without_columns(module: Any, heads: tuple[int, ...]) -> Iterator[None]:
    """Zeros in a copy of an output projection where it takes the values of some heads."""
    _check(heads, module.num_heads, module)
    found = module.out_proj.weight
    columns = _head_mask(heads, found, module.num_heads).repeat_interleave(module.head_dim)
    module.out_proj.weight = nn.Parameter(found.detach().masked_fill(columns, 0.0), found.requires_grad)
    try:
        yield
    finally:
        module.out_proj.weight = found


def _check(heads: tuple[int, ...], number: int, module: nn.Module) -> None:
    if heads[0] < 0 or heads[-1] >= number:
        raise DomainError(f"heads = {heads}: {type(module).__name__} has heads 0 to {number - 1}")


def _head_mask(heads: tuple[int, ...], like: Tensor, number: int | None = None) -> Tensor:
    """Booleans that are true for the heads, on the device of a tensor (batch, heads, ...)."""
    marked = like.new_zeros(like.shape[1] if number is None else number).bool()
    marked[list(heads)] = True
    return marked
