"""What the moments of a layer's queries and keys predict of its heads, and what they say of longer contexts.

Entropy and popularity are those of the channel (:mod:`bulkedge.heads`): of what second moments explain. What a head
deviates by is its structure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bulkedge.heads import CausalChannel, Channel, score_scales
from bulkedge.heads.channel.rows import mean_rows
from bulkedge.support.arrays import Real, as_numpy

if TYPE_CHECKING:
    from bulkedge.models.hooks.attention_inputs import Layer

LONGER = (2, 8, 32)
"""How many times as many tokens a scan asks about."""
LARGEST = 16.0
"""Largest factor on the scores that is told: what needs more is uniform but for noise."""
PREDICTED = ("coupling", "effective_dim", "predicted_entropy", "popularity_correlation")


def predicted(layer: Layer, columns: Real) -> dict[str, Real]:
    """What the channel says of the heads of the first sequence of a layer."""
    query, key = layer.query[0].float(), layer.key[0].float()  # predictions are not worth double precision
    heads, rows, tokens = columns.shape[0], query.shape[1], key.shape[1]
    channel = Channel.from_qk(query, key, layer.scale)
    found = {name: np.full(heads, np.nan) for name in PREDICTED}
    found["coupling"] = as_numpy(channel.couplings).max(axis=-1) ** 2
    found["effective_dim"] = as_numpy(channel.effective_dim)
    causal = None
    if layer.causal and rows == tokens and layer.softcap is None:
        causal = CausalChannel.from_qk(query, key, layer.scale)
        found["predicted_entropy"] = as_numpy(causal.entropy)[:, min(16, tokens - 1) :].mean(axis=-1)
        popularity = as_numpy(causal.popularity)
    elif layer.mask is None and layer.visibility.alike and layer.softcap is None:
        found["predicted_entropy"] = as_numpy(channel.rows(tokens).entropy)
        popularity = as_numpy(channel.popularity(key))
    else:
        return found | {name: np.full((heads, len(LONGER)), np.nan) for name in ("longer_entropy", "scale")}
    found["popularity_correlation"] = _log_correlation(popularity, columns)
    return found | longer(channel, tokens, causal)


def _log_correlation(one: Real, other: Real) -> Real:
    logs = [np.log(np.maximum(each, 1e-30)) for each in (one, other)]
    logs = [each - each.mean(axis=-1, keepdims=True) for each in logs]
    norms = np.sqrt(np.prod([np.sum(each**2, axis=-1) for each in logs], axis=0))
    return np.divide(np.sum(logs[0] * logs[1], axis=-1), norms, out=np.full(len(norms), np.nan), where=norms > 0)


def longer(channel: Channel, tokens: int, causal: CausalChannel | None = None) -> dict[str, Real]:
    """Entropy of rows of longer contexts, and the factor on the scores that keeps it where it is."""
    moments = channel.spread_moments
    entropies = [mean_rows(*moments, times * tokens)[0] for times in LONGER]
    heads = channel if causal is None else causal
    factors = [score_scales(heads, tokens, times * tokens) for times in LONGER]
    factors = [np.where(each < LARGEST, each, np.nan) for each in factors]
    return {"longer_entropy": np.stack(entropies, axis=-1), "scale": np.stack(factors, axis=-1)}
