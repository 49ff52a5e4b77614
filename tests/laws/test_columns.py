"""Popular columns: against the free product, against all columns one by one, and what is refused."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

import bulkedge as be
from bulkedge.laws.attention.popular_keys import ColumnLaw, column_atoms, drawn_columns, own_weight
from bulkedge.laws.engine.profiles import Profile
from bulkedge.laws.engine.subordination.bulk import bulk_of


def popularity(spread, count=600, seed=3):
    return np.exp(spread * np.random.default_rng(seed).standard_normal(count))


def sizes_of(law, liked):
    """Sizes of columns of a head of finitely many tokens: less than in proportion to their popularity."""
    liked = liked / liked.mean()
    return liked * own_weight(liked / law.tokens, np.log1p(law.mean()) ** 0.5, law.tokens)


class AsProfiledSum(ColumnLaw):
    """The same law from the equations of rows and columns, as it is found where columns have sizes of their own."""

    def _bulk(self):
        return bulk_of(self.profiled_sum(), ())


@pytest.mark.parametrize(
    ("law", "liked"),
    [
        (be.FiniteHeadLaw(0.7, 64, 1200, qk_norm=True), [1.0, 1.0, 4.0]),
        (be.AttentionLaw(1.0, 0.5), [1.0, 2.0]),
    ],
)
def test_where_columns_are_alike_it_is_the_free_product(law, liked):
    """Two ways to the same law, which share no equation: the profiled sum, and subordination."""
    exact = law.with_columns(liked)
    found = AsProfiledSum(law, exact.squares, exact.shares)
    assert np.array(found.support) == pytest.approx(np.array(exact.support), rel=1e-10)
    x = exact.ppf(np.linspace(0.01, 0.99, 40))
    assert found.cdf(x) == pytest.approx(exact.cdf(x), abs=1e-10)
    assert found.pdf(x) == pytest.approx(exact.pdf(x), rel=1e-9)
    assert exact.unit is law.unit


@pytest.mark.parametrize("share", [1.0, 0.3, 2e-2, 1e-3])
def test_few_columns_do_not_reach_as_far_as_all(share):
    """At the end of the largest at least half a column of a thousand; the same mean; all groups of a limit law."""
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.linspace(0.2, 3, 12))
    profile = Profile(weights, np.sort(rng.uniform(0.5, 2, (3, 12)), axis=1))
    masses, sizes = drawn_columns(profile, 5.0, share, 1000)
    assert masses.sum() == pytest.approx(share)
    assert sizes @ masses == pytest.approx(5 * share * (profile.squares @ weights))
    assert masses[-1] * 1000 >= 0.5 - 1e-12
    assert len(drawn_columns(profile, 5.0, share, np.inf)[0]) == 12


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.2])
def test_a_few_atoms_stand_for_all_columns(spread):
    """The statement of ``BIN``: the distribution function moves by 4e-4 at most."""
    head, liked = be.FiniteHeadLaw(0.7, 64, 1200, qk_norm=True), popularity(spread)
    squares = np.sort(sizes_of(head, liked) ** 2)
    each = ColumnLaw(head, tuple(squares.tolist()), (1 / len(squares),) * len(squares))
    found = head.with_columns(liked)
    assert len(found.squares) <= 2 * (np.ptp(np.log(squares)) + 1)
    x = each.ppf(np.linspace(0.001, 0.999, 400))
    assert found.cdf(x) == pytest.approx(each.cdf(x), abs=4e-4)


def test_atoms_have_the_moments_of_the_columns():
    """Mass, mean, second and third moment of the squares, and no atom outside them."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        liked = np.exp(rng.uniform(0, 3) * rng.standard_normal(rng.integers(1, 40)))
        liked /= liked.mean()
        liked = np.maximum(liked, 1e-3)
        squares, shares = column_atoms(liked)
        for order in range(4):
            assert shares @ squares**order == pytest.approx(np.mean(liked ** (2 * order)), rel=1e-9)
        assert np.all(np.diff(squares) > 0)
        assert np.all(shares > 0)
        slack = 1e-9 * liked.max() ** 2
        assert squares[0] >= liked.min() ** 2 - slack
        assert squares[-1] <= liked.max() ** 2 + slack


@pytest.mark.parametrize(
    "law", [be.AttentionLaw(0.5, 0.1), *(be.FiniteHeadLaw(0.5, 64, 2048, n) for n in (False, True))]
)
def test_mean_grows_by_the_mean_square_of_the_popularity(law):
    liked = popularity(0.5)
    limit = law.tokens == np.inf
    growth = np.mean((liked / liked.mean() if limit else sizes_of(law, liked)) ** 2)
    assert law.with_columns(liked).mean() == pytest.approx(growth * law.mean(), rel=1e-9)


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.0])
def test_keys_that_have_much_of_their_rows_vary_less(beta):
    """Against integrals of ``p w/(1 - p + p w)`` with w log-normal, to the bend between two of 400 points."""
    tokens = 500

    def moment(part, order):
        def inside(z):
            return norm.pdf(z) * expit(np.log(part / (1 - part)) + beta * z - beta**2 / 2) ** order

        return quad(inside, -12, 12, epsabs=0, epsrel=1e-10, limit=200)[0]

    parts = [1 / tokens, 0.02, 0.2, 0.6, 0.95]
    means, squares = (np.array([moment(part, order) for part in parts]) for order in (1, 2))
    spread = np.sqrt(squares / means**2 - 1)
    found = own_weight(means, beta, tokens)
    assert found / found[0] == pytest.approx(spread / spread[0], rel=1e-3)
    assert own_weight(np.array([1 / tokens]), beta, tokens) == pytest.approx(1.0, rel=1e-12)
    assert np.all(np.diff(found) < 0)


def test_normalisation_does_not_matter():
    law, liked = be.AttentionLaw(1.0, 0.5), popularity(0.5, 50)
    exact = law.with_columns(liked)
    for scale in (1e-300, 3.0, 1e300):
        moved = law.with_columns(scale * liked)
        assert moved.squares == pytest.approx(exact.squares, rel=1e-12)
        assert moved.shares == pytest.approx(exact.shares, rel=1e-12)


@pytest.mark.parametrize("alike", [[3.0], [0.1, 0.1, 0.1], np.ones((5,), dtype=np.float32)])
def test_columns_that_are_alike_change_nothing(alike):
    law = be.FiniteHeadLaw(0.5, 64, 2048)
    assert law.with_columns(alike) is law


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0, 0.0], r"popularity\[1\] = 0 is outside its domain: it must hold positive finite numbers"),
        ([1.0, -2.0, 1.0], r"popularity\[1\] = -2 is outside"),
        ([1.0, np.nan], "popularity contains NaN"),
        ([1.0, np.inf], "popularity contains NaN or infinite"),
        ([], "popularity must be a vector of one or more numbers; got shape"),
        (2.0, "popularity must be a vector"),
        (np.ones((2, 2)), "popularity must be a vector"),
        ("many", "popularity = 'many' is not an array of numbers"),
        ([1.0, 1j], "popularity has complex entries"),
        (np.ma.masked_array([1.0, 2.0], [False, True]), "popularity has masked entries"),
    ],
)
def test_what_is_no_popularity(given, message):
    with pytest.raises(be.DomainError, match=message):
        be.AttentionLaw(1.0, 0.5).with_columns(given)


def drawn(kind, rng):
    """Popularity as people have it, and worse: log-normal, sinks, columns next to nothing, two kinds of columns."""
    count = 400
    if kind == "sinks":
        liked = np.exp(rng.uniform(0.05, 0.8) * rng.standard_normal(count))
        liked[: rng.integers(1, 4)] = count * rng.uniform(0.05, 3)
        return liked
    if kind == "next to nothing":
        return rng.gamma(rng.uniform(0.3, 5), size=count) + 1e-12
    if kind == "two kinds":
        return np.where(rng.random(count) < rng.uniform(0.1, 0.9), rng.uniform(1.5, 30), 1.0)
    return np.exp(rng.uniform(0.05, 3) * rng.standard_normal(count))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bulkedge.RegimeWarning")  # the law is solved, whatever draws do
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("kind", ["log-normal", "sinks", "next to nothing", "two kinds"])
def test_any_popularity_is_resolved_or_refused(kind, qk_norm):
    """The mean is that of the equations, or the error is the package's own; at most a third of these is refused."""
    rng, refused = np.random.default_rng(12), 0
    for _ in range(6):
        law = be.FiniteHeadLaw(rng.uniform(0.2, 1.6), 64, int(2 ** rng.uniform(7, 13)), qk_norm)
        found = law.with_columns(drawn(kind, rng))
        try:
            mean = found.mean()
        except be.UnresolvedError:
            refused += 1
            continue
        assert mean == pytest.approx(found.profiled_sum().variances.sum(), rel=1e-8)
    assert refused <= 2
