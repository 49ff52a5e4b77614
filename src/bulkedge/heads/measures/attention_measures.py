"""Numbers that say what attention matrices do, for all heads of a layer at once, from their scores.

Scores come in two parts: the *content* ``scale q . k``, and the *bias* that is added to it, positional terms and minus
infinity where a row does not see a key. Keys that get a large share of everyone's attention are *sinks*. They
are reported first and then removed, because they hide everything else: the other numbers are of the softmax over the
keys that are left. Some heads have a sink that is none of their keys: a learned score in the softmax, whose weight
nothing gets. It is removed first of all. :data:`MEASURES` says what each number is.

Rows are read in blocks (:mod:`bulkedge.heads.measures.layer_visibility`), and of very many tokens the spectrum is
estimated from products (:mod:`bulkedge.heads.measures.singular_values`): then nothing has as many entries as there are
pairs of tokens.

>>> rng = np.random.default_rng(0)
>>> found = measure_heads(rng.standard_normal((2, 64, 64)))
>>> found["beta"].shape, bool(abs(found["beta"][0] - 1) < 0.1), found["spectrum"].shape
((2,), True, (2, 257))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np  # noqa: F401 - for the example

from bulkedge.heads.measures.layer_visibility import (
    FEWEST,
    NEAR,
    AllKeys,
    AttentionRows,
    LayerVisibility,
    OtherKeys,
    Preferred,
    of_all_keys,
    of_other_keys,
    of_preferences,
    positive,
    variances,
)
from bulkedge.heads.measures.singular_values import Matrices
from bulkedge.spectra.operators import MapOperator
from bulkedge.spectra.traces import trace_moments
from bulkedge.support.arrays import Real, as_numpy

SINK_SHARE, SINK_TIMES = 0.05, 8.0
"""A sink gets so much of the attention of the rows that see it, and so many times what an even spread would give."""
SINK_RATIO, MOST_SINKS = 1 / 3, 4
"""Sinks have at least this share of the strongest one's attention; if more keys than that do, none is singled out."""
PROBES = 32  # random vectors that tell the rank of very many scores under a cap: to about a twentieth

MEASURES = {
    "beta": "Root mean square over rows of the spread of a row's content scores over the keys that it sees.",
    "beta_without_sink": "Root mean square over rows of the spread of a row's content scores over keys that are no "
    "sinks.",
    "entropy": "Mean entropy of a row, in nats.",
    "evenness": "Mean entropy of a row over the logarithm of the number of keys that it sees; 1 is uniform.",
    "largest": "Mean over rows of the largest weight.",
    "sink_mass": "Mean share of a row's attention on sinks: keys that get 5 % of the attention of the rows that see "
    "them, eight times an even share, more or less the same from all, and a third of what the strongest gets; more "
    "than four such keys are no sinks. With it the share of a sink that is none of the keys, where the head has one.",
    "sink_count": "Number of keys that are sinks.",
    "sink_position": "Position of the strongest sink, or -1.",
    "offset": "The offset of key minus row whose stripe gets most attention.",
    "offset_mass": "Mean attention along that stripe, sinks taken away.",
    "near_mass": "Attention within eight tokens of the row beyond what the head's own columns would put there, sinks "
    "taken away.",
    "same_token_mass": "Attention to other keys with the row's own token, over rows that see such keys, sinks taken "
    "away.",
    "same_token_excess": "The same beyond what the head's own columns would put there.",
    "column_energy": "Squared cosine between the attention matrix and the one whose rows all have the head's own "
    "preferences among keys, sinks taken away.",
    "column_share": "Share of the variance of the attention about an even spread that preferences which all rows share "
    "explain, sinks taken away.",
    "content_rank": "Participation number of the squared singular values of the content scores without their row and "
    "column means, sinks taken away: how many directions of queries and keys tell keys apart.",
    "stable_rank": "Sum of the squared singular values over the largest of them, sinks taken away.",
    "effective_rank": "Exponential of the entropy of the squared singular values, sinks taken away.",
    "entropy_error": "Standard error of the logarithm of the effective rank; zero where all singular values were "
    "computed.",
    "spectrum_error": "Kolmogorov distance within which the distribution of the singular values is known, with a "
    "probability of 0.9; zero where all of them were computed, as they are up to 4096 tokens.",
    "spectrum_floor": "Of singular values below this only the number is known; zero where all of them were computed.",
    "s1": "Largest singular value of the whole attention matrix.",
    "gap": "1 - s2/s1 of the whole attention matrix.",
}
"""What is measured on every head, and what it means."""
for _name in ("beta", "beta_without_sink", "entropy", "evenness", "largest", "sink_mass", "offset_mass", "near_mass"):
    MEASURES[_name] += f" Rows that see fewer than {FEWEST} keys are left out, unless all rows do."
COMPARED = (
    *("beta_without_sink", "evenness", "largest", "offset_mass", "near_mass", "same_token_mass"),
    *("column_energy", "stable_rank", "effective_rank"),
)
"""What fresh heads are measured by."""


def measure_heads(  # noqa: PLR0913 - scores in their parts, and what was worked out before
    content: Any,
    bias: Any = None,
    ids: Any = None,
    *,
    visibility: LayerVisibility | None = None,
    factors: Any = None,
    sink_scores: Any = None,
    operator: Any = None,
) -> dict[str, Real]:
    """Measure heads."""
    heads = _HeadSums.of(content, visibility or LayerVisibility.of(content, bias, ids))
    xp, matrices = heads.xp, heads.matrices(operator)
    ranks, first_two = matrices.ranks()
    found = _row_measures(heads) | ranks | _sink_facts(heads)
    found["beta"] = _mean_spread(heads.visibility, heads.all_keys.variance)
    found["entropy"] = xp.sum(heads.all_keys.entropy * heads.visibility.busy, axis=-1)
    found["content_rank"] = _content_rank(heads, factors)
    found["columns"] = heads.all_keys.columns / heads.visibility.shape[0]
    if sink_scores is not None:
        found |= _with_outside_sink(heads, matrices, sink_scores)
    else:
        found |= matrices.first_two() if heads.sunk else first_two
    return {name: as_numpy(each) for name, each in found.items()}


def comparison_measures(content: Any, visibility: LayerVisibility, operator: Any = None) -> dict[str, Real]:
    """The measures of heads by which they are compared with fresh ones, and nothing else."""
    heads = _HeadSums.of(content, visibility)
    found = _row_measures(heads) | heads.matrices(operator).ranks()[0]
    return {name: as_numpy(found[name]) for name in (*COMPARED, "spectrum")}


def spread(content: Any, visibility: LayerVisibility) -> Any:
    """Inverse temperature of heads: root mean square over rows of the spread of a row's content scores."""
    attention = AttentionRows(content, visibility)
    rows = [variances(attention.content(each), visibility.part(each)) for each in visibility.blocks]
    return _mean_spread(visibility, visibility.xp.concat(rows, axis=-1))


def _mean_spread(visibility: LayerVisibility, variance: Any) -> Any:
    return visibility.xp.sqrt(visibility.xp.sum(variance * visibility.busy, axis=-1))


class _HeadSums(NamedTuple):
    """Attention matrices, and what three passes over their rows have found."""

    attention: AttentionRows
    all_keys: AllKeys
    sinks: Any  # ones for keys that are sinks, (heads, tokens)
    sunk: bool  # whether there is any
    other: OtherKeys
    preferred: Preferred

    @classmethod
    def of(cls, content: Any, visibility: LayerVisibility) -> _HeadSums:
        attention = AttentionRows(content, visibility)
        all_keys = of_all_keys(attention)
        sinks = _sinks(all_keys, visibility)
        sunk = bool(visibility.xp.any(sinks > 0))
        away = sinks if sunk else None
        other = of_other_keys(attention, away)
        return cls(attention, all_keys, sinks, sunk, other, of_preferences(attention, away, other.preferences))

    @property
    def visibility(self) -> LayerVisibility:
        return self.attention.visibility

    @property
    def xp(self) -> Any:
        return self.visibility.xp

    def matrices(self, operator: Any) -> Matrices:
        return Matrices(self.attention, self.all_keys, self.other, self.sinks if self.sunk else None, operator)


def _sinks(whole: AllKeys, visibility: LayerVisibility) -> Any:
    """Ones for keys that are sinks, (heads, tokens); only keys that a quarter of the rows see can be."""
    xp, rows = visibility.xp, visibility.shape[0]
    counts = positive(visibility.column_counts)
    share = whole.columns / counts
    # rows agree on a sink: the squared mean of what they give it is at least this part of the mean square. Where a few
    # directions of queries choose keys, some keys get as much from a fraction of the rows
    agreed = share**2 >= 1 / 3 * whole.column_squares / counts
    found = (
        (share >= SINK_SHARE)
        & (share >= SINK_TIMES * visibility.even)
        & (visibility.column_counts >= rows / 4)
        & agreed
    )
    strongest = xp.max(xp.where(found, share, xp.zeros_like(share)), axis=-1, keepdims=True)
    numbers = xp.astype(found & (share >= SINK_RATIO * strongest), share.dtype)
    return xp.where(xp.sum(numbers, axis=-1, keepdims=True) > MOST_SINKS, xp.zeros_like(numbers), numbers)


def _row_measures(heads: _HeadSums) -> dict[str, Any]:
    """The :data:`COMPARED` measures but those of the spectrum, with what is found on the way to them."""
    xp, visibility, whole = heads.xp, heads.visibility, heads.all_keys
    even = xp.log(xp.clip(visibility.row_counts, 2.0, None))
    return {
        "beta_without_sink": _mean_spread(visibility, heads.other.variance),
        "evenness": xp.sum(whole.entropy / even * visibility.busy, axis=-1),
        "largest": xp.sum(whole.largest * visibility.busy, axis=-1),
        **_column_facts(heads),
        **_stripes(heads),
        **_same_token(heads),
    }


def _sink_facts(heads: _HeadSums) -> dict[str, Any]:
    """How much attention sinks get, how many there are, and where the strongest is."""
    xp, sinks = heads.xp, heads.sinks
    count = xp.sum(sinks, axis=-1)
    strongest = xp.astype(xp.argmax(heads.all_keys.columns * sinks, axis=-1), sinks.dtype)
    return {
        "sink_mass": xp.sum(_on_sinks(heads) * heads.visibility.busy, axis=-1),
        "sink_count": count,
        "sink_position": xp.where(count > 0, strongest, -xp.ones_like(strongest)),
    }


def _on_sinks(heads: _HeadSums) -> Any:
    """What each row gives to sinks, (heads, rows): what it does not give to the other keys."""
    xp = heads.xp
    if not heads.sunk:
        return xp.zeros_like(heads.all_keys.entropy)
    kept = xp.exp(xp.clip(heads.other.normaliser - heads.all_keys.normaliser, None, 0.0))
    seen = heads.visibility.row_counts > 0
    return xp.where(heads.other.taken > 0, 1 - kept, xp.astype(seen, kept.dtype))


def _with_outside_sink(heads: _HeadSums, matrices: Matrices, scores: Any) -> dict[str, Any]:
    """What a sink that is none of the keys changes: it takes its share of every row, and leaves the rest as it is."""
    xp = heads.xp
    # exponentials of larger scores overflow; those beyond have all of the attention
    left = 1 / (1 + xp.exp(xp.clip(scores[:, None] - heads.all_keys.normaliser, None, 600.0)))
    mass = xp.sum((1 - left * (1 - _on_sinks(heads))) * heads.visibility.busy, axis=-1)
    return {"sink_mass": mass} | matrices.first_two(left)


def _column_facts(heads: _HeadSums) -> dict[str, Any]:
    """How much of the matrix the common preferences are: of all, and of what an even spread leaves."""
    xp, other, product, busy = heads.xp, heads.other, heads.preferred.product, heads.visibility.busy
    own, squares = other.taken * heads.preferred.energy, other.squares
    uneven = xp.sum((squares - other.taken / positive(other.keys)) * busy, axis=-1)
    missed = xp.sum((squares - 2 * product + own) * busy, axis=-1)
    some = uneven > 1e-12 * xp.sum(squares * busy, axis=-1)
    share = 1 - missed / xp.where(some, uneven, xp.ones_like(uneven))
    return {
        "column_energy": xp.sum(product, axis=-1) ** 2 / (xp.sum(own, axis=-1) * xp.sum(squares, axis=-1)),
        "column_share": xp.where(some, xp.clip(share, 0.0, None), xp.zeros_like(share)),
    }


def _content_rank(heads: _HeadSums, factors: Any) -> Any:
    """Participation number of the content scores over rows that see anything and keys that anyone sees, no sinks."""
    # with queries Q and keys K, centred, the squared singular values of Q K' are the eigenvalues of Q'Q K'K
    xp, visibility = heads.xp, heads.visibility
    keys = xp.astype(visibility.column_counts > 0, heads.sinks.dtype) * (1 - heads.sinks)
    rows = xp.broadcast_to(xp.astype(visibility.row_counts > 0, keys.dtype), (keys.shape[0], visibility.shape[0]))
    if factors is None and len(visibility.blocks) > 1:
        return visibility.new(
            xp.asarray, [_estimated_rank(heads.attention, rows, keys, each) for each in range(len(keys))]
        )
    if factors is None:
        eye = xp.broadcast_to(visibility.new(xp.eye, visibility.shape[1]), (1, *2 * visibility.shape[1:]))
        factors = heads.attention.content(visibility.blocks[0]), eye
    grams = []
    for vectors, kept in zip(factors, (rows, keys), strict=True):
        mean = xp.sum(vectors * kept[..., None], axis=1) / positive(xp.sum(kept, axis=-1, keepdims=True))
        centred = (vectors - mean[:, None, :]) * kept[..., None]
        grams.append(xp.matmul(xp.matrix_transpose(centred), centred))
    product = xp.matmul(*grams)
    total = xp.sum(xp.linalg.diagonal(product), axis=-1)
    return total**2 / positive(xp.sum(product * xp.matrix_transpose(product), axis=(1, 2)))


def _estimated_rank(attention: AttentionRows, rows: Any, keys: Any, head: int) -> float:
    """The same for scores that are no products of few numbers a token, from products with random vectors."""
    xp, visibility = attention.visibility.xp, attention.visibility

    def centred(block: Any, kept: Any) -> Any:
        mean = xp.sum(block * kept[head, :, None], axis=0) / positive(xp.sum(kept[head]))
        return (block - mean) * kept[head, :, None]

    def forward(block: Any) -> Any:
        block = centred(block, keys)
        return centred(xp.concat([attention.content(each)[head] @ block for each in visibility.blocks], axis=0), rows)

    def backward(block: Any) -> Any:
        block = centred(block, rows)
        parts = (xp.matrix_transpose(attention.content(each)[head]) @ block[each] for each in visibility.blocks)
        return centred(sum(parts), keys)

    scores = MapOperator(forward, backward, visibility.shape, visibility.new(xp.ones, (1, 1)))
    # two steps know the second moment of the squares without an error of the quadrature
    first, second = (each.value for each in trace_moments(scores, (1, 2), probes=PROBES, steps=2))
    return min(visibility.shape) * first**2 / second if second > 0 else 0.0


def _stripes(heads: _HeadSums) -> dict[str, Any]:
    """Mean attention along every diagonal that half of the rows have, and the best of them."""
    xp, visibility, sums = heads.xp, heads.visibility, heads.other.stripes
    rows, tokens = visibility.shape
    if not visibility.ordered:
        nothing = visibility.new(xp.full, (heads.sinks.shape[0],), xp.nan)
        return {"offset": nothing, "offset_mass": nothing, "near_mass": nothing}
    reach = tokens // 2
    masses = sums[:, rows - 1 - reach : rows + reach] / visibility.stripes
    near = xp.sum(sums[:, rows - 1 - NEAR : rows + NEAR], axis=-1)
    return {
        "offset": xp.astype(xp.argmax(masses, axis=-1), sums.dtype) - reach,
        "offset_mass": xp.max(masses, axis=-1),
        "near_mass": near - xp.sum(heads.preferred.near * visibility.busy, axis=-1),
    }


def _same_token(heads: _HeadSums) -> dict[str, Any]:
    """Attention to other places of a row's token, of which some are no sinks, and its excess over the preferences."""
    xp, visibility, found = heads.xp, heads.visibility, heads.preferred
    if not visibility.ordered:
        nothing = visibility.new(xp.full, (heads.sinks.shape[0],), xp.nan)
        return {"same_token_mass": nothing, "same_token_excess": nothing}
    weights = xp.astype(found.same_there > 0, found.same.dtype)
    count = xp.sum(weights, axis=-1)

    def mean(values: Any) -> Any:
        return xp.where(count > 0, xp.sum(values * weights, axis=-1) / xp.clip(count, 1.0, None), xp.nan)

    return {"same_token_mass": mean(found.same), "same_token_excess": mean(found.same - found.same_expected)}
