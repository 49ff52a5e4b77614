"""A small decoder learns a real text with and without the gap (ours)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bulkedge.lab.studies.base import NO_NUMBER, Claim, Claims, Study, dataset, sign, track
from bulkedge.plots.style import COLOURS, marks, panels
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.support.threads import one_thread

SHAPES = {"gap kept": (0.0, 1.0, 0.0), "gap removed": (0.0, 1.0, 1.0), "shaped": (1.0, 1.0, 1.0)}
"""Coefficients of the identity, of attention and of its mean."""
HEADS, BATCH, HELD_OUT, CHECKS = 4, 8, 0.1, 5
TRANSFERRED = -0.35
"""Log of the ratio of losses that removing the gap gains two layers of Markov attention with skip connection and layer
normalisation on the Heaviside function (-0.36 to -0.39 at the quick size of ``propagation/training``)."""


@dataclass(frozen=True)
class PropagationRealTask(Study):
    """A causal decoder learns the next letter of Python's reference manual, with and without the gap, at equal budget.

    The text comes with every Python (``pydoc_data.topics``). Weights, batches and steps of Adam are the same for all
    kinds of attention; scores start with standard deviation one. Shaped attention is ``I + A - C``, which keeps the
    first token. Sizes are ours.
    """

    requires = ("torch",)
    head_dim: int = parameter(Integers(2, 256), "dimension of each of the four heads", 8, ours=16)
    layers: int = parameter(Integers(1, 32), "layers", 2, ours=3)
    context: int = parameter(Integers(8, 4096), "letters seen at once", 32, ours=64)
    steps: int = parameter(Integers(5, 100_000), "steps of Adam", 30, ours=250)
    rate: float = parameter(Interval(1e-6, 1), "learning rate", 0.01, ours=0.003)
    seeds: int = parameter(Integers(2, 100), "repetitions", 20, ours=10)
    small = {"context": 16, "steps": 15, "seeds": 6}
    caption = """Held-out loss of a small decoder on a real text over steps with and without the gap, and
    the stable rank of its last tokens. A lasting distance between the loss curves, beyond the scatter of runs,
    would say that the gap matters at this task."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train each kind from each seed."""
        text = manual()
        letters, codes = np.unique(text, return_inverse=True)
        held_out = int(len(codes) * (1 - HELD_OUT))
        steps = np.unique(np.linspace(0, self.steps, CHECKS).astype(int))
        losses = np.empty((len(SHAPES), self.seeds, len(steps)))
        ranks = np.empty((len(SHAPES), self.seeds, 2))
        with one_thread(self.requires):
            for k in track(list(range(self.seeds)), "seeds"):
                seed = int(rng.integers(2**31))
                for s, shape in enumerate(SHAPES.values()):
                    parts = codes[:held_out], codes[held_out:]
                    losses[s, k], ranks[s, k] = self._trained(parts, len(letters), shape, steps, seed)
        frequencies = np.bincount(codes[:held_out], minlength=len(letters)) / held_out
        entropy = -np.sum(frequencies * np.log(np.maximum(frequencies, 1e-300)))
        return dataset(
            loss=(("kind", "seed", "step"), losses, {"units": "nats a letter"}),
            rank=(("kind", "seed", "when"), ranks, "stable rank of the last tokens"),
            entropy=((), entropy, {"long_name": "entropy of single letters", "units": "nats"}),
            coords={"kind": list(SHAPES), "step": steps, "when": ["before", "after"]},
            attrs={"text": hashlib.sha256(text.tobytes()).hexdigest(), "letters": len(text)},
        )

    def _trained(
        self, parts: tuple[Any, Any], letters: int, shape: tuple[float, float, float], steps: Any, seed: int
    ) -> tuple[list[float], list[float]]:
        """Losses on the held-out text at some steps, and the stable rank of the last tokens before and after."""
        import torch
        from torch.nn.functional import cross_entropy

        generator = torch.Generator().manual_seed(seed)
        weights = _weights(HEADS * self.head_dim, self.layers, self.context, letters, generator)
        adam = torch.optim.Adam([each.requires_grad_() for each in weights.values()], lr=self.rate)
        train, test = (torch.tensor(each) for each in parts)
        held_out = _batch(test, 4 * BATCH, self.context, torch.Generator().manual_seed(seed))
        losses, ranks = [], []
        for step in range(self.steps + 1):
            if step in steps:
                with torch.no_grad():
                    logits, tokens = _decoder(held_out[:, :-1], weights, shape)
                losses.append(float(cross_entropy(logits.flatten(0, 1), held_out[:, 1:].flatten())))
            if step in (0, self.steps):
                ranks.append(_stable_rank(tokens))
            if step < self.steps:
                batch = _batch(train, BATCH, self.context, generator)
                logits, _ = _decoder(batch[:, :-1], weights, shape)
                adam.zero_grad()
                loss: Any = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
                loss.backward()
                adam.step()
        return losses, ranks

    def statements(self, data: xr.Dataset) -> Claims:
        """Whether all learn, whether the gap makes a difference, and what it does to the tokens."""
        last, entropy = data.loss.isel(step=-1), float(data.entropy)
        for kind in SHAPES:
            text = f"{kind}: held-out loss after {self.steps} steps, below the entropy of single letters"
            rival = "nothing is learnt from what came before", entropy
            yield Claim(text, "ours", last.sel(kind=kind), entropy, rival, relation="<=", one_sided=NO_NUMBER)
        removed, kept = ({"kind": kind} for kind in ("gap removed", "gap kept"))
        start = data["rank"].sel(when="before")
        text = (
            "log of the held-out loss, without the gap over with it: removing it gains next to nothing,"
            " at most a tenth of what two layers of Markov attention gain"
        )
        measured, bound = np.log(last.sel(removed) / last.sel(kept)), TRANSFERRED / 10
        markov = "the gain of two layers of Markov attention", TRANSFERRED
        yield Claim(text, "ours", measured, bound, markov, relation=">=", one_sided=NO_NUMBER)
        text = "log of the stable rank of the last tokens before training, without the gap over with it"
        predicted = "skip connections and layer normalisation hide the gap"
        yield sign(text, "propagation: Proposition 5", np.log(start.sel(removed) / start.sel(kept)), predicted)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        left, right = grid[0]
        place, count = np.arange(data.sizes["when"]), data.sizes["seed"] ** 0.5
        for k, (kind, symbol) in enumerate(zip(data.kind.values.tolist(), "os^", strict=True)):
            one = data.sel(kind=kind)
            look = {"color": COLOURS[k], "fmt": symbol + "-", "lw": 0.8, "label": kind}
            apart = 0.008 * (k - 1) * float(data.step[-1])
            marks(left, data.step + apart, one.loss.mean("seed"), one.loss.std("seed", ddof=1) / count, **look)
            rank = one["rank"]
            shift = 0.12 * (k - 1)
            marks(right, place + shift, rank.mean("seed"), rank.std("seed", ddof=1) / count, **(look | {"fmt": symbol}))
        left.axhline(float(data.entropy), color=COLOURS[-1], ls=":", lw=0.9, label="entropy of letters")
        left.set(xlabel="step", ylabel="held-out loss, nats a letter")
        left.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        right.set(xlim=(-0.5, 1.5), ylabel="stable rank of the last tokens", ylim=(1, None))
        right.set_xticks(place, [f"{when} training" for when in data.when.values.tolist()])
        left.legend(loc="upper right")
        sizes = f"{self.layers} layers of width {HEADS * self.head_dim}, {self.context} letters at once"
        figure.suptitle(f"{sizes}; mean and standard error of {data.sizes['seed']} networks", fontsize=8)
        return figure


def manual() -> Any:
    """The topics of Python's reference manual, as bytes."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return np.frombuffer(text.encode("ascii", "ignore"), dtype=np.uint8)


def _batch(codes: Any, size: int, context: int, generator: Any) -> Any:
    import torch

    starts = torch.randint(0, len(codes) - context - 1, (size, 1), generator=generator)
    return codes[starts + torch.arange(context + 1)]


def _weights(width: int, layers: int, context: int, letters: int, generator: Any) -> dict[str, Any]:
    """Named weights, matrices with inputs of variance one in mind; queries and keys for scores of deviation one."""
    import torch

    from bulkedge.nn import query_key_std

    def draw(rows: int, columns: int, std: float) -> Any:
        return std * torch.randn(rows, columns, generator=generator)

    fan_in, scores = width**-0.5, query_key_std(1.0, width, context)
    weights = {"letters": draw(letters, width, 1.0), "places": draw(context, width, 1.0)}
    for k in range(layers):
        weights[f"queries {k}"], weights[f"keys {k}"] = draw(width, width, scores), draw(width, width, scores)
        weights[f"values {k}"], weights[f"outputs {k}"] = draw(width, width, fan_in), draw(width, width, fan_in)
        weights[f"wide {k}"], weights[f"narrow {k}"] = (
            draw(width, 4 * width, fan_in),
            draw(4 * width, width, fan_in / 2),
        )
    return weights | {"predictions": draw(width, letters, fan_in)}


def _decoder(codes: Any, weights: dict[str, Any], shape: tuple[float, float, float]) -> tuple[Any, Any]:
    """Logits of the next letters, and the tokens of the last layer."""
    from torch.nn.functional import gelu, layer_norm

    from bulkedge.nn import shaped_attention

    alpha, beta, gamma = shape
    tokens = weights["letters"][codes] + weights["places"][: codes.shape[1]]
    for k in range(sum(name.startswith("values") for name in weights)):
        x = layer_norm(tokens, tokens.shape[-1:])
        q, key, v = (
            (x @ weights[f"{name} {k}"]).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for name in ("queries", "keys", "values")
        )
        heads = shaped_attention(q, key, v, is_causal=True, alpha=alpha, beta=beta, gamma=gamma)
        tokens = tokens + heads.transpose(1, 2).flatten(-2) @ weights[f"outputs {k}"]
        x = layer_norm(tokens, tokens.shape[-1:])
        tokens = tokens + gelu(x @ weights[f"wide {k}"]) @ weights[f"narrow {k}"]
    return layer_norm(tokens, tokens.shape[-1:]) @ weights["predictions"], tokens


def _stable_rank(tokens: Any) -> float:
    """Mean over texts of the stable rank of their last tokens."""
    import torch

    values = torch.linalg.svdvals(tokens.double())
    return float((values / values[:, :1]).square().sum(1).mean())
