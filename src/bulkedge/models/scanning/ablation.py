"""Heads switched off: what a model does without them.

A head is switched off by a gate of zero before the projection that mixes the heads. Nothing else of its layer changes:
other heads that share its keys and values keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bulkedge.models.hooks.attention_hooks import AttentionInputs
from bulkedge.models.hooks.capture import read_uncompiled
from bulkedge.models.hooks.gates import GateFinder, HeadGates
from bulkedge.models.scanning.passages import on_device
from bulkedge.nn.patching.interface import unwrap
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import shown
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track


@contextmanager
def ablate_heads(
    model: nn.Module, heads: Mapping[str, Sequence[int]], means: Mapping[str, Tensor] | None = None
) -> Iterator[None]:
    """Switch heads off for the length of a ``with`` block, and leave the model as it was found.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model whose attention goes through the interface, or any module with
        ``torch.nn.MultiheadAttention`` inside. Heads are off in the thread that entered the block.
    heads : mapping of str to sequence of int
        Heads of attention modules, by the path of the module in the model, which is the ``name`` of its
        :class:`~bulkedge.models.AttentionLayer`.
    means : mapping of str to tensor of shape (heads, dimension), optional
        What heads of these modules give in place of zeros, before the projection.

    Yields
    ------
    None
        While the heads are off.

    Raises
    ------
    DomainError
        If the model has no such module; by the forward pass, if that module has no such head, or computed its attention
        past transformers' interface, so that nothing was switched off.

    Examples
    --------
    >>> import torch
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> with ablate_heads(model, {"h.0.attn": [1]}):
    ...     output = model(torch.arange(5)[None])
    """
    modules = dict(unwrap(model).named_modules()) | dict(model.named_modules())
    unknown = sorted(set(heads) - set(modules))
    if unknown:
        raise DomainError(f"heads = {dict(heads)!r}: {type(model).__name__} has no modules {unknown}")
    switch = _HeadSwitch(model, {modules[name]: each for name, each in heads.items() if len(each)})
    switch.means = {modules[name]: each for name, each in (means or {}).items()}
    with read_uncompiled(model, switch):
        yield
    switch.check()


class Ablation(NamedTuple):
    """What switching heads off costs, compared with random heads of the same layers."""

    heads: int  # how many are off
    cost: float  # the loss without them minus the loss with all heads
    control: Estimate  # mean cost of as many random heads of the same layers, over draws
    error: float = math.nan  # standard error of the cost over what the loss has several numbers of
    copies: Ablation | None = None  # the same for the loss on copied random tokens, of a decoder

    @property
    def ratio(self) -> float:
        """Cost of the heads over that of random ones; below one where they are the cheaper ones."""
        return self.cost / self.control.value if self.control.value else float("nan")


def ablation_cost(  # noqa: PLR0913 - two lists of heads, what to ask, and how often
    model: nn.Module,
    losses: Sequence[Callable[[], Any]],
    heads: Sequence[tuple[str, int]],
    members: Mapping[str, Sequence[int]],
    *,
    means: Mapping[str, Tensor] | None = None,
    draws: int,
    rng: np.random.Generator,
) -> Ablation:
    """Cost of switching heads off together, and of as many random heads of the same layers, by one or two losses."""
    grouped: dict[str, list[int]] = {}
    for name, head in heads:
        grouped.setdefault(name, []).append(head)

    def values() -> list[Real]:
        with on_device(model, None), torch.no_grad():  # dropout would add noise to the costs
            own, *others = [loss() for loss in losses]
        return [_finite(own), *(_finite(each) for each in others if each is not None)]

    def cost(off: Mapping[str, Sequence[int]]) -> list[Real]:
        with ablate_heads(model, off, means):
            return [found - before for found, before in zip(values(), whole, strict=True)]

    whole, controls = values(), []
    for _ in track(range(draws), "ablations"):
        drawn = {}
        for name, those in grouped.items():
            others = [each for each in members[name] if each not in those]
            pool = others if len(others) >= len(those) else list(members[name])
            drawn[name] = rng.choice(pool, len(those), replace=False).tolist()
        controls.append([each.mean() for each in cost(drawn)])
    found = [
        Ablation(
            len(heads),
            float(each.mean()),
            Estimate.of(np.array(control)),
            float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else math.nan,
        )
        for each, control in zip(cost(grouped), zip(*controls, strict=True), strict=True)
    ]
    return found[0]._replace(copies=found[1]) if len(found) > 1 else found[0]


def _finite(loss: Any) -> Real:
    """A loss as one or several numbers."""
    try:
        found = np.atleast_1d(as_numpy(loss).astype(float))
    except (TypeError, ValueError):
        found = np.full(1, math.nan)
    if found.ndim > 1 or not found.size or not np.isfinite(found).all():
        raise DomainError(f"loss returned {shown(loss)}: it has to return a finite number, or one for each text")
    return found


class _HeadSwitch(GateFinder):
    """Puts gates of zero on heads where they meet, for as long as each projection runs."""

    def __init__(self, model: nn.Module, heads: Mapping[nn.Module, Sequence[int]]) -> None:
        super().__init__(model)
        self.heads, self.attended = heads, set[nn.Module]()
        self.means: dict[nn.Module, Tensor] = {}
        self.off: dict[nn.Module, Callable[[], AbstractContextManager[None]]] = {}  # by projection

    def around(self, run: Callable[[], Any], module: nn.Module, arguments: tuple[Any, ...], named: Any) -> Any:
        """Run a module, which :meth:`_note` may find to be a projection before it runs."""
        found = super().around(partial(self._gated, run, module), module, arguments, named)
        if module in self.heads and module not in self.attended:
            raise DomainError(f"{type(module).__name__} computed its attention past transformers' AttentionInterface")
        return found

    def check(self) -> None:
        """Refuse heads that were seen and not switched off."""
        if unread := [type(each).__name__ for each in self.attended - self.sites.keys()]:
            raise DomainError(f"heads of {unread} do not meet in a linear projection that follows their attention")

    def attend(self, found: AttentionInputs) -> None:
        """An attention was called."""
        if found.module in self.heads:
            self.attended.add(found.module)
            super().attend(found)

    def _note(self, found: AttentionInputs, projection: nn.Module) -> None:
        super()._note(found, projection)
        site = self.sites[found.module]
        heads = self.heads[found.module]
        if not set(heads) <= set(range(site.heads)):
            raise DomainError(f"heads = {heads}: {type(site.attention).__name__} has heads 0 to {site.heads - 1}")
        gates = HeadGates(self.model, (site,))
        mean = self.means.get(found.module)
        values = gates.without((site.name, each) for each in heads)
        self.off[projection] = partial(gates.on, values, None if mean is None else [mean])

    def _gated(self, run: Callable[[], Any], module: nn.Module) -> Any:
        with self.off.get(module, nullcontext)():
            return run()
