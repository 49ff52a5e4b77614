"""rmtool, as its README does it: the polynomial L(m, z) by its free-convolution operations, then ``Lmz2pdf(L, grid)``.

Up to degree three in m it isolates the root itself; above that ``best_density()`` is documented as a heuristic and the
user is told to choose. The time is the whole ``Lmz2pdf`` call, as a user pays it: some SymPy, then ``numpy.roots`` per
point.
"""

import numpy as np
from rmtool import AplusB, AtimesB, AtimesWish, Lmz2pdf, atomLmz, wignerpol, wishartpol
from worker import serve


def density(law, points):
    return Lmz2pdf(law, np.array(points)).best_density()


def fuss_catalan(order):
    law = wishartpol(1)
    for _ in range(order - 1):
        law = AtimesB(law, wishartpol(1))
    return law


serve(
    [
        (
            "SC+MP(1/2)",
            "",
            lambda: AplusB(wignerpol(), wishartpol(0.5)),
            density,
            "AplusB(wignerpol(), wishartpol(0.5))",
        ),
        (
            "atoms*MP(1/2)",
            "",
            lambda: AtimesWish(atomLmz([1, 5], [0.5, 0.5]), 0.5),
            density,
            "AtimesWish(atomLmz(...), 0.5)",
        ),
        ("FC(2)", "", lambda: fuss_catalan(2), density, "AtimesB(wishartpol(1), wishartpol(1))"),
        ("FC(3)", "", lambda: fuss_catalan(3), density, "AtimesB(AtimesB(...), wishartpol(1))"),
    ]
)
