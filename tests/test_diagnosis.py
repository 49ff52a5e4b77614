"""What is said of matrices that were planted, how often noise is refuted, and what is refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import bulkedge as be
from bulkedge.cli.commands import main


def directions(size, count, rng):
    return np.linalg.qr(rng.standard_normal((size, count)))[0]


def test_noise_and_signals_of_a_rectangle():
    rng = np.random.default_rng(0)
    left, right = directions(150, 2, rng), directions(250, 2, rng)
    found = be.diagnose(0.5 * rng.standard_normal((150, 250)) + (left * [25.0, 18.0]) @ right.T)
    assert found.verdict == "This 150 x 250 matrix looks like noise of standard deviation 0.501 plus two signals."
    assert found.noise == pytest.approx(0.5, rel=0.02)
    assert [each.p_value < 1e-6 for each in found.outliers] == [True, True]
    first = np.linalg.svd(0.5 * np.random.default_rng(0).standard_normal((150, 250)), compute_uv=False)
    assert found.outliers[0].value * 250 > first[0] ** 2
    assert found.fit.value > 0.01


def test_overlaps_are_those_with_what_was_planted():
    """Six matrices; overlaps fluctuate by a few hundredths."""
    rng, gaps = np.random.default_rng(1), []
    for _ in range(6):
        u, v = directions(200, 1, rng)[:, 0], directions(120, 1, rng)[:, 0]
        matrix = rng.standard_normal((200, 120)) + 30 * np.outer(u, v)
        outlier = be.diagnose(matrix).outliers[0]
        left, _, right = np.linalg.svd(matrix, full_matrices=False)
        gaps.append([(left[:, 0] @ u) ** 2 - outlier.left_overlap, (right[0] @ v) ** 2 - outlier.right_overlap])
    np.testing.assert_allclose(np.mean(gaps, axis=0), 0, atol=0.03)


def test_symmetric_noise_has_two_ends():
    rng = np.random.default_rng(2)
    axes = directions(150, 2, rng)
    found = be.diagnose(be.Wigner(150).sample(rng) + (axes * [3.0, -2.5]) @ axes.T)
    assert found.kind == "symmetric matrix"
    assert found.verdict.endswith("plus two signals.")
    assert [np.sign(each.value) for each in found.outliers] == [1, -1]
    # theta + 1/theta with overlaps 1 - 1/theta**2
    np.testing.assert_allclose([each.value for each in found.outliers], [3 + 1 / 3, -2.9], atol=0.15)
    np.testing.assert_allclose([each.left_overlap for each in found.outliers], [8 / 9, 0.84], atol=0.04)


def test_covariances_tell_their_samples():
    rng = np.random.default_rng(3)
    found = be.diagnose(be.Wishart(100, 250, 4.0).sample(rng))
    assert (found.kind, found.near) == ("covariance", True)
    assert found.noise == pytest.approx(2.0, rel=0.03)
    assert found.candidates[0].law.ratio == pytest.approx(0.4, rel=0.15)
    assert found.fit.value > 0.01
    short = be.diagnose(be.Wishart(100, 40).sample(rng))
    assert "seen through 40 samples" in short.verdict
    spiked = rng.standard_normal((300, 100))
    spiked[:, 0] *= 3
    outlier = be.diagnose(spiked.T @ spiked / 300).outliers[0]
    assert outlier.left_overlap == pytest.approx(be.EmpiricalLaw([1.0]).sample_spike(9.0, 1 / 3).overlap, abs=0.05)
    assert be.diagnose(np.corrcoef(spiked.T)).fit is None  # of correlations no calibrated p-value is known


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["standard_normal", "uniform"])
def test_rates_of_rejection(draw):
    """Noise level and kurtosis are estimated: 0.01 beside the level, and three standard errors of 120 draws."""
    rng = np.random.default_rng(4)
    found = [be.diagnose(getattr(rng, draw)(size=(25, 35)) - (draw == "uniform") / 2) for _ in range(120)]
    assert np.mean([each.fit.value <= 0.05 for each in found]) < 0.06 + 3 * np.sqrt(0.05 * 0.95 / 120)
    assert np.mean([bool(each.outliers) for each in found]) < 0.05
    symmetric = [be.diagnose(be.Wigner(25).sample(rng)) for _ in range(120)]
    assert np.mean([each.fit.value <= 0.05 for each in symmetric]) < 0.06 + 3 * np.sqrt(0.05 * 0.95 / 120)


def test_weak_structure_shows_in_the_whole_spectrum():
    """Columns of unlike variance, with no outlier: the law is near, and its fit is refuted."""
    rng = np.random.default_rng(5)
    found = be.diagnose(rng.standard_normal((300, 400)) * np.linspace(0.7, 1.3, 400))
    assert found.near
    assert found.fit.value < 1e-3
    assert "does not quite fit" in found.verdict
    assert "structure of its own" in be.diagnose(rng.standard_normal((200, 8)) @ rng.standard_normal((8, 200))).verdict
    heavy = be.diagnose(rng.standard_t(4.0, (100, 100)))
    assert heavy.fit is None  # an excess kurtosis beyond three


def head(rng, beta=0.8, near=0.0):
    distance = np.abs(np.subtract.outer(np.arange(64), np.arange(64)))
    weights = np.exp(beta * be.SoftmaxAttention(64, 48, beta).scores(rng) - near * distance)
    return weights / weights.sum(axis=1, keepdims=True)


def test_the_fit_of_a_head_is_among_fresh_ones():
    """Half of the p-values of random heads are above one half or so; heads that look at near keys have the least."""
    rng = np.random.default_rng(6)
    found = [be.diagnose(head(rng)) for _ in range(4)]
    assert {each.kind for each in found} == {"attention"}
    assert found[0].fit.draws == 39
    assert np.median([each.fit.value for each in found]) > 0.1
    local = be.diagnose(head(rng, near=0.05))
    assert not local.near or local.fit.value == 1 / 40


@pytest.mark.slow
def test_rates_of_rejection_of_heads():
    """The level is a bound: candidates are several, and the one that fits best counts. Three standard errors of 60."""
    rng = np.random.default_rng(7)
    found = [be.diagnose(head(rng, beta)) for beta in (0.5, 1.0) for _ in range(30)]
    assert np.mean([each.fit.value <= 0.05 for each in found if each.fit]) < 0.06 + 3 * np.sqrt(0.05 * 0.95 / 60)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.full((20, 20), np.nan), "matrix"),
        (np.ones((1, 1)), "two axes"),
        (np.zeros((0, 3)), "two axes|matrix"),
        (np.ones((20, 20), complex), "matrix"),
        (np.zeros((20, 20)), "all entries of the matrix are zero"),
        ([["a", "b"], ["c", "d"]], "matrix"),
    ],
)
def test_what_is_no_matrix_is_refused_in_one_sentence(matrix, message):
    with pytest.raises(be.DomainError, match=message) as refused:
        be.diagnose(matrix)
    assert "\n" not in str(refused.value)


def test_a_constant_matrix_has_nothing_random():
    assert be.diagnose(3 * np.ones((10, 12))).verdict.startswith("All entries of this matrix are 3")
    assert be.diagnose(np.full((10, 10), 0.1)).verdict.startswith("All entries of this matrix are 0.1")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(7)
    np.save(tmp_path / "noise.npy", rng.standard_normal((40, 60)))
    np.savez(tmp_path / "two.npz", first=rng.standard_normal((30, 40)), second=np.eye(30))
    np.savetxt(tmp_path / "table.csv", rng.standard_normal((30, 40)), delimiter=",")
    (tmp_path / "names.csv").write_text("a,b\n1,2\n")
    return tmp_path


@pytest.mark.parametrize("name", ["noise.npy", "two.npz:first", "table.csv"])
def test_the_command_says_the_verdict(folder, name):
    done = CliRunner().invoke(main, ["check", str(folder / name), "--plot", str(folder / "out.png")])
    assert done.exit_code == 0, done.output
    assert "looks like noise of standard deviation" in done.output
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads(CliRunner().invoke(main, ["check", str(folder / name), "--json"]).output)
    assert facts["verdict"] in done.output
    assert facts["p_value"] > 0
    assert facts["laws"][0]["distance"] < 0.15


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two.npz", "holds 2 matrices; name one, as in"),
        ("two.npz:third", "is not in the file"),
        ("names.csv", "is 'a', not a number"),
        ("nothing.npy", "is not a file"),
    ],
)
def test_the_command_refuses_in_one_sentence(folder, name, message):
    done = CliRunner().invoke(main, ["check", str(folder / name)])
    assert done.exit_code
    assert message in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_pictures_of_other_kinds_are_refused(folder):
    done = CliRunner().invoke(main, ["check", str(folder / "noise.npy"), "--plot", str(folder / "out.xyz")])
    assert "use .png, .pdf or .svg" in " ".join(done.output.split())
