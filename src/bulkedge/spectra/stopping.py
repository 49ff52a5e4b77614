"""When an iteration stops: rules to combine with ``|`` (either) and ``&`` (both)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bulkedge.support.domains import Integers, Interval

ACCURACY = Interval(1e-6, 1, "[)")
SHARE = Interval(0, 1)


@dataclass(frozen=True)
class IterationState:
    """Where an iteration stands."""

    steps: int  # steps made
    columns: int  # vectors that were multiplied, by the operator and by its transpose
    seconds: float  # time since the start
    errors: tuple[float, ...]  # stated error at this checkpoint and those before it, the last one last
    # share of the values that are told apart. The others are too close to zero for so many steps: their number is
    # known, and not where they are
    placed: float = 1.0


@dataclass(frozen=True)
class Rule:
    """A function of a :class:`IterationState` that says whether to stop."""

    holds: Callable[[IterationState], bool] = field(repr=False)

    def __call__(self, checkpoint: IterationState) -> bool:
        """Whether to stop."""
        return self.holds(checkpoint)

    def __or__(self, other: Rule) -> Rule:
        return Rule(lambda checkpoint: self(checkpoint) or other(checkpoint))

    def __and__(self, other: Rule) -> Rule:
        return Rule(lambda checkpoint: self(checkpoint) and other(checkpoint))


def Reached(tolerance: float, times: int = 2) -> Rule:  # noqa: N802  # a rule is named as a thing
    """Stop when the stated error was at most ``tolerance`` at several checkpoints in a row: one may be luck.

    Parameters
    ----------
    tolerance : float
        Largest error.
    times : int
        How many checkpoints.

    Returns
    -------
    Rule
        To be given as ``stop``, alone or joined.

    Examples
    --------
    >>> Reached(0.01) | MostSteps(100)
    Rule()
    """
    tolerance, times = ACCURACY.check("tolerance", tolerance), Integers(1, 100).check("times", times)
    return Rule(
        lambda checkpoint: (
            len(checkpoint.errors) >= times and all(error <= tolerance for error in checkpoint.errors[-times:])
        )
    )


def Placed(share: float) -> Rule:  # noqa: N802
    """Stop when at least this share of the values is placed; combine it with ``Reached`` to meet a tolerance too.

    Steps lower the value below which nothing is told apart: s of them resolve values down to about ``pi/(2 s)`` of the
    largest that is not known by itself.

    Parameters
    ----------
    share : float
        Of the values, from 0 to 1.

    Returns
    -------
    Rule
        To be given as ``stop``, alone or joined.

    Examples
    --------
    >>> rule = Reached(0.01) & Placed(0.7) | MostSteps(160)
    >>> rule(IterationState(steps=44, columns=1408, seconds=1.0, errors=(0.007, 0.006), placed=0.51))
    False
    >>> rule(IterationState(steps=86, columns=2752, seconds=2.7, errors=(0.007, 0.006), placed=0.72))
    True
    """
    share = SHARE.check("share", share)
    return Rule(lambda checkpoint: checkpoint.placed >= share)


def MostSteps(steps: int) -> Rule:  # noqa: N802
    """Stop after this many steps.

    Parameters
    ----------
    steps : int
        Most steps.

    Returns
    -------
    Rule
        To be given as ``stop``, alone or joined.

    Examples
    --------
    >>> MostSteps(40)
    Rule()
    """
    steps = Integers(1, 10**6).check("steps", steps)
    return Rule(lambda checkpoint: checkpoint.steps >= steps)


def MostSeconds(seconds: float) -> Rule:  # noqa: N802
    """Stop at the first checkpoint after this many seconds; results then depend on the machine.

    Parameters
    ----------
    seconds : float
        Most time.

    Returns
    -------
    Rule
        To be given as ``stop``, alone or joined.

    Examples
    --------
    >>> MostSeconds(1.0)
    Rule()
    """
    seconds = Interval(0, 1e9).check("seconds", seconds)
    return Rule(lambda checkpoint: checkpoint.seconds >= seconds)
