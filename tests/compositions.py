"""Random compositions of laws, and what their free convolutions must be, computed by code of its own.

A composition is a tree: laws of the package at its leaves, images (multiples, squares, square roots) above them, and
``free_add``, ``free_mul`` and ``rectangular_add`` at its inner nodes. Sizes are those that people have: ratios from
0.01 to 20, scales from 0.01 to 100, one to eight atoms.

The reference solves the subordination equations at points off the axis by plain damped iteration. It sees of each
operand nothing but its public Cauchy transform.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.special import expit

import bulkedge as be

Cauchy = Callable[[np.ndarray], np.ndarray]

OPERATIONS = ("free_add", "free_mul", "rectangular_add")


# -- drawing -----------------------------------------------------------------------------------------------------------


@dataclass
class Composition:
    """A recipe: its text, and the law that it makes, which is made when it is asked for.

    Attributes
    ----------
    text : str
        Python code for the law, with the names of ``bulkedge``.
    build : callable
        Makes the law.
    positive : bool
        Whether the law lives on the positive half-line; known without making it.
    operation, operands, ratio
        How it was composed; a leaf has no operands.
    """

    text: str
    build: Callable[[], be.Law]
    positive: bool
    operation: str = "leaf"
    operands: tuple["Composition", ...] = ()
    ratio: float = 1.0

    @cached_property
    def law(self) -> be.Law:
        """The law."""
        return self.build()

    def nodes(self):
        """All operations of the tree, the inner ones first."""
        for operand in self.operands:
            yield from operand.nodes()
        if self.operation != "leaf":
            yield self


def spread(rng, low, high, digits=3):
    """A number between two positive ones, uniform in its logarithm, of few digits so that it can be typed again."""
    return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.{digits}g}")


def ratio_of(rng):
    """An aspect ratio: mostly anything, often one of the special ones."""
    return float(rng.choice([0.5, 1.0, 2.0])) if rng.random() < 0.3 else spread(rng, 0.01, 20)


def scale_of(rng):
    """A scale: often one, else anything."""
    return 1.0 if rng.random() < 0.3 else spread(rng, 0.01, 100)


def called(family, *arguments, positive=True):
    """The recipe that calls a family of laws with the given arguments; laws among them are recipes too."""
    texts = [each.text if isinstance(each, Composition) else repr(each) for each in arguments]
    text = f"{family.__name__}({', '.join(texts)})".replace("inf", "float('inf')")

    def build():
        return family(*(each.law if isinstance(each, Composition) else each for each in arguments))

    return Composition(text, build, positive)


def _atoms(rng):
    count, kind = int(rng.integers(1, 9)), rng.choice(["positive", "signed", "kernel", "integers"])
    if kind == "integers":
        values = rng.integers(-2, 4, count).astype(float)
    else:
        values = np.array([spread(rng, 0.1, 10) for _ in range(count)])
        values *= rng.choice([-1.0, 1.0], count) if kind == "signed" else 1.0
        values[0] = 0.0 if kind == "kernel" else values[0]
    weights = None if rng.random() < 0.5 else [spread(rng, 0.02, 1) for _ in range(count)]
    values = (values * scale_of(rng)).round(6).tolist()
    return called(be.EmpiricalLaw, values, weights, positive=min(values) >= 0)


def _sum_law(rng):
    count = int(rng.integers(1, 4))
    variances = tuple(spread(rng, 0.05, 5) for _ in range(count))
    ratios = tuple(float("inf") if rng.random() < 0.3 else ratio_of(rng) for _ in range(count))
    return called(be.SumLaw, variances, ratios, positive=False)


def _product(rng):
    return called(be.ProductLaw, tuple(ratio_of(rng) for _ in range(int(rng.integers(2, 4)))), scale_of(rng))


def _independent(rng):
    return called(be.IndependentProduct, *(called(be.FussCatalan, int(rng.integers(1, 4))) for _ in range(2)))


def _finite_head(rng):
    dim, tokens = int(rng.choice([8, 32, 64, 128])), int(spread(rng, 128, 8192))
    qk_norm = True  # without, it takes a second to build; it has checks of its own
    return called(be.FiniteHeadLaw, spread(rng, 0.1, 2), dim, tokens, qk_norm)


def _correlated(rng):
    gram = called(be.MarchenkoPastur, ratio_of(rng))
    return called(be.CorrelatedAttentionLaw, spread(rng, 0.1, 1.5), ratio_of(rng), gram)


def _profile(rng):
    rows, columns = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    return called(be.ProfileLaw, tuple(tuple(spread(rng, 0.2, 5) for _ in range(columns)) for _ in range(rows)))


LEAVES = {
    "Semicircle": (4, lambda rng: called(be.Semicircle, scale_of(rng), positive=False)),
    "QuarterCircle": (4, lambda rng: called(be.QuarterCircle, scale_of(rng))),
    "MarchenkoPastur": (4, lambda rng: called(be.MarchenkoPastur, ratio_of(rng), scale_of(rng))),
    "ProductLaw": (4, _product),
    "FussCatalan": (4, lambda rng: called(be.FussCatalan, int(rng.integers(1, 5)), scale_of(rng))),
    "IndependentProduct": (1, _independent),
    "SumLaw": (4, _sum_law),
    "AttentionLaw": (4, lambda rng: called(be.AttentionLaw, spread(rng, 0.1, 2.5), ratio_of(rng))),
    "FiniteHeadLaw": (3, _finite_head),
    "CorrelatedAttentionLaw": (1, _correlated),
    "ProfileLaw": (2, _profile),
    "PoissonLaw": (2, lambda rng: called(be.PoissonLaw, spread(rng, 0.1, 10))),
    "EmpiricalLaw": (9, _atoms),
}
"""Every law that convolves, with the weight at which it is drawn, and how."""


def leaf(rng):
    """A law of the package, or an image of one."""
    names, weights = list(LEAVES), np.array([weight for weight, _ in LEAVES.values()], dtype=float)
    drawn = LEAVES[str(rng.choice(names, p=weights / weights.sum()))][1](rng)
    return image(rng, drawn) if rng.random() < 0.35 else drawn


def image(rng, original):
    """A multiple, the square or the square root of a law."""
    kind = str(rng.choice(["scaled", "squared", "sqrt"] if original.positive else ["scaled", "squared"]))
    factors = [spread(rng, 0.01, 100) * (-1 if rng.random() < 0.2 else 1)] if kind == "scaled" else []
    text = f"{original.text}.{kind}({', '.join(map(repr, factors))})"
    positive = kind == "squared" or (original.positive and (not factors or factors[0] > 0))
    return Composition(text, lambda: getattr(original.law, kind)(*factors), positive)


def composed(rng, operation, left, right):
    """An operation on two compositions; None where it is not defined for them."""
    both, either = left.positive and right.positive, left.positive or right.positive
    if (operation == "free_mul" and not either) or (operation == "rectangular_add" and not both):
        return None
    ratios = []
    if operation == "rectangular_add":
        ratios = [1.0 if rng.random() < 0.2 else spread(rng, 0.02, 1)]
    text = f"{operation}({', '.join([left.text, right.text, *map(repr, ratios)])})"

    def build():
        return getattr(be, operation)(left.law, right.law, *ratios)

    return Composition(text, build, both, operation, (left, right), *ratios)


def exclusion(tree):
    """Why nothing is demanded of a composition, or None."""
    if "IndependentProduct" in tree.text:
        return "IndependentProduct: its density ends like the square of the distance, an edge that is not resolved"
    return None


def composition(rng):
    """A pair (three times in four) or a triple of laws under random operations that are defined for them."""
    tree = leaf(rng)
    for _ in range(2 if rng.random() < 0.25 else 1):
        larger = None
        while larger is None:
            larger = composed(rng, str(rng.choice(OPERATIONS, p=[0.4, 0.4, 0.2])), tree, leaf(rng))
        tree = larger
    return tree


# -- the reference: subordination equations by damped iteration --------------------------------------------------------


class NotSettledError(Exception):
    """The reference itself did not converge: nothing can be said."""


MOST, TOLERANCE, ROUNDING, PATIENCE = 20_000, 1e-13, 1e-11, 100
"""Iterations; relative lengths of steps that count as none, and that may be rounding; how long before they are."""


def iterated(step, start):
    """Iterate ``u -> (u + step(u))/2`` until it stands still.

    Where ``1 - v/G(1/v)`` is small, its rounding error is larger than the tolerance, and u goes round and round at that
    distance. While an iteration converges, however slowly, every step is shorter than all before; so if none has been
    for a while, and steps are as short as rounding, what is left is rounding.
    """
    u, shortest, since = start, np.inf, 0
    for _ in range(MOST):
        following = (u + step(u)) / 2
        length = np.max(np.abs(following - u) / np.abs(u))
        since = 0 if length < shortest else since + 1
        shortest, u = min(length, shortest), following
        if length <= TOLERANCE or (shortest <= ROUNDING and since >= PATIENCE):
            return u
    raise NotSettledError


def added(first: Cauchy, second: Cauchy, z):
    """Cauchy transform of the free sum: ``w_1 + w_2 = z + 1/G`` and ``G = G_1(w_1) = G_2(w_2)``."""

    def step(w):
        partner = z + 1 / first(w) - w
        return z + 1 / second(partner) - partner

    return first(iterated(step, z + 0j))


def multiplied(first: Cauchy, second: Cauchy, z):
    """Cauchy transform of the free product: ``eta = eta_1(v_1) = eta_2(v_2)`` with ``v_1 v_2 = eta/z``.

    Here ``eta(v) = 1 - v/G(1/v)``; the second law is positive.
    """

    def eta(cauchy, v):
        return 1 - v / cauchy(1 / v)

    def step(v):
        partner = eta(first, v) / (z * v)
        return eta(second, partner) / (z * partner)

    return 1 / (z * (1 - eta(first, iterated(step, 1 / z))))


def rectangular(first: Cauchy, second: Cauchy, ratio, z):
    """Cauchy transform of the squared singular values of a sum, at z, from those of the squares of its terms.

    Sums with amalgamation over the diagonal matrices of two blocks: F is the inverse of the two diagonal blocks of the
    resolvent of the hermitised matrix, and ``w_1 + w_2 = sqrt(z) + F``.
    """
    root = np.sqrt(z)

    def blocks(cauchy, w):
        rows, columns = w
        g = cauchy(rows * columns)
        # n of the m columns carry the singular values, the others are empty
        return np.stack([columns * g, ratio * rows * g + (1 - ratio) / columns])

    def step(w):
        partner = root + 1 / blocks(first, w) - w
        return root + 1 / blocks(second, partner) - partner

    return blocks(first, iterated(step, np.stack([root, root])))[0] / root


def squares(cauchy: Cauchy) -> Cauchy:
    """Cauchy transform of ``x**2`` from that of x."""

    def transform(z):
        root = np.sqrt(z)
        return (cauchy(root) - cauchy(-root)) / (2 * root)

    return transform


def reference(node: Composition, z):
    """Cauchy transform of the node's law at points z off the axis; of its squared values for rectangular sums."""
    first, second = (operand.law.cauchy for operand in node.operands)
    if node.operation == "free_add":
        return added(first, second, z)
    if node.operation == "rectangular_add":
        return rectangular(squares(first), squares(second), node.ratio, z)
    if node.operands[1].law.lower_edge < 0:
        first, second = second, first
    return multiplied(first, second, z)


# -- what can be read off a law without its transforms -----------------------------------------------------------------


def double_exponential(step=0.06, reach=5.2):
    """Distances to the two ends of [0, 1] and weights of tanh-sinh quadrature: exact at algebraic singularities."""
    u = np.arange(-reach, reach + step / 2, step)
    arm = np.pi * np.sinh(u)
    left, right = expit(arm), expit(-arm)
    return left, right, step * np.pi * np.cosh(u) * left * right


def away_from(poles, cuts):
    """Finer cuts of a stretch of the line, so that quadrature between them is exact for integrands with these poles.

    Between two cuts the points are ``expit(pi sinh u)`` of the piece. A pole at a height of eta lengths above its
    middle lies at ``Im u = arcsin(2 arctan(2 eta)/pi)``, and steps of 0.06 in u miss ``exp(-2 pi Im u/0.06)`` of its
    residue: 1e-13 for eta = 1/4. Above an end, or beyond it, Im u is larger. So pieces are halved until they are at
    most four times as long as the nearest pole is far.
    """
    while len(poles):
        low, high = cuts[:-1, None], cuts[1:, None]
        beside = np.maximum(np.maximum(low - poles.real, poles.real - high), 0.0)
        long = (high - low)[:, 0] > 4 * np.hypot(beside, poles.imag).min(axis=1)
        if not long.any():
            break
        cuts = np.sort(np.concatenate([cuts, (low + high)[long, 0] / 2]))
    return cuts


def sample(law, poles=()):
    """Points and masses that stand for a law: its atoms, and its density by quadrature between its panels' ends.

    They integrate functions that are analytic but for poles off the axis, if those are given.
    """
    points, masses = [law.locations], [law.masses]
    left, right, weights = double_exponential()
    ends = np.array(law.support).ravel()
    breaks = law.continuum._breaks if law.support else np.zeros(0)
    for low, high in law.support:
        cuts = np.unique(np.concatenate([[low, high], breaks[(breaks > low) & (breaks < high)]]))
        for a, b in pairwise(away_from(np.asarray(poles), cuts)):
            x = np.where(left < 0.5, a + (b - a) * left, b - (b - a) * right)
            points.append(np.clip(x, ends[0], ends[-1]))
            masses.append((b - a) * weights * np.nan_to_num(law.pdf(x), posinf=0.0))
    return np.concatenate(points), np.concatenate(masses)
