"""Numbers that tell what attention matrices do, for all heads of a layer at once, from their scores.

Scores come in two parts: the *content* ``scale q . k``, and the *bias* that is added to it, positional terms and minus
infinity where a row does not see a key. Keys that get a large share of everyone's attention are *sinks*; they are told
first and then taken away: the other numbers are of the softmax over the keys that are left, because next to a sink all
else looks alike. Some heads have a sink that is none of their keys: a learned score in the softmax, whose weight
nothing gets. It is taken away first of all. :data:`MEASURES` says what each number is.

>>> rng = np.random.default_rng(0)
>>> found = measured(rng.standard_normal((2, 64, 64)))
>>> found["beta"].shape, bool(abs(found["beta"][0] - 1) < 0.1), found["spectrum"].shape
((2,), True, (2, 257))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.arrays import Real, as_numpy
from bulkedge.heads.preferences import Preferences
from bulkedge.heads.sight import NEAR, Sight, positive

LEVELS = np.linspace(0.0, 1.0, 257)
"""Levels of the quantile function that stands for a spectrum."""
SINK_SHARE, SINK_TIMES = 0.05, 8.0
"""A sink gets so much of the attention of the rows that see it, and so many times what an even spread would give."""
SINK_AGREEMENT = 1 / 3
"""Rows agree on a sink: the squared mean of what they give it is at least this part of the mean square. Where a few
directions of queries choose keys, some keys get as much from a fraction of the rows."""
SINK_RATIO, MOST_SINKS = 1 / 3, 4
"""Sinks have at least this share of the strongest one's attention; if more keys than that do, none is singled out."""
LARGEST = 600.0
"""Scores beyond have all of the attention; exponentials of larger ones overflow."""

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
    "s1": "Largest singular value of the whole attention matrix.",
    "gap": "1 - s2/s1 of the whole attention matrix.",
}
"""What is measured on every head, and what it means."""
COMPARED = (
    *("beta_without_sink", "evenness", "largest", "offset_mass", "near_mass", "same_token_mass"),
    *("column_energy", "stable_rank", "effective_rank"),
)
"""What fresh heads are measured by."""


def measured(  # noqa: PLR0913 - scores in their parts, and what was worked out before
    content: Any,
    bias: Any = None,
    ids: Any = None,
    *,
    sight: Sight | None = None,
    factors: Any = None,
    sink_scores: Any = None,
) -> dict[str, Real]:
    """Measure heads.

    Parameters
    ----------
    content : array of shape (heads, rows, tokens)
        Scores without what is added to them, NumPy or torch, in double precision where spectra are to be trusted.
    bias : array, optional
        What is added, minus infinity for keys that a row does not see; it broadcasts to the shape of the scores.
    ids : array of shape (tokens,), optional
        Token of every position, where rows and keys are of one sequence. Without it what is about positions and tokens
        is nan.
    sight : Sight, optional
        Bias and ids, worked out before for other heads of the layer; in place of both.
    factors : pair of arrays, optional
        Queries (heads, rows, dim) and keys (heads, tokens, dim) whose products are the content, where they are at hand:
        the rank of the scores costs less with them.
    sink_scores : array of shape (heads,), optional
        Scores of a sink that is none of the keys, the same for all rows of a head. All numbers but ``sink_mass``,
        ``s1`` and ``gap`` are of the softmax over the keys.

    Returns
    -------
    dict of str to array
        :data:`MEASURES`, each of shape (heads,); ``"columns"``, share of all attention that each key gets, of shape
        (heads, tokens); and ``"spectrum"``, singular values without sinks at the :data:`LEVELS`, of shape (heads,
        levels), smallest first.
    """
    heads = _Heads.of(content, sight or Sight.of(content, bias, ids))
    xp, whole, values = heads.xp, heads.whole, _singular_values(heads.rest)
    found = _compared(heads, values) | _sink_facts(heads)
    found["beta"] = spread(content, heads.sight) if heads.sunk else found["beta_without_sink"]
    found["entropy"] = xp.sum(heads.entropy * heads.sight.busy, axis=-1)
    found["content_rank"] = _content_rank(heads, factors)
    found["columns"] = xp.sum(whole, axis=1) / whole.shape[1]
    found |= _top_two(whole) if heads.sunk else _first_two(values)
    if sink_scores is not None:
        found |= _beside_sink(heads, sink_scores)
    return {name: as_numpy(each) for name, each in found.items()}


def compared(content: Any, sight: Sight) -> dict[str, Real]:
    """The measures of heads by which they are compared with fresh ones, and nothing else.

    Parameters
    ----------
    content : array of shape (heads, rows, tokens)
        As for :func:`measured`.
    sight : Sight
        Who sees whom.

    Returns
    -------
    dict of str to array
        :data:`COMPARED` and ``"spectrum"``.
    """
    heads = _Heads.of(content, sight)
    found = _compared(heads, _singular_values(heads.rest))
    return {name: as_numpy(found[name]) for name in (*COMPARED, "spectrum")}


def spread(content: Any, sight: Sight) -> Any:
    """Inverse temperature of heads: root mean square over rows of the spread of a row's content scores.

    Parameters
    ----------
    content : array of shape (heads, rows, tokens)
        As for :func:`measured`.
    sight : Sight
        Who sees whom.

    Returns
    -------
    array of shape (heads,)
        In the library of the scores.
    """
    return _spread(content, sight, None)


def _spread(content: Any, sight: Sight, sinks: Any) -> Any:
    """The same over keys that are no sinks: ``sinks`` has ones for those, (heads, tokens), or is None without any."""
    xp = sight.xp
    shown = content if sight.seen is None else content * sight.seen
    if sinks is None:
        count, kept = xp.clip(sight.row_counts, 1.0, None), shown
    else:
        count, kept = xp.clip(sight.total(1 - sinks), 1.0, None), shown * (1 - sinks)[:, None, :]
    mean = xp.sum(kept, axis=-1) / count
    square = xp.sum(kept * shown, axis=-1) / count - mean**2
    return xp.sqrt(xp.sum(xp.clip(square, 0.0, None) * sight.busy, axis=-1))


class _Heads(NamedTuple):
    """Attention matrices, (heads, rows, tokens), whole and without sinks."""

    sight: Sight
    content: Any
    whole: Any
    normaliser: Any
    """Logarithms of the sums of exponentials of the rows of scores, (heads, rows)."""
    entropy: Any
    """Of the rows of the whole, (heads, rows)."""
    sinks: Any
    """Ones for keys that are sinks, (heads, tokens)."""
    sunk: bool
    """Whether there is any."""
    rest: Any
    """The softmax over the keys that are no sinks; the whole where there are none."""

    @classmethod
    def of(cls, content: Any, sight: Sight) -> _Heads:
        whole, normaliser = _softmax(content, sight, None)
        scores = sight.xp.sum(whole * content, axis=-1)
        if sight.positional is not None:
            scores = scores + sight.xp.sum(whole * sight.positional, axis=-1)
        entropy = sight.xp.clip(normaliser - scores, 0.0, None)
        sinks = _sinks(whole, sight)
        sunk = bool(sight.xp.any(sinks > 0))
        rest = _softmax(content, sight, sinks)[0] if sunk else whole
        return cls(sight, content, whole, normaliser, entropy, sinks, sunk, rest)

    @property
    def xp(self) -> Any:
        return self.sight.xp


def _softmax(content: Any, sight: Sight, sinks: Any) -> tuple[Any, Any]:
    """Attention over the keys that are no sinks, zero in rows that see none of those; and the log normalisers."""
    xp = sight.xp
    scores = content if sight.added is None else content + sight.added
    if sinks is not None:
        scores = xp.where(sinks[:, None, :] > 0, -xp.inf, scores)
    top = xp.max(scores, axis=-1, keepdims=True)
    top = xp.where(top > -xp.inf, top, xp.zeros_like(top))
    weights = xp.exp(scores - top)
    total = positive(xp.sum(weights, axis=-1, keepdims=True))
    return weights / total, (top + xp.log(total))[..., 0]


def _sinks(whole: Any, sight: Sight) -> Any:
    """Ones for keys that are sinks, (heads, tokens); only keys that a quarter of the rows see can be."""
    xp, rows = sight.xp, whole.shape[1]
    counts = positive(sight.column_counts)
    share = xp.sum(whole, axis=1) / counts
    agreed = share**2 >= SINK_AGREEMENT * xp.sum(whole**2, axis=1) / counts
    found = (share >= SINK_SHARE) & (share >= SINK_TIMES * sight.even) & (sight.column_counts >= rows / 4) & agreed
    strongest = xp.max(xp.where(found, share, xp.zeros_like(share)), axis=-1, keepdims=True)
    numbers = xp.astype(found & (share >= SINK_RATIO * strongest), whole.dtype)
    return xp.where(xp.sum(numbers, axis=-1, keepdims=True) > MOST_SINKS, xp.zeros_like(numbers), numbers)


def _compared(heads: _Heads, values: Any) -> dict[str, Any]:
    """The :data:`COMPARED` measures and the spectrum, with what is found on the way to them, from singular values."""
    xp, sight = heads.xp, heads.sight
    even = xp.log(xp.clip(sight.row_counts, 2.0, None))
    preferences = Preferences.of(heads.rest, sight, 1 - heads.sinks)
    return {
        "beta_without_sink": _spread(heads.content, sight, heads.sinks if heads.sunk else None),
        "evenness": xp.sum(heads.entropy / even * sight.busy, axis=-1),
        "largest": xp.sum(xp.max(heads.whole, axis=-1) * sight.busy, axis=-1),
        **_column_facts(heads, preferences),
        **_stripes(heads, preferences),
        **_same_token(heads, preferences),
        **_ranks(values),
    }


def _sink_facts(heads: _Heads) -> dict[str, Any]:
    """How much attention sinks get, how many there are, and where the strongest is."""
    xp, whole, sinks = heads.xp, heads.whole, heads.sinks
    columns = xp.sum(whole, axis=1) * sinks
    count = xp.sum(sinks, axis=-1)
    strongest = xp.astype(xp.argmax(columns, axis=-1), whole.dtype)
    mass = xp.sum(xp.matmul(whole, sinks[..., None])[..., 0] * heads.sight.busy, axis=-1)
    return {
        "sink_mass": mass,
        "sink_count": count,
        "sink_position": xp.where(count > 0, strongest, -xp.ones_like(strongest)),
    }


def _beside_sink(heads: _Heads, scores: Any) -> dict[str, Any]:
    """What a sink that is none of the keys changes: it takes its share of every row, and leaves the rest as it is."""
    xp = heads.xp
    left = 1 / (1 + xp.exp(xp.clip(scores[:, None] - heads.normaliser, None, LARGEST)))
    kept = xp.matmul(heads.whole, heads.sinks[..., None])[..., 0]
    values = _singular_values(heads.whole * left[..., None])
    return {"sink_mass": xp.sum((1 - left * (1 - kept)) * heads.sight.busy, axis=-1)} | _first_two(values)


def _column_facts(heads: _Heads, preferences: Preferences) -> dict[str, Any]:
    """How much of the matrix the common preferences are: of all, and of what an even spread leaves."""
    xp, rest, busy = heads.xp, heads.rest, heads.sight.busy
    taken = xp.clip(xp.sum(rest, axis=2), None, 1.0)
    product = xp.matmul(rest, preferences.x[..., None])[..., 0] / preferences.totals
    own, squares = taken * preferences.energy(), xp.sum(rest**2, axis=2)
    uneven = xp.sum((squares - taken / positive(preferences.keys)) * busy, axis=-1)
    missed = xp.sum((squares - 2 * product + own) * busy, axis=-1)
    some = uneven > 1e-12 * xp.sum(squares * busy, axis=-1)
    share = 1 - missed / xp.where(some, uneven, xp.ones_like(uneven))
    return {
        "column_energy": xp.sum(product, axis=-1) ** 2 / (xp.sum(own, axis=-1) * xp.sum(squares, axis=-1)),
        "column_share": xp.where(some, xp.clip(share, 0.0, None), xp.zeros_like(share)),
    }


def _content_rank(heads: _Heads, factors: Any) -> Any:
    """Participation number of the content scores over rows that see anything and keys that anyone sees, no sinks.

    With queries Q and keys K, centred, the squared singular values of ``Q K'`` are the eigenvalues of ``Q'Q K'K``.
    """
    xp, sight = heads.xp, heads.sight
    keys = xp.astype(sight.column_counts > 0, heads.content.dtype) * (1 - heads.sinks)
    rows = xp.broadcast_to(xp.astype(sight.row_counts > 0, heads.content.dtype), (keys.shape[0], sight.shape[0]))
    if factors is None:
        factors = heads.content, xp.broadcast_to(sight.new(xp.eye, sight.shape[1]), (1, *2 * sight.shape[1:]))
    grams = []
    for vectors, kept in zip(factors, (rows, keys), strict=True):
        mean = xp.sum(vectors * kept[..., None], axis=1) / positive(xp.sum(kept, axis=-1, keepdims=True))
        centred = (vectors - mean[:, None, :]) * kept[..., None]
        grams.append(xp.matmul(xp.matrix_transpose(centred), centred))
    product = xp.matmul(*grams)
    total = xp.sum(xp.linalg.diagonal(product), axis=-1)
    return total**2 / positive(xp.sum(product * xp.matrix_transpose(product), axis=(1, 2)))


def _stripes(heads: _Heads, preferences: Preferences) -> dict[str, Any]:
    """Mean attention along every diagonal that half of the rows have, and the best of them."""
    xp, sight, rest = heads.xp, heads.sight, heads.rest
    number, rows, tokens = rest.shape
    if not sight.ordered:
        nothing = sight.new(xp.full, (number,), xp.nan)
        return {"offset": nothing, "offset_mass": nothing, "near_mass": nothing}
    weighted = xp.flip(rest * sight.busy[..., None], axis=1)
    # row r of rows that are one too wide moves by r when they are cut: what was key minus row becomes the column
    skewed = xp.concat([weighted, sight.new(xp.zeros, (number, rows, rows))], axis=-1)
    skewed = xp.reshape(xp.reshape(skewed, (number, -1))[:, : rows * (tokens + rows - 1)], (number, rows, -1))
    sums = xp.sum(skewed, axis=1)  # offsets from 1 - rows to tokens - 1
    reach = tokens // 2
    masses = sums[:, rows - 1 - reach : rows + reach] / sight.stripes
    near = xp.sum(sums[:, rows - 1 - NEAR : rows + NEAR], axis=-1)
    return {
        "offset": xp.astype(xp.argmax(masses, axis=-1), rest.dtype) - reach,
        "offset_mass": xp.max(masses, axis=-1),
        "near_mass": near - xp.sum(preferences.on(sight.near) * sight.busy, axis=-1),
    }


def _same_token(heads: _Heads, preferences: Preferences) -> dict[str, Any]:
    """Attention to other places of a row's token, of which some are no sinks, and its excess over the preferences."""
    xp, sight = heads.xp, heads.sight
    if not sight.ordered:
        nothing = sight.new(xp.full, (heads.rest.shape[0],), xp.nan)
        return {"same_token_mass": nothing, "same_token_excess": nothing}
    mass = xp.sum(heads.rest * sight.same, axis=-1)
    there = xp.matmul(sight.same, (1 - heads.sinks)[..., None])[..., 0]
    weights = xp.astype(there > 0, mass.dtype)
    count = xp.sum(weights, axis=-1)

    def mean(values: Any) -> Any:
        return xp.where(count > 0, xp.sum(values * weights, axis=-1) / xp.clip(count, 1.0, None), xp.nan)

    return {"same_token_mass": mean(mass), "same_token_excess": mean(mass - preferences.on(sight.same))}


def _singular_values(rest: Any) -> Any:
    """All singular values, smallest first, from the smaller Gram matrix: right to 1e-8 of the largest in doubles.

    On a processor NumPy solves, whatever the library of the matrices: it lets other threads work on other heads.
    """
    matrices = as_numpy(rest) if str(device(rest)) == "cpu" else rest
    xp = array_namespace(matrices)
    turned = xp.matrix_transpose(matrices)
    gram = xp.matmul(matrices, turned) if rest.shape[1] <= rest.shape[2] else xp.matmul(turned, matrices)
    return xp.sqrt(xp.clip(xp.linalg.eigvalsh(gram), 0.0, None))


def _ranks(values: Any) -> dict[str, Any]:
    """Ranks, and the quantile function, of singular values (heads, values), smallest first."""
    xp = array_namespace(values)
    squares = values**2
    total = xp.sum(squares, axis=-1, keepdims=True)
    shares = squares / total
    logs = xp.log(xp.where(shares > 0, shares, xp.ones_like(shares)))
    places = LEVELS * (values.shape[-1] - 1)
    low = np.floor(places).astype(int)
    high, part = np.minimum(low + 1, values.shape[-1] - 1), places - low
    numbers = as_numpy(values)
    return {
        "stable_rank": total[:, 0] / squares[:, -1],
        "effective_rank": xp.exp(-xp.sum(shares * logs, axis=-1)),
        "spectrum": numbers[:, low] * (1 - part) + numbers[:, high] * part,
    }


def _first_two(values: Any) -> dict[str, Any]:
    """Largest singular value and relative gap, of values smallest first."""
    return {"s1": values[:, -1], "gap": 1 - values[:, -2] / positive(values[:, -1])}


def _top_two(whole: Any, rounds: int = 12, width: int = 6) -> dict[str, Any]:
    """Largest singular value and relative gap of matrices next to low rank, by subspace iteration."""
    xp = array_namespace(whole)
    heads, _, tokens = whole.shape
    start = np.random.default_rng(0).standard_normal((tokens, width))
    start[:, 0] = 1.0
    block = xp.broadcast_to(xp.asarray(start, dtype=whole.dtype, device=device(whole)), (heads, tokens, width))
    turned = xp.matrix_transpose(whole)
    for _ in range(rounds):
        block = xp.matmul(turned, xp.linalg.qr(xp.matmul(whole, block))[0])
        block = xp.linalg.qr(block)[0]
    image = xp.matmul(whole, block)
    squares = xp.linalg.eigvalsh(xp.matmul(xp.matrix_transpose(image), image))
    return _first_two(xp.sqrt(xp.clip(squares, 0.0, None)))
