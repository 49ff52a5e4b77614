"""Heads of a decoder before training (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, follows, track
from bulkedge.lab.studies.equivalence import UNKNOWN
from bulkedge.laws import CausalHeadLaw, CausalLaw, FiniteHeadLaw
from bulkedge.plots.style import BARS, COLOURS, histogram, line, panels
from bulkedge.spectra import attention_spectrum
from bulkedge.support.domains import Integers, parameter

LEVELS = np.arange(1, 20) / 20
POINTS = 300
HEADS, WIDTH, SPREAD, EPSILON = 12, 768, 0.02, 1e-5
"""Those of GPT-2: its weights are drawn with that standard deviation, and its layer norm adds that to variances."""
BETA = SPREAD**2 * WIDTH / (1 + EPSILON / (2 * SPREAD**2))
"""Standard deviation of the scores: inputs of the layer norm are sums of two embeddings of variance ``SPREAD**2``."""
NAMES = {"law": "causal head law", "independent": "independent scores", "full": "head without a mask"}


@dataclass(frozen=True)
class HeadsInitialised(Study):
    """The heads of GPT-2 with fresh weights follow the law of causal heads, at the score scale that its weights imply.

    Tokens are all different, as the law has it: those of a text repeat, and share a mean. Behind the layer norm the
    scores of the first layer have standard deviation ``0.02**2 * 768``, less 1.2 % for what the layer norm adds.
    """

    requires = ("torch", "transformers")

    tokens: int = parameter(Integers(64, 8192), "tokens that a head reads", 512, ours=1024)
    models: int = parameter(Integers(1, 50), "models, of twelve heads each", 1, ours=2)
    small = {"tokens": 256}
    caption = """Density of the logarithm of the squared singular values of GPT-2's heads with fresh
    weights (left), and the mass up to each value minus that of three laws (right). The bars should follow the law
    of causal heads, and the orange difference should stay at zero."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Distribution functions of the heads at the quantiles of the law, and their score scales."""
        dim = WIDTH // HEADS
        law = CausalHeadLaw(BETA, dim, self.tokens)
        laws = {"law": law, "independent": CausalLaw(np.expm1(BETA**2)), "full": FiniteHeadLaw(BETA, dim, self.tokens)}
        points = np.asarray(law.ppf(LEVELS))
        x = np.geomspace(law.ppf(0.12), law.edge, POINTS)
        found = [self._heads(rng) for _ in track(range(self.models), "models")]
        values = [each for one in found for each in one[0]]
        return dataset(
            beta=("draw", np.concatenate([one[1] for one in found]), "standard deviation of scores"),
            mass=(("draw", "level"), [_mass(each, points) for each in values]),
            shown=(("draw", "x"), [_mass(each, x) for each in values], "share of values up to x"),
            predicted=(("law", "x"), [each.cdf(x) for each in laws.values()]),
            rival=("level", laws["independent"].cdf(points), "independent scores"),
            unmasked=("level", laws["full"].cdf(points), "the same head without a mask"),
            coords={
                "level": LEVELS,
                "x": ("x", x, {"long_name": "squared singular value of √T(A − C)"}),
                "law": list(laws),
            },
        )

    def _heads(self, rng: np.random.Generator) -> tuple[list[Real], Real]:
        """Squared singular values of the heads of a fresh model, and the standard deviations of their scores."""
        import torch
        from transformers import GPT2Config, GPT2Model

        from bulkedge.models import capture

        sizes: dict[str, Any] = {
            "n_layer": 1,
            "n_head": HEADS,
            "n_embd": WIDTH,
            "vocab_size": self.tokens,
            "n_positions": self.tokens,
        }
        sizes |= {"bos_token_id": None, "eos_token_id": None}
        config = GPT2Config(**sizes, initializer_range=SPREAD, layer_norm_epsilon=EPSILON)
        with torch.random.fork_rng():
            torch.manual_seed(int(rng.integers(2**62)))
            build: Any = GPT2Model
            model = build(config).eval()
        (layer,) = capture(model, input_ids=torch.as_tensor(rng.permutation(self.tokens))[None])
        attention = layer.attention()[0].numpy()
        scores = layer.scale * (layer.query[0].double() @ layer.key[0].double().mT).numpy()
        spreads = np.sqrt(scores.var(axis=2, ddof=1).mean(axis=1))
        return [each.values for each in attention_spectrum(attention, mask="causal")], spreads

    def statements(self, data: xr.Dataset) -> Claims:
        """The bulk against both rivals, and the score scale."""
        for name, rival in (("the law of independent scores", "rival"), ("the head without a mask", "unmasked")):
            text, off = f"share of {name} in the bulk of GPT-2's heads", UNKNOWN / self.tokens
            reason = "derived: rank of what no law knows over T: the zero of the constant vector, and the first rows"
            yield follows(text, "ours", data.mass, data.level, (name, data[rival]), off, reason)
        text = "standard deviation of the scores"
        against = "one, as of scores at the scale of the root of the dimension", 1.0
        yield Claim(text, "ours", data.beta, BETA, against)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, (axes,) = panels(1, 2, width=3.6, height=2.7)
        density, difference = axes
        x, every = data.x.values, slice(None, None, 8)
        logs = np.log10(x)
        histogram(
            density, x[every], np.diff(data.shown.mean("draw")[every]) / np.diff(logs[every]), label="heads of GPT-2"
        )
        middle = (x[1:] * x[:-1]) ** 0.5
        for (name, label), colour in zip(NAMES.items(), COLOURS[1:], strict=False):
            predicted = data.predicted.sel(law=name)
            line(density, middle, np.diff(predicted) / np.diff(logs), label=label, color=colour, lw=1.1)
            gap = data.shown - predicted
            line(difference, x, gap.mean("draw"), label=label, color=colour, lw=1.1)
            difference.fill_between(x, gap.min("draw"), gap.max("draw"), color=colour, alpha=0.25, lw=0)
        difference.axhline(0, color=BARS, lw=0.8, zorder=1)
        for each in axes:
            each.set(xscale="log", xlabel=data.x.attrs["long_name"])
        highest = 1.4 * float(np.max(np.diff(data.predicted, axis=1) / np.diff(logs)))
        density.set(ylabel=r"density of $\log_{10}$ of the value", ylim=(0, highest))
        difference.set(ylabel="measured − predicted mass up to x")
        density.legend(loc="upper right")
        figure.suptitle(
            f"GPT-2 at initialisation: {data.sizes['draw']} heads of 64 dimensions, {self.tokens} different tokens"
        )
        return figure


def _mass(values: Real, points: Real) -> Real:
    return np.searchsorted(values, points, side="right") / len(values)
