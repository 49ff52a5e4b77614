"""A gate for every head of a model: a factor on what the head hands to its output projection.

A gate of one changes nothing and a gate of zero switches the head off; with a mean output given, a gate of zero puts
that in the head's place. The derivative of a loss in the gates is the head's first-order effect, so that one mechanism
serves ablation, replacement by the mean, Taylor scores and Fisher scores. Gates may differ between the sequences of a
batch.

>>> import torch
>>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
>>> gates = HeadGates.of(layer, src=torch.ones(1, 5, 16))
>>> [(each.name, each.heads) for each in gates.sites]
[('self_attn', 2)]
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import MultiheadAttention

from bulkedge.models.hooks.attention_hooks import AttentionInputs, ForwardPass
from bulkedge.models.hooks.capture import observed_pass
from bulkedge.support.errors import DomainError

BLOCKS = 8  # of tokens, whose spread is the error of a mean over tokens
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)  # what holds the blocks of a model


class Site(NamedTuple):
    """Where the heads of an attention module meet: the projection that mixes their outputs."""

    name: str  # path of the attention module
    attention: nn.Module
    projection: Any  # the module whose input are the outputs of all heads, or a MultiheadAttention
    heads: int
    key_heads: int  # fewer, where heads share their keys
    block: Any  # the module that adds the projection's output to the residual stream
    dim: int  # of a head's output, when it was seen

    def weights(self) -> Tensor:
        """The projection's map of each head, (heads, dimension of a head, width), whatever kind of linear map it is."""
        module = self.projection
        if isinstance(module, MultiheadAttention):
            module = module.out_proj
        if type(module).__name__ == "Conv1D":  # that of transformers: (input, output)
            found = module.weight.detach()
        elif isinstance(module, nn.Linear) and module.weight.is_floating_point():
            found = module.weight.detach().T
        else:  # quantised maps, adapters
            parameter = next(each for each in module.parameters() if each.is_floating_point())
            unit = torch.eye(_input_size(module), dtype=parameter.dtype, device=parameter.device)
            with torch.no_grad():
                found = module(unit) - module(torch.zeros_like(unit[:1]))
        return torch.as_tensor(found).reshape(self.heads, -1, found.shape[-1])


def _input_size(module: Any) -> int:
    """Entries of a vector that a linear module takes, in any of the ways of writing its weight down."""
    if hasattr(module, "in_features"):
        return int(module.in_features)
    return int(module.weight.shape[0 if hasattr(module, "nf") else 1])  # transformers' Conv1D is (input, output)


class GateFinder(ForwardPass):
    """Follows a pass and notes, behind each attention, the projection that its output goes to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.model, self.sites = model, dict[nn.Module, Site]()
        self.running: list[nn.Module] = []
        self.pending: tuple[AttentionInputs, int] | None = None
        containers = [each for each in model.modules() if isinstance(each, CONTAINERS)]
        self.blocks = {id(child) for each in containers for child in each.children()}

    def gates(self) -> HeadGates:
        """What was found."""
        if not self.sites:
            raise DomainError(f"{type(self.model).__name__}: no projection was found behind its attention")
        return HeadGates(self.model, tuple(self.sites.values()))

    def around(self, run: Callable[[], Any], module: nn.Module, arguments: tuple[Any, ...], named: Any) -> Any:
        """Run a module; a linear one that takes as many entries as the last attention gave is what was looked for."""
        if self.pending is not None and arguments and isinstance(arguments[0], Tensor):
            found, size = self.pending
            rank = getattr(getattr(module, "weight", None), "ndim", 0)
            if arguments[0].shape[-1] == size and rank == 2:
                self._note(found, module)
            elif rank != 1 and module._parameters:  # neither a norm nor a dropout: a map that is not read
                self.pending = None
        self.running.append(module)
        try:
            return super().around(run, module, arguments, named)
        finally:
            self.running.pop()

    def attend(self, found: AttentionInputs) -> None:
        """An attention was called."""
        if isinstance(found.module, MultiheadAttention):
            self._note(found, found.module)
        elif found.value is not None:
            self.pending = found, found.query.shape[1] * found.value.shape[-1]

    def _note(self, found: AttentionInputs, projection: nn.Module) -> None:
        block = next((each for each in reversed(self.running) if id(each) in self.blocks), self.running[0])
        heads, key_heads = found.query.shape[1], found.key.shape[1]
        dim = (
            projection.head_dim
            if isinstance(projection, MultiheadAttention)
            else torch.as_tensor(found.value).shape[-1]
        )
        self.sites.setdefault(found.module, Site(found.name, found.module, projection, heads, key_heads, block, dim))
        self.pending = None


@dataclass(eq=False)
class HeadGates:
    """Gates for all heads of a model, numbered through its attention modules.

    Attributes
    ----------
    model : torch.nn.Module
        The model.
    sites : tuple of Site
        Its attention modules, in the order in which they were first called.
    """

    model: nn.Module
    sites: tuple[Site, ...]

    @classmethod
    def of(cls, model: nn.Module, **inputs: Any) -> HeadGates:
        """Find where the heads of a model meet, by one pass over some inputs."""
        finder = GateFinder(model)
        observed_pass(model, finder, inputs)
        return finder.gates()

    @property
    def count(self) -> int:
        """Number of heads."""
        return sum(each.heads for each in self.sites)

    @property
    def device(self) -> torch.device:
        """Where gates are to be."""
        return next(self.model.parameters()).device

    def slices(self) -> Iterator[tuple[Site, slice]]:
        """Every module with the places of its heads."""
        start = 0
        for each in self.sites:
            yield each, slice(start, start + each.heads)
            start += each.heads

    def places(self) -> list[tuple[str, int]]:
        """Module and number of every head."""
        return [(site.name, head) for site in self.sites for head in range(site.heads)]

    def without(self, heads: Iterable[tuple[str, int]]) -> Tensor:
        """Gates that are zero for some heads, given by module and number, and one for all others."""
        place, gates = {each: k for k, each in enumerate(self.places())}, torch.ones(self.count, device=self.device)
        for each in heads:
            if each not in place:
                raise DomainError(
                    f"there is no head {each[1]} in {each[0]!r}; modules are {[s.name for s in self.sites]}"
                )
            gates[place[each]] = 0
        return gates

    @contextmanager
    def on(self, gates: Tensor, means: Sequence[Tensor] | None = None) -> Iterator[None]:
        """Multiply the outputs of heads by gates, (heads,) or (batch, heads), for the length of a ``with`` block.

        With ``means``, of shape (heads, dimension) for each module, heads that are off give these.
        """
        with ExitStack() as stack:
            for place, (site, part) in enumerate(self.slices()):
                mean = None if means is None else means[place]
                hook = partial(_gate, gates=gates[..., part], mean=mean, site=site)
                if isinstance(site.projection, MultiheadAttention):
                    if gates.ndim == 2 and len(gates) > 1:
                        raise DomainError(
                            "torch.nn.MultiheadAttention takes one row of gates, the same for a whole batch"
                        )
                    again = _in_this_thread(partial(_project_again, change=hook))
                    stack.callback(site.projection.register_forward_hook(again, with_kwargs=True).remove)
                else:
                    stack.callback(site.projection.register_forward_pre_hook(_in_this_thread(hook)).remove)
            yield

    @contextmanager
    def reading(self, see: Callable[[Site, Tensor, Tensor], None]) -> Iterator[None]:
        """Show the outputs of heads, (batch, rows, heads, dimension), and the norms of the residual stream there."""
        with ExitStack() as stack:
            norms: dict[int, Tensor] = {}

            def enter(block: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
                given = next((x for x in (*arguments, *named.values()) if isinstance(x, Tensor) and x.ndim >= 2), None)
                if given is not None:
                    norms[id(block)] = given.detach().float().norm(dim=-1)

            for site in self.sites:
                stack.callback(site.block.register_forward_pre_hook(_in_this_thread(enter), with_kwargs=True).remove)

                def read(_: nn.Module, arguments: tuple[Any, ...], site: Site = site) -> None:
                    see(site, arguments[0].unflatten(-1, (site.heads, -1)), norms[id(site.block)])

                def repeat(module: Any, arguments: Any, named: Any, _: Any, site: Site = site) -> None:
                    read(module, (_head_outputs(module, arguments, named),), site)

                if isinstance(site.projection, MultiheadAttention):
                    again = _in_this_thread(repeat)
                    stack.callback(site.projection.register_forward_hook(again, with_kwargs=True).remove)
                else:
                    stack.callback(site.projection.register_forward_pre_hook(_in_this_thread(read)).remove)
            yield


class OutputReader:
    """What heads add to the residual stream in every call of their modules, none of which is kept."""

    def __init__(self, gates: HeadGates | None) -> None:
        """Maps of the projections are read once."""
        self.gates, self.paused = gates, False
        self.maps = {} if gates is None else {site.name: site.weights().float() for site in gates.sites}
        self.found: dict[str, list[dict[str, Tensor]]] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read what the model runs."""
        self.found = {}
        with nullcontext() if self.gates is None else self.gates.reading(self._see):
            yield

    def _see(self, site: Site, outputs: Tensor, residual: Tensor) -> None:
        if not self.paused:  # else a module runs again, with other weights
            outputs = outputs.detach().float().flatten(0, -3)
            each = output_columns(outputs, self.maps[site.name], residual.flatten())
            self.found.setdefault(site.name, []).append(each | {"mean_output": outputs.mean(0)})

    def columns(self, module: str, call: int = 0) -> dict[str, Tensor]:
        """Columns and mean output of the heads of a module in one of its calls, empty if these were not read."""
        calls = self.found.get(module, [])
        return calls[call] if call < len(calls) else {}


def output_columns(outputs: Tensor, maps: Tensor, residual: Tensor) -> dict[str, Tensor]:
    """Columns of a module's heads, from their outputs (tokens, heads, dimension) and norms of the residual stream."""
    gram, middle = maps @ maps.mT, residual.median()
    found = {}
    for column, vectors in (("output", outputs), ("variation", outputs - outputs.mean(0))):
        squares = ((vectors.transpose(0, 1) @ gram) * vectors.transpose(0, 1)).sum(-1)
        norms = squares.clamp_min(0).sqrt() / middle
        found[column] = norms.mean(1)
        blocks = torch.stack([block.mean(1) for block in norms.tensor_split(min(BLOCKS, norms.shape[1]), dim=1)])
        # neighbours are alike, blocks of them less so
        found[f"{column}_error"] = blocks.std(0) / len(blocks) ** 0.5 if len(blocks) > 1 else blocks[0] * torch.nan
    return found | {"norm": found["output"] * middle}


def _gate(
    _: nn.Module, arguments: tuple[Any, ...], *, gates: Tensor, mean: Tensor | None, site: Site
) -> tuple[Any, ...]:
    """The outputs of heads, each times its gate."""
    if arguments[0].shape[-1] != site.heads * site.dim:
        raise DomainError(f"{site.name} had {site.heads} heads of dimension {site.dim}, and was cut since: scan again")
    outputs = arguments[0].unflatten(-1, (site.heads, site.dim))
    factor = gates.to(outputs.dtype)
    if factor.ndim == 2:  # one row a sequence
        rows = outputs.shape[0] // len(factor)
        factor = factor.repeat_interleave(rows, dim=0).view(-1, *(1,) * (outputs.ndim - 3), factor.shape[-1])
    factor = factor[..., None]
    gated = outputs * factor if mean is None else torch.lerp(mean.to(outputs).expand_as(outputs), outputs, factor)
    return (gated.flatten(-2), *arguments[1:])


def _in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that other threads, which may share the model, do not run."""
    thread = threading.get_ident()
    return lambda *arguments: hook(*arguments) if threading.get_ident() == thread else None


def _head_outputs(module: Any, arguments: Any, named: Any) -> Tensor:
    """What the heads of torch's attention hand to its projection, which its fused code calls as no module.

    A copy runs with a projection that changes nothing: the module itself may be running in another thread.
    """
    open_copy, projection = copy.copy(module), copy.copy(module.out_proj)
    weight, bias = projection.weight, projection.bias
    unit = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    projection._parameters = {"weight": unit, "bias": None if bias is None else torch.zeros_like(bias)}
    open_copy._modules = module._modules | {"out_proj": projection}
    return torch.as_tensor(open_copy.forward(*arguments, **named)[0])


def _project_again(module: Any, arguments: Any, named: Any, result: Any, *, change: Callable[..., Any]) -> Any:
    """The result of torch's attention with changed outputs of its heads."""
    (outputs,) = change(module, (_head_outputs(module, arguments, named),))
    return (module.out_proj(outputs), *result[1:])
