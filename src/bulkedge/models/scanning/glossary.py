"""A scan in words: what every number and every kind of head means, and what a model's heads are, in plain English.

The page, the table and the documentation read the title, group, unit and definition of columns and kinds here; a scan's
Dataset only has the names.

>>> describe("entropy").unit, describe("p_entropy").title, describe("scale_8").title
('nats', 'p of entropy', 'score scale at 8× the tokens')
>>> kind_of("random spectrum").title
'spectrum as random weights'
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from bulkedge.heads.measures.attention_measures import MEASURES
from bulkedge.heads.measures.kinds import KINDS as HEAD_KINDS


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


KINDS_GROUP, SCORES, SPECTRUM, POSITIONS, CHANNEL, PROBE, LONGER, OTHER = GROUPS = (
    "kinds", "scores and null", "spectrum", "positions", "channel", "probe", "longer context", "other",
)  # fmt: skip
"""In the order in which people read them."""

MASS = "share of a row"
# fmt: off
COLUMNS = {
    "kind": Column("kind", KINDS_GROUP, "", "The first kind, by precedence, that the head's scores allow."),
    "idle": Column("idle candidate", KINDS_GROUP, "1 = yes",
        "Whether the head looks as if it could be removed at little cost: a candidate, to be checked by ablation."),
    "agreement": Column("agreement of texts", KINDS_GROUP, "share of texts",
        "Share of the texts on which the head has the kind shown."),
    "beta": Column("β", SCORES, "score units", MEASURES["beta"]),
    "beta_without_sink": Column("β without sinks", SCORES, "score units", MEASURES["beta_without_sink"]),
    "entropy": Column("entropy", SCORES, "nats", MEASURES["entropy"]),
    "evenness": Column("evenness", SCORES, "0 to 1", MEASURES["evenness"]),
    "largest": Column("largest weight", SCORES, MASS, MEASURES["largest"]),
    "p": Column("p, all measures", SCORES, "p",
        "One p value for the head from all tested measures together, against the draws of the null."),
    "q": Column("q", SCORES, "false discovery rate",
        "The p value of the head corrected for the number of heads (Benjamini–Hochberg): calling all heads with q "
        "below 0.05 lets at most 5 % of those called be false, on average."),
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
        "Largest difference of the distribution functions of the head's singular values and of the null's at equal β."),
    "null_distance": Column("distance within the null", SPECTRUM, "Kolmogorov distance",
        "Kolmogorov distance of draws of the null from each other: the head's own means something only beside it."),
    "p_spectrum": Column("p of the spectrum", SPECTRUM, "p",
        "p value of the head's distance to the null's spectrum. A large one says that the singular values are those "
        "of random weights; it does not say that the head is untrained, because singular values do not see order."),
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
    "token_cosine": Column("cosine of the tokens", OTHER, "cosine",
        "Mean cosine of two different tokens that enter the layer."),
}
"""By the name of the variable; ``describe`` also knows the names made from these."""
# fmt: on

MARKS = {
    "collapsed": "Co", "sink": "Si", "fixed columns": "Fi", "offset": "Of", "local": "Lo", "same token": "St",
    "low-rank content": "Lr", "content": "Ct", "random spectrum": "Rs",
}  # fmt: skip
"""Two letters for each kind, where there is no room for more."""
KINDS = {each.name: KindLabel(each.title, MARKS[each.name], each.says) for each in HEAD_KINDS}
"""Kinds by the names that a scan has, in the order of precedence."""


def kind_of(name: str) -> KindLabel:
    """The words for a kind of head."""
    found = canonical(name)
    return KINDS[found] if found in KINDS else KindLabel(name, name[:2].title(), "")


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
        return Column(f"p of {title}", SCORES, "p", f"Two-sided p value of “{title}” against the null's draws.")
    if start == "null" and rest in COLUMNS:
        title, _, unit, _ = COLUMNS[rest]
        return Column(f"null: {title}", SCORES, unit, f"Median of “{title}” over the null's draws.")
    return _at_factor(name) or Column(name.replace("_", " "), OTHER, "", "")


def _at_factor(name: str) -> Column | None:
    """The columns of what-if at a longer context, such as ``scale_8``."""
    found = re.fullmatch(r"(scale|longer_entropy)_(\d+(?:\.\d+)?)", name)
    if found is None:
        return None
    title, group, unit, sentence = COLUMNS[found[1]]
    where = f"at {found[2]}× the tokens"
    return Column(f"{title} {where}", group, unit, f"{sentence.removesuffix('.')}, {where}.")


def canonical(name: str) -> str:
    """The name of a kind as ``KINDS`` spells it.

    Examples
    --------
    >>> canonical("low_rank_content")
    'low-rank content'
    """
    plain = re.compile("[-_ ]+")
    same = {plain.sub(" ", kind): kind for kind in KINDS}
    return same.get(plain.sub(" ", name), name)


# -- what a scan found ------------------------------------------------------------------------------------------------


def _names(rows: list[dict[str, Any]], most: int = 6) -> str:
    """Heads as people name them."""
    names = [f"{each['layer']}.{each['head']}" for each in rows[:most]]
    return ", ".join(names) + (f" and {len(rows) - most} more" if len(rows) > most else "")


def _count(rows: list[dict[str, Any]]) -> str:
    return "one head" if len(rows) == 1 else f"{len(rows)} heads"


def summary_sentences(data: xr.Dataset, rows: list[dict[str, Any]]) -> list[str]:
    """What the model's heads are, a sentence each."""
    layers = len(np.unique(data.layer.to_numpy()))
    texts = data.sizes["text"]
    read = f"{texts} text{'s' * (texts > 1)} of up to {data.attrs['tokens']} tokens"
    found = [f"{data.attrs['model']}: {len(rows)} heads in {layers} layers, read on {read}."]
    counted = Counter(each["kind"] for each in rows)
    found.append("Kinds: " + ", ".join(f"{count} {KINDS[kind].title}" for kind, count in counted.most_common()) + ".")
    if texts > 1:
        found.append(f"On average {np.mean([each['agreement'] for each in rows]):.0%} of the texts agree on the kind.")
    if data.attrs["draws"]:
        level = 0.05
        different = sum(each["q"] <= level for each in rows)
        distances = np.median([(each["distance"], each["null_distance"]) for each in rows], axis=0)
        found.append(
            f"{different} of {len(rows)} heads are told from random weights on their own inputs (false discovery rate "
            f"{level:.0%}); the spectra are {distances[0]:.3f} from random ones, which are {distances[1]:.3f} apart."
        )
    candidates = [each for each in rows if each["idle"]]
    if candidates:
        found.append(f"Idle candidates, to be checked by ablation: {_names(candidates)}.")
    for name, words in (("induction", "induction"), ("previous", "previous-token")):
        best = max(rows, key=lambda each: np.nan_to_num(each[name], nan=-1.0))
        if best[name] > 0.3:
            found.append(f"Strongest {words} head: {_names([best])}, score {best[name]:.2f}.")
    return found


def warning_sentences(data: xr.Dataset, rows: list[dict[str, Any]]) -> list[str]:
    """What to look at in a model, a sentence each; none if nothing stands out."""
    found = []
    frozen = [each for each in rows if each["largest"] > 0.9]
    if frozen:
        found.append(f"In {_count(frozen)} rows are frozen, nearly all weight on one key ({_names(frozen)}).")
    collapsed = [each for each in rows if each["kind"] == "collapsed"]
    if collapsed:
        found.append(
            f"All but uniform, averages of the values whatever the query: {_count(collapsed)} ({_names(collapsed)})."
        )
    cosine = data.token_cosine.median("text").to_numpy()
    if np.any(cosine > 0.95):
        names = data.module_name.to_numpy()[cosine > 0.95].tolist()
        found.append(
            f"Tokens are nearly alike (mean cosine {cosine.max():.2f}) where they enter {', '.join(names[:3])}"
            f"{' and others' if len(names) > 3 else ''}: rank has collapsed there."
        )
    return found
