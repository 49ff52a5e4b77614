"""The resolvent and the table of a head against their definitions: fixed points, states, edges, choices, points."""

import numpy as np
import pytest

from bulkedge.heads import ChannelLaw
from bulkedge.heads.law import channel_cdf as tabulation
from bulkedge.heads.law import resolvent
from bulkedge.heads.law.channel_cdf import RISE, ROUGH, SETTLED, STEPS, Tokens, Walk, _ascend, _fill, _reweigh
from bulkedge.heads.law.resolvent import DiagonalTerms, Edges, Equations, _anderson
from bulkedge.support.errors import AccuracyWarning, DomainError, UnresolvedError


class Linear:
    """A contraction of the lower half-plane, another one for each of the points, and its fixed points."""

    def __init__(self, z, rng):
        self.numbers = {each: n for n, each in enumerate(z)}
        self.size = rng.uniform(0.2, 0.95, len(z))
        self.base = rng.standard_normal((6, len(z))) - 1j * rng.uniform(0.5, 2, (6, len(z)))
        self.mix = rng.uniform(0, 1, (6, 6))
        self.mix /= self.mix.sum(axis=1, keepdims=True)
        each = zip(self.size, self.base.T, strict=True)
        self.exact = np.stack([np.linalg.solve(np.eye(6) - size * self.mix, base) for size, base in each], axis=1)

    def image(self, state, z):
        assert not self.outside(state).any(), "only states of a resolvent are asked for"
        which = [self.numbers[each] for each in z]
        return self.size[which] * (self.mix @ state) + self.base[:, which]

    def outside(self, state):
        return np.any(state.imag >= 0, axis=0)


def test_accelerated_fixed_points_are_those_of_the_map():
    """Each column to its own tolerance, and all of them within the steps that acceleration is for."""
    rng = np.random.default_rng(5)
    z = np.exp(rng.uniform(-2, 2, 9) + 1j * rng.uniform(0.1, 1.5, 9))
    linear, sizes = Linear(z, rng), np.abs(z)
    found, missed = _anderson(linear, z, np.full((6, 9), -1j), 1e-9, 40)
    assert not len(missed)
    left = np.abs(linear.image(found, z) - found).max(axis=0) * sizes
    assert np.all(left < 1e-9)
    assert np.abs(found - linear.exact).max() * 0.05 < 1e-9 / sizes.min()
    # a start at the solution stays there; too few steps are told of
    assert _anderson(linear, z, linear.exact, 1e-6, 1)[1].size == 0
    assert _anderson(linear, z, np.full((6, 9), -1j), 1e-9, 2)[1].tolist() == list(range(9))


def test_late_steps_are_averages(monkeypatch):
    """Beyond half of the steps: each is the mean of the last state and its image."""
    rng = np.random.default_rng(9)
    z = np.array([1.0j])
    linear, start = Linear(z, rng), np.full((6, 1), -1j)
    monkeypatch.setattr(resolvent, "MOST", 8)
    reached = [_anderson(linear, z, start, 1e-12, steps)[0] for steps in range(1, 9)]
    averages = [(linear.image(each, z) + each) / 2 for each in (start, *reached)]
    agree = [bool(np.allclose(one, other, rtol=1e-12)) for one, other in zip(reached, averages, strict=False)]
    # the first has nothing to look back on
    assert agree == [True, False, False, False, False, True, True, True]


def equations_with_all_parts(rng):
    """Four tokens, rows and columns of each, two terms, noise, and two entries that are edges."""
    noise = rng.uniform(0.3, 0.6, (4, 4))
    np.fill_diagonal(noise, 0.0)
    left, right = rng.standard_normal((2, 2, 4))
    edges = Edges(np.array([0, 2]), np.array([1, 3]), np.array([0.4, 0.9]))
    noise[edges.rows, edges.columns] = 0.0
    own = DiagonalTerms(left * right, 0.3 * rng.standard_normal(4))
    return Equations(np.array([0.3, 0.2]), left**2, right**2, noise, 4, 4, own, edges)


def test_equations_that_are_left_unsolved(monkeypatch):
    """What is in the mean of g and h within ten tolerances after the last step is taken and told of; more is an error.

    The other parts of a state do not enter that mean.
    """
    equations = equations_with_all_parts(np.random.default_rng(10))
    z = np.array([0.3 + 0.2j, 1.0 + 1.0j])
    start = equations.start(z)
    exact = equations.solve(z, start, 1e-12)
    assert equations.image(exact, z) == pytest.approx(exact, abs=1e-11)
    monkeypatch.setattr(resolvent, "MOST", 2)
    reached = equations.approach(z, start, 1e-12, 2)
    change = np.abs(equations.image(reached, z) - reached) * np.abs(z)
    left = change[:8].mean(axis=0).max()
    assert abs(left / change.mean(axis=0).max() - 1) > 0.02
    with pytest.warns(AccuracyWarning, match=rf"at \|z\| = 0.36 .* solved to {left:.1g} in the mean"):
        assert equations.solve(z, start, left / 9.9) == pytest.approx(reached)
    with pytest.raises(UnresolvedError, match=f"not solved: .* by {left:.2g} in the mean"):
        equations.solve(z, start, left / 10.1)


def test_parts_of_a_state():
    """g, h, cavities of the edges' rows and columns, elements between: where each is cut, and what it must be."""
    rng = np.random.default_rng(11)
    equations = equations_with_all_parts(rng)
    point = np.array([0.7j])
    state = equations.solve(point, equations.start(point), 1e-12)
    assert state.shape == (4 + 4 + 2 + 2 + 4, 1)
    assert equations.without_edges(state) == pytest.approx(state[[*range(8), *range(12, 16)]])
    turned = equations.turn(state, np.array([1.0, np.exp(-0.4j), np.exp(0.4j), np.exp(1.8j)]))
    assert turned[:, 0] == pytest.approx(state[:, 0])
    assert turned[:12, 1] == pytest.approx(state[:12, 0] * np.exp(-0.4j))
    assert np.array_equal(turned[12:], np.repeat(state[12:].real, 4, axis=1))
    # what would leave the lower half-plane is put just inside
    assert turned[:12, 3].imag == pytest.approx(-1e-3 * np.abs(state[:12, 0]))
    assert not equations.outside(turned).any()
    for row, value in ((0, 0.0), (7, 1e-9), (8, 0.0), (11, 0.0), (3, np.nan), (13, np.inf)):
        other = turned.copy()
        other[row, 2] = 0.3 + 1j * value
        assert equations.outside(other).tolist() == [False, False, True, False]
    limit = np.sqrt(turned[1, 2].imag * turned[5, 2].imag)
    for share, wrong in ((0.999, False), (1.001, True), (-1.001, True)):
        other = turned.copy()
        other[13, 2] += 1j * share * limit
        assert equations.outside(other)[2] == wrong


def test_heavy_entries_are_those_beyond_a_twentieth():
    """Of ``V_ij |g_i h_j|/total``; the cavities start as the resolvents of their ends."""
    state = (np.arange(1.0, 8.0) * -1j)[:, None]
    share = np.full((3, 4), 0.0499)
    share[1, 2] = share[2, 0] = 0.0501
    noise = share * 5 / np.outer(np.arange(1.0, 4.0), np.arange(4.0, 8.0))
    none = np.zeros((1, 3)), np.zeros((1, 4))
    found, guess = Equations(np.ones(1), *none, noise, 9, 5).with_edges(state)
    assert (found.edges.rows.tolist(), found.edges.columns.tolist()) == ([1, 2], [2, 0])
    assert found.edges.variances == pytest.approx([noise[1, 2] / 5, noise[2, 0] / 5])
    assert np.array_equal(found.noise, np.where(share > 0.05, 0.0, noise))
    assert guess[:, 0].imag.tolist() == [-1, -2, -3, -4, -5, -6, -7, -2, -3, -6, -4]


def test_weights_move_by_a_power_of_their_quotient():
    old, new = (np.array([1.0, 3.0]), np.array([2.0, 2.0])), (np.array([2.0, 2.0]), np.array([1.0, 0.0]))
    change, found = _reweigh(old, new, 0.5)
    assert change == pytest.approx(0.5 + 1.0)
    assert found[0] == pytest.approx([(0.25 * 0.5) ** 0.5, (0.75 * 0.5) ** 0.5])
    # a token without weight keeps 1e-12, so that it may come back
    assert found[1] == pytest.approx([0.5**0.5, (0.5e-12) ** 0.5])


class Stub:
    """A walk over a distribution function that is known, and remembers what it was asked for."""

    def __init__(self, function):
        self.function, self.asked = function, []

    def mass(self, x):
        self.asked.append(float(np.log(x)))
        return self.function(float(np.log(x)))


def test_points_of_a_table_ascend_by_about_a_rise():
    """Of a smooth distribution function: steps within their bounds, up to where enough lies below or the top is."""
    walk = Stub(lambda log: 1 / (1 + np.exp(-log)))
    points = {-6.0: walk.function(-6.0), -5.0: walk.function(-5.0)}
    _ascend(points, walk, 20.0, 0.99)
    logs = np.array(sorted(points))
    masses = np.array([points[each] for each in logs])
    steps = np.diff(logs)
    assert np.all((steps[1:] >= STEPS[0] - 1e-12) & (steps[1:] <= STEPS[1] + 1e-12))
    slopes = np.diff(masses)[:-1] / steps[:-1]
    assert steps[1:] == pytest.approx(np.clip(RISE / slopes, *STEPS), rel=1e-9)
    assert masses[-1] > 0.99 >= masses[-2]
    # the top ends it too, a step below; and a function that falls keeps what was there
    points = {0.0: 0.2}
    _ascend(points, walk, 2.0, 0.99)
    assert max(points) == pytest.approx(2.0 - STEPS[0])
    points = {0.0: 0.9}
    _ascend(points, Stub(lambda log: 0.5), 5.0, 0.99)
    assert points == {0.0: 0.9}


def test_points_of_a_table_are_filled_in():
    """A stretch that rises by more than twice the rise is cut in equal parts, no shorter than the least step."""
    walk = Stub(lambda log: log / 10)
    points = {0.0: 0.0, 2.0: 6.9 * RISE, 4.0: 6.9 * RISE + 1.9 * RISE, 5.0: 1.0}
    known = dict(points)
    _fill(points, walk)
    # ceil(6.9/2) = 4 parts of 0.5; then one; then two by the least step, though the rise asks for more
    assert walk.asked == pytest.approx([0.5, 1.0, 1.5, 4.5])
    assert {log: points[log] for log in known} == known
    added = sorted(set(points) - set(known))
    assert [points[log] for log in added] == pytest.approx([0.05, 0.1, 0.15, 0.45])


def test_the_largest_value_and_all_of_the_mass(monkeypatch):
    """The bound is the sum of the squares, repeats and all; next to it all mass is below, however many columns."""
    rng = np.random.default_rng(6)
    counts = [np.array([1.0, 2.0, 1.0, 3.0, 1.0, 1.0]), np.array([2.0, 1.0, 2.0, 4.0])]
    query, key = 0.4 * rng.standard_normal((6, 2)), rng.standard_normal((4, 2))
    raw = np.exp(query @ key.T)
    # rows of T A sum to T
    logs = np.log(9 / (raw @ counts[1]))
    sides = Tokens(query, counts[0], logs), Tokens(key, counts[1], np.zeros(4))
    walk = Walk(*sides, 9, sampled=False, paired=False)
    rows, columns = (np.repeat(np.arange(len(each)), each.astype(int)) for each in counts)
    whole = (np.exp(logs)[:, None] * raw)[rows][:, columns]
    values = np.linalg.svd((whole - whole.mean(axis=0)) / 3, compute_uv=False) ** 2
    assert walk.largest == pytest.approx(values.sum(), rel=1e-12)
    monkeypatch.setattr(tabulation, "TOLERANCE", 1e-9)
    # rows beyond the number of columns are zeros, which do not count
    assert walk.mass(1e3 * walk.largest) == pytest.approx(1.0, abs=2e-3)
    # without noise or terms at tiny points, nothing is below
    assert 0 <= walk.mass(1e-3 * walk.largest) < 1


@pytest.mark.parametrize("paired", [False, True])
def test_a_text_that_is_read_three_times_over(paired):
    """Rows and columns of A over three, nine times each: the same values, tripled, and zeros that do not count."""
    rng = np.random.default_rng(7)
    query, key = 0.5 * rng.standard_normal((12, 2)), rng.standard_normal((12, 2))
    logs = np.log(12 / np.exp(query @ key.T).sum(axis=1))
    once, thrice = (
        Walk(
            Tokens(query, np.full(12, n), logs),
            Tokens(key, np.full(12, n), np.zeros(12)),
            int(12 * n),
            sampled=False,
            paired=paired,
        )
        for n in (1.0, 3.0)
    )
    assert thrice.largest == pytest.approx(3 * once.largest)
    for share in (1e-2, 0.2):
        x = share * once.largest
        # both are solved to 1e-5
        assert thrice.mass(3 * x) == pytest.approx(once.mass(x), abs=1e-4)


def walk_with_repeats(paired):
    """A walk of 8 queries and as many keys, 30 tokens in all on either side, and the numbers of repeats."""
    rng = np.random.default_rng(8)
    counts = np.array([1.0, 4.0, 9.0, 2.0, 3.0, 5.0, 4.0, 2.0])
    counts = counts, counts if paired else counts[::-1]
    query, key = 0.5 * rng.standard_normal((8, 2)), rng.standard_normal((8, 2))
    sides = Tokens(query, counts[0], np.zeros(8)), Tokens(key, counts[1], np.zeros(8))
    return Walk(*sides, 30, sampled=False, paired=paired), counts


@pytest.mark.parametrize("paired", [False, True])
def test_equations_of_a_head_with_repeats(paired):
    """Squares of functions and of the rest at each token, times how often it is there; its own keep their sign."""
    walk, counts = walk_with_repeats(paired)
    found = walk._expand(counts[0] ** 0.3, counts[1] ** 0.7)
    equations = walk._equations(found)
    assert equations.squares == pytest.approx(found.products[1:] ** 2)
    assert equations.rows == pytest.approx(found.rows[1:] ** 2 * counts[0])
    assert equations.columns == pytest.approx(found.columns[1:] ** 2 * counts[1])
    noise = found.rest**2 * np.outer(*counts)
    assert equations.noise == pytest.approx(np.where(np.eye(8) * paired, 0.0, noise))
    assert (equations.tokens, equations.total) == (30, 30)
    assert (equations.own is not None) == paired
    if paired:
        assert equations.own.products == pytest.approx(found.rows[1:] * found.columns[1:] * counts[0])
        assert equations.own.rest == pytest.approx(np.diag(found.rest) * counts[0] / np.sqrt(30))


@pytest.mark.parametrize("paired", [False, True])
def test_functions_are_those_of_the_largest_trace(paired):
    """Among none, those for powers of the repeats, and those for weights that agree with their own resolvent."""
    walk, counts = walk_with_repeats(paired)
    root = 0.3 * np.sqrt(walk.largest)
    point = np.array([1j * root])
    bare, fitted = walk._no_functions(root), walk._self_consistent(root, counts)
    plain = [walk._plain(root, power) for power in (0.0, 0.5, 1.0)]
    for power, each in zip((0.0, 0.5, 1.0), plain, strict=True):
        assert each.weights[1] == pytest.approx(counts[1] ** power)
        assert each.equations.squares == pytest.approx(walk._expand(*each.weights).products[1:] ** 2)
    for each in (bare, fitted, *plain):
        change = each.equations.image(each.state, point) - each.state
        assert np.max(np.abs(change)) * root < ROUGH
        assert each.trace == pytest.approx(np.sum(np.abs(each.state[:8].imag)))
    # without functions all entries are noise or edges: those of the matrix less its mean row
    whole = bare.equations.noise.copy()
    whole[bare.equations.edges.rows, bare.equations.edges.columns] += bare.equations.edges.variances * 30
    if paired:
        np.fill_diagonal(whole, bare.equations.own.rest**2 * 30)
    entries = walk._expand.matrix - np.average(walk._expand.matrix, axis=0, weights=counts[0])
    assert whole == pytest.approx(entries**2 * np.outer(*counts))
    assert not np.any(bare.equations.rows)
    assert not np.any(bare.equations.columns)
    # the weights of the resolvent of these functions are those that they are orthogonal for
    expansion, sizes = walk._expand(*fitted.weights), np.abs(fitted.state[:16, 0])
    new = counts[0] * expansion.rows[0] ** 2 * sizes[:8], counts[1] * expansion.columns[0] ** 2 * sizes[8:]
    shares = [each / each.sum() for each in (*fitted.weights, *new)]
    assert np.abs(shares[0] - shares[2]).sum() + np.abs(shares[1] - shares[3]).sum() < SETTLED
    assert walk._best_choice(root, counts).trace == pytest.approx(max(each.trace for each in (bare, fitted, *plain)))


def test_functions_that_are_too_large_are_left_out():
    """Scores of spread 20 and more: some functions overflow, which is no news; the mass is found without them."""
    query, key = np.random.default_rng(0).standard_normal((2, 40, 4))
    law = ChannelLaw.from_qk(10 * query, key, 1.0)
    walk = Walk(law.queries, law.keys, 40, sampled=False, paired=True)
    masses = [walk.mass(share * walk.largest) for share in (1e-20, 1e-12, 1e-4)]
    assert 0 < masses[0] < masses[1] < masses[2] < 1


@pytest.mark.parametrize("labels", [None, np.arange(20)])
def test_attention_of_equal_rows_has_no_table(labels):
    """Queries and keys of different directions: all scores vanish, and rounding errors are no spectrum."""
    query, key = np.random.default_rng(12).standard_normal((2, 20, 4))
    query, key = query * [1, 1, 0, 0], key * [0, 0, 1, 1]
    with pytest.raises(DomainError, match="rows of this attention are equal"):
        ChannelLaw.from_qk(query, key, 1.0, labels=labels).cdf(1.0)
    # equal queries: all rows are the same
    if labels is not None:
        with pytest.raises(DomainError, match="rows of this attention are equal"):
            ChannelLaw.from_qk(np.ones((20, 4)), key, 1.0, labels=labels).cdf(1.0)
    # small scores are none of that
    small = ChannelLaw.from_qk(1e-10 * (query + key[::-1]), key, 1.0, labels=labels)
    assert not Walk(small.queries, small.keys, 20, sampled=False, paired=True).uniform
