"""Verdicts: agreement at a stated level, the rival excluded at another, and what few draws are worth."""

import json
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from bulkedge.lab.studies.claims import AGREEMENT, EXCLUSION, Claim, Rival, average, share, sign
from bulkedge.lab.studies.items import power_of
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate

FAR = Rival("far away", 1e6)


def claim(measured, *, error=0.1, rival=FAR, relation="=", freedom=math.inf, finite_size=0.0):  # noqa: PLR0913
    reason = "derived: the next order" if finite_size else ""
    one_sided = "" if relation == "=" else "nothing is known of it"
    statement = "s" if relation == "=" else "s at most, or at least"
    return Claim(
        statement, "ours", Estimate(measured, error, freedom), 1.0, rival, finite_size, reason, relation, one_sided
    )


@pytest.mark.parametrize(
    ("relation", "measured", "verdict"),
    [
        ("=", 1.449, "holds"),
        ("=", 0.551, "holds"),
        ("=", 1.451, "fails"),
        ("=", 0.549, "fails"),
        ("=", math.nan, "fails"),
        ("<=", -9.0, "holds"),
        ("<=", 1.449, "holds"),
        ("<=", 1.451, "fails"),
        ("<=", math.nan, "fails"),
        (">=", 9.0, "holds"),
        (">=", 0.551, "holds"),
        (">=", 0.549, "fails"),
        (">=", math.nan, "fails"),
    ],
)
def test_agreement(relation, measured, verdict):
    rival = Rival("far away", -1e6 if relation == ">=" else 1e6)
    assert claim(measured, relation=relation, rival=rival).verdict == verdict


@pytest.mark.parametrize(
    ("relation", "rival", "verdict"),
    [
        ("=", 1.401, "holds"),
        ("=", 1.399, "undecided"),
        ("=", 0.599, "holds"),
        ("=", 0.601, "undecided"),
        ("<=", 1.401, "holds"),
        ("<=", 1.399, "undecided"),
        ("<=", -5.0, "undecided"),
        (">=", 0.599, "holds"),
        (">=", 0.601, "undecided"),
        (">=", 5.0, "undecided"),
    ],
)
def test_the_rival_is_excluded_at_four_deviations(relation, rival, verdict):
    assert claim(1.0, rival=Rival("near", rival), relation=relation).verdict == verdict


def test_the_finite_size_term_is_granted_to_both():
    assert claim(1.64, finite_size=0.2).verdict == "holds"
    assert claim(1.66, finite_size=0.2).verdict == "fails"
    assert claim(1.0, rival=Rival("near", 1.59), finite_size=0.2).verdict == "undecided"
    assert claim(1.0, rival=Rival("near", 1.61), finite_size=0.2).verdict == "holds"
    assert claim(1.0, finite_size=0.2).tolerance == pytest.approx(0.2 + AGREEMENT * 0.1)


@pytest.mark.parametrize("freedom", [1, 3, 9, 30])
def test_few_draws_are_worth_what_student_says(freedom):
    """The verdict turns where the probabilities of the two distributions are the same."""
    turn = stats.t.isf(stats.norm.sf(AGREEMENT), freedom) * 0.1
    assert claim(1 + 0.999 * turn, freedom=freedom).verdict == "holds"
    assert claim(1 + 1.001 * turn, freedom=freedom).verdict == "fails"
    turn = stats.t.isf(stats.norm.sf(EXCLUSION), freedom) * 0.1
    assert claim(1.0, rival=Rival("near", 1 + 0.999 * turn), freedom=freedom).verdict == "undecided"
    assert claim(1.0, rival=Rival("near", 1 + 1.001 * turn), freedom=freedom).verdict == "holds"


@pytest.mark.parametrize("freedom", [2.0, 19.0, 199.0, 3999.0])
@pytest.mark.parametrize("ratio", [5.0, 30.0, 42.0, 300.0, 1e5])
def test_deviations_far_beyond_what_a_probability_can_say(freedom, ratio):
    """Against fifty digits of the incomplete beta function: the two tails have the same probability."""
    with mpmath.workdps(50):
        z = mpmath.mpf(freedom) / (freedom + mpmath.mpf(ratio) ** 2)
        student = mpmath.log(mpmath.betainc(mpmath.mpf(freedom) / 2, 0.5, 0, z, regularized=True) / 2)
        sigmas = claim(1 + 0.1 * ratio, freedom=freedom).deviation
        normal = mpmath.log(mpmath.erfc(mpmath.mpf(sigmas) / mpmath.sqrt(2)) / 2)
        assert abs(normal - student) < max(1e-3, 2 / freedom) * abs(student) ** 0.5


@pytest.mark.parametrize("freedom", [1e4, 1e6, 1e9])
def test_with_many_draws_deviations_are_those_of_a_known_error(freedom):
    for ratio in (10.0, 36.0, 38.0, 60.0):
        found = claim(1 + 0.1 * ratio, freedom=freedom).deviation
        # the tails differ by a factor of about exp(ratio**4 / (4 freedom))
        assert found == pytest.approx(ratio, rel=ratio**2 / freedom + 1e-6)
        assert found < ratio * (1 + 1e-9)


def test_true_claims_from_three_draws_do_not_fail():
    """At 4.5 normal deviations, 20,000 true claims of three draws each would give about 900 false alarms."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((20_000, 3))
    verdicts = {Claim("s", "ours", Estimate.of(row), 0.0, FAR).verdict for row in draws[:2000]}
    assert "fails" not in verdicts
    naive = np.abs(draws.mean(1)) / draws.std(1, ddof=1) * 3**0.5 > AGREEMENT
    assert 700 < naive.sum() < 1100


def test_a_sampled_prediction_adds_its_error():
    found = Claim("s", "ours", Estimate(1.0, 0.3, 9.0), Estimate(1.2, 0.4, 9.0), FAR)
    assert found.measured.error == pytest.approx(0.5)
    assert found.measured.freedom == pytest.approx(0.25**2 / (0.09**2 / 9 + 0.16**2 / 9))
    assert found.predicted == 1.2


def test_without_a_rival_a_claim_says_why():
    found = claim(1.0, rival="any other value would be as wrong")
    assert found.verdict == "holds"
    assert math.isnan(found.exclusion)
    with pytest.raises(DomainError, match="has no rival"):
        found.swapped()


def test_what_is_not_sampled_is_not_a_claim():
    with pytest.raises(DomainError, match="belongs in a test"):
        claim(1.0, error=0.0)
    with pytest.raises(DomainError, match="needs a reason"):
        Claim("s", "ours", Estimate(1.0, 0.1), 1.0, FAR, finite_size=0.1)


@pytest.mark.parametrize("relation", ["=", "<=", ">="])
def test_theory_and_rival_in_each_others_place(relation):
    rival = Rival("another", 0.0 if relation == ">=" else 3.0)
    assert claim(1.0, rival=rival, relation=relation).verdict == "holds"
    assert claim(1.0, rival=rival, relation=relation).swapped().verdict == "fails"


@pytest.mark.parametrize("rival", [FAR, "there is none"])
@pytest.mark.parametrize("freedom", [4.0, math.inf])
def test_records(rival, freedom):
    before = claim(1.05, rival=rival, freedom=freedom, finite_size=0.1)
    record = json.loads(json.dumps(before.record()))
    assert Claim.from_record(record) == before
    assert record["verdict"] == before.verdict


def test_share():
    """Curves of the theory have none of the rival in them, curves of the rival all of it."""
    rng = np.random.default_rng(0)
    theory, rival = np.linspace(0, 1, 30), np.linspace(0, 1, 30) ** 2
    noise = 0.01 * rng.standard_normal((8, 30))
    assert share(theory + noise, theory, rival).value == pytest.approx(0.0, abs=0.05)
    assert share(rival + noise, theory, rival).value == pytest.approx(1.0, abs=0.05)


def test_average_pools_the_freedom_of_cells():
    import xarray as xr

    rng = np.random.default_rng(0)
    found = average(xr.DataArray(rng.standard_normal((50, 4)), dims=("cell", "draw")))
    assert 60 < found.freedom <= 150
    assert found.error == pytest.approx(0.07, rel=0.3)


# -- what a referee asks -----------------------------------------------------------------------------------------------


def test_deviations_are_of_the_bare_prediction():
    """An allowance that is granted hides no deviation: both are numbers of their own."""
    found = claim(1.64, finite_size=0.2)
    assert (found.verdict, found.ground) == ("holds", "derived")
    assert (found.deviation, found.excess) == pytest.approx((6.4, 4.4))
    record, page = found.record(), found._repr_html_()
    assert (record["deviation"], record["excess"], record["ground"]) == pytest.approx((6.4, 4.4, "derived"))
    assert "6.4 σ off" in page
    assert "0.2 (derived: the next order)" in page
    assert claim(-9.0, relation="<=").deviation == pytest.approx(100)


@pytest.mark.parametrize(
    ("statement", "options", "message"),
    [
        ("s, at most", {"relation": "<="}, "says why it is one-sided"),
        ("s, at most", {"one_sided": "why"}, "says why it is one-sided"),
        ("s", {"relation": ">=", "one_sided": "why"}, "does not say so"),
        ("s", {"finite_size": 0.1, "reason": "the next order"}, "begins with one of"),
        ("s", {"finite_size": 0.1}, "needs a reason"),
    ],
)
def test_claims_say_what_they_are(statement, options, message):
    with pytest.raises(DomainError, match=message):
        Claim(statement, "ours", Estimate(1.0, 0.1), 1.0, FAR, **options)


def test_kinds_of_claims():
    assert [claim(1.0, relation=each).kind for each in ("=", "<=")] == ["number", "bound"]
    found = sign("a less b", "ours", 1 + 0.01 * np.arange(8), "no less")
    assert (found.kind, found.statement, found.verdict) == ("sign", "a less b, above zero", "holds")
    assert "sign only" in found._repr_html_()


@pytest.mark.parametrize(("predicted", "rival"), [(2.0, 5.0), (-2.0, 0.0), (0.0, 2.0), (0.0, -2.0)])
@pytest.mark.parametrize("allowed", [0.0, 0.05, 0.5])
def test_the_smallest_error_that_is_detected(predicted, rival, allowed):
    """Where the measurement is what was predicted, errors beyond the smallest one are noticed, and none below it."""
    reason = "derived: the next order" if allowed else ""
    found = Claim("s", "ours", Estimate(predicted, 0.01, 19.0), predicted, ("r", rival), allowed, reason)
    level = stats.t.isf(stats.norm.sf(AGREEMENT), 19)
    assert found.detectable == pytest.approx((allowed + level * 0.01) / 2)
    assert [found.detects(1 + side * 1.01 * found.detectable) for side in (-1, 1)] == [True, True]
    assert [found.detects(1 + side * 0.99 * found.detectable) for side in (-1, 1)] == [False, False]


def test_bounds_and_signs_detect_no_number():
    assert claim(1.0, relation="<=").detectable == math.inf
    assert math.isnan(claim(1.0, relation=">=", rival=Rival("the same", 1.0)).detectable)


def test_power_of_the_items_of_a_paper():
    def of(place, predicted, rival, **options):
        return Claim("s, at most", place, Estimate(predicted, 0.02), predicted, Rival("r", rival), **options)

    strong, weak = of("recovery: Theorem 3", 1.0, 0.0), of("recovery: Theorem 3, Equation 7; ours", 0.0, 0.5)
    bound = of("recovery: Equation 7", 1.0, 2.0, relation="<=", one_sided="why")
    found = power_of("recovery", [strong, weak, bound])
    assert found["Theorem 3"].cells == ("2", "0", "0", "9.0 %", "1 of 2", "1 of 2")
    assert found["Equation 7"].cells == ("1", "1", "0", "18.0 %", "0 of 1", "0 of 1")
    assert set(found) == {"Theorem 3", "Equation 7"}
