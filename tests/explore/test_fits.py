"""What is said of matrices that are no fresh heads and no noise, and what is not said of those that are."""

import json
import warnings

import numpy as np
import pytest

import bulkedge as be
from bulkedge import diagnose
from bulkedge.inference.fresh_heads import FreshHead, causal_laws, centre, largest_values
from bulkedge.lab.explore.export import plotly
from bulkedge.lab.explore.matrix import report_fit
from bulkedge.support.errors import DomainError

RNG = np.random.default_rng(0)
SIZE = 32


def softmax(scores, *, causal=False):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True)) * (np.tri(len(scores)) if causal else 1.0)
    return weights / weights.sum(axis=1, keepdims=True)


def noise(*shape):
    return RNG.standard_normal(shape)


ODD = {
    "ones": np.ones((SIZE, SIZE)),
    "uniform": np.full((SIZE, SIZE), 1 / SIZE),
    "uniform, causal": be.Mask.causal(SIZE).mean(),
    "identity": np.eye(SIZE),
    "permutation": np.eye(SIZE)[RNG.permutation(SIZE)],
    "one key": np.eye(SIZE)[np.zeros(SIZE, int)],
    "rank one": np.outer(noise(SIZE), noise(SIZE)),
    "rank five": noise(60, 5) @ noise(5, 60),
    "one entry": np.pad([[3.0]], ((0, SIZE - 1), (0, SIZE - 1))),
    "two columns": np.pad(noise(SIZE, 2), ((0, 0), (0, SIZE - 2))),
    "heavy tails": RNG.standard_cauchy((SIZE, SIZE)),
    "whole numbers": RNG.integers(-3, 4, (SIZE, SIZE)).astype(float),
    "wide": noise(16, 200),
    "sharp": softmax(20 * noise(SIZE, SIZE)),
    "sharp, causal": softmax(20 * noise(SIZE, SIZE), causal=True),
    "window": softmax(np.where(np.abs(np.subtract.outer(np.arange(SIZE), np.arange(SIZE))) < 4, 0.0, -1e9)),
    "one dimension": softmax(np.outer(noise(SIZE), noise(SIZE))),
    "large": 1e80 * noise(SIZE, SIZE),
    "small": 1e-80 * noise(SIZE, SIZE),
    "half precision": softmax(noise(SIZE, SIZE)).astype(np.float16).astype(float),
}


@pytest.mark.parametrize("name", ODD)
def test_any_matrix_gets_a_report_that_can_be_drawn(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = report_fit(diagnose(ODD[name]))
    drawn = json.dumps(plotly(report.panels, report.curves, narrow=True), allow_nan=False)
    assert "the matrix" in drawn
    assert report.note.endswith(".")
    assert all(0 <= float(distance) <= 1 for _, distance in report.laws)


@pytest.mark.parametrize("name", ["rank one", "rank five", "one entry", "two columns", "ones"])
def test_matrices_of_low_rank_are_near_to_no_law(name):
    found = diagnose(ODD[name])
    assert all(each.distance > 0.5 for each in found.candidates)
    assert any(said in found.verdict for said in ("too far", "near to no law", "nothing random"))


@pytest.mark.parametrize("name", ["identity", "permutation", "one key", "window"])
def test_no_beta_is_told_where_weights_are_zero(name):
    found = diagnose(ODD[name])
    assert np.isnan(found.beta)
    assert np.isnan(found.head_dim)
    assert "β and the dimension are not known" in found.verdict
    assert "β" not in report_fit(found).facts


def test_independent_scores_tell_no_dimension():
    found = diagnose(softmax(0.7 * noise(128, 128)))
    assert found.head_dim == np.inf
    assert found.beta == pytest.approx(0.7, rel=0.02)
    assert report_fit(found).facts["dimension"] == "like that of independent scores"


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e300])
def test_entries_that_cannot_be_squared_are_refused(size):
    with pytest.raises(DomainError, match="scale the matrix"):
        diagnose(size * np.ones((SIZE, SIZE)))


def test_noise_of_any_size_is_called_noise():
    for shape in ((16, 16), (16, 64), (64, 64)):
        rng = np.random.default_rng(shape[1])
        said = [diagnose(rng.standard_normal(shape)) for _ in range(5)]
        assert all(each.candidates[0].name.startswith("MarchenkoPastur") for each in said)
        assert not any("too far" in each.verdict for each in said)


def test_a_head_just_below_the_smallest_dimension_of_the_law_is_a_gaussian_one():
    """The estimate of 32 dimensions from 128 tokens is 30, where laws without QK-norm end."""
    found = diagnose(be.SoftmaxAttention(128, 32, 1.0).sample(np.random.default_rng(0)))
    assert found.candidates[0].name == "FiniteHeadLaw, Gaussian queries and keys"
    assert "too far" not in found.verdict


def test_fresh_heads_are_not_called_outliers():
    """Long queries and keys push values beyond the edge, where Tracy and Widom's p-values are 1e-8 and less."""
    least, called, by_law = [], 0, []
    for seed in range(6):
        found = diagnose(be.SoftmaxAttention(128, 64, 1.2).sample(np.random.default_rng(seed)))
        called += bool(found.outliers)
        least += [each.p_value for each in found.outliers[:1]]
        law = found.candidates[0].law
        with pytest.warns(be.RegimeWarning, match="null_of"):
            null = be.LawNull(law, 128)
        by_law += [null.p_value(be.Spectrum.of([found.values[-1]], law.unit)).value]
    assert called >= 2
    assert min(by_law) < 1e-6
    # each is at its least, 1/40, with probability 1/40
    assert np.median(least) > 1 / 40
    assert sum(each <= 1 / 40 for each in least) <= 1


def test_the_null_is_the_ensemble_that_the_law_is_of():
    head = FreshHead(64, 0.8, 32, qk_norm=True, causal=False)
    expected = be.SoftmaxAttention(64, 32, 0.8, qk_norm=True)
    rng = np.random.default_rng(3)
    assert np.allclose(head.sample(np.random.default_rng(3)), expected.sample(rng))
    values = largest_values(head)
    assert len(values) == head.draws == 39
    assert head.p_value(0.0) == 1.0
    assert head.p_value(float(values.max()) * 1.01) == 1 / 40
    causal = FreshHead(64, 0.8, None, qk_norm=False, causal=True).sample(rng)
    assert np.allclose(causal.sum(axis=1), 1)
    assert np.all(np.triu(causal, 1) == 0)
    assert np.allclose(centre(be.Mask.causal(64).mean(), causal=True), 0)
    popular = head._replace(liked=(5.0, *[1.0] * 63)).sample(rng).mean(axis=0)
    assert popular[0] == pytest.approx(5 * popular[1:].mean(), rel=0.2)


def test_causal_laws_have_causal_nulls():
    trials = list(causal_laws(0.8, 64, 128))
    assert [null.qk_norm for _, _, null in trials] == [False, True, False]
    assert all(null.causal and null.tokens == 128 for _, _, null in trials)


def test_a_planted_direction_of_a_head_stands_out():
    rng = np.random.default_rng(1)
    topic = rng.standard_normal((200, 1))
    scores = be.SoftmaxAttention(200, 64, 0.5, qk_norm=True).scores(rng)
    found = diagnose(softmax(0.5 * scores + 0.15 * topic @ topic.T))
    assert found.outliers[0].p_value == 1 / 40
    assert report_fit(found).outliers[0][1] == "at most 0.025: none of 39 fresh heads reaches as far"
