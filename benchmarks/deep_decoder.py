"""Deep decoders of small width, several trained at once, and a language that they learn.

A group of decoders of one architecture trains as one: every weight has a leading axis for the decoders, of which each
has its own start, data, learning rate, norm of its gradient and Adam. So a GPU gets large products from small models,
and a decoder that diverges takes no other with it. Attention is :func:`bulkedge.nn.attention.shaped_attention`, of
which plain fused attention (``alpha, beta, gamma = 0, 1, 0``) and attention without its gap (``0, 1, 1``) are cases.

The language: each sequence repeats a segment of its own to its end, and segments come from one fixed Markov chain.
Letters of the first reading can be known as well as the chain lets them be, from the letter before; those that repeat
exactly, by looking for what followed the same letters earlier. Sequences are new in every step: training loss is loss
on unseen text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm

from bulkedge.nn.attention import shaped_attention
from bulkedge.nn.power import attended_power
from bulkedge.nn.scales import Scales

LETTERS, SHARPNESS = 32, 2.0
"""States of the Markov chain, and the deviation of the logarithms of its transition weights."""
SHORTEST, LONGEST = 0.125, 0.375
"""Segments, as shares of the context."""
BETA = 1.0
"""Standard deviation of scores at the start, where the arm's own theory asks for no other."""
DECAY, MOMENTS, CLIP, WARM_UP, LAST = 0.01, (0.9, 0.95), 1.0, 0.1, 0.1
"""Weight decay, Adam's two, the largest norm of a gradient, the share of steps in which the rate rises, and what is
left of it at the end."""


@dataclass(frozen=True)
class Size:
    """Sizes of decoders and of what they read."""

    width: int = 256
    heads: int = 4
    context: int = 256
    batch: int = 16

    @property
    def tokens(self) -> int:
        """Of one step of one decoder."""
        return self.batch * self.context


@dataclass(frozen=True)
class Design:
    """An architecture.

    Attributes
    ----------
    name : str
        Of the arm.
    coefficients : tuple of float
        ``alpha, beta, gamma`` of ``alpha I + beta A - gamma C``, at the start or for ever.
    learnt : bool
        Whether each head learns its own coefficients.
    skip : float
        Weight of the skip connection, beside branches of weight one; 0 for none.
    norm : {"none", "pre", "post"}
        Where tokens are normalised. Without a skip connection ``"post"`` is after every layer.
    mlp : bool
        Whether a layer has two linear maps and a GELU beside its attention.
    branch : float
        What multiplies output projections at the start.
    level : bool
        Whether rows of attention are brought to the same power, by what the theory says that is for so many keys.
    beta : float
        Standard deviation of scores at the start, if there are no `scales`. At zero, where queries vanish and keys do
        not, attention is uniform, and shaped attention the identity.
    warm_up : bool
        Whether the learning rate rises from zero.
    scales : Scales, optional
        Of :func:`bulkedge.nn.initial_scales`, for attention, in the place of :data:`BETA` and `branch`.
    """

    name: str
    coefficients: tuple[float, float, float] = (0.0, 1.0, 0.0)
    learnt: bool = False
    skip: float = 0.0
    norm: str = "none"
    mlp: bool = False
    branch: float = 1.0
    level: bool = False
    beta: float = BETA
    warm_up: bool = True
    scales: Scales | None = None


def transitions() -> np.ndarray[Any, np.dtype[np.float64]]:
    """The Markov chain: a row for each letter, the same in every run."""
    weights = np.exp(SHARPNESS * np.random.default_rng(0).standard_normal((LETTERS, LETTERS)))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def levels(context: int) -> dict[str, float]:
    """Losses to compare with, in nats a letter."""
    chain = transitions()
    stationary = np.linalg.matrix_power(chain, 200)[0]
    single = float(-np.sum(stationary * np.log(stationary)))
    pair = float(-stationary @ np.sum(chain * np.log(chain), axis=1))
    first = np.arange(*_lengths(context)).mean() / context
    return {"uniform": math.log(LETTERS), "single letters": single, "pairs": pair, "pairs, then recall": first * pair}


def _lengths(context: int) -> tuple[int, int]:
    return max(2, round(SHORTEST * context)), max(2, round(LONGEST * context)) + 1


def sequences(count: int, context: int, rng: torch.Generator) -> Tensor:
    """Sequences (count, context + 1) of the language, on the device of the generator."""
    chain = torch.tensor(transitions().cumsum(1), dtype=torch.float32, device=rng.device)
    low, high = _lengths(context)
    lengths = torch.randint(low, high, (count, 1), generator=rng, device=rng.device)
    letters = [torch.randint(LETTERS, (count,), generator=rng, device=rng.device)]
    for _ in range(high - 1):
        drawn = torch.rand(count, 1, generator=rng, device=rng.device)
        letters.append((chain[letters[-1]] < drawn).sum(1).clamp(max=LETTERS - 1))
    where = torch.arange(context + 1, device=rng.device) % lengths
    return torch.stack(letters, 1).gather(1, where)


class Decoders:
    """A group of decoders of one design; weights are rows of one matrix, a row for each decoder."""

    def __init__(self, design: Design, depth: int, size: Size, seeds: list[int], device: str) -> None:
        """Draw the weights: one seed, one start, whatever the group, its device apart."""
        self.design, self.depth, self.size, self.count = design, depth, size, len(seeds)
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        drawn = {seed: self._drawn(torch.Generator().manual_seed(seed)) for seed in seeds}
        self.shapes = {name: each.shape for name, each in drawn[seeds[0]].items()}
        rows = {seed: torch.cat([each.flatten() for each in one.values()]) for seed, one in drawn.items()}
        self.weights = torch.stack([rows[seed] for seed in seeds]).to(device).requires_grad_()
        self.turns = self._turns(device)
        self.factors = self._factors(device) if design.level else None

    def _drawn(self, rng: torch.Generator) -> dict[str, Tensor]:
        """Weights of one decoder."""
        width, layers = self.size.width, range(self.depth)

        def gaussian(rows: int, columns: int, std: float) -> Tensor:
            return std * torch.randn(rows, columns, generator=rng)

        def orthogonal(factor: float) -> Tensor:
            return factor * torch.linalg.qr(gaussian(width, width, 1.0))[0]

        drawn = {"letters": gaussian(LETTERS, width, 1.0)}
        scales = self.design.scales
        beta = scales.beta if scales else self.design.beta
        scores = math.sqrt((beta or BETA) / width)
        for layer in layers:
            value, out = (scales.value_gains[layer], scales.weights[layer]) if scales else (1.0, self.design.branch)
            query = gaussian(width, width, scores) * (beta > 0)
            maps = [query, gaussian(width, width, scores), orthogonal(value)]
            drawn[f"in {layer}"] = torch.cat(maps, 1)
            drawn[f"out {layer}"] = orthogonal(out)
            if self.design.learnt:
                drawn[f"mix {layer}"] = torch.tensor(self.design.coefficients)[:, None].repeat(1, self.size.heads)
            if self.design.mlp:
                drawn[f"up {layer}"] = gaussian(width, 4 * width, math.sqrt(2 / width))
                drawn[f"down {layer}"] = gaussian(4 * width, width, self.design.branch * math.sqrt(1 / (4 * width)))
        return drawn | {"read": gaussian(width, LETTERS, 0.1 * width**-0.5)}

    def _turns(self, device: str) -> tuple[Tensor, Tensor]:
        """Cosine and sine of rotary positions, (token, dimension of a head)."""
        half = self.size.width // self.size.heads // 2
        frequencies = 1000.0 ** (-torch.arange(half) / half)
        angles = (torch.arange(self.size.context)[:, None] * frequencies).repeat(1, 2)
        return angles.cos().to(device, self.dtype), angles.sin().to(device, self.dtype)

    def _factors(self, device: str) -> Tensor:
        """What brings row t of attention to power one, (token, 1); without the gap the first row is zero anyway."""
        width, head_dim = self.size.width, self.size.width // self.size.heads
        counts = np.unique(np.round(np.geomspace(2, self.size.context, 24))).astype(int)
        gap = self.design.coefficients[2] == 0
        powers = [attended_power(self.design.beta, int(each), width, head_dim, gap=gap) for each in counts]
        every = np.arange(1, self.size.context + 1)
        logs = np.interp(np.log(every), np.log(counts), np.log(powers))
        return torch.tensor(np.exp(-logs / 2)[:, None], dtype=self.dtype, device=device)

    def parts(self) -> dict[str, Tensor]:
        """Weights by name, (decoder, ...), in the precision of the products."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        split = self.weights.to(self.dtype).split(sizes, 1)
        return {name: each.unflatten(1, shape) for (name, shape), each in zip(self.shapes.items(), split, strict=True)}

    def logits(self, letters: Tensor, watch: Callable[[int, Tensor], Tensor] | None = None) -> Tensor:
        """Of the next letter, (decoder, sequence, token, letter), for letters (decoder, sequence, token)."""
        parts = self.parts()
        return self._linear(self.signal(letters, parts, watch), parts["read"])

    def signal(
        self, letters: Tensor, parts: dict[str, Tensor], watch: Callable[[int, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Tokens after the last layer, (decoder, sequence, token, dimension), normed if the design has norms.

        `watch` sees the branch of attention of each layer, and may change it.
        """
        design = self.design
        apart = LETTERS * torch.arange(self.count, device=letters.device).view(-1, 1, 1)
        signal = embedding(letters + apart, parts["letters"].flatten(0, 1)).float()
        for layer in range(self.depth):
            inputs = self._normed(signal) if design.norm == "pre" else signal
            branch = self._attend(inputs, parts, layer)
            branch = branch if watch is None else watch(layer, branch)
            signal = self._joined(signal, branch)
            if design.mlp:
                inputs = self._normed(signal) if design.norm == "pre" else signal
                hidden = gelu(self._linear(inputs, parts[f"up {layer}"]))
                signal = self._joined(signal, self._linear(hidden, parts[f"down {layer}"]))
        return signal if design.norm == "none" else self._normed(signal)

    @torch.no_grad()
    def cosine(self, text: Tensor) -> Tensor:
        """Mean cosine of two tokens of a sequence after the last layer, for each decoder; the first token left out.

        It sees itself alone: without the gap and without skip connections nothing is left of it. Nor is there of a
        token before which all letters were the same; such tokens are left out too.
        """
        signal = self.signal(text[..., :-1], self.parts())[:, :, 1:].double()
        norms = signal.norm(dim=-1, keepdim=True)
        count = (norms > 0).sum(-2).double()
        units = torch.where(norms > 0, signal / norms, 0.0)
        pairs = units.sum(-2).square().sum(-1, keepdim=True) - count
        return (pairs / (count * (count - 1)).clamp(min=1)).flatten(1).mean(1)

    def _joined(self, signal: Tensor, branch: Tensor) -> Tensor:
        joined = self.design.skip * signal + branch.float() if self.design.skip else branch
        return self._normed(joined) if self.design.norm == "post" else joined

    def _normed(self, signal: Tensor) -> Tensor:
        """Layer normalisation without weights, in single precision."""
        return layer_norm(signal.float(), (self.size.width,))

    def _linear(self, signal: Tensor, weight: Tensor) -> Tensor:
        return (signal.to(self.dtype).flatten(1, 2) @ weight).unflatten(1, signal.shape[1:3])

    def _attend(self, signal: Tensor, parts: dict[str, Tensor], layer: int) -> Tensor:
        """Heads of all decoders side by side: (sequence, decoder and head, token, dimension)."""
        heads, size = self.size.heads, signal.shape
        made = self._linear(signal, parts[f"in {layer}"]).unflatten(-1, (3, heads, -1))
        made = made.permute(3, 1, 0, 4, 2, 5).flatten(2, 3)
        query, key = self._turned(made[:2]).unbind()
        alpha, beta, gamma = self._mix(parts, layer)
        output = shaped_attention(query, key, made[2], is_causal=True, alpha=alpha, beta=beta, gamma=gamma)
        if self.factors is not None:
            output = output * self.factors
        joined = output.unflatten(1, (-1, heads)).permute(1, 0, 3, 2, 4).reshape(size)
        return self._linear(joined, parts[f"out {layer}"])

    def _mix(self, parts: dict[str, Tensor], layer: int) -> Any:
        """Coefficients: numbers, or one of each for each head of each decoder."""
        if not self.design.learnt:
            return self.design.coefficients
        return parts[f"mix {layer}"].transpose(0, 1).flatten(1).unbind()

    def _turned(self, vectors: Tensor) -> Tensor:
        """Rotary positions: pairs of entries half a head apart turn by an angle in proportion to the position."""
        (one, other), (cosine, sine) = vectors.chunk(2, -1), self.turns
        return torch.addcmul(vectors * cosine, torch.cat([-other, one], -1), sine)

    def losses(self, text: Tensor) -> Tensor:
        """Mean over letters, for each decoder, of text (decoder, sequence, token + 1)."""
        logits = self.logits(text[..., :-1]).float()
        each = cross_entropy(logits.flatten(0, 2), text[..., 1:].flatten(), reduction="none")
        return each.view(len(text), -1).mean(1)

    @torch.no_grad()
    def scale_values(self, text: Tensor) -> None:
        """Scale the values of each layer, in turn, so that its branch has mean square `branch**2` on a text.

        The same rule for all arms: what it finds is the power that attention leaves, which differs between them.
        """
        width = self.size.width
        gains = torch.ones(self.depth, self.count, device=self.weights.device)

        def watch(layer: int, branch: Tensor) -> Tensor:
            found = branch.float().square().flatten(1).mean(1).sqrt() / self.design.branch
            gains[layer] = 1 / found.clamp(min=1e-12)
            return branch * gains[layer].to(branch.dtype).view(-1, 1, 1, 1)

        self.logits(text[..., :-1], watch)
        start = 0
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            if name.startswith("in "):
                block = self.weights[:, start:end].view(self.count, width, 3 * width)
                block[..., 2 * width :] *= gains[int(name[3:])].view(-1, 1, 1)
            start = end


class Adam:
    """AdamW for a matrix of weights whose rows are decoders, with rates and norms of gradients of their own."""

    def __init__(self, weights: Tensor, rates: list[float], steps: int, *, warm_up: bool) -> None:
        """Begin with no moments."""
        self.weights, self.steps, self.count = weights, steps, 0
        self.warm = max(1, round(WARM_UP * steps)) if warm_up else 1
        self.rates = torch.tensor(rates, device=weights.device)[:, None]
        self.first, self.second = torch.zeros_like(weights), torch.zeros_like(weights)
        self.start = torch.zeros(len(weights))

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """One step; a row with a gradient that is no number stays where it is."""
        self.count += 1
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        if self.count == 1:
            self.start = norm.flatten()
        gradient = torch.where(norm.isfinite(), gradient * (CLIP / norm.clamp(min=CLIP)), 0.0)
        share = (self.count - self.warm) / max(1, self.steps - self.warm)
        falling = LAST + (1 - LAST) * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0))) / 2
        rates = self.rates * (min(1.0, self.count / self.warm) * falling)
        (one, two), count = MOMENTS, self.count
        self.first.lerp_(gradient, 1 - one)
        self.second.mul_(two).addcmul_(gradient, gradient, value=1 - two)
        size = (self.second / (1 - two**count)).sqrt_().add_(1e-8)
        self.weights.mul_(1 - DECAY * rates).sub_(rates * (self.first / size) / (1 - one**count))


def text_for(seeds: list[int], count: int, size: Size, device: str, purpose: int) -> Tensor:
    """Sequences (decoder, sequence, token) by the seeds; decoders of one seed read the same, purposes are disjoint."""
    made = {
        seed: sequences(count, size.context, torch.Generator(device).manual_seed(1000 * purpose + seed))
        for seed in set(seeds)
    }
    return torch.stack([made[seed] for seed in seeds])


def train(  # noqa: PLR0913, PLR0917 - a run
    design: Design,
    depth: int,
    size: Size,
    seeds: list[int],
    rates: list[float],
    steps: int,
    device: str,
    deadline: float = math.inf,
    points: int = 40,
) -> dict[str, Any]:
    """Train a group, a decoder for each pair of seed and rate, and return its losses.

    Returns
    -------
    dict
        ``curve``: for each of the points the steps done and each decoder's mean loss since the point before; ``final``:
        each decoder's loss on unseen text; ``steps`` done, fewer than asked for if the deadline came; at the start, the
        norm of each decoder's ``gradient`` and the mean ``cosine`` of its tokens after the last layer.
    """
    decoders = Decoders(design, depth, size, seeds, device)
    text = text_for(seeds, steps * size.batch, size, device, purpose=1)
    if design.norm == "none" or design.level:
        decoders.scale_values(text[:, : size.batch])
    cosine = decoders.cosine(text[:, : size.batch]).tolist()
    adam = Adam(decoders.weights, rates, steps, warm_up=design.warm_up)
    every, curve, recent, done = max(1, steps // points), [], [], 0
    for step in range(steps):
        losses = decoders.losses(text[:, step * size.batch : (step + 1) * size.batch])
        adam.step(torch.autograd.grad(losses.sum(), decoders.weights)[0])
        recent.append(losses.detach())
        done = step + 1
        if done % every == 0 or done == steps:
            curve.append([done, torch.stack(recent).mean(0).tolist()])
            recent = []
            if time.time() > deadline:
                break
    held_out = text_for(seeds, 4 * size.batch, size, device, purpose=2)
    with torch.no_grad():
        parts = [decoders.losses(part) for part in held_out.split(size.batch, 1)]
    final = torch.stack(parts).mean(0).tolist()
    return {"curve": curve, "final": final, "steps": done, "gradient": adam.start.tolist(), "cosine": cosine}
