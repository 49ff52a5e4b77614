"""Numbers that tell what attention matrices do, for all heads of a layer at once, from their scores.

Scores come in two parts: the *content* ``scale q . k``, and the *bias* that is added to it, positional terms and minus
infinity where a row does not see a key. Keys that get a large share of everyone's attention are *sinks*; they are told
first and then taken away: the other numbers are of the softmax over the keys that are left, because next to a sink all
else looks alike. :data:`MEASURES` says what each number is.

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
from bulkedge.heads.columns import Columns, positive

LEVELS = np.linspace(0.0, 1.0, 257)
"""Levels of the quantile function that stands for a spectrum."""
SINK_SHARE, SINK_TIMES = 0.05, 8.0
"""A sink gets so much of the attention of the rows that see it, and so many times what an even spread would give."""
SINK_AGREEMENT = 1 / 3
"""Rows agree on a sink: the squared mean of what they give it is at least this part of the mean square. Where a few
directions of queries choose keys, some keys get as much from a fraction of the rows."""
SINK_RATIO, MOST_SINKS = 1 / 3, 4
"""Sinks have at least this share of the strongest one's attention; if more keys than that do, none is singled out."""
NEAR = 8
"""Keys so far from their row are near."""
FEWEST = 16
"""Rows that see fewer keys are left out of means over rows, because they have no choice."""

MEASURES = {
    "beta": "Root mean square over rows of the spread of a row's content scores over the keys that it sees.",
    "beta_without_sink": "Root mean square over rows of the spread of a row's content scores over keys that are no "
    "sinks.",
    "entropy": "Mean entropy of a row, in nats.",
    "evenness": "Mean entropy of a row over the logarithm of the number of keys that it sees; 1 is uniform.",
    "largest": "Mean over rows of the largest weight.",
    "sink_mass": "Mean share of a row's attention on sinks: keys that get 5 % of the attention of the rows that see "
    "them, eight times an even share, more or less the same from all, and a third of what the strongest gets; more than "
    "four such keys are no sinks.",
    "sink_count": "Number of sinks.",
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
    "score_rank": "Participation number of the squared singular values of the content scores without their row and "
    "column means, sinks taken away: how many directions of queries and keys tell keys apart.",
    "stable_rank": "Sum of the squared singular values over the largest of them, sinks taken away.",
    "effective_rank": "Exponential of the entropy of the squared singular values, sinks taken away.",
    "s1": "Largest singular value of the whole attention matrix.",
    "gap": "1 - s2/s1 of the whole attention matrix.",
}
"""What is measured on every head, and what it means."""


def measured(content: Any, bias: Any = None, ids: Any = None) -> dict[str, Real]:
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

    Returns
    -------
    dict of str to array
        :data:`MEASURES`, each of shape (heads,); ``"columns"``, share of all attention that each key gets, of shape
        (heads, tokens); and ``"spectrum"``, singular values without sinks at the :data:`LEVELS`, of shape (heads,
        levels), smallest first.
    """
    view = _View.of(content, bias)
    whole = view.softmax(view.xp.zeros_like(view.seen_columns))
    sinks = _sinks(view, whole)
    found = _rows_of(view, whole) | _sink_facts(view, whole, sinks)
    bare = not bool(view.xp.any(sinks))
    rest = whole if bare else view.softmax(sinks)
    found["beta_without_sink"] = found["beta"] if bare else view.spread(sinks)
    found["score_rank"] = _score_rank(view, sinks)
    columns = Columns.of(rest, view.seen, 1 - sinks)
    found |= _column_facts(view, rest, columns)
    found |= _stripes(view, rest, columns, ids)
    found |= _same_token(view, rest, columns, sinks, ids)
    values = _singular_values(rest)
    found |= _ranks(values)
    found["columns"] = view.xp.sum(whole, axis=1) / whole.shape[1]
    found |= _top_two(whole) if not bare else {"s1": values[:, -1], "gap": 1 - values[:, -2] / values[:, -1]}
    return {name: as_numpy(each) for name, each in found.items()}


def spread(content: Any, bias: Any = None) -> Any:
    """Inverse temperature of heads: root mean square over rows of the spread of a row's content scores.

    Parameters
    ----------
    content, bias : array
        As for :func:`measured`.

    Returns
    -------
    array of shape (heads,)
        In the library of the scores.
    """
    view = _View.of(content, bias)
    return view.spread(view.xp.zeros_like(view.seen_columns))


class _View(NamedTuple):
    """Scores, and who sees what: ``seen`` is (heads or 1, rows, tokens) or None for all."""

    xp: Any
    content: Any
    bias: Any
    seen: Any
    seen_rows: Any
    """Number of keys that each row sees, (heads or 1, rows)."""
    seen_columns: Any
    """Number of rows that see each key, (heads, tokens)."""

    @classmethod
    def of(cls, content: Any, bias: Any) -> _View:
        xp = array_namespace(content)
        heads, rows, tokens = content.shape
        if bias is None:
            full = xp.ones((1, 1), dtype=content.dtype, device=device(content))
            return cls(
                xp,
                content,
                None,
                None,
                tokens * xp.broadcast_to(full, (1, rows)),
                rows * xp.broadcast_to(full, (heads, tokens)),
            )
        bias = bias if bias.ndim == 3 else xp.reshape(bias, (1, *bias.shape[-2:]))
        seen = xp.broadcast_to(bias > -xp.inf, (bias.shape[0], rows, tokens))
        numbers = xp.astype(seen, content.dtype)
        columns = xp.broadcast_to(xp.sum(numbers, axis=1), (heads, tokens))
        return cls(xp, content, bias, seen, xp.sum(numbers, axis=2), columns)

    @property
    def busy(self) -> Any:
        """Weights of rows in means over rows, (heads or 1, rows): those with a choice, and all if none has."""
        enough = self.seen_rows >= min(FEWEST, self.content.shape[2])
        some = self.xp.any(enough, axis=-1, keepdims=True)
        weights = self.xp.astype(enough | ~some, self.content.dtype)
        return weights / self.xp.sum(weights, axis=-1, keepdims=True)

    def spread(self, sinks: Any) -> Any:
        """Root mean square over busy rows of the spread of content scores over keys that are seen and no sinks."""
        xp = self.xp
        kept = xp.broadcast_to(1 - sinks[:, None, :], self.content.shape)
        if self.seen is not None:
            kept = kept * xp.astype(self.seen, kept.dtype)
        count = xp.clip(xp.sum(kept, axis=-1), 1.0, None)
        mean = xp.sum(self.content * kept, axis=-1) / count
        square = xp.sum(((self.content - mean[..., None]) * kept) ** 2, axis=-1) / count
        return xp.sqrt(xp.sum(square * self.busy, axis=-1))

    def softmax(self, sinks: Any) -> Any:
        """Attention over the keys that are no sinks, (heads, rows, tokens); rows that see none of those are zero."""
        xp = self.xp
        scores = self.content if self.bias is None else self.content + self.bias
        if bool(xp.any(sinks > 0)):
            scores = xp.where(sinks[:, None, :] > 0, -xp.inf, scores)
        top = xp.max(scores, axis=-1, keepdims=True)
        weights = xp.exp(scores - xp.where(top > -xp.inf, top, xp.zeros_like(top)))
        total = xp.sum(weights, axis=-1, keepdims=True)
        return weights / xp.where(total > 0, total, xp.ones_like(total))


def _sinks(view: _View, whole: Any) -> Any:
    """Ones for keys that are sinks, (heads, tokens); only keys that a quarter of the rows see can be."""
    xp, rows = view.xp, whole.shape[1]
    counts = xp.where(view.seen_columns > 0, view.seen_columns, xp.ones_like(view.seen_columns))
    share = xp.sum(whole, axis=1) / counts
    even = 1 / xp.where(view.seen_rows > 0, view.seen_rows, xp.ones_like(view.seen_rows))
    if view.seen is None:
        expected = xp.broadcast_to(even[:, :1], share.shape)
    else:
        expected = xp.sum(xp.where(view.seen, even[..., None], 0.0), axis=1) / counts
    agreed = share**2 >= SINK_AGREEMENT * xp.sum(whole**2, axis=1) / counts
    found = (share >= SINK_SHARE) & (share >= SINK_TIMES * expected) & (view.seen_columns >= rows / 4) & agreed
    strongest = xp.max(xp.where(found, share, xp.zeros_like(share)), axis=-1, keepdims=True)
    numbers = xp.astype(found & (share >= SINK_RATIO * strongest), whole.dtype)
    return xp.where(xp.sum(numbers, axis=-1, keepdims=True) > MOST_SINKS, xp.zeros_like(numbers), numbers)


def _rows_of(view: _View, whole: Any) -> dict[str, Any]:
    """What is about single rows of the whole matrix."""
    xp = view.xp
    logs = xp.log(xp.where(whole > 0, whole, xp.ones_like(whole)))
    entropy = -xp.sum(whole * logs, axis=-1)
    even = xp.log(xp.clip(view.seen_rows, 2.0, None))
    return {
        "beta": view.spread(xp.zeros_like(view.seen_columns)),
        "entropy": xp.sum(entropy * view.busy, axis=-1),
        "evenness": xp.sum(entropy / even * view.busy, axis=-1),
        "largest": xp.sum(xp.max(whole, axis=-1) * view.busy, axis=-1),
    }


def _sink_facts(view: _View, whole: Any, sinks: Any) -> dict[str, Any]:
    xp = view.xp
    columns = xp.sum(whole, axis=1) * sinks
    count = xp.sum(sinks, axis=-1)
    strongest = xp.astype(xp.argmax(columns, axis=-1), whole.dtype)
    mass = xp.sum(xp.matmul(whole, sinks[..., None])[..., 0] * view.busy, axis=-1)
    return {
        "sink_mass": mass,
        "sink_count": count,
        "sink_position": xp.where(count > 0, strongest, -xp.ones_like(strongest)),
    }


def _column_facts(view: _View, rest: Any, columns: Columns) -> dict[str, Any]:
    """How much of the matrix the common preferences are: of all, and of what an even spread leaves."""
    xp = view.xp
    taken = xp.clip(xp.sum(rest, axis=2), None, 1.0)
    product = xp.matmul(rest, columns.x[..., None])[..., 0] / columns.totals
    own, squares = taken * columns.energy(), xp.sum(rest**2, axis=2)
    spread = xp.sum((squares - taken / positive(columns.keys)) * view.busy, axis=-1)
    missed = xp.sum((squares - 2 * product + own) * view.busy, axis=-1)
    uneven = spread > 1e-12 * xp.sum(squares * view.busy, axis=-1)
    share = 1 - missed / xp.where(uneven, spread, xp.ones_like(spread))
    return {
        "column_energy": xp.sum(product, axis=-1) ** 2 / (xp.sum(own, axis=-1) * xp.sum(squares, axis=-1)),
        "column_share": xp.where(uneven, xp.clip(share, 0.0, None), xp.zeros_like(share)),
    }


def _score_rank(view: _View, sinks: Any) -> Any:
    """Participation number of the content scores over rows that see anything and keys that anyone sees, no sinks."""
    xp = view.xp
    keys = xp.astype(view.seen_columns > 0, view.content.dtype) * (1 - sinks)
    rows = xp.astype(view.seen_rows > 0, view.content.dtype)
    kept = rows[..., None] * keys[:, None, :]
    scores = xp.where(kept > 0, view.content, xp.zeros_like(view.content))
    scores = (scores - (xp.sum(scores, axis=2) / positive(xp.sum(keys, axis=-1, keepdims=True)))[..., None]) * kept
    scores = (scores - (xp.sum(scores, axis=1) / positive(xp.sum(rows, axis=-1, keepdims=True)))[:, None]) * kept
    turned = xp.matrix_transpose(scores)
    gram = xp.matmul(scores, turned) if scores.shape[1] <= scores.shape[2] else xp.matmul(turned, scores)
    squares = xp.sum(gram**2, axis=(1, 2))
    return xp.sum(scores**2, axis=(1, 2)) ** 2 / positive(squares)


def _band(xp: Any, rest: Any) -> Any:
    """Ones where a key is near its row."""
    ones = xp.ones(rest.shape[1:], dtype=rest.dtype, device=device(rest))
    return xp.tril(xp.triu(ones, k=-NEAR), k=NEAR)


def _stripes(view: _View, rest: Any, columns: Columns, ids: Any) -> dict[str, Any]:
    """Mean attention along every diagonal that half of the rows have, and the best of them."""
    xp = view.xp
    heads, rows, tokens = rest.shape
    if ids is None or rows != tokens:
        nothing = xp.full((heads,), xp.nan, dtype=rest.dtype, device=device(rest))
        return {"offset": nothing, "offset_mass": nothing, "near_mass": nothing}
    weighted = xp.flip(rest * view.busy[..., None], axis=1)
    # row r of rows that are one too wide moves by r when they are cut: what was key minus row becomes the column
    skewed = xp.concat([weighted, xp.zeros((heads, rows, rows), dtype=rest.dtype, device=device(rest))], axis=-1)
    skewed = xp.reshape(xp.reshape(skewed, (heads, -1))[:, : rows * (tokens + rows - 1)], (heads, rows, -1))
    sums = xp.sum(skewed, axis=1)  # offsets from 1 - rows to tokens - 1
    reach = tokens // 2
    kept = sums[:, rows - 1 - reach : rows + reach]
    weights = _stripe_weights(view, rows, reach)
    masses = kept / weights
    best = xp.argmax(masses, axis=-1)
    near = xp.sum(sums[:, rows - 1 - NEAR : rows + NEAR], axis=-1)
    near_expected = xp.sum(columns.on(_band(xp, rest)) * view.busy, axis=-1)
    return {
        "offset": xp.astype(best, rest.dtype) - reach,
        "offset_mass": xp.max(masses, axis=-1),
        "near_mass": near - near_expected,
    }


def _stripe_weights(view: _View, rows: int, reach: int) -> Any:
    """Share of the busy rows that have a key at each offset, (heads or 1, 2 reach + 1)."""
    xp = view.xp
    up = xp.cumulative_sum(view.busy, axis=-1)  # rows up to i
    down = 1 - up + view.busy  # rows from i on
    later = xp.flip(up[:, rows - 1 - reach :], axis=-1)  # offset k >= 0: rows up to l - 1 - k
    earlier = xp.flip(down[:, 1 : reach + 1], axis=-1)  # offset -k: rows from k on
    return xp.clip(xp.concat([earlier, later], axis=-1), 1e-9, None)


def _same_token(view: _View, rest: Any, columns: Columns, sinks: Any, ids: Any) -> dict[str, Any]:
    xp = view.xp
    heads, rows, tokens = rest.shape
    if ids is None or rows != tokens:
        nothing = xp.full((heads,), xp.nan, dtype=rest.dtype, device=device(rest))
        return {"same_token_mass": nothing, "same_token_excess": nothing}
    eye = xp.eye(rows, dtype=rest.dtype, device=device(rest))
    same = xp.astype(ids[:, None] == ids[None, :], rest.dtype) - eye
    mass = xp.sum(rest * same, axis=-1)
    there = xp.matmul(same if columns.seen is None else same * columns.seen, (1 - sinks)[..., None])
    weights = xp.astype(there[..., 0] > 0, rest.dtype)
    count = xp.sum(weights, axis=-1)

    def mean(values: Any) -> Any:
        return xp.where(count > 0, xp.sum(values * weights, axis=-1) / xp.clip(count, 1.0, None), xp.nan)

    return {"same_token_mass": mean(mass), "same_token_excess": mean(mass - columns.on(same))}


def _singular_values(rest: Any) -> Any:
    """All singular values, smallest first, from the smaller Gram matrix: right to 1e-8 of the largest in doubles."""
    xp = array_namespace(rest)
    turned = xp.matrix_transpose(rest)
    gram = xp.matmul(rest, turned) if rest.shape[1] <= rest.shape[2] else xp.matmul(turned, rest)
    return xp.sqrt(xp.clip(xp.linalg.eigvalsh(gram), 0.0, None))


def _ranks(values: Any) -> dict[str, Any]:
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
    values = xp.sqrt(xp.clip(squares, 0.0, None))
    return {"s1": values[:, -1], "gap": 1 - values[:, -2] / values[:, -1]}
