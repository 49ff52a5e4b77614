"""The score scale that a longer context needs: rows that keep what they should, and a decoder that reads on (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bulkedge.heads import Channel, published_rules, score_scales
from bulkedge.heads.softmax import Of, rows_of
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, mean_marks, sign, track
from bulkedge.lab.studies.heads import READINGS, factors_of, losses_over
from bulkedge.plots.style import COLOURS, line, panels, plain_ticks
from bulkedge.support.arrays import as_numpy
from bulkedge.support.domains import Integers, parameter

BETAS = (1.0, 2.0, 3.0)
KEPT: dict[Any, Of] = {"entropy": "entropy", "participation": "participation", "mean participation": "keys"}
"""What rows keep, and the mean that is the same then."""
WORDS = {
    "entropy": "entropy in nats",
    "participation": "sum of squared weights",
    "mean participation": "one over the sum of squared weights",
}
REFERENCE = 4096
"""Keys from which factors are compared with the published rules, up to 32 times as many: the lengths of the recipes."""
BATCH = 50
"""Rows that are drawn at once."""
LENGTHS = 1, 2, 4, 8
"""How many times the tokens of its training the decoder reads."""
SEQUENCES, MEASURED = 24, 32
"""Sequences of each length that a decoder reads, and those from which its heads are measured."""
RULES = {"YaRN": "--", "LongRoPE": "-.", "Llama 4": ":"}
KEPT_NAMES = {"entropy": "entropy", "participation": "Σ A²", "mean participation": "1/Σ A²"}
NAMED = {"LongRoPE": "LongRoPE, log length, SSMax"}


@dataclass(frozen=True)
class HeadsScoreScales(Study):
    """Rows keep entropy or participation at a longer context if scores are multiplied by the factor for their spread.

    A decoder that was trained on letters that repeat themselves then reads more letters than it was trained on: with no
    factor, with a published one for all heads, and with one for each head. Its positions are as new to it as the number
    of its keys, and no factor helps with that.
    """

    requires = ("torch", "transformers")

    tokens: int = parameter(Integers(64, 10**5), "number of keys of a row", 512, ours=4096)
    longer: int = parameter(Integers(2, 64), "how many times as many keys rows are drawn with", 8, ours=32)
    rows: int = parameter(Integers(100, 10**5), "rows for each mean", 1000, ours=1000)
    context: int = parameter(Integers(32, 256), "tokens that the decoder is trained on", 64, ours=64)
    steps: int = parameter(Integers(1, 10**4), "steps of its training", 600, ours=600)
    seeds: int = parameter(Integers(2, 100), "decoders", 3, ours=8)
    small = {"tokens": 128, "rows": 500, "context": 32, "steps": 4, "seeds": 2}
    caption = """Factors for the scores by rule and by spread, what rows keep with them at a longer
    context, and the loss of decoders by the tokens they read. A rule keeps its quantity if its points stay level as
    the context grows."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw rows at the new length with the factor; train decoders, and read their loss at each length."""
        new, times = self.longer * self.tokens, 2 ** np.arange(1, 6)
        shape = (len(KEPT), len(BETAS))
        drawn, exact = np.empty((*shape, self.rows)), np.empty((*shape, 2))
        for number, (keep, of) in enumerate(KEPT.items()):
            for column, beta in enumerate(BETAS):
                factor = score_scales(beta, self.tokens, new, keep)
                drawn[number, column] = _rows(factor * beta, new, self.rows, rng)[of]
                exact[number, column] = [rows_of(np.array(beta), each, of) for each in (self.tokens, new)]
        rules = [published_rules(REFERENCE, int(each) * REFERENCE) for each in times]
        factors = [[score_scales(BETAS, REFERENCE, int(each) * REFERENCE, keep) for each in times] for keep in KEPT]
        losses, betas = zip(*(self._decoder(rng) for _ in track(range(self.seeds), "decoders")), strict=True)
        return dataset(
            drawn=(("keep", "beta", "draw"), drawn, "of rows at the new length, with the factor"),
            exact=(("keep", "beta", "length"), exact, "mean without a factor"),
            factor=(("keep", "times", "beta"), np.array(factors), "factor on the scores"),
            rule=(("times", "published"), [list(each.values()) for each in rules]),
            loss=(("decoder", "reading", "context", "sequence"), np.array(losses), {"units": "nats"}),
            spread=(("decoder", "layer", "head"), np.array(betas), "β of a head"),
            coords={
                "keep": list(KEPT),
                "beta": list(BETAS),
                "length": ["old", "new"],
                "times": times,
                "keys": ("times", times * REFERENCE, {"long_name": f"keys of a row, from {REFERENCE}"}),
                "published": list(rules[0]),
                "reading": list(READINGS),
                "context": [each * self.context for each in LENGTHS],
            },
        )

    def _decoder(self, rng: np.random.Generator) -> tuple[Real, Real]:
        """Losses of a decoder, of shape (readings, lengths, sequences), and the spreads of its heads."""
        from bulkedge.models import capture
        from bulkedge.models.loading.default import Phase, default_model

        phases = (Phase(1.0, self.context, repeating=1.0),)
        model, _ = default_model(int(rng.integers(2**32)), self.steps, phases=phases)
        channels = []
        for layer in capture(model, input_ids=_repeating(rng, MEASURED, self.context, self.context)[0]):
            query, key = (each.transpose(0, 1).flatten(1, 2).double() for each in (layer.query, layer.key))
            channels.append(Channel.from_qk(query, key, layer.scale))
        losses = np.empty((len(READINGS), len(LENGTHS), SEQUENCES))
        for column, times in enumerate(LENGTHS):
            tokens = times * self.context
            inputs, labels = _repeating(rng, SEQUENCES, tokens, self.context)
            readings = factors_of(channels, self.context, tokens) if times > 1 else [1.0] * len(READINGS)
            for number, factors in enumerate(readings):
                losses[number, column] = _loss(model, inputs, labels, factors, self.context // 2)
        return losses, np.array([each.beta for each in channels])

    def statements(self, data: xr.Dataset) -> Claims:
        """What rows keep, beside what they have without a factor; and what factors do at twice the context."""
        for keep in KEPT:
            for beta in BETAS:
                text = f"{WORDS[keep]}, rows of β = {beta:g} with the factor that keeps the {keep}"
                predicted = data.exact.sel(keep=keep, beta=beta, length="old")
                rival = "no factor", data.exact.sel(keep=keep, beta=beta, length="new")
                yield Claim(text, "ours", data.drawn.sel(keep=keep, beta=beta), predicted, rival)
        yield from _helped(data.loss.rename(sequence="draw"))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, (axes,) = panels(1, 3, width=3.1, height=2.9)
        rules, kept, loss = axes
        lengths = data["keys"].values
        for beta, colour in zip(data.beta.values, COLOURS, strict=False):
            for keep, style in (("participation", "-"), ("entropy", (0, (1, 1)))):
                ends = [float(data.factor.sel(keep=each, beta=beta)[-1]) for each in ("participation", "entropy")]
                label = f"β = {beta:g}: {ends[0]:.2f}, {ends[1]:.2f}" if keep == "participation" else ""
                line(rules, lengths, data.factor.sel(keep=keep, beta=beta), label=label, color=colour, ls=style, lw=1.1)
        for name, style in RULES.items():
            values = data.rule.sel(published=name)
            label = f"{NAMED.get(name, name)}: {float(values[-1]):.2f}"
            line(rules, lengths, values, label=label, color="0.45", ls=style, lw=1)
        rules.set(ylabel="factor on the scores", yscale="log", title="lines: keeps participation; dotted: entropy")
        rules.set_xscale("log")
        plain_ticks(rules.xaxis, lengths[::2])
        plain_ticks(rules.yaxis, [1, 1.5, 2, 3, 4])
        rules.set_xlabel(data["keys"].attrs["long_name"])
        rules.set_ylim(0.95, 2.4 * float(data.factor.max()))
        rules.legend(loc="upper left", fontsize=6, title="factor at the last length", title_fontsize=6)
        _draw_ratios(kept, data, self)
        losses_over(loss, data.context.values, data.loss, 1.04)
        loss.set(xlabel=f"tokens read, by decoders of {self.context}", ylabel="loss of the last letters, nats")
        loss.set_title(f"{self.seeds} decoders, {self.steps} steps")
        loss.legend(loc="upper left", fontsize=6)
        return figure


def _helped(loss: xr.DataArray) -> Claims:
    """What factors do at twice the context, in decoders that have learnt their task: others have nothing to keep."""
    # loss at its own context below which a decoder has learnt: half that of letters at random
    learnt = loss.isel(context=0).sel(reading=READINGS[0]).mean("draw") < 1.7
    if not learnt.any():
        return
    twice = loss.isel(context=1, decoder=np.flatnonzero(learnt))
    text = "loss of these decoders at twice their context: factors that keep participation, minus that without a factor"
    yield sign(text, "ours", twice.sel(reading=READINGS[2]) - twice.sel(reading=READINGS[0]), "no help", "<=")


def _rows(beta: float, tokens: int, count: int, rng: np.random.Generator) -> dict[Of, Real]:
    """Entropy, sum of squares and one over it, of rows of independent Gaussian scores."""
    entropy, squares = [], []
    for start in range(0, count, BATCH):
        scores = beta * rng.standard_normal((min(BATCH, count - start), tokens), dtype=np.float32)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True)).astype(float)
        total = weights.sum(axis=1)
        mean = np.sum(weights * scores, axis=1) / total
        entropy.append(np.log(total) + scores.max(axis=1) - mean)
        squares.append(np.sum(weights**2, axis=1) / total**2)
    sums = np.concatenate(squares)
    return {"entropy": np.concatenate(entropy), "participation": sums, "keys": 1 / sums}


def _repeating(rng: np.random.Generator, rows: int, tokens: int, context: int) -> tuple[Any, Any]:
    """Letters that repeat after as many as in training, and what counts in the loss: letters that were there before."""
    import torch

    from bulkedge.models.loading.default import ALPHABET, SEGMENT

    inputs = np.empty((rows, tokens), dtype=np.int64)
    labels = np.empty_like(inputs)
    for row in range(rows):
        size = int(rng.integers(SEGMENT, context // 2 + 1))
        rounds = -(-size // (len(ALPHABET) - 1))
        segment = np.concatenate([1 + rng.permutation(len(ALPHABET) - 1) for _ in range(rounds)])[:size]
        inputs[row] = labels[row] = np.resize(segment, tokens)
        labels[row, :size] = -100
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def _loss(model: Any, inputs: Any, labels: Any, factors: Any, last: int) -> Real:
    """Mean loss of the last letters of each sequence, in nats, with the scores multiplied."""
    import torch

    from bulkedge.nn import scale_scores

    with torch.no_grad(), scale_scores(model, factors):
        logits = model(input_ids=inputs).logits[:, -last - 1 : -1]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, -last:], reduction="none")
    return as_numpy(losses.mean(dim=1)).astype(float)


def _draw_ratios(axes: Axes, data: xr.Dataset, study: HeadsScoreScales) -> None:
    """What rows have at the new length over what they had at the old one: one, if it was kept."""
    exact = data.exact / data.exact.sel(length="old")
    for number, keep in enumerate(data.keep.values):
        where = data.beta.values + 0.12 * (number - 1)
        ratio = data.drawn.sel(keep=keep) / data.exact.sel(keep=keep, length="old")
        mean_marks(axes, where, ratio, label=KEPT_NAMES[str(keep)], color=COLOURS[number])
        axes.plot(where, exact.sel(keep=keep, length="new"), "x", ms=4, color=COLOURS[number], zorder=2)
    axes.axhline(1, color="0.6", lw=0.8, zorder=1)
    axes.set(xlabel="β", ylabel="at the new length, over the old", yscale="log", ylim=(0.02, 30), xlim=(0.6, 3.4))
    plain_ticks(axes.yaxis, [0.1, 1, 10])
    plain_ticks(axes.xaxis, data.beta)
    times = study.longer
    axes.set_title(f"{study.tokens} to {times * study.tokens} keys, {study.rows} rows; ×: no factor")
    axes.legend(loc="upper right", fontsize=6)
