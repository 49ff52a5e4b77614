"""Attention with popular columns, simulated: a mean query that carries most of the variance of the scores."""

import numpy as np
import pytest

import bulkedge as be

TOKENS, DIM = 1000, 64


def liked_attention(share, beta, *, qk_norm, rng):
    """Attention of queries with a mean, its column means, and the deviation of scores less row and column means."""
    queries, keys = rng.standard_normal((2, TOKENS, DIM))
    mean = rng.standard_normal(DIM)
    if qk_norm:
        queries, keys = (np.sqrt(DIM) * each / np.linalg.norm(each, axis=1)[:, None] for each in (queries, keys))
    mean *= np.sqrt(DIM) / np.linalg.norm(mean)
    scores = beta / np.sqrt(DIM) * (np.sqrt(1 - share) * queries + np.sqrt(share) * mean) @ keys.T
    attention = np.exp(scores - scores.max(axis=1)[:, None])
    attention /= attention.sum(axis=1)[:, None]
    centred = scores - scores.mean(axis=0) - scores.mean(axis=1)[:, None] + scores.mean()
    return attention, attention.mean(axis=0), float(centred.std())


@pytest.mark.parametrize(("share", "qk_norm"), [(0.35, True), (0.8, True), (0.6, False)])
def test_popular_columns(share, qk_norm):
    """At most 0.012, the distance of a head without popular columns at this size; a tenth of the plain law's."""
    rng = np.random.default_rng(211)
    attention, popularity, beta = liked_attention(share, 1.2, qk_norm=qk_norm, rng=rng)
    found = be.spectrum(np.sqrt(TOKENS) * (attention - popularity)).squared()
    plain = be.FiniteHeadLaw(beta, DIM, TOKENS, qk_norm)
    distance = be.compare(found, plain.with_columns(popularity)).ks
    assert distance < 0.012
    assert distance < be.compare(found, plain).ks / 10
