"""Pooled sequences, simulated, against their predictions, at seeds and sizes that nothing was tuned on.

Outlier and alignment differ from their limits by terms of order 1/d. Each cell is simulated at dimensions d and 2d, and
``2 m(2d) - m(d)`` has those terms taken off; its standard error is ``sqrt(4 e(2d)**2 + e(d)**2)``. Differences in
standard errors are judged together: of many, one in twenty exceeds two even if all is right, so what is asked is that
their sum of squares be no larger than chi-square says with probability 0.999, and that none exceed four.
"""

from itertools import product

import numpy as np
import pytest
from scipy.stats import chi2

import bulkedge as be
from bulkedge.ensembles.weights import self_attention_spread

LENGTH = 12
CORRELATIONS = {
    "prefix": be.recovery.prefix_correlation(LENGTH, 5, 0.5),
    "spiked": be.recovery.spiked_correlation(LENGTH, [0, 1, 1, 0, 0, 1, -0.4, 0, 0.5, 0, 0, 0], 5.0),
}
SAMPLE_RATIO = 0.4
LEADING = ("location", "overlap")


def weightings(correlation):
    return {
        "mean": be.recovery.mean_weights(LENGTH),
        "causal": be.recovery.causal_weights(LENGTH),
        "optimal": be.recovery.optimal_weights(correlation),
    }


def pooled(dim, vocab_ratio, signal, weights, correlation, **options):
    vocab, samples = 2 * round(dim / vocab_ratio / 2), round(dim / SAMPLE_RATIO)
    return be.PooledSequences(dim, vocab, samples, signal, weights, correlation, **options)


def extrapolated(measure, dim, draws):
    """``2 m(2d) - m(d)`` and its standard error, for ``measure(dim)`` drawn twice as often at d as at 2d."""
    small, large = (
        np.array([measure(size) for _ in range(count)]) for size, count in ((dim, 2 * draws), (2 * dim, draws))
    )
    errors = [each.std(axis=0, ddof=1) / np.sqrt(len(each)) for each in (small, large)]
    return 2 * large.mean(axis=0) - small.mean(axis=0), np.sqrt(4 * errors[1] ** 2 + errors[0] ** 2)


def scores(cell, relative, dim, draws, seed, **options):
    """Differences of measured and predicted location and alignment, in standard errors."""
    vocab_ratio, weights, correlation = cell
    # where noise alone leaves the bulk, strengths are in units of the noise of the class means
    unit = pooled(dim, vocab_ratio, 1.0, weights, correlation, **options).threshold().sample or 0.7
    rng = np.random.default_rng(seed)
    models = {
        size: pooled(size, vocab_ratio, relative * unit, weights, correlation, **options) for size in (dim, 2 * dim)
    }
    measured, error = extrapolated(lambda size: models[size].leading(rng), dim, draws)
    limit = models[dim]
    predicted = np.array([limit.sample_spike().location, limit.alignment().total])
    return (measured - predicted) / error, (measured, error)


def judge(found):
    found = np.asarray(found)
    assert np.abs(found).max() < 4
    assert np.sum(found**2) < chi2.isf(1e-3, found.size)


CELLS = [
    ("prefix", "mean", 0.5, 1.6),
    ("prefix", "causal", 1.0, 2.0),
    ("prefix", "optimal", 0.1, 2.5),
    ("spiked", "mean", 2.0, 2.5),
    ("spiked", "causal", 0.3, 1.6),
    ("spiked", "optimal", 0.7, 2.0),
]


def test_outlier_and_alignment_of_a_finite_table():
    """Six cells; the paper's form is refused by the same draws."""
    found, additive = [], []
    for number, (name, weighting, ratio, relative) in enumerate(CELLS):
        correlation = CORRELATIONS[name]
        cell = ratio, weightings(correlation)[weighting], correlation
        score, (measured, error) = scores(cell, relative, 120, 30, 400 + number)
        found.append(score)
        unit = pooled(120, *cell[:1], 1.0, *cell[1:]).threshold().sample
        paper = pooled(120, ratio, relative * unit, *cell[1:], table="additive")
        predicted = np.array([paper.sample_spike().location, paper.alignment().total])
        additive.append((measured - predicted) / error)
    judge(found)
    assert np.sum(np.square(additive)) > 5 * chi2.isf(1e-3, np.size(additive))


def test_outlier_and_alignment_of_an_additive_table():
    """The paper's equations, for the table that they are about."""
    correlation = CORRELATIONS["prefix"]
    found = [
        scores((ratio, be.recovery.causal_weights(LENGTH), correlation), 2.0, 120, 30, seed, table="additive")[0]
        for ratio, seed in ((0.3, 410), (1.0, 411), (2.0, 412))
    ]
    judge(found)


@pytest.mark.parametrize("noise", ["uniform", "rademacher"])
def test_universality(noise):
    correlation = CORRELATIONS["prefix"]
    found = [
        scores((ratio, be.recovery.causal_weights(LENGTH), correlation), 2.0, 120, 30, seed, noise=noise)[0]
        for ratio, seed in ((0.5, 420), (1.5, 421))
    ]
    judge(found)


def test_below_the_threshold():
    """The largest value is Tracy-Widom about the edge; the overlap is of order 1/d.

    Its mean is compared with ``edge + scale d**(-2/3) E[TW]``: two standard errors, and half the shift for what comes
    after it, of relative order d**(-1/3).
    """
    correlation = CORRELATIONS["prefix"]
    model = pooled(300, 0.5, 1.0, be.recovery.causal_weights(LENGTH), correlation)
    model = pooled(300, 0.5, 0.6 * model.threshold().sample, be.recovery.causal_weights(LENGTH), correlation)
    rng = np.random.default_rng(430)
    found = np.array([model.leading(rng) for _ in range(40)])
    law = model.bulk()
    shift = law.edge_scale * 300 ** (-2 / 3) * be.TracyWidom(1).mean()
    error = found[:, 0].std(ddof=1) / np.sqrt(40)
    assert abs(found[:, 0].mean() - law.edge - shift) < 2 * error + abs(shift) / 2
    assert found[:, 1].mean() < 20 / 300


@pytest.mark.parametrize("weighting", ["mean", "causal"])
def test_bulk(weighting):
    """Kolmogorov distance of at most 8/d, as for Gaussian models, the outlier included."""
    correlation = CORRELATIONS["prefix"]
    model = pooled(500, 0.5, 1.2, weightings(correlation)[weighting], correlation)
    assert be.compare(model.spectrum(np.random.default_rng(440)), model.law()).ks < 8 / 500


@pytest.mark.parametrize("length", [1, 3])
def test_counts_of_tokens_show_in_the_fourth_moment(length):
    """Tokens are drawn finitely often: the fourth moment exceeds the law's by ``gamma**2 delta (sum w**4)**2``.

    Two samples that share one token make the crossing pairing, which a free product has not. The excess over kappa**4
    is ``gamma**2 delta/L**2`` for the mean of L tokens: nothing much at ten, all of a Poisson law at one.
    """
    rng = np.random.default_rng(450)
    model = {
        size: be.PooledSequences(size, size, size, 0.0, be.recovery.mean_weights(length), np.eye(length), "additive")
        for size in (150, 300)
    }
    measured, error = extrapolated(lambda size: np.mean(model[size].spectrum(rng).values ** 4), 150, 60)
    excess = (measured - be.ProductLaw((1.0, 1.0), 1 / length).moment(4)) * length**4
    assert excess == pytest.approx(1 / length**2, abs=3 * float(error) * length**4)


def test_mean_of_the_table_is_a_spike_and_outranks_a_weak_signal():
    """The top eigenvalue is the mean's, and has no overlap with the signal beyond a few 1/d."""
    correlation = CORRELATIONS["prefix"]
    rng = np.random.default_rng(460)
    models = {
        size: pooled(size, 1.0, 0.6, be.recovery.mean_weights(LENGTH), correlation, centered=False)
        for size in (120, 240)
    }
    assert models[120].mean_outranks()
    measured, error = extrapolated(lambda size: models[size].leading(rng), 120, 30)
    assert abs(measured[0] - models[120].mean_spike().location) < 3 * error[0]
    assert abs(measured[1]) < 3 * error[1]


MIXTURES = {
    "unequal": {"sizes": (0.2, 0.8), "gram": 4.0 * np.array([[1, -1], [-1, 1]])},
    "coloured": {"sizes": (0.5, 0.5), "gram": 2.0 * np.array([[1, -1], [-1, 1]]), "noise": (0.4, 1.9)},
    "three": {"sizes": (0.2, 0.3, 0.5), "gram": np.array([[12, 1, 0], [1, 6, 0], [0, 0, 5]]), "noise": (0.4, 1.9)},
}


def mixture_scores(name, dim, draws, seed):
    case = MIXTURES[name]
    covariance = be.EmpiricalLaw(case.get("noise", (1.0, 1.0)), [0.6, 0.4])
    models = {
        size: be.PooledMixture(
            size,
            tuple(round(2 * size * share) for share in case["sizes"]),
            round(size / SAMPLE_RATIO),
            case["gram"],
            be.recovery.causal_weights(LENGTH),
            CORRELATIONS["prefix"],
            covariance,
        )
        for size in (dim, 2 * dim)
    }
    rng = np.random.default_rng(seed)
    measured, error = extrapolated(lambda size: models[size].leading(rng), dim, draws)
    predicted = np.array([each[:2] for each in models[dim].spikes()])
    assert all(each.detectable for each in models[dim].spikes())
    distance = be.compare(models[2 * dim].spectrum(rng), models[2 * dim].law()).ks
    assert distance < 8 / (2 * dim)
    return (measured - predicted) / error


@pytest.mark.parametrize("name", MIXTURES)
def test_classes_of_any_number_size_and_noise(name):
    judge(mixture_scores(name, 120, 25, 470))


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_classes_of_any_number_size_and_noise_at_length(name):
    judge(mixture_scores(name, 250, 150, 471))


def test_means_aligned_with_the_noise():
    """Means spread over loud axes of a continuous spectrum, rotated; the trace is wrong by four errors."""

    def model(size):
        places, rng = (np.arange(size) + 0.5) / size, np.random.default_rng(472)
        turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
        taken = np.arange(size) % 3 == np.arange(3)[:, None]  # every third axis each: the same products at all sizes
        means = taken * np.array([4.0, 2.6, 3.0])[:, None] * places**8 * np.sqrt(3 * 17 / size)
        noise = turn * (0.1 + 2.7 * places**2) @ turn.T
        weights, correlation = be.recovery.causal_weights(LENGTH), CORRELATIONS["prefix"]
        others = {"sizes": (size // 2, size // 2, size), "samples": round(size / SAMPLE_RATIO)}
        return be.PooledMixture.aligned(means @ turn.T, noise, weights=weights, correlation=correlation, **others)

    models, rng = {size: model(size) for size in (120, 240)}, np.random.default_rng(473)
    theory = {size: np.array([each[:2] for each in models[size].spikes()]) for size in models}
    measured, error = extrapolated(lambda size: models[size].leading(rng) - theory[size], 120, 30)
    judge(measured / error)
    one = models[240]
    free = be.PooledMixture(240, one.sizes, one.samples, one.gram, one.weights, one.correlation, one.noise_covariance)
    assert np.any(np.abs(np.array([each[:2] for each in free.spikes()]) - theory[240]) > 4 * error)


@pytest.mark.parametrize("dim", [100, 300])
def test_self_attention_weights_spread_as_predicted(dim):
    """Lemma 1: mean squared distance to the harmonic weights, over sequences without repeated tokens and over all.

    Four standard errors (repeats are rare and weigh much), and 5/d of it for the next order.
    """
    correlation = CORRELATIONS["prefix"]
    draw = be.PooledSequences(dim, 4 * dim, 10_000, 1.0, be.recovery.mean_weights(LENGTH), correlation).draw(
        np.random.default_rng(480)
    )
    weights = np.concatenate(
        [be.recovery.self_attention_weights(draw.table[part], 1.5) for part in np.split(draw.tokens, 50)]
    )
    squares = np.sum((weights - be.recovery.causal_weights(LENGTH)) ** 2, axis=1)
    distinct = np.all(np.diff(np.sort(draw.tokens, axis=1), axis=1) > 0, axis=1)
    for found, vocab in ((squares[distinct], 10**9), (squares, 4 * dim)):
        predicted = self_attention_spread(correlation, dim, vocab, 1.5) ** 2
        error = found.std(ddof=1) / np.sqrt(len(found))
        assert abs(found.mean() - predicted) < 4 * error + 5 * predicted / dim
    assert squares.mean() > 1.3 * squares[distinct].mean()


RATIOS = (0.1, 0.3, 0.7, 1.3, 2.0)
RELATIVE = (1.5, 2.0, 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["gaussian", "uniform", "rademacher"])
@pytest.mark.parametrize("name", CORRELATIONS)
def test_finite_table_over_the_grid(name, noise):
    """Five vocabulary ratios, three signals, three weightings: 90 numbers for each noise and correlation."""
    correlation = CORRELATIONS[name]
    cells = product(RATIOS, RELATIVE, weightings(correlation).values())
    found = [
        scores((ratio, weights, correlation), relative, 200, 40, 500 + number, noise=noise)[0]
        for number, (ratio, relative, weights) in enumerate(cells)
    ]
    judge(found)
    assert np.mean(np.abs(found) < 2) > 0.9
