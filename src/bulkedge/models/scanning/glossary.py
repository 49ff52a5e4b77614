"""A scan in words: what every number and every kind of head means, and what a model's heads are, in plain English.

The page, the table and the documentation read the title, group, unit and definition of columns and kinds here; a scan's
Dataset only has the names.

>>> describe("entropy").unit, describe("p_entropy").title, describe("scale_8").title
('nats', 'p of entropy', 'score scale at 8× the tokens')
>>> kind_of("random spectrum").title
'spectrum as random weights'
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from bulkedge.heads.measures.attention_measures import MEASURES
from bulkedge.heads.measures.kinds import KINDS as HEAD_KINDS
from bulkedge.models.scanning.removal import EFFECTS, cheapest_heads


class Column(NamedTuple):
    """One number of a head: what it is called, what it stands beside, its unit, and its definition in a sentence."""

    title: str
    group: str
    unit: str
    sentence: str


class KindLabel(NamedTuple):
    """What a head can be: the words people read, a mark of two letters, and what it means in a sentence."""

    title: str
    mark: str
    sentence: str


KINDS_GROUP, WORTH, SCORES, SPECTRUM, POSITIONS, CHANNEL, PROBE, LONGER, OTHER = GROUPS = (
    "kinds", "worth", "scores and null", "spectrum", "positions", "channel", "probe", "longer context", "other",
)  # fmt: skip
"""In the order in which people read them."""

MASS = "share of a row"
# fmt: off
COLUMNS = {
    "kind": Column("kind", KINDS_GROUP, "", "The first kind, by precedence, that the head's scores allow."),
    "agreement": Column("agreement of texts", KINDS_GROUP, "share of texts",
        "Share of the texts on which the head has the kind shown."),
    "output": Column("output", WORTH, "share of the residual stream",
        "Mean norm over tokens of what the head adds to the residual stream, divided by the stream's median norm."),
    "output_error": Column("error of the output", WORTH, "share of the residual stream",
        "Standard error over blocks of tokens of a text."),
    "variation_error": Column("error of the variation", WORTH, "share of the residual stream",
        "Standard error over blocks of tokens of a text."),
    "variation": Column("variation of the output", WORTH, "share of the residual stream",
        "The same of the head's output minus its mean over tokens: what a constant in its place would miss."),
    "importance": Column("importance", WORTH, "nats a token",
        "How far predictions move without the head, to second order, on the texts plus on copied random tokens. For a "
        "model without predictions: half the squared change of its output, as a share of the output's variance."),
    "importance_error": Column("error of the importance", WORTH, "nats a token", "Standard error over drawn labels."),
    "importance_text": Column("importance on text", WORTH, "nats a token", "The part of the texts."),
    "importance_copies": Column("importance for copying", WORTH, "nats a token",
        "The part of random tokens that come twice, where the second copy counts; decoders only."),
    "beta": Column("β", SCORES, "score units", MEASURES["beta"]),
    "beta_without_sink": Column("β without sinks", SCORES, "score units", MEASURES["beta_without_sink"]),
    "entropy": Column("entropy", SCORES, "nats", MEASURES["entropy"]),
    "evenness": Column("evenness", SCORES, "0 to 1", MEASURES["evenness"]),
    "largest": Column("largest weight", SCORES, MASS, MEASURES["largest"]),
    "p": Column("p, all measures", SCORES, "p",
        "One p-value for the head from all tested measures together, compared with random heads."),
    "q": Column("q", SCORES, "false discovery rate",
        "The head's p-value, corrected for the number of heads (Benjamini–Hochberg): of all heads with q below 0.05, "
        "at most 5 % are false alarms on average."),
    "content_rank": Column("rank of the scores", SPECTRUM, "dimensions", MEASURES["content_rank"]),
    "column_share": Column("column share", SPECTRUM, "share of the variance", MEASURES["column_share"]),
    "column_energy": Column("column energy", SPECTRUM, "squared cosine", MEASURES["column_energy"]),
    "stable_rank": Column("stable rank", SPECTRUM, "dimensions", MEASURES["stable_rank"]),
    "effective_rank": Column("effective rank", SPECTRUM, "dimensions", MEASURES["effective_rank"]),
    "entropy_error": Column("error of the effective rank", SPECTRUM, "of its logarithm", MEASURES["entropy_error"]),
    "spectrum_error": Column("error of the spectrum", SPECTRUM, "Kolmogorov distance", MEASURES["spectrum_error"]),
    "spectrum_floor": Column("floor of the spectrum", SPECTRUM, "", MEASURES["spectrum_floor"]),
    "s1": Column("largest singular value", SPECTRUM, "", MEASURES["s1"]),
    "gap": Column("gap", SPECTRUM, "share of s₁", MEASURES["gap"]),
    "distance": Column("distance to the null", SPECTRUM, "Kolmogorov distance",
        "Largest difference between the distribution functions of the singular values of the head and of random heads "
        "at equal β."),
    "null_distance": Column("distance within the null", SPECTRUM, "Kolmogorov distance",
        "Kolmogorov distance of random heads from one another; compare the head's own distance with it."),
    "p_spectrum": Column("p of the spectrum", SPECTRUM, "p",
        "p-value of the distance of the head's spectrum from that of random heads. If it is large, the singular values "
        "are like those of random weights. That does not mean untrained, because singular values do not see order."),
    "sink_mass": Column("sink mass", POSITIONS, MASS, MEASURES["sink_mass"]),
    "sink_count": Column("number of sinks", POSITIONS, "keys", MEASURES["sink_count"]),
    "sink_position": Column("strongest sink", POSITIONS, "position in the text", MEASURES["sink_position"]),
    "offset": Column("offset", POSITIONS, "tokens, negative = earlier", MEASURES["offset"]),
    "offset_mass": Column("offset mass", POSITIONS, MASS, MEASURES["offset_mass"]),
    "near_mass": Column("near mass, in excess", POSITIONS, MASS, MEASURES["near_mass"]),
    "same_token_excess": Column("same-token excess", POSITIONS, MASS, MEASURES["same_token_excess"]),
    "same_token_mass": Column("same-token mass", POSITIONS, MASS, MEASURES["same_token_mass"]),
    "coupling": Column("largest coupling", CHANNEL, "a², condenses at ½",
        "Largest squared coupling of the head's queries and keys: above one half the theory of Gaussian rows ends."),
    "effective_dim": Column("effective dimension", CHANNEL, "dimensions",
        "Number of directions in which queries and keys are coupled."),
    "predicted_entropy": Column("predicted entropy", CHANNEL, "nats",
        "Entropy of a row as the moments of queries and keys predict it."),
    "popularity_correlation": Column("popularity, predicted", CHANNEL, "correlation",
        "Correlation over keys of the logarithm of the attention a key gets with its prediction from the moments."),
    "induction": Column("induction", PROBE, MASS,
        "On repeated random tokens: attention on the token that followed the query's earlier occurrence."),
    "duplicate": Column("duplicate token", PROBE, MASS,
        "On repeated random tokens: attention on the query's earlier occurrence."),
    "previous": Column("previous token", PROBE, MASS, "On repeated random tokens: attention on the token just before."),
    "scale": Column("score scale", LONGER, "factor on scores",
        "Factor on the head's scores that keeps the entropy of its rows where it is."),
    "longer_entropy": Column("entropy", LONGER, "nats", "Entropy of a row if nothing is done."),
    "token_stable_rank": Column("stable rank of the tokens", OTHER, "dimensions",
        "Squared norm of the tokens that enter the layer over their largest squared singular value: one when all are "
        "parallel."),
    "unknown_share": Column("unknown tokens", OTHER, "share of a text", "Tokens that the tokenizer does not know."),
    "distinct_tokens": Column("different tokens", OTHER, "tokens", "Number of different tokens in the text."),
    "loss": Column("loss", OTHER, "nats a token", "Loss of a causal language model on the text that it read."),
    "uniform_loss": Column("uniform loss", OTHER, "nats a token", "Loss of a guess that gives all tokens the same."),
    "token_cosine": Column("cosine of the tokens", OTHER, "cosine",
        "Mean cosine of two different tokens that enter the layer."),
}
"""By the name of the variable; ``describe`` also knows the names made from these."""
# fmt: on

MARKS = {
    "induction": "In", "duplicate": "Du", "previous token": "Pt",
    "collapsed": "Co", "sink": "Si", "fixed columns": "Fi", "offset": "Of", "local": "Lo", "same token": "St",
    "low-rank content": "Lr", "content": "Ct", "random spectrum": "Rs",
}  # fmt: skip
"""Two letters for each kind, where there is no room for more."""
KINDS = {each.name: KindLabel(each.title, MARKS[each.name], each.says) for each in HEAD_KINDS}
"""Kinds by the names that a scan has, in the order of precedence."""


def kind_of(name: str) -> KindLabel:
    """The words for a kind of head."""
    return KINDS.get(name) or KindLabel(name, name[:2].title(), "")


TENTH = 0.1  # share of the heads that the summary names as the cheapest


def describe(name: str) -> Column:
    """The title, group, unit and definition of a column."""
    if name in COLUMNS:
        return COLUMNS[name]
    start, _, rest = name.partition("_")
    if start == "score" and rest:
        title = kind_of(rest).title
        return Column(f"score: {title}", KINDS_GROUP, "0 to 1", f"How much the head is of the kind “{title}”.")
    if start == "p" and rest in COLUMNS:
        title = COLUMNS[rest].title
        return Column(f"p of {title}", SCORES, "p", f"Two-sided p-value of “{title}” among random heads.")
    if start == "null" and rest in COLUMNS:
        title, _, unit, _ = COLUMNS[rest]
        return Column(f"null: {title}", SCORES, unit, f"Median of “{title}” over random heads.")
    return _at_factor(name) or Column(name.replace("_", " "), OTHER, "", "")


def _at_factor(name: str) -> Column | None:
    """The columns of what-if at a longer context, such as ``scale_8``."""
    found = re.fullmatch(r"(scale|longer_entropy)_(\d+(?:\.\d+)?)", name)
    if found is None:
        return None
    title, group, unit, sentence = COLUMNS[found[1]]
    where = f"at {found[2]}× the tokens"
    return Column(f"{title} {where}", group, unit, f"{sentence.removesuffix('.')}, {where}.")


LEVEL = 0.05
"""False discovery rate, and least p-value that is worth its draws."""
FACTS = ("unknown_share", "distinct_tokens", "loss", "uniform_loss")
"""What is known of each text: how it fits the tokenizer, and how well the model reads it."""
MANY_UNKNOWN, FEW_TOKENS, WORSE, SHORT = 0.1, 16, 0.7, 128
"""Warnings start at this share of unknown tokens, number of different ones, nats a token above a uniform guess, and
number of tokens that importance is measured on."""


# -- what a scan found ------------------------------------------------------------------------------------------------


def head_names(places: Iterable[tuple[int, int]], most: int | None = None) -> str:
    """Heads as people name them.

    >>> head_names([(1, 0), (2, 3), (1, 4)])
    'layer 1, heads 0 and 4; layer 2, head 3'
    """
    places, layers = list(places), dict[int, list[str]]()
    for layer, head in places[:most]:
        layers.setdefault(layer, []).append(str(head))
    names = [
        f"layer {layer}, head{'s' * (len(heads) > 1)} {' and '.join(filter(None, (', '.join(heads[:-1]), heads[-1])))}"
        for layer, heads in layers.items()
    ]
    return "; ".join(names) + (f"; {len(places) - most} more" if most and len(places) > most else "")


def _names(rows: Iterable[Mapping[str, Any]]) -> str:
    """The first few of some heads."""
    return head_names([(each["layer"], each["head"]) for each in rows], most=6)


def _count(rows: Sequence[Any]) -> str:
    return "one head" if len(rows) == 1 else f"{len(rows)} heads"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def summary_sentences(data: xr.Dataset, rows: list[dict[str, Any]]) -> list[str]:
    """What the model's heads are, a sentence each."""
    layers = len(np.unique(data.layer.to_numpy()))
    texts = data.sizes["text"]
    read = f"{_plural(texts, 'text')} of up to {data.attrs['tokens']} tokens"
    found = [f"{data.attrs['model']}: {_plural(len(rows), 'head')} in {_plural(layers, 'layer')}, read on {read}."]
    if not np.all(np.isnan(losses := data["loss"].to_numpy() if "loss" in data else np.nan)):
        uniform = np.nanmedian(data["uniform_loss"])
        found.append(f"Loss: {np.nanmedian(losses):.2f} nats a token; a uniform guess has {uniform:.2f}.")
    counted = Counter(kind_of(each["kind"]).title or "unknown" for each in rows)
    found.append("Kinds: " + ", ".join(f"{count} {title}" for title, count in counted.most_common()) + ".")
    if texts > 1:
        found.append(f"On average {np.mean([each['agreement'] for each in rows]):.0%} of the texts agree on the kind.")
    if data.attrs["draws"]:
        found.append(_significance(rows, data.attrs["draws"], layers))
        distances = np.array([(each["distance"], each["null_distance"]) for each in rows])
        if not np.all(np.isnan(distances)):
            own, apart = np.nanmedian(distances, axis=0)
            found.append(
                f"Median distance of the heads' spectra from those of random heads: {own:.3f}. "
                f"Random heads are {apart:.3f} from one another."
            )
    if EFFECTS[0] in data:
        cheap = cheapest_heads(data, share=TENTH)
        unit = "nats a token, on texts plus copies" if EFFECTS[1] in data else "in the unit of importance"
        found.append(
            f"The tenth of the heads that costs least: {head_names(cheap)}. "
            f"Predicted cost: {cheap.cost.value:.2g} ± {cheap.cost.error:.1g} {unit}."
            if len(cheap)
            else f"A tenth of {_plural(len(rows), 'head')} is less than one head: none is named as the cheapest."
        )
    for name, words in (("induction", "induction"), ("previous", "previous-token")):
        best = max(rows, key=lambda each: np.nan_to_num(each[name], nan=-1.0))
        if best[name] > 0.3:
            found.append(f"Strongest {words} head: {_names([best])}, score {best[name]:.2f}.")
    return found


def _significance(rows: list[dict[str, Any]], draws: int, layers: int) -> str:
    """How many heads differ from random weights, if so many draws can say so."""
    least = draws * layers + 1
    if least < 1 / LEVEL:
        return (
            f"Not enough draws for a p-value below {LEVEL}: from {draws} random heads a layer and "
            f"{_plural(layers, 'layer')} none is below 1/{least}. Use draws=19 or more."
        )
    different = sum(each["q"] <= LEVEL for each in rows)
    return (
        f"{different} of {_plural(len(rows), 'head')} differ{'s' * (different == 1)} significantly from random weights "
        f"on the same inputs (false discovery rate {LEVEL:.0%})."
    )


def warning_sentences(data: xr.Dataset, rows: list[dict[str, Any]]) -> list[str]:
    """What to look at in a model, a sentence each; none if nothing stands out."""
    found = [*_text_warnings(data), *missing_sentences(data)]
    if EFFECTS[0] in data and (read := data.sizes["text"] * int(data.attrs["tokens"])) < SHORT:
        found.append(
            f"Importance was measured on {_plural(read, 'token')} at most, and its error does not say how much other "
            "texts differ: give longer texts before you remove heads."
        )
    frozen = [each for each in rows if each["largest"] > 0.9]
    if frozen:
        found.append(f"Frozen: {_count(frozen)} ({_names(frozen)}). Each row puts nearly all its weight on one key.")
    collapsed = [each for each in rows if each["kind"] == "collapsed"]
    if collapsed:
        found.append(
            f"Collapsed: {_count(collapsed)} ({_names(collapsed)}). Attention is almost uniform, whatever the query."
        )
    cosine = data.token_cosine.median("text").to_numpy()
    if np.any(cosine > 0.95):
        names = data.module_name.to_numpy()[cosine > 0.95].tolist()
        found.append(
            f"Tokens are nearly alike (mean cosine {cosine.max():.2f}) where they enter {', '.join(names[:3])}"
            f"{' and others' if len(names) > 3 else ''}: rank has collapsed there."
        )
    return found


def _text_warnings(data: xr.Dataset) -> Iterator[str]:
    """What is odd about texts and their tokens, before any head is looked at."""
    for text, title in enumerate(data.title.to_numpy().tolist()):
        unknown, distinct, loss, uniform = (float(data[name][text]) if name in data else np.nan for name in FACTS)
        if unknown > MANY_UNKNOWN:
            yield f"“{title}”: {unknown:.0%} of the tokens are unknown to the tokenizer; does it belong to the model?"
        if distinct < FEW_TOKENS:
            yield f"“{title}” has only {_plural(int(distinct), 'different token')}: heads look alike on such a text."
        if loss > uniform + WORSE:
            yield (
                f"“{title}”: the loss is {loss:.2f} nats a token, worse than the {uniform:.2f} of a uniform guess; do "
                "tokenizer, text and weights belong together?"
            )
    own, known = data.attrs.get("vocabulary", 0), data.attrs.get("tokenizer_vocabulary", np.inf)
    if known < own / 2:
        yield f"The tokenizer has {_plural(known, 'token')}, the model {own}: it may belong to another model."


def missing_sentences(data: xr.Dataset) -> Iterator[str]:
    """Numbers that could not be had, a sentence for each reason, with the heads that it concerns."""
    failed: list[tuple[str, int | None, int, str]] = json.loads(data.attrs.get("missing", "[]"))
    reasons: dict[str, tuple[dict[str, None], dict[tuple[Any, int], None]]] = {}
    for name, layer, head, reason in failed:
        titles, heads = reasons.setdefault(reason, ({}, {}))
        titles[describe(name).title] = None
        heads |= {(layer, head): None} if head >= 0 else {}
    for reason, (titles, heads) in reasons.items():
        rows = [{"layer": layer, "head": head} for layer, head in heads]
        of = f" of {_count(rows)} ({_names(rows)})" if rows else ""
        yield f"Missing: {'; '.join(titles)}{of}. {reason[:1].upper()}{reason[1:]}."
