"""How many values are told apart is asked for: more steps place more of the causal values that come close to zero."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.spectra.matrix_free import operator_spectrum
from bulkedge.spectra.stopping import MostSteps, Placed, Rule


def largest(found, values):
    """Largest difference of the distribution functions at all values that are placed."""
    known = values > found.rounding
    return np.abs(found.distribution().cdf(values) - (np.arange(len(values)) + 0.5) / len(values))[known].max()


def causal(tokens=1400, seed=0):
    query, key = np.random.default_rng(seed).standard_normal((2, tokens, 32))
    return be.AttentionOperator(query, key, mask="causal")


@pytest.fixture
def narrow(monkeypatch):
    """Blocks so narrow that a matrix which is decomposed in seconds is not found whole."""
    monkeypatch.setattr("bulkedge.spectra.matrix_free.LEAST_PROBES", 8)


def share_placed(found):
    return 1 - float(found.distribution().cdf(found.rounding))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("tokens", [900, 1400])
def test_as_many_causal_values_are_placed_as_are_asked_for(tokens):
    """Each share is got, and all of its values are as close to those of the matrix as stated.

    The rival is a run that stops at its tolerance: it places fewer. Stated at a confidence of 0.9 and met here.
    """
    operator = tokens**0.5 * causal(tokens).centred()
    exact = be.spectrum(operator.dense())
    with pytest.warns(be.AccuracyWarning, match="not told apart: .* placed= asks for more"):
        rival = be.spectrum(operator, tolerance=0.05)
    before, floor = share_placed(rival), rival.rounding
    for share in (0.8, 0.85):
        found = be.spectrum(operator, tolerance=0.05, placed=share)
        assert share_placed(found) >= share > before
        assert found.rounding < floor
        assert be.compare(found, exact).ks <= found.error <= 0.05
        assert largest(found, exact.values) <= found.error
        before, floor = share_placed(found), found.rounding


@pytest.mark.usefixtures("narrow")
def test_values_that_are_asked_for_and_not_placed_are_said(monkeypatch):
    monkeypatch.setattr("bulkedge.spectra.matrix_free.MOST_STEPS", 60)
    operator = 1400**0.5 * causal().centred()
    with pytest.warns(be.AccuracyWarning, match=r"% are placed after 60 steps, not 95\.0%; allow more steps"):
        found = be.spectrum(operator, tolerance=0.05, placed=0.95)
    assert 0.7 < share_placed(found) < 0.95
    assert largest(found, be.spectrum(operator.dense()).values) <= found.error <= 0.05


@pytest.mark.usefixtures("narrow")
def test_long_runs_with_one_basis_place_the_same(monkeypatch):
    """In single precision too, after ninety steps: the left basis is not kept where both would take too much memory."""
    query, key = np.random.default_rng(0).standard_normal((2, 1100, 32)).astype(np.float32)
    operator = 1100**0.5 * be.AttentionOperator(query, key, mask="causal").centred()
    both = be.spectrum(operator, tolerance=0.05, placed=0.85)
    monkeypatch.setattr("bulkedge.spectra.matrix_free.TWO_SIDED", 0)
    found = be.spectrum(operator, tolerance=0.05, placed=0.85)
    assert share_placed(found) == pytest.approx(share_placed(both), abs=0.003)
    assert largest(found, np.linalg.svd(operator.dense().astype(float), compute_uv=False)[::-1]) <= found.error


@pytest.mark.usefixtures("narrow")
def test_attention_spectrum_passes_on_what_is_to_be_placed():
    operator = causal(900)
    found = be.attention_spectrum(operator, tolerance=0.05, placed=0.8)
    same = be.spectrum(30 * operator.centred(), tolerance=0.05, placed=0.8).squared()
    np.testing.assert_array_equal(found.values, same.values)
    with pytest.raises(be.DomainError, match=r"placed = 0\.8 is for an AttentionOperator"):
        be.attention_spectrum(operator.dense(), "causal", placed=0.8)
    for wrong in (-0.1, 1.1, "all"):
        with pytest.raises(be.DomainError, match="placed = "):
            be.spectrum(operator, placed=wrong)


def test_full_attention_has_all_values_placed_without_a_step_more():
    """Where nothing is lumped, to ask for all changes nothing."""
    query, key = np.random.default_rng(0).standard_normal((2, 700, 64))
    operator = be.AttentionOperator(query, key).centred()
    values = [be.spectrum(operator, tolerance=0.03, placed=share).values for share in (0.0, 1.0)]
    np.testing.assert_array_equal(*values)


@pytest.mark.usefixtures("narrow")
def test_the_share_is_known_at_every_checkpoint():
    """Also after few steps, where nothing is lumped yet: a rule of one's own stops when as many are placed."""
    operator, seen = 30 * causal(900).centred(), []

    def noted(checkpoint):
        seen.append((checkpoint.steps, checkpoint.placed))
        return False

    with pytest.warns(be.AccuracyWarning, match="not told apart"):
        found = operator_spectrum(operator, 0.05, stop=Rule(noted) | Placed(0.5) | MostSteps(100))
    steps, shares = zip(*seen, strict=True)
    assert steps[0] == 8
    assert shares[0] < 0.4
    assert shares[-2] < 0.5 <= shares[-1]
    assert steps[-1] < 40
    assert share_placed(found) == pytest.approx(shares[-1], abs=2e-3)
