"""What every ensemble must satisfy, whatever its model, at small parameters of its own.

The classes are found in ``bulkedge.ensembles``: a new one fails here until it has an entry in ``MODELS``. Kolmogorov
distances to the law are of one draw: 5/n where the law is exact (1 to 3 over n are seen), more where it is approximate.
"""

import dataclasses
import warnings
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

import bulkedge as be
from bulkedge import ensembles
from bulkedge.recovery import mean_weights, prefix_correlation
from bulkedge.support.domains import Parametric, parameters
from bulkedge.support.errors import DomainError, RegimeWarning

CLASSES = [
    each
    for each in vars(ensembles).values()
    if isinstance(each, type) and issubclass(each, be.Ensemble) and each is not be.Ensemble
]
GRAM = np.array([[1.0, -1.0], [-1.0, 1.0]])
POOLING = mean_weights(6), prefix_correlation(6, 3, 0.5)


class Model(NamedTuple):
    """An ensemble, the shape of its matrix, how its spectrum comes from the matrix, and the distance to its law."""

    ensemble: be.Ensemble
    shape: tuple[int, ...]
    values: object
    distance: float
    torch: bool = False


def eigen(matrix):
    return np.linalg.eigvalsh(matrix)


def squares(matrix):
    return np.linalg.svd(matrix, compute_uv=False)[::-1] ** 2


def gram(matrix):
    return eigen(matrix @ matrix.T)


def covariance(matrix):
    return eigen(matrix.T @ matrix / len(matrix))


def gap_free(attention):
    return squares(np.sqrt(len(attention)) * (attention - 1 / len(attention)))


MODELS = {
    be.Wigner: [
        Model(be.Wigner(200), (200, 200), eigen, 5 / 200, torch=True),
        Model(be.Wigner(150, 4.0), (150, 150), eigen, 5 / 150, torch=True),
    ],
    be.Wishart: [
        Model(be.Wishart(150, 300), (150, 150), eigen, 5 / 150, torch=True),
        Model(be.Wishart(200, 100, 3.0), (200, 200), eigen, 5 / 200, torch=True),
    ],
    be.GaussianProduct: [
        Model(be.GaussianProduct(200, (0.5, 1.0)), (200, 200), gram, 5 / 200, torch=True),
        Model(be.GaussianProduct(200, (0.5, 2.0), 3.0), (200, 100), gram, 5 / 200, torch=True),
    ],
    be.GaussianSum: [
        Model(be.GaussianSum(200, (1.0, 0.7), (0.5, np.inf)), (200, 200), squares, 5 / 200, torch=True),
        # a ratio that asks for less than one direction
        Model(be.GaussianSum(200, (1.0, 1.0), (1e-4, np.inf)), (200, 200), squares, 5 / 200, torch=True),
    ],
    be.SoftmaxAttention: [
        Model(be.SoftmaxAttention(300, 64, 0.5), (300, 300), gap_free, 12 / 300, torch=True),
        Model(be.SoftmaxAttention(300, 600, 0.4, qk_norm=True), (300, 300), gap_free, 12 / 300, torch=True),
        Model(be.SoftmaxAttention(100, 40, 0.4, inputs=np.eye(100)), (100, 100), gap_free, 12 / 100, torch=True),
    ],
    be.RandomMarkov: [
        Model(be.RandomMarkov(300, 1.0, "exponential"), (300, 300), gap_free, 8 / 300),
        Model(be.RandomMarkov(300, 0.3), (300, 300), gap_free, 8 / 300),
    ],
    be.PooledSequences: [
        Model(be.PooledSequences(200, 400, 600, 0.0, *POOLING), (600, 200), covariance, 5 / 200),
        Model(be.PooledSequences(200, 300, 100, 0.5, *POOLING, "additive"), (100, 200), covariance, 5 / 200),
    ],
    be.PooledMixture: [
        Model(be.PooledMixture(200, (150, 250), 500, 0.1 * GRAM, *POOLING), (500, 200), covariance, 5 / 200)
    ],
    be.AttentionStack: [
        Model(be.AttentionStack(2, 150, 200, gap=False, entries="exponential"), (150, 200), squares, 12 / 150),
        Model(be.AttentionStack(2, 60, 400, gap=False, entries="exponential"), (60, 400), squares, 12 / 60),
        Model(be.AttentionStack(3, 100, 120, gap=False, attention="identity"), (100, 120), squares, 8 / 100),
        Model(be.AttentionStack(2, 200, 100, gap=False, entries="exponential"), (200, 100), squares, 12 / 100),
    ],
}
EVERY = [
    pytest.param(each, id=f"{kind.__name__}-{k}") for kind, models in MODELS.items() for k, each in enumerate(models)
]


def test_every_ensemble_is_here():
    assert {each.__name__ for each in CLASSES} == {kind.__name__ for kind in MODELS}
    assert {each.__name__ for each in CLASSES} <= set(be.__all__)


@pytest.mark.parametrize("model", EVERY)
def test_samples(model):
    """Shape, dtype, finite; same seed, same draw; another seed, another draw."""
    first, again, other = (model.ensemble.sample(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == model.shape
    assert first.dtype == np.float64
    assert np.all(np.isfinite(first))
    assert np.array_equal(first, again)
    assert not np.any(np.all(first == other, axis=1))


@pytest.mark.parametrize("model", EVERY)
def test_the_spectrum_is_that_of_the_sample_as_documented(model):
    found = model.ensemble.spectrum(np.random.default_rng(3))
    values = model.values(model.ensemble.sample(np.random.default_rng(3)))
    assert found.values == pytest.approx(values, rel=1e-8, abs=1e-9 * np.abs(values).max())


@pytest.mark.parametrize("model", EVERY)
def test_the_spectrum_follows_the_law(model):
    law = model.ensemble.law()
    assert isinstance(law, be.Law)
    found = model.ensemble.spectrum(np.random.default_rng(4))
    assert be.compare(found, law).ks < model.distance


@pytest.mark.parametrize("model", EVERY)
def test_generators(model):
    """NumPy's always; torch's gives tensors with the same law, or a refusal with the remedy; a seed is neither."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(5)
    if model.torch:
        assert isinstance(model.ensemble.sample(generator), torch.Tensor)
        assert be.compare(model.ensemble.spectrum(generator), model.ensemble.law()).ks < model.distance
    else:
        with pytest.raises(DomainError, match=r"pass numpy.random.default_rng\(seed\)"):
            model.ensemble.sample(generator)
    for wrong in (5, None, np.random):
        with pytest.raises(DomainError, match=r"numpy\.random\.Generator"):
            model.ensemble.spectrum(wrong)


@pytest.mark.parametrize("model", EVERY)
def test_parameters(model):
    """Frozen, declared with their domain, shown in short, equal by value."""
    ensemble = model.ensemble
    names = [each.name for each in dataclasses.fields(ensemble)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(ensemble, names[0], 3)
    assert isinstance(ensemble, Parametric)
    assert {each.name for each in parameters(type(ensemble))} >= set(names) - {"inputs", "mask", "loadings"}
    assert all(each.doc for each in parameters(type(ensemble)))
    assert type(ensemble).__name__ in repr(ensemble)
    assert len(repr(ensemble)) < 500
    twin = dataclasses.replace(ensemble)
    assert twin == ensemble
    assert hash(twin) == hash(ensemble)
    assert ensemble != "something else"


@pytest.mark.parametrize("models", MODELS.values(), ids=[kind.__name__ for kind in MODELS])
def test_different_parameters_are_different_ensembles(models):
    assert all(one.ensemble != other.ensemble for one, other in pairwise(models))


EXTREME = {
    "few tokens": be.SoftmaxAttention(16, 64, 1.0),
    "few dimensions": be.SoftmaxAttention(200, 8, 1.0),
    "sharp": be.SoftmaxAttention(200, 64, 60.0),
    "very unequal entries": be.RandomMarkov(60, 50.0),
    "as deep as wide": be.AttentionStack(10, 40, 40, gap=False, entries="exponential"),
    "stack of unequal entries": be.AttentionStack(2, 60, 90, gap=False, variance=30.0),
    "hardly any samples of two positions": be.PooledSequences(100, 200, 60, 0.0, [0.5, 0.5], np.eye(2)),
    "one class, one position": be.PooledMixture(100, (50, 50), 60, GRAM, [1.0], [[1.0]]),
    "with its gap": be.AttentionStack(2, 40, 40),
    "key-query": be.AttentionStack(2, 40, 40, attention="key-query", gap=False),
}


@pytest.mark.parametrize("name", EXTREME)
def test_no_quiet_wrong_law(name):
    """Far from the regime of its law an ensemble refuses or warns, whatever the distance then is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegimeWarning)
        with pytest.raises((DomainError, RegimeWarning)):
            EXTREME[name].law()


@pytest.mark.parametrize(
    ("kind", "name", "accepted", "refused"),
    [
        (be.Wigner, "size", 2, 1),
        (be.Wishart, "samples", 2, 1),
        (be.SoftmaxAttention, "tokens", 16, 15),
        (be.SoftmaxAttention, "head_dim", 2, 1),
        (be.SoftmaxAttention, "beta", 1e-3, 0.99e-3),
        (be.SoftmaxAttention, "beta", 1e3, 1.001e3),
        (be.RandomMarkov, "tokens", 2, 1),
        (be.RandomMarkov, "variance", 1e-6, 0.99e-6),
        (be.AttentionStack, "depth", 1, 0),
        (be.AttentionStack, "tokens", 4, 3),
        (be.AttentionStack, "skip", 0.0, -1e-9),
        (be.AttentionStack, "value_variance", 0.0, -1e-9),
        (be.propagation.Trainability, "skip", 1.0, 1 + 1e-9),
        (be.propagation.Trainability, "tokens", 4, 3),
        (be.propagation.Trainability, "depth", 1, 0),
    ],
)
def test_first_accepted_and_first_refused_value(kind, name, accepted, refused):
    base = {
        be.Wigner: {"size": 10},
        be.Wishart: {"dim": 4, "samples": 10},
        be.SoftmaxAttention: {"tokens": 20, "head_dim": 40, "beta": 1.0},
        be.RandomMarkov: {"tokens": 20, "variance": 1.0},
        be.AttentionStack: {"depth": 2, "tokens": 20, "width": 50},
        be.propagation.Trainability: {"tokens": 20, "depth": 2},
    }[kind]
    made = kind(**{**base, name: accepted})
    assert getattr(made, name) == accepted
    if isinstance(made, be.Ensemble):
        assert np.all(np.isfinite(made.sample(np.random.default_rng(6))))
    with pytest.raises(DomainError, match=f"{name} = "):
        kind(**{**base, name: refused})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_entry_among_good_ones_is_refused(bad):
    weights, correlation = np.full(4, 0.25), np.eye(4)
    inputs, gram_matrix = np.eye(20), GRAM.copy()
    inputs[7, 3] = weights[2] = gram_matrix[1, 1] = bad
    asked = correlation.copy()
    asked[1, 2] = asked[2, 1] = bad
    for make, name in (
        (lambda: be.SoftmaxAttention(20, 40, inputs=inputs), "inputs"),
        (lambda: be.PooledSequences(10, 20, 30, 1.0, weights, correlation), "weights"),
        (lambda: be.PooledSequences(10, 20, 30, 1.0, np.full(4, 0.25), asked), "correlation"),
        (lambda: be.PooledMixture(10, (5, 5), 30, gram_matrix, *POOLING), "gram"),
        (lambda: be.GaussianProduct(10, (0.5, bad)), r"ratios\[1\]"),
        (lambda: be.GaussianSum(10, (1.0, bad), (1.0, 1.0)), r"variances\[1\]"),
    ):
        with pytest.raises(DomainError, match=name):
            make()
