"""freealg's own distributions: density with its default offset ``eta`` and with the most accurate, ``eta=0``.

The third variant is the route that made no branch error in any test here: ``AlgebraicForm(law)``, fitted to the degrees
of the law's polynomial, as in the docstring of ``AlgebraicForm.density``. It compiles for some 15 s at the first call,
which is not counted.
"""

import os

os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
from freealg import AlgebraicForm
from freealg.distributions import DeformedMarchenkoPastur, FreeLevy, FussCatalan
from worker import serve

np.seterr(all="ignore")

LAWS = {
    "SC+MP(1/2)": (lambda: FreeLevy(t=[0.5], w=[1.0], lam=2.0, a=0.0, sigma=1.0), "FreeLevy", (3, 1)),
    "atoms*MP(1/2)": (
        lambda: DeformedMarchenkoPastur(t=[1.0, 5.0], w=[0.5, 0.5], c=0.5),
        "DeformedMarchenkoPastur",
        (3, 2),
    ),
    "FC(2)": (lambda: FussCatalan(p=2), "FussCatalan", (3, 2)),
    "FC(3)": (lambda: FussCatalan(p=3), "FussCatalan", (4, 3)),
}


def fitted(build, degrees):
    form = AlgebraicForm(build())
    form.fit(deg_m=degrees[0], deg_z=degrees[1])
    return form


tasks = []
for case, (build, name, degrees) in LAWS.items():
    tasks += [
        (case, "default", build, lambda law, x: law.density(np.array(x)), f"{name}.density(x)"),
        (case, "eta=0", build, lambda law, x: law.density(np.array(x), eta=0.0), f"{name}.density(x, eta=0)"),
        (
            case,
            "AlgebraicForm",
            lambda build=build, degrees=degrees: fitted(build, degrees),
            lambda law, x: law.density(np.array(x)),
            f"AlgebraicForm({name}).fit{degrees}.density(x)",
        ),
    ]
serve(tasks)
