"""What a law may cost, counted and not timed, so that results do not depend on the machine; and how it is refused."""

from __future__ import annotations

from dataclasses import dataclass

from bulkedge.laws.engine.measure.panels import REMEDY
from bulkedge.laws.engine.subordination.fixed_point import BranchError
from bulkedge.laws.engine.subordination.newton import Step
from bulkedge.laws.engine.subordination.problem import Problem
from bulkedge.support.arrays import Complex, Real
from bulkedge.support.errors import UnresolvedError

MOST_WORK = 9.0
"""Units of :meth:`Problem.work` that a law may cost: two thirds of a second each."""


@dataclass
class Account:
    """The work spent on a law so far, by all problems that belong to it.

    Attributes
    ----------
    spent : float
        Units of :meth:`Problem.work`.
    most : float
        Units that may be spent.
    """

    spent: float = 0.0
    most: float = MOST_WORK

    def settle(self) -> None:
        """Leave some work for images of the law, once its bulk is known: they ask for its density at other points."""
        self.most = max(MOST_WORK, self.spent + MOST_WORK / 3)

    def metered(self, operation: Problem) -> Step:
        """The self-map of a problem, which raises when more work has been done than a law may cost."""

        def step(u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
            self.spent += operation.work(len(z))
            if self.spent > self.most:
                raise UnresolvedError(f"{operation!r}: its bulk takes more work than {MOST_WORK:g} units; {REMEDY}")
            return operation.step(u, z)

        return step


def unresolved(operation: Problem, what: str, x: Real) -> BranchError:
    """The error to raise: what was being resolved, and what can be done about it."""
    return BranchError(f"{operation!r}: {what}", x)
