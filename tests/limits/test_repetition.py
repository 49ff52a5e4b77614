"""Pooled sequences in which few positions have the weight: simulation against laws, and the warnings in between."""

import warnings

import numpy as np
import pytest

import bulkedge as be
from bulkedge.ensembles.pooled import MOST_REPETITION, counted_bulk
from bulkedge.recovery import causal_weights, mean_weights
from bulkedge.support.errors import RegimeWarning


def pooled(sizes, weights, signal=0.0):
    return be.PooledSequences(*sizes, signal, weights, np.eye(len(weights)))


@pytest.mark.parametrize("sizes", [(280, 560, 280), (280, 280, 420), (280, 1400, 1000), (280, 350, 120)])
@pytest.mark.parametrize("weights", [[1.0], [0.0, 1.0, 0.0]])
def test_one_position_counts_tokens(sizes, weights):
    """Kolmogorov distance of eight draws together: 5/d, twice that of exact laws; the free product is at 0.015 to 0.1.

    Eight, because the number of tokens that occur fluctuates by a few per cent of d in a single draw.
    """
    model, rng = pooled(sizes, weights), np.random.default_rng(311)
    values = np.sort([model.spectrum(rng).values for _ in range(8)], axis=None)
    ranks = (np.arange(values.size) + 0.5) / values.size
    present = values > 1e-10
    assert np.abs(model.law().cdf(values[present]) - ranks[present]).max() < 5 / 280
    assert dict(model.law().atoms).get(0.0, 0.0) == pytest.approx(1 - present.mean(), abs=5 / 280)


def test_counted_bulk_has_the_moments_of_counts():
    """Free cumulants are ``delta**(n-1)`` times moments of Poisson over its mean; a law cut at half a token: 2 %."""
    dim, vocab, samples = 500, 1000, 500
    law, delta = counted_bulk(dim, vocab, samples), 0.5
    counts = np.random.default_rng(312).binomial(samples, 1 / vocab, 2_000_000) * vocab / samples
    assert law.mean() == pytest.approx(1.0, rel=1e-9)
    assert law.var() == pytest.approx(delta * np.mean(counts**2.0), rel=0.02)


@pytest.mark.parametrize(
    ("sizes", "weights", "trusted"),
    [
        ((300, 600, 300), mean_weights(2), False),
        ((300, 600, 300), mean_weights(3), True),
        ((300, 600, 300), [0.9, 0.1], False),
        ((300, 600, 600), causal_weights(10), True),
        ((300, 600, 20_000), [1.0], True),
    ],
)
def test_the_free_product_says_where_it_does_not_hold(sizes, weights, trusted):
    """The mean of four draws: trusted, below 0.015 (exact laws: 0.01); warned of, above."""
    model, rng = pooled(sizes, weights), np.random.default_rng(313)
    assert (model.repetition <= MOST_REPETITION) == trusted
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        law = model.law()
    assert [each.category for each in said] == ([] if trusted else [RegimeWarning])
    distance = np.mean([be.compare(model.spectrum(rng), law).ks for _ in range(4)])
    assert (distance < 0.015) == trusted


def test_every_prediction_from_the_sample_warns():
    model = be.PooledSequences(300, 600, 300, 1.0, [1.0], [[1.0]], centered=False)
    for ask in (model.sample_spike, model.alignment, model.threshold, model.mean_spike):
        with pytest.warns(RegimeWarning, match="1 positions count, tokens repeat"):
            ask()
    gram = np.array([[1.0, -1.0], [-1.0, 1.0]])
    mixture = be.PooledMixture(300, (300, 300), 300, gram, [1.0], [[1.0]])
    for ask in (mixture.law, mixture.spikes):
        with pytest.warns(RegimeWarning, match="tokens repeat"):
            ask()
