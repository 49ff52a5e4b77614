"""The ridge classifier's accuracy, scores and training loss in closed form, against simulation."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.sparse import csr_array
from scipy.special import ndtr

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.ensembles.pooled import PooledSequences, pool
from bulkedge.laws import MarchenkoPastur
from bulkedge.recovery.classifier import LabelledSequences, LabelledSigns, RidgeClassifier, prefix_majority
from bulkedge.recovery.learned import learned_weights, ridge_coefficients

LENGTH, PREFIX = 9, 3
POPULATION = prefix_majority(LENGTH, PREFIX, 0.7)
MEAN = np.full(LENGTH, 1 / LENGTH)
DECAYING = np.arange(LENGTH, 0.0, -1) / np.arange(LENGTH, 0.0, -1).sum()
ON_PREFIX = np.where(np.arange(LENGTH) < PREFIX, 1 / PREFIX, 0.0)


def measured(model, weights, rng, tests=2000):
    """Accuracy, slope and variance of the scores, and training loss, of one draw."""
    data = model.sample(rng, tests)
    rows = pool(data.table, data.tokens, weights)
    train, labels = rows[: model.samples], data.labels[: model.samples]
    b = ridge_coefficients(train, labels, model.ridge)
    loss = np.mean((train @ b - labels) ** 2) + model.ridge * b @ b
    scores = rows[model.samples :] @ b
    pooled = np.where(data.tokens[model.samples :] < model.vocab // 2, 1.0, -1.0) @ weights
    slope = scores @ pooled / (pooled @ pooled)
    return model.tested(data, weights), slope, np.var(scores - slope * pooled), loss


@pytest.mark.parametrize(
    ("sizes", "weights"),
    [
        ((240, 480, 700, 0.8, 0.05), MEAN),
        ((240, 480, 700, 1.6, 0.05), DECAYING),
        ((240, 480, 700, 0.8, 0.5), ON_PREFIX),
        ((200, 2000, 500, 1.0, 0.1), DECAYING),
        ((300, 150, 400, 0.5, 0.1), MEAN),
        ((300, 400, 150, 1.2, 0.02), ON_PREFIX),
        ((160, 320, 1200, 0.0, 0.2), DECAYING),
    ],
)
def test_closed_form_against_simulation(sizes, weights):
    """Ten draws: four standard errors, plus 2/dim of the value for the finite size (the next order is 1/dim)."""
    model = RidgeClassifier(*sizes, POPULATION)
    draws = np.array([measured(model, weights, np.random.default_rng([41, k])) for k in range(10)])
    mean, error = draws.mean(axis=0), draws.std(axis=0) / 3
    score = model.score(weights)
    predicted = np.array([model.accuracy(weights), score.slope, score.variance, model.loss(weights).loss])
    assert np.all(np.abs(mean - predicted) <= 4 * error + 2 / model.dim * predicted), (mean, predicted, error)


@pytest.mark.parametrize("sizes", [(240, 480, 700, 0.8, 0.05), (300, 150, 100, 1.2, 2.0)])
def test_traces_by_quadrature(sizes):
    """The same formula from the equation of tau and integrals over the density of MP(delta): to 1e-9."""
    model = RidgeClassifier(*sizes, POPULATION)
    kappa, gamma = DECAYING @ DECAYING, model.dim / model.samples
    law = MarchenkoPastur(model.dim / model.vocab, kappa)

    def trace(function):
        angle = (np.arange(2000) + 0.5) * np.pi / 2000
        low, high = law.support[0]
        points = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
        mass = law.pdf(points) * np.sin(angle) * (high - low) / 2 * np.pi / 2000
        return function(points) @ mass + sum(mass * function(np.array([place]))[0] for place, mass in law.atoms)

    tau = brentq(lambda t: t + gamma * trace(lambda s: t * s / (t * s + model.ridge)) - 1, 0.0, 1.0, xtol=1e-15)
    pooled = POPULATION.signs @ DECAYING
    alpha, q = POPULATION.probabilities @ pooled**2, POPULATION.probabilities @ (pooled * POPULATION.labels)
    size = model.signal**2 + model.dim / model.vocab
    h = size * trace(lambda s: 1 / (tau * s + model.ridge))
    slope = tau * q * h / (1 + tau * alpha * h)
    x = gamma * tau**2 * trace(lambda s: (s / (tau * s + model.ridge)) ** 2)
    along = tau**2 * (q - alpha * slope) ** 2 * size * trace(lambda s: s / (tau * s + model.ridge) ** 2)
    variance = (along + x * (1 - 2 * slope * q + slope**2 * alpha)) / (1 - x)
    assert model.score(DECAYING) == pytest.approx((slope, variance), rel=1e-9)
    assert model.loss(DECAYING).loss == pytest.approx(tau * (1 - q * slope), rel=1e-9)


def test_a_table_without_signal_still_tells_the_classes_apart():
    """The means of V/2 noisy rows differ by themselves, which formulas with exact class means miss: they say 1/2."""
    model = RidgeClassifier(200, 200, 600, 0.0, 0.1, POPULATION)
    draws = np.array([measured(model, MEAN, np.random.default_rng([42, k]))[0] for k in range(10)])
    assert abs(draws.mean() - model.accuracy(MEAN)) < 4 * draws.std() / 3
    assert draws.mean() - 0.5 > 20 * draws.std() / 3


def test_pooled_sequences_are_classified_as_well():
    """Drawn by PooledSequences, labelled by their prefix: the same accuracy, to four standard errors of ten draws."""
    model = RidgeClassifier(200, 400, 600, 1.0, 0.1, POPULATION)
    correlation = prefix_correlation(LENGTH, PREFIX, 0.7)
    drawn = PooledSequences(200, 400, 2600, 1.0, DECAYING, correlation)
    found = []
    for k in range(10):
        draw = drawn.draw(np.random.default_rng([47, k]))
        labels = np.sign(draw.signs[:, :PREFIX].sum(axis=1))
        found.append(model.tested(LabelledSequences(draw.table, draw.tokens, labels), DECAYING))
    assert abs(np.mean(found) - model.accuracy(DECAYING)) < 4 * np.std(found) / 3


@pytest.mark.parametrize("change", ["not centred", "rademacher"])
def test_neither_centring_nor_the_law_of_the_noise_matters(change):
    """The mean of the table is not correlated with balanced labels. Twenty draws, four standard errors plus 2/dim."""
    model = RidgeClassifier(240, 200, 500, 1.0, 0.2, POPULATION)
    found = []
    for k in range(20):
        rng = np.random.default_rng([46, k])
        data = model.sample(rng, 1000)
        table = rng.standard_normal((200, 240))
        if change == "rademacher":
            table = np.sign(table)
        table += model.signal / np.sqrt(240) * np.repeat([1.0, -1.0], 100)[:, None]
        if change == "rademacher":
            table -= table.mean(axis=0)
        found.append(model.tested(data._replace(table=table), DECAYING))
    assert abs(np.mean(found) - model.accuracy(DECAYING)) < 4 * np.std(found) / 19**0.5 + 2 / model.dim


def test_many_samples_and_tokens_give_the_linear_discriminant():
    """V and N to infinity: b is along mu, and the accuracy is E Phi(y a signal/sqrt(kappa)) to 1e-3."""
    model = RidgeClassifier(2, 10**6, 10**6, 0.9, 0.1, POPULATION)
    pooled = POPULATION.signs @ DECAYING
    margin = POPULATION.labels * pooled * 0.9 / np.linalg.norm(DECAYING)
    assert model.accuracy(DECAYING) == pytest.approx(POPULATION.probabilities @ ndtr(margin), abs=1e-3)


def test_limits_of_the_ridge():
    """A huge ridge shrinks the scores but not the accuracy, which has a limit; the loss goes to that of no model."""
    accuracies = [RidgeClassifier(200, 400, 600, 1.0, ridge, POPULATION).accuracy(MEAN) for ridge in (1e4, 1e5, 1e6)]
    assert accuracies[0] == pytest.approx(accuracies[2], abs=1e-4)
    assert accuracies[1] == pytest.approx(accuracies[2], abs=1e-5)
    assert RidgeClassifier(200, 400, 600, 1.0, 1e6, POPULATION).loss(MEAN).loss == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("sizes", [(200, 400, 600, 1.0, 0.1), (300, 150, 200, 0.3, 1.0)])
def test_gradient_of_the_limiting_loss(sizes):
    """Central differences of step 1e-5 are good to 1e-8."""
    model = RidgeClassifier(*sizes, POPULATION)
    steps = 1e-5 * np.eye(LENGTH)
    found = [(model.loss(DECAYING + e).loss - model.loss(DECAYING - e).loss) / 2e-5 for e in steps]
    assert model.loss(DECAYING).gradient == pytest.approx(found, abs=1e-8)


def test_learned_weights_tend_to_the_minimiser_of_the_limiting_loss():
    """Their loss at 600 samples is within 4 standard errors + 2 length/samples (they fit that much noise) of it.

    The minimiser is at the boundary, which logits approach but do not reach: its loss is found to 1e-6.
    """
    model = RidgeClassifier(100, 200, 600, 1.5, 0.3, POPULATION)
    limit = model.learned(np.random.default_rng(0))
    assert limit.weights[:PREFIX] == pytest.approx(np.full(PREFIX, limit.weights[0]), abs=1e-4)
    assert limit.loss <= min(model.loss(each).loss for each in (MEAN, DECAYING, ON_PREFIX)) + 1e-6
    losses = []
    for k in range(8):
        rng = np.random.default_rng([43, k])
        losses.append(learned_weights(*model.sample(rng), model.ridge, rng, restarts=2).loss)
    assert abs(np.mean(losses) - limit.loss) < 4 * np.std(losses) / 7**0.5 + 2 * LENGTH / model.samples


def test_where_the_formula_fails_is_where_pooling_is_not_gaussian():
    """Fourth moment of the pooling matrix: a Gaussian's plus ``(V/N)**2 (sum w**4/kappa**2)**2``; 5 standard errors."""
    vocab, samples, weights = 600, 900, np.array([0.5, 0.5])
    ratio, kappa, rng = vocab / samples, weights @ weights, np.random.default_rng(44)
    moments = []
    for _ in range(40):
        tokens = rng.integers(0, vocab, samples * 2)
        pooling = csr_array((np.tile(weights, samples), tokens, np.arange(0, 2 * samples + 1, 2)), (samples, vocab))
        gram = (pooling.T @ pooling).toarray() * vocab / (samples * kappa)
        square = gram @ gram
        moments.append([np.sum(square * gram) / vocab, np.sum(square**2) / vocab])
    gaussian = np.array([1 + 3 * ratio + ratio**2, 1 + 6 * ratio + 6 * ratio**2 + ratio**3])
    excess, error = np.mean(moments, axis=0) - gaussian, np.std(moments, axis=0) / 39**0.5
    expected = np.array([0.0, ratio**2 * (np.sum(weights**4) / kappa**2) ** 2])
    assert np.all(np.abs(excess - expected) < 5 * error + 20 / vocab), (excess, expected, error)
    assert excess[1] > 3 * error[1]


def test_all_the_weight_on_one_position_is_out_of_reach():
    """Rows are then rows of the table, seen a few times each: the variance is a sixth smaller than the formula says.

    Not an effect of size: it is the same at three times these. Should this fail, the module's warning can go.
    """
    model = RidgeClassifier(150, 200, 100, 1.0, 0.1, POPULATION)
    first = np.eye(LENGTH)[0]
    variances = np.array([measured(model, first, np.random.default_rng([45, k]))[2] for k in range(30)])
    assert variances.mean() + 4 * variances.std() / 29**0.5 < model.score(first).variance


def test_prefix_majority():
    """Probabilities sum to one and reproduce the correlations; labels are the majority."""
    signs, labels, probabilities = prefix_majority(6, 3, 0.4)
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-14)
    correlation = signs.T @ (probabilities[:, None] * signs)
    expected = np.eye(6)
    expected[:3, :3] += 0.4 * (1 - np.eye(3))
    assert correlation == pytest.approx(expected, abs=1e-14)
    assert np.array_equal(labels, np.sign(signs[:, :3].sum(axis=1)))


def test_bad_input():
    with pytest.raises(ValueError, match="prefix = 4 is even"):
        prefix_majority(9, 4, 0.5)
    with pytest.raises(ValueError, match="correlation = 2 is outside"):
        prefix_majority(9, 3, 2)
    with pytest.raises(ValueError, match="vocab = 401 is odd"):
        RidgeClassifier(200, 401, 600, 1.0, 0.1, POPULATION)
    with pytest.raises(ValueError, match=r"ridge = 0\.0 is outside its domain"):
        RidgeClassifier(200, 400, 600, 1.0, 0.0, POPULATION)
    ones = LabelledSigns(np.ones((1, 9)), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="must have mean zero"):
        RidgeClassifier(200, 400, 600, 1.0, 0.1, ones)
    with pytest.raises(ValueError, match=r"signs and labels of \+1 and -1"):
        RidgeClassifier(200, 400, 600, 1.0, 0.1, POPULATION._replace(probabilities=2 * POPULATION.probabilities))
    model = RidgeClassifier(20, 40, 60, 1.0, 0.1, POPULATION)
    for weights in (np.ones(3), np.full(9, np.nan), np.zeros(9)):
        with pytest.raises(ValueError, match="weights"):
            model.accuracy(weights)
    with pytest.raises(ValueError, match="no test sequences"):
        model.tested(model.sample(np.random.default_rng(0)), MEAN)
