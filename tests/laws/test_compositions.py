"""Free convolutions of random laws, two or three at a time, against an iteration of their equations off the axis.

The drawing and the reference are in ``tests/compositions.py``. Every law on the way must satisfy: the Cauchy transform
of the reference at points off the axis, from its own transform and from quadrature of its density alike; mean and
variance as the operation demands; total mass one; a distribution function that increases and agrees with the density;
quantiles that invert it; and just outside its computed edges a real, decreasing transform that agrees with the density.

Nothing is demanded of compositions with an IndependentProduct (:func:`compositions.exclusion`): its density ends like
the square of the distance, and makes edges of that kind, which are not resolved.

Tolerances: 1e-8 of the size of what is compared, a hundred times what the package promises for masses, because
quadrature and iteration here add errors of their own.
"""

import sys
import time
import warnings
from collections import Counter

import numpy as np
import pytest
from compositions import OPERATIONS, Composition, NotSettledError, composition, exclusion, reference, sample

import bulkedge as be
from bulkedge import laws
from bulkedge.support.errors import DomainError, RegimeWarning, UnresolvedError

pytestmark = pytest.mark.filterwarnings("ignore::bulkedge.support.errors.RegimeWarning")  # laws far from their matrices

TOLERANCE = 1e-8
LOST = 2e-3
"""Mass that may be missing far out, in units of the tolerance: islands of less than 1e-11 count as none."""


def close(value, expected, size, tolerance=TOLERANCE):
    """Whether two arrays agree to the tolerance, relative to a size."""
    return bool(np.all(np.abs(np.asarray(value) - np.asarray(expected)) <= tolerance * np.asarray(size)))


def extent(law):
    """The largest absolute value that a law is represented at."""
    ends = [abs(end) for interval in law.support for end in interval]
    return max([*ends, *np.abs(law.locations).tolist()]) or 1.0


def unseen(law):
    """Mass, in units of the tolerance, that quadrature of the density gets wrong because points are rounded.

    There are hardly any numbers within 1e-15 of an edge that is not zero; if the density is infinite there, twice the
    mass of that stretch is missed. Elsewhere it is the rounding of the points times the variation of the density, which
    counts on islands that are hardly wider than that.
    """
    if not law.support:
        return 0.0
    losses = [0.0]
    for pair in law.continuum.intervals:
        low, high = (edge.location for edge in pair)
        rounding = 1e-15 * max(abs(low), abs(high))
        for edge in pair:
            if edge.exponent < 0 and edge.location != 0:
                beside = edge.location + 1e-15 * abs(edge.location) * np.array([-1.0, 1.0])
                losses.append(2 * float(np.diff(law.continuum.cdf(beside))[0]))
        if all(edge.exponent >= 0 for edge in pair):
            apart = (high - low) * 10.0 ** np.linspace(-14, -0.31, 60)
            losses.append(rounding * float(law.pdf(np.append(low + apart, high - apart)).max()))
    return max(losses) / TOLERANCE


def off_axis(law):
    """Points off the axis: above the middle at the scale of the law, and lower down, where it has its quantiles."""
    low, middle, high = law.ppf([0.1, 0.5, 0.9])
    deviation = float(np.sqrt(law.var()))
    width = max(high - low, 0.1 * deviation, 1e-3 * extent(law))
    centre = law.mean()
    return np.array([centre + 1j * deviation, middle + 0.5j * width, low + 0.5j * width, high + 1j * width])


def transforms(node):
    """The law's own transform and that of its density, beside the reference."""
    squared = node.operation == "rectangular_add"
    law = node.law.squared() if squared else node.law
    z = off_axis(law)
    points, masses = sample(node.law, np.sqrt(z) if squared else z)
    points = points**2 if squared else points
    expected = reference(node, z)
    yield "Cauchy transform", close(law.cauchy(z), expected, np.abs(expected))
    by_density = (masses / (z[:, None] - points)).sum(axis=1)
    yield "Cauchy transform of the density", close(by_density, expected, (1 + unseen(node.law)) / np.abs(z.imag))


def moments(node):
    """Mean and variance as the operation makes them of those of its operands."""
    one, two = (operand.law for operand in node.operands)
    law = node.law
    if node.operation == "rectangular_add":
        squares = [each.moment(2) for each in (one, two)]
        fourth = one.moment(4) + two.moment(4) + 2 * (1 + node.ratio) * squares[0] * squares[1]
        yield "second moment", close(law.moment(2), sum(squares), sum(squares))
        yield "fourth moment", close(law.moment(4), fourth, fourth + LOST * extent(law) ** 4)
        return
    if node.operation == "free_add":
        mean, variance = one.mean() + two.mean(), one.var() + two.var()
    else:
        mean = one.mean() * two.mean()
        variance = one.var() * two.mean() ** 2 + two.var() * one.mean() ** 2
    size = extent(law)
    yield "mean", close(law.mean(), mean, size)
    yield "variance", close(law.var(), variance, variance + LOST * size**2)


def distribution(law, points, masses):
    """Total mass, order, and quantiles; the distribution function beside the sum of the density."""
    loss = unseen(law)
    yield "total mass", close(masses.sum(), 1.0, 1.0 + loss)
    order = np.argsort(points, kind="stable")
    x, upto = points[order], np.cumsum(masses[order])
    value = law.cdf(x)
    yield "monotone cdf", bool(np.all(np.diff(value) >= -1e-13))
    if law.support:
        cuts = np.unique(np.concatenate([np.array(law.support).ravel(), law.continuum._breaks]))
        # between panels no quadrature node is cut in two
        found = np.append(0.0, upto)[np.searchsorted(x, cuts, side="right")]
        yield "cdf of the density", close(law.cdf(cuts), found, 1.0 + loss)
    q = np.linspace(0.01, 0.99, 25)
    x = law.ppf(q)
    rounding = 1e-15 * np.abs(x) * np.where(x == 0, 0.0, law.pdf(x))
    yield "cdf(ppf)", bool(np.all(law.cdf(x) >= q - 1e-11 - rounding))
    inside = np.array([low + (high - low) * share for low, high in law.support for share in (0.1, 0.37, 0.8)])
    density = law.pdf(inside)
    slack = 1e-9 * extent(law) + 1e-13 / np.maximum(density, 1e-6 / extent(law))
    yield "ppf(cdf)", bool(np.all(np.abs(law.ppf(law.cdf(inside)) - inside) <= slack))


def next_to_edges(law, points, masses):
    """The transform just outside the outer edges: real, decreasing away from the law, and that of the density."""
    for side, edge in ((1.0, points.max()), (-1.0, points.min())):
        x = edge + side * extent(law) * np.array([1e-12, 1e-9, 1e-6, 1e-3])
        value = law.cauchy(x)
        yield "real outside", bool(np.all(value.imag == 0))
        yield "decreasing outside", bool(np.all(np.diff(side * value.real) < 0))
        expected = (masses / (x[:, None] - points)).sum(axis=1)
        rounding = (masses / (x[:, None] - points) ** 2).sum(axis=1) * 1e-15 * extent(law)
        if unseen(law) < 0.01:
            yield "transform outside", close(value.real, expected, np.abs(expected) + 1e7 * rounding, 1e-6)


def faults(node):
    """What is wrong with one law, by name."""
    law = node.law
    points, masses = sample(law)
    if not np.any(np.ptp(points)):
        return [] if len(points) else ["empty"]
    parts = (
        transforms(node),
        moments(node),
        distribution(law, points, masses),
        next_to_edges(law, points, masses),
    )
    return [name for part in parts for name, right in part if not right]


def verdict(tree):
    """``(kind, detail)`` of one composition, kind one of right, wrong, refused, unsettled and excluded."""
    reason = exclusion(tree)
    if reason:
        return "excluded", reason
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", RegimeWarning)
            for node in tree.nodes():
                wrong = faults(node)
                if wrong:
                    return "wrong", f"{node.text if node is not tree else ''} {wrong}"
    except NotSettledError:
        return "unsettled", ""
    except UnresolvedError as error:
        return "refused", str(error)
    return "right", ""


def survey(seed, first, count):
    """Verdicts of compositions ``first`` to ``first + count`` of a seed, and the slowest of them."""
    counts, lines, slowest = Counter(), [], (0.0, "")
    for index in range(first, first + count):
        tree = composition(np.random.default_rng([seed, index]))
        before = time.process_time()
        kind, detail = verdict(tree)
        slowest = max(slowest, (time.process_time() - before, tree.text))
        counts[kind] += 1
        if kind not in ("right", "excluded"):
            lines.append(f"{kind}: {tree.text}: {detail}")
    return counts, lines, slowest


@pytest.mark.always
def test_a_sample_of_compositions():
    count = 16
    counts, lines, _ = survey(seed=1, first=10, count=count)
    assert counts["right"] + counts["excluded"] == count, "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(30))
def test_three_thousand_compositions(chunk, capsys):
    counts, lines, slowest = survey(seed=2, first=100 * chunk, count=100)
    with capsys.disabled():
        report = f"compositions {100 * chunk} to {100 * chunk + 99}: {dict(counts)}, slowest {slowest[0]:.1f} s"
        sys.stdout.write("\n".join(["", report, *lines, ""]))
    assert not counts["wrong"], "\n".join(lines)


def slow(text):
    """One that takes seconds, where another of the same kind, next to it, does not."""
    return pytest.param(text, marks=pytest.mark.slow)


REPRODUCTIONS = (
    # the descent to the axis in bold strides alone loses its way
    (
        "free_add(SumLaw((0.0525, 0.0542, 3.53), (1.0, 0.0776, 1.18)).squared(), "
        "EmpiricalLaw([37.968, 1.7176, 1.2204, 32.205, 2.0566, 1.2091, 5.3562]))"
    ),
    # a density at zero beside none: the variable of the second law tells bulk from gap, that of the first does not
    "free_mul(QuarterCircle(1.0), EmpiricalLaw([1.0, 2.0]))",
    # a second factor of small mean: far above the axis the variable is z over that mean, not z
    "free_mul(SumLaw((0.0971, 3.95, 0.21), (0.224, 2.0, 0.123)), QuarterCircle(0.0651).scaled(0.132))",
    # atoms of both signs, where nothing was found in the bulk
    "free_mul(EmpiricalLaw([0.090628, 0.076728, 0.30024, 0.009063]), EmpiricalLaw([-0.242, 0.363], [0.195, 0.848]))",
    # products that are singular at zero inside their bulk
    "free_mul(Semicircle(), MarchenkoPastur(1.0))",
    "free_mul(SumLaw((0.39, 0.152), (inf, 1.0)), ProductLaw((0.931, 1.0), 12.3))",
    # one side of zero is bulk, the other a gap
    "free_mul(EmpiricalLaw([-16.8, 4.95, 13.2, 0.979, 3.37, -21.1, -26.2, 13.5]), QuarterCircle(1.0).scaled(0.0328))",
    "free_mul(QuarterCircle(0.614).sqrt(), EmpiricalLaw([-0.0255, -0.0619, -0.0806, 0.0863, -0.0199, 0.316]))",
    # densities at zero that are finite, that vanish, and that are inside the bulk of the product
    "free_mul(QuarterCircle(0.0253).scaled(26.0), QuarterCircle(0.0256).sqrt())",
    "free_mul(QuarterCircle(0.0715).sqrt(), Semicircle(0.118))",
    # a kernel beside a density at zero
    "free_mul(ProductLaw((2.0, 2.0, 2.0), 0.0304).sqrt(), FiniteHeadLaw(1.14, 32, 171, True).sqrt())",
    # tails: bounds are those of the atoms represented
    "free_mul(EmpiricalLaw([0.03, -0.02]), PoissonLaw(2.09))",
    "free_add(PoissonLaw(0.233).sqrt(), EmpiricalLaw([-3.23, 0.0, -6.46], [0.369, 0.187, 0.267]))",
    # a wide and a narrow law: the edges of the sum are those of the wide one but for 1e-9
    "rectangular_add(EmpiricalLaw([0.03626]), AttentionLaw(0.844, 19.0), 0.0333)",
    "free_add(ProductLaw((0.0144, 9.88), 521.0), MarchenkoPastur(0.0223).squared())",
    # a gap in which the Cauchy transform vanishes: the variable of the narrow law passes through infinity
    "free_add(EmpiricalLaw([33.8, 74.3, 1042.0], [0.34, 0.015, 0.645]), FussCatalan(2, 0.506))",
    # a narrow law moves the variable so close to the edge of a wide one that Newton's method steps over both
    "free_add(AttentionLaw(0.776, 0.4), AttentionLaw(0.16, 1.06))",
    "free_add(MarchenkoPastur(0.5, 1.0).sqrt(), EmpiricalLaw([0.0315, -0.0105, 0.0], [0.03, 0.755, 0.0518]).squared())",
    "free_add(EmpiricalLaw([0.397, 0.242, 0.381, 0.124]), FussCatalan(1, 1.0).squared())",
    # one that moves it so little that the height of the variable is lost in its rounding, also beside an island
    "free_add(Semicircle(1.0).scaled(-0.012), ProductLaw((12.4, 0.5, 0.0689), 20.9).squared())",
    "free_add(MarchenkoPastur(2.29, 0.0117), MarchenkoPastur(13.5, 6.04).squared())",
    # products of a signed law that end at zero on one side; of a negative one; and of one with its kernel beside zero
    "free_mul(EmpiricalLaw([0.37074, -0.103874, -0.19372, 2.37474]), FussCatalan(2, 0.527))",
    "free_mul(EmpiricalLaw([-1.0, 1.0], [0.59, 0.768]), FussCatalan(4, 0.158))",
    "free_mul(FussCatalan(2, 0.0344), EmpiricalLaw([-0.02968, -0.033488]))",
    "free_mul(SumLaw((4.43, 0.0751), (0.0156, 0.0633)), ProductLaw((1.0, 2.0, 6.58), 1.0))",
    # a product that is that of one law but for a factor close to zero: variables are real there but for a fraction
    "free_mul(QuarterCircle(1.0), ProductLaw((1.0, 0.0528), 26.1))",
    # equal kernels, at which the Cauchy transform is infinite
    "free_mul(ProductLaw((2.0, 1.0, 2.75), 6.77), ProductLaw((0.5, 2.0, 0.5), 1.11).squared())",
    # a bulk much longer than the height of the points at which its density is compared
    "free_mul(EmpiricalLaw([6.1, -24.8, 97.4, -70.5], [0.2, 0.8, 0.9, 0.3]), ProductLaw((13.4, 0.0315)).squared())",
    # a reference that goes round within rounding errors
    "free_mul(FiniteHeadLaw(0.212, 8, 2730, True).squared(), SumLaw((1.85, 0.501, 0.13), (inf, 1.0, 1.27)))",
    # dozens of islands, each of which costs little
    "free_add(PoissonLaw(9.33), QuarterCircle(1.0))",
    slow("rectangular_add(QuarterCircle(1.0).sqrt(), PoissonLaw(2.85).sqrt(), 0.749)"),
    # islands narrower than 1e-4 of x, and an edge found beyond a gap that no point had shown
    "free_add(PoissonLaw(0.172).sqrt(), FiniteHeadLaw(0.418, 128, 262, True).squared())",
    "free_add(EmpiricalLaw([-8213.867, -3181.093, -493.7816]), FiniteHeadLaw(0.197, 64, 529, True))",
    # densities that start slowly, so that nothing is proved next to the edge, at zero and elsewhere
    "free_mul(EmpiricalLaw([0.214, 2.03, 0.57]).sqrt(), QuarterCircle(5.15).sqrt())",
    # products whose density at zero follows a power with logarithms beside it, down to 1e-160
    "free_mul(FussCatalan(4, 0.0148).squared(), QuarterCircle(1.0))",
    "free_add(EmpiricalLaw([6.1696, 37.888]), CorrelatedAttentionLaw(0.197, 1.58, MarchenkoPastur(2.0)).squared())",
    # edges next to those of a wide law, dozens of them
    "free_add(QuarterCircle(22.7).scaled(0.0214), PoissonLaw(1.12).squared())",
    slow("rectangular_add(FiniteHeadLaw(1.05, 8, 2380, True).squared(), FussCatalan(1, 0.222), 0.0291)"),
    # a hard edge moved away from zero, with nearly all mass next to it
    "free_add(EmpiricalLaw([0.169404]), CorrelatedAttentionLaw(0.147, 15.1, MarchenkoPastur(19.2)))",
    # islands of a mass of 1e-11 so far out that they have a share of 1e-8 of the second moment
    "rectangular_add(PoissonLaw(0.251).squared(), FussCatalan(2, 1.22).sqrt(), 0.0966)",
    # an image asks for the density closer to an edge than it can be proved
    (
        "rectangular_add(EmpiricalLaw([0.1002, -0.0668, 0.0, -0.0334, 0.0334]).squared(), "
        "SumLaw((4.84, 0.159), (inf, 0.0538)).squared(), 0.213)"
    ),
    # variables larger than x by ten orders, so that a step in x must be shorter than they suggest
    "free_mul(FiniteHeadLaw(0.173, 8, 550, True), QuarterCircle(0.0146).sqrt())",
    "free_mul(PoissonLaw(8.94), FiniteHeadLaw(0.796, 128, 2620, True).squared())",
    # the kind of an edge that cannot be seen from as close as was asked for
    "rectangular_add(FussCatalan(1, 0.358).squared(), PoissonLaw(1.15).sqrt(), 0.0275)",
    slow("rectangular_add(PoissonLaw(6.03), PoissonLaw(0.126), 0.131)"),
    # hundreds of panels, of which each point sees few
    "free_mul(free_add(PoissonLaw(0.707).scaled(-13.5), PoissonLaw(6.12)), PoissonLaw(6.31).squared())",
    # a kernel at zero, not at a rounding error from it
    "free_mul(FussCatalan(2, 0.407).squared(), SumLaw((0.308, 0.0721), (0.5, 0.337)).scaled(-0.289))",
    # islands of less mass than counts, far out, beside a law that is wider in numbers but not relative to its mean
    "free_mul(PoissonLaw(0.251).squared(), ProductLaw((0.5, 4.17), 5.89).sqrt())",
    # next to zero a coordinate about infinity has no digits of the variable, and took bulk for a gap
    (
        "free_mul(free_add(ProductLaw((0.0641, 18.7, 1.67), 1.0), "
        "CorrelatedAttentionLaw(0.546, 0.646, MarchenkoPastur(8.41))), QuarterCircle(10.2))"
    ),
    # on one side of zero the bulk starts at 1e-20 of its length, on the other at zero
    (
        "free_mul(EmpiricalLaw([0.0234, 0.0117, -0.0117, 0.0351, -0.0234], [0.5333, 0.0375, 0.0374, 0.0642, 0.584]), "
        "AttentionLaw(0.1, 1.0).squared())"
    ),
)

LONGER = (
    # the descent to the axis in bold strides alone loses its way
    "rectangular_add(EmpiricalLaw([0.653, 6.39, 0.338, 5.21, 3.27]), FussCatalan(2, 1.0), 1.0)",
    # a gap next to zero, in which the sign of 1 + psi is that of its rounding
    (
        "rectangular_add(EmpiricalLaw([0.0, 0.003586, 0.026549, 0.002863, 0.044619, 0.00827, 0.039754, 0.02919], "
        "[0.0449, 0.809, 0.0361, 0.218, 0.386, 0.0689, 0.108, 0.269]), ProductLaw((2.33, 1.0), 0.298), 0.0468)"
    ),
    # a coordinate about infinity again: next to zero, far from a negative law
    "free_mul(free_add(EmpiricalLaw([-5.2561992]), QuarterCircle(1.0)), QuarterCircle(0.266).sqrt())",
    # one side of zero again, with a stronger singularity
    (
        "free_mul(free_mul(FussCatalan(4, 0.121), FiniteHeadLaw(0.55, 32, 3110, True).squared()), "
        "EmpiricalLaw([-4.2, -4.72, 0.75, -0.561]))"
    ),
    # an operand with islands down to 1e-20, so that the sum has a gap from 1e-22 to 1e-18
    (
        "rectangular_add(free_mul(AttentionLaw(0.111, 0.446).squared(), FussCatalan(3, 0.0231)), "
        "ProductLaw((2.0, 0.658), 0.0222).sqrt(), 1.0)"
    ),
)

FINER = (
    # a density that starts slowly, so that nothing is proved next to its edge
    "free_add(QuarterCircle(1.0).sqrt(), AttentionLaw(0.121, 3.78))",
    # islands beside atoms, closer to the atom than numbers of its size are to each other
    slow("free_add(FiniteHeadLaw(0.193, 64, 6390, True).squared(), PoissonLaw(1.33).squared())"),
    "free_add(PoissonLaw(0.122), FiniteHeadLaw(0.248, 8, 547, True).squared())",
    "free_add(SumLaw((0.162,), (0.288,)).scaled(0.0488), PoissonLaw(4.57))",
    # islands beside zero of laws that both have a density
    "free_add(FiniteHeadLaw(0.204, 8, 6840, True), ProductLaw((0.0959, 16.2, 2.26), 1.0))",
    # the variable passes through infinity next to an edge
    "free_add(PoissonLaw(9.04).squared(), ProductLaw((2.0, 0.106, 15.6), 0.0143))",
    slow("rectangular_add(PoissonLaw(9.39).squared(), SumLaw((0.115,), (1.0,)).squared(), 0.0346)"),
    # light islands far out of an operand
    slow(
        "free_add(free_add(SumLaw((1.67, 0.117), (0.5, 0.5)).scaled(0.015), PoissonLaw(0.365).squared()), "
        "FiniteHeadLaw(0.139, 32, 1410, True).squared())"
    ),
    # a density that diverges like a logarithm in the bulk of a signed product, where the variable is real but for 1e-12
    slow(
        "free_mul(free_mul(FiniteHeadLaw(1.47, 64, 3470, True).sqrt(), Semicircle(6.37)), "
        "EmpiricalLaw([34.5332, 325.18, 103.508, -143.812, 15.6636, -393.88, 42.2734]).squared())"
    ),
)
"""Laws with structure finer than double precision, which are refused in words."""


def tree_of(text):
    """The composition that a text of a reproduction stands for: two operands, and a ratio for rectangular sums."""
    built = {}

    def remember(operation):
        def build(left, right, *ratio):
            operands = tuple(Composition(repr(law), lambda law=law: law, law.lower_edge >= 0) for law in (left, right))
            law = getattr(be, operation)(left, right, *ratio)
            built["tree"] = Composition(text, lambda: law, law.lower_edge >= 0, operation, operands, *ratio)
            return law

        return build

    names = vars(laws) | {operation: remember(operation) for operation in OPERATIONS} | {"inf": np.inf}
    eval(text, names)  # noqa: S307  # the texts above
    return built["tree"]


@pytest.mark.parametrize("text", [*REPRODUCTIONS, *(pytest.param(text, marks=pytest.mark.slow) for text in LONGER)])
def test_compositions_that_once_failed(text):
    assert faults(tree_of(text)) == []


@pytest.mark.parametrize("text", FINER)
def test_structure_below_double_precision_is_refused_in_words(text):
    """Never a wrong number, and always with what to do about it."""
    with pytest.raises(UnresolvedError, match="move the parameters a little, or replace a law"):
        _ = tree_of(text).law.support


AT_ZERO = {
    # pairs of laws, and the exponent of their product's density at zero: 1/(a + b - 1) - 1 with a = 1/(1 + exponent)
    # for a law whose density diverges at zero, and a = 1 for any other
    "3/2 and 2": (lambda: (be.FussCatalan(2).sqrt(), be.MarchenkoPastur(1.0)), -3 / 5),
    "3/2 and 3/2": (lambda: (be.FussCatalan(2).sqrt(), be.FussCatalan(2).sqrt()), -1 / 2),
    "3/2 and 1": (lambda: (be.FussCatalan(2).sqrt(), be.EmpiricalLaw([1.0, 2.0])), -1 / 3),
    "4 and 3/2": (lambda: (be.MarchenkoPastur(1.0).squared(), be.FussCatalan(2).sqrt()), -7 / 9),
    "2 and 1": (lambda: (be.AttentionLaw(1.0, 0.5), be.QuarterCircle()), -1 / 2),
    "2 and 1, scaled": (lambda: (be.AttentionLaw(1.0, 0.5).scaled(0.02), be.QuarterCircle(50.0)), -1 / 2),
    "3 and a kernel": (lambda: (be.FussCatalan(2).scaled(3.0), be.EmpiricalLaw([0.0, 1.0])), None),
    "two equal kernels": (lambda: (be.EmpiricalLaw([0.0, 2.0]), be.EmpiricalLaw([0.0, 0.3])), -1 / 2),
    "signed and 2": (lambda: (be.Semicircle(), be.MarchenkoPastur(1.0)), -1 / 2),
    "signed and 3": (lambda: (be.Semicircle(0.1), be.FussCatalan(2)), -2 / 3),
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_the_exponent_of_a_product_at_zero(name):
    """The exponent that the edge declares is the slope of the logarithm of the density, measured at small x."""
    factory, exponent = AT_ZERO[name]
    law = be.free_mul(*factory())
    edges = [edge for pair in law.continuum.intervals for edge in pair if edge.location == 0]
    if exponent is None:
        assert not edges
        return
    assert [edge.exponent for edge in edges] == pytest.approx([exponent] * len(edges))
    assert edges
    x = law.edge * np.array([1e-14, 1e-16])
    slope = np.diff(np.log(law.pdf(x)))[0] / np.diff(np.log(x))[0]
    # the next term of the series is smaller by a root of x, of order nine at most
    assert slope == pytest.approx(exponent, abs=0.05)


@pytest.mark.parametrize("operation", [be.free_add, be.free_mul, lambda mu, nu: be.rectangular_add(mu, nu, 0.5)])
@pytest.mark.parametrize("image", [lambda law: law, lambda law: law.scaled(3.0), lambda law: law.sqrt()])
def test_laws_with_heavy_tails_are_refused(operation, image):
    """Before any warning: warnings are errors here."""
    for other in (be.QuarterCircle(), be.EmpiricalLaw([1.0, 2.0]), be.MarchenkoPastur(0.5)):
        with pytest.raises(DomainError, match="EmpiricalLaw"):
            operation(image(be.CausalLaw(1.0)), other)
        with pytest.raises(DomainError, match="EmpiricalLaw"):
            operation(other, image(be.CausalLaw(1.0)))


def test_a_law_that_takes_too_much_work_says_so():
    """Beta, dimension and tokens at which the bulk falls into dozens of intervals over thirty decades."""
    with pytest.raises(UnresolvedError, match="move the parameters"):
        _ = be.FiniteHeadLaw(3.74, 45, 10_597_027).support


@pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_products_of_few_atoms(count):
    """Pairs of two or three atoms of either sign."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        values = [
            rng.uniform(-3, 3, rng.integers(2, 4)).round(3).tolist(),
            rng.uniform(0, 3, rng.integers(2, 4)).tolist(),
        ]
        one, two = (be.EmpiricalLaw(each, rng.integers(1, 9, len(each))) for each in values)
        law = be.free_mul(one, two)
        assert law.mean() == pytest.approx(one.mean() * two.mean(), abs=1e-9)
        variance = one.var() * two.mean() ** 2 + two.var() * one.mean() ** 2
        assert law.var() == pytest.approx(variance, rel=1e-9)
