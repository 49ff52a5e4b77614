r"""What heads are worth by the Fisher information of their gates: which can go without the model noticing.

Let a model's loss be that of labels drawn from the model itself. Where all gates (:mod:`bulkedge.models.hooks.gates`)
are one the loss has no slope, and its curvature in a head's gate is ``F = E (sum_t g_t . z_t)^2``, with ``z`` what the
head gives to the projection and ``g`` the gradient there. To second order, switching the head off moves the model's
predictions by ``F / 2`` nats. For heads that are replaced by their mean output, ``z`` less that mean takes its place;
for a set of heads, the sum over heads is squared, so that samples of all heads say what sets cost.

A head that copies costs nothing on a text that does not repeat itself. So a decoder is also asked on random tokens that
come twice (:func:`copied_tokens`), where the second copy counts.

A model without logits has no labels. Its output is taken for the mean of Gaussian ones, with the variance of the output
over tokens: the importance is then half the squared change of the output, as a share of its variance.

:func:`ablate_heads` measures what that predicts: a gate of zero before the projection, and nothing else of the layer
changes; other heads that share its keys and values keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bulkedge.models.hooks.attention_hooks import AttentionInputs
from bulkedge.models.hooks.capture import read_uncompiled
from bulkedge.models.hooks.gates import BLOCKS, GateFinder, HeadGates
from bulkedge.models.scanning.passages import Passage, model_inputs, on_device, vocabulary_size
from bulkedge.models.scanning.probing import ordinary_tokens, token_pool
from bulkedge.nn.patching.interface import unwrap
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.domains import shown
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

SAMPLES = 64  # drawn labels of all texts together, so that the error is a sixth, and as many of the copies
PROMPTS, COPIED = 4, 256  # of copied tokens, and tokens of each
COPY_PROMPTS = 16  # the same where the loss is measured


def model_output(answer: Any, vocabulary: int | None = None) -> tuple[Tensor, bool]:
    """What a model says, (batch, ..., entries), and whether these are logits: by name, or one for every token."""
    logits = getattr(answer, "logits", None)
    if isinstance(logits, Tensor):
        return logits, True
    hidden = getattr(answer, "last_hidden_state", answer)
    hidden = hidden[0] if isinstance(hidden, tuple | list) else hidden
    if isinstance(hidden, Tensor) and hidden.ndim == 3 and hidden.shape[-1] == vocabulary:
        return hidden, True
    if not isinstance(hidden, Tensor) or hidden.ndim < 2 or not hidden.is_floating_point():
        raise DomainError(f"the model returned a {type(answer).__name__} without logits and without hidden states")
    return hidden, False


def label_gradient(outputs: Tensor, *, is_logits: bool, generator: torch.Generator) -> Tensor:
    """Gradient of minus the log-likelihood of labels that are drawn from a model's outputs."""
    found = outputs.detach().to(torch.promote_types(outputs.dtype, torch.float32))
    if is_logits:
        share = found.softmax(-1)
        drawn = torch.multinomial(share.flatten(0, -2), 1, generator=generator).view(*share.shape[:-1], 1)
        return share.scatter_add_(-1, drawn, -torch.ones_like(share[..., :1])).to(outputs.dtype)
    noise = torch.randn(found.shape, generator=generator, device=found.device)
    return (noise / _variance(found).sqrt()).to(outputs.dtype)


def gate_samples(  # noqa: PLR0913
    gates: HeadGates,
    inputs: Mapping[str, Any],
    *,
    draws: int,
    generator: torch.Generator,
    start: int = 0,
    means: Sequence[Tensor] | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """First-order effects of all gates on the loss of drawn labels, (draws x batch, heads).

    Half the mean square of a column is the importance of its head, in nats a token. Positions before ``start`` do not
    count. Gates are taken to be ``at``, or one.
    """
    batch = next(len(each) for each in inputs.values() if isinstance(each, Tensor))
    values = torch.ones(gates.count, device=gates.device) if at is None else at
    values = values.detach().expand(batch, -1).clone().requires_grad_()
    frozen = [each for each in gates.model.parameters() if each.requires_grad]
    for each in frozen:
        each.requires_grad = False
    try:
        with torch.enable_grad(), gates.on(values, means):
            outputs, is_logits = model_output(gates.model(**inputs), vocabulary_size(gates.model))
        if outputs.ndim > 2 and outputs.shape[1] <= start:
            raise DomainError(f"the model says something of {outputs.shape[1]} positions: forward= may ask for all")
        found = []
        for draw in range(draws):
            gradient = label_gradient(outputs, is_logits=is_logits, generator=generator)
            if start and gradient.ndim > 2:
                gradient[:, :start] = 0
            (sample,) = torch.autograd.grad(outputs, values, gradient, retain_graph=draw + 1 < draws)
            found.append(sample.double())
    finally:
        for each in frozen:
            each.requires_grad = True
    tokens = outputs[0, ..., 0].numel() - (start if outputs.ndim > 2 else 0)
    return torch.cat(found) / tokens**0.5


@dataclass(frozen=True, eq=False)
class Material:
    """What a scan asks of heads when it has read them, and can be asked again: the model and what it read."""

    model: Any
    tokenizer: Any
    passages: Sequence[Passage]
    causal: bool
    gates: HeadGates | None  # None where heads do not meet in a projection
    modules: Sequence[str]  # that were read, in the order of their calls
    seeds: tuple[int, ...]  # of copied tokens, and of drawn labels

    @property
    def items(self) -> Real:
        """The gate of every head that was read."""
        if self.gates is None:
            raise DomainError("the model's heads do not meet in a linear projection that follows its attention")
        parts = {site.name: np.arange(part.start, part.stop) for site, part in self.gates.slices()}
        return np.concatenate([parts[one] for one in self.modules])

    def gates_without(self, heads: Iterable[int]) -> Tensor:
        """Gates that are zero for some of the heads that were read."""
        found = torch.ones(self._gates.count, device=self._gates.device)
        found[self.items[list(heads)].tolist()] = 0
        return found

    def inputs(self) -> dict[str, list[dict[str, Any]]]:
        """Texts, and for a decoder of tokens random ones that come twice."""
        found = {"text": [model_inputs(self.model, each.inputs) for each in self.passages]}
        return found | ({"copies": self.copies(PROMPTS)} if self.copies_tokens else {})

    @property
    def copies_tokens(self) -> bool:
        """Whether the model is a decoder that reads tokens."""
        return self.causal and "input_ids" in self.passages[0].inputs

    def copies(self, prompts: int) -> list[dict[str, Any]]:
        """Prompts of random tokens that come twice."""
        generator = torch.Generator().manual_seed(self.seeds[0])
        pool, longest = token_pool(self.model, None if self.tokenizer is None else ordinary_tokens(self.tokenizer))
        drawn = copied_tokens(pool.tolist(), prompts, min(COPIED, longest), generator)
        return [model_inputs(self.model, {"input_ids": each[None]}) for each in drawn]

    def effects(self, at: Tensor | None = None) -> dict[str, Real]:
        """Effects of gates on drawn labels, on texts and on copies, (draws, heads); gates are at one, or ``at``."""
        found = {}
        with on_device(self.model, None):
            generator = torch.Generator(self._gates.device).manual_seed(self.seeds[1])
            for name, several in self.inputs().items():
                draws = -(-SAMPLES // len(several))
                samples = [
                    gate_samples(self._gates, each, draws=draws, generator=generator, start=_start(name, each), at=at)
                    for each in track(several, f"importance of heads on {name}")
                ]
                found[f"effects_{name}"] = as_numpy(torch.cat(samples))
        return found

    def importance(self) -> dict[str, Real]:
        """Importance on texts, on copies and on both with its standard error, nats a token; and effects."""
        effects = self.effects()
        found = {name.replace("effects", "importance"): Estimate.of(each**2 / 2) for name, each in effects.items()}
        both = sum(each.value for each in found.values())
        errors = np.sqrt(sum(each.error**2 for each in found.values()))
        values = {name: each.value for name, each in found.items()}
        return values | {"importance": both, "importance_error": errors} | effects

    @torch.no_grad()
    def cost(self, at: Tensor) -> Estimate:
        """How far predictions are from the whole model's, on texts plus on copies; its error is that over the rows."""
        found = []
        with on_device(self.model, None):
            for name, several in self.inputs().items():
                blocks = []
                for each in several:
                    whole, is_logits = model_output(self.model(**each), vocabulary_size(self.model))
                    with self._gates.on(at):
                        other, _ = model_output(self.model(**each))
                    start = _start(name, each) if whole.ndim > 2 else 0
                    rows = _divergence(whole, other, is_logits=is_logits).flatten()[start:]
                    blocks += [block.mean() for block in rows.tensor_split(min(BLOCKS, len(rows)))]
                # a single row, such as that of an image, does not tell how much they scatter
                found.append(
                    Estimate.of(as_numpy(torch.stack(blocks).double()))
                    if len(blocks) > 1
                    else Estimate(float(blocks[0]), float("nan"), 0.0)
                )
        error = float(np.sqrt(sum(each.error**2 for each in found)))
        return Estimate(float(sum(each.value for each in found)), error, min(each.freedom for each in found))

    @torch.no_grad()
    def copy_losses(self) -> Real | None:
        """Loss of each of some prompts on their second copy, nats a token; None where the model copies no tokens."""
        if not self.copies_tokens:
            return None
        found = []
        for each in self.copies(COPY_PROMPTS):
            with on_device(self.model, None):
                logits, is_logits = model_output(self.model(**each), vocabulary_size(self.model))
            ids, start = next(iter(each.values())), _start("copies", each)
            if not is_logits or logits.shape[:2] != ids.shape:
                return None
            found.append(cross_entropy(logits[0, start:-1].double(), ids[0, start + 1 :]))
        return as_numpy(torch.stack(found))

    @property
    def _gates(self) -> HeadGates:
        assert self.items.size  # noqa: S101 - says what is missing
        return self.gates  # type: ignore[return-value]


def _start(name: str, inputs: Mapping[str, Any]) -> int:
    """The first position that counts: of copies, that of the second one."""
    return 0 if name == "text" else next(iter(inputs.values())).shape[1] // 2


def _divergence(whole: Tensor, other: Tensor, *, is_logits: bool) -> Tensor:
    """By how many nats predictions differ, row by row; without logits, half the squared change over the variance."""
    whole, other = whole.double(), other.double()
    if is_logits:
        logs = whole.log_softmax(-1)
        return (logs.exp() * (logs - other.log_softmax(-1))).sum(-1)
    return (whole - other).square().sum(-1) / (2 * _variance(whole))


def _variance(outputs: Tensor) -> Tensor:
    """Variance of outputs over tokens, summed over entries."""
    rows = outputs.flatten(1, -2) if outputs.ndim > 2 else outputs[:, None]
    return (rows - rows.mean((0, 1))).square().sum(-1).mean().clamp_min(1e-30)


def copied_tokens(pool: Sequence[int], prompts: int, tokens: int, generator: torch.Generator) -> Tensor:
    """Random tokens that come twice, (prompts, tokens): the second half is a copy of the first."""
    half = tokens // 2
    ids = torch.as_tensor(pool)
    drawn = torch.randint(len(ids), (prompts, half), generator=generator)
    return ids[drawn].repeat(1, 2)


# -- heads switched off ------------------------------------------------------------------------------------------------


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
