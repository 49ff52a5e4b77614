"""How laws, and products of laws, meet zero."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from bulkedge.laws.engine.measure.edges import Edge

if TYPE_CHECKING:
    from bulkedge.laws.law import Law


class Root(NamedTuple):
    """How a law meets zero: ``y = s**(power/lead)`` times a series in ``s**(1/lead)``, s what ``y G(y)`` gains there.

    With a density ``x**exponent g(x**(1/power))`` at zero, ``y G(y)`` less its value at zero is a series in
    ``y**(1/power)`` that starts with the smaller of ``power (exponent + 1)`` and ``power``.
    """

    power: int
    lead: int
    exponent: float | None

    @classmethod
    def of(cls, law: Law) -> Root:
        """Read it off the edges of the law."""
        edges = [edge for pair in (law.continuum.intervals if law.continuum else ()) for edge in pair]
        edge = min((each for each in edges if each.location == 0), key=lambda each: each.exponent, default=None)
        if edge is None:
            return cls(1, 1, None)
        power = max(each.order for each in edges if each.location == 0)
        return cls(power, min(round(power * (edge.exponent + 1)), power), edge.exponent)


def product_at_zero(mu: Law, nu: Law) -> Edge | None:
    """The edge at zero of a free product, where its density is not analytic there; None where it is, or vanishes.

    With ``s = 1 + psi`` less the mass of the product at zero, each ``y`` is a power series in a root of s
    (:class:`Root`) if its law has as much mass at zero as the product, and elsewhere analytic. Their product gives
    ``x = y_1 y_2 psi/(1 + psi)``, in which ``1 + psi`` is s if there is no mass at zero. So ``x = s**total`` times a
    series in ``s**(1/root)``, and the density ``-Im s/(pi x)``.
    """
    kernels = [dict(law.atoms).get(0.0, 0.0) for law in (mu, nu)]
    roots = [Root.of(law) for law, kernel in zip((mu, nu), kernels, strict=True) if kernel == max(kernels)]
    root = lcm(*(each.lead for each in roots))
    order = sum(root * each.power // each.lead for each in roots) - (root if max(kernels) == 0 else 0)
    if order > root:
        # in the bulk of a law that reaches below zero the series are not real
        even = (root, order) == (1, 2) and min(extent(mu)[0], extent(nu)[0]) >= 0
        return Edge(0.0, root / order - 1, order, even=even)
    # s is x to leading order, which is real: the density is that of the laws
    exponents = [each.exponent for each in roots if each.exponent is not None]
    if exponents and any(low < 0 < high for law in (mu, nu) for low, high in law.support):
        exponents.append(0.0)
    return Edge(0.0, min(exponents), root) if exponents else None


def extent(law: Law) -> tuple[float, float]:
    """The leftmost and the rightmost point that a law is represented at: finite for laws with tails too."""
    ends = [end for interval in law.support for end in interval] + [place for place, _ in law.atoms]
    return min(ends), max(ends)


def reach(law: Law) -> float:
    """How close to zero a law has an edge or an atom, other than there, as a fraction of the largest."""
    places = [abs(end) for interval in law.support for end in interval] + [abs(place) for place, _ in law.atoms]
    away = [place for place in places if place > 0]
    return min(away) / max(away) if away else 1.0
