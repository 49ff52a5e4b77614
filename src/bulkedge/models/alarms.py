"""What the readings of a run say in words: scores that run away, entropies that collapse, heads that died or jumped.

Let ``freezing = sqrt(2 log l)``, with ``l`` keys: rows of Gaussian scores that spread by more have most of their weight
on a few keys, whatever the values (the random energy model). A spread (``beta``) is

* ``hot`` (a note) beyond half of it: entropies begin to fall faster than ``beta**2/2``;
* ``frozen`` (a warning) beyond it: rows read single keys, and gradients of scores are nearly zero for all others;
* ``runaway`` (an alarm) where half of the heads of a layer are beyond :data:`BEYOND` times freezing, and the median
  grew from each of the last three readings to the next: no gradient of the softmax holds them back any more.

The residual, measured less predicted entropy, is what is not Gaussian in a head: sinks, copies, order. It *drifts* (an
alarm) where it changes between two readings by more than all changes before explain: those of the head, or of all heads
if these were larger, because a head that wakes up while others learn is no fault. They are taken as Gaussian of unknown
variance: the change over their root mean square is then at most Student's t, and the k-th test of each of n heads gets
the level ``rate * 6/(pi k)**2 / n``, which adds up to ``rate`` for a run of whatever length (Bonferroni).

Each kind is reported once for a head.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr
from scipy import stats

from bulkedge.arrays import Real
from bulkedge.propagation.trainability import freezing_beta

RATE = 0.01
"""Chance of a false alarm of a drift in a run."""
BEYOND = 3.0
"""Multiples of freezing beyond which growth is called a runaway."""
FIRST = 8
"""Changes of a residual that are needed before one is tested, and readings after which a head may be called dead."""
NOTABLE = 0.1
"""Nats; smaller changes of a residual are no alarm, however surely they are there."""
COLLAPSED = 0.1
"""Share of the uniform entropy below which all heads of a layer are when its entropy has collapsed."""
STILL, EVEN = 0.05, 1.5
"""Spread below which, and popularity over the uniform one up to which, a head is dead: it averages its values."""

Grade = Literal["note", "warning", "alarm"]
REMEDIES = {
    "hot": "watch it; nothing to do while the spread stands still",
    "frozen": "lower the learning rate, or the scale of the weights of queries and keys",
    "runaway": "QK-norm, or a smaller learning rate of queries and keys, from the start of the run",
    "collapse": "QK-norm, a smaller learning rate, or a longer warm-up",
    "dead": "a larger initial scale of queries and keys; prune the head if the loss does not mind",
    "drift": "look at first_mass and popular_mass: a sink is the usual reason, copied or repeated tokens the next",
    "not finite": "stop: lower the learning rate, clip gradients, or compute the scores in a wider type",
}


@dataclass(frozen=True)
class Alarm:
    """Something to know about a head.

    Attributes
    ----------
    step, layer : int
        Where it was seen first.
    head : int or None
        None if it is said of the whole layer.
    kind : str
        One of :data:`REMEDIES`.
    grade : {"note", "warning", "alarm"}
        How bad it is.
    numbers : dict of str to float
        What was compared.
    words : str
        The same as a sentence.
    remedy : str
        What helps.
    """

    step: int
    layer: int
    head: int | None
    kind: str
    grade: Grade
    numbers: Mapping[str, float]
    words: str
    remedy: str

    def __str__(self) -> str:
        """As it is printed in a log."""
        place = f"layer {self.layer}" if self.head is None else f"layer {self.layer}, head {self.head}"
        return f"step {self.step}, {place}: {self.kind} ({self.grade}). {self.words} Remedy: {self.remedy}."


def find_alarms(data: xr.Dataset) -> tuple[Alarm, ...]:
    """All alarms of a run.

    Parameters
    ----------
    data : xarray.Dataset
        Readings by step, layer and head, as :attr:`bulkedge.models.watching.Watch.data` has them; its attribute
        ``rate`` is the chance of a false drift.

    Returns
    -------
    tuple of Alarm
        In the order of steps. What is said of a step depends on no later one.
    """
    found = [*_heat(data), *_runaway(data), *_collapsed(data), *_dead(data), *_drift(data), *_broken(data)]
    return tuple(sorted(found, key=lambda each: (each.step, each.layer, each.head is not None, each.head or 0)))


def _numbers(data: xr.Dataset, name: str) -> Real:
    return data[name].transpose("step", "layer", "head").to_numpy()


def _freezing(data: xr.Dataset) -> Real:
    keys = np.maximum(np.nan_to_num(_numbers(data, "keys"), nan=2.0), 2.0)
    return np.vectorize(freezing_beta)(keys)


def _first(here: Any) -> Iterator[tuple[int, int, int]]:
    """The first step, layer and head of each head for which a condition holds."""
    for layer, head in np.argwhere(here.any(axis=0)).tolist():
        yield int(np.argmax(here[:, layer, head])), layer, head


def _alarm(  # noqa: PLR0913, PLR0917 - its fields
    data: xr.Dataset,
    n: int,
    layer: int,
    head: int | None,
    kind: str,
    grade: Grade,
    numbers: dict[str, float],
    words: str,
) -> Alarm:
    rounded = {name: float(value) for name, value in numbers.items()}
    return Alarm(int(data.step[n]), layer, head, kind, grade, rounded, words, REMEDIES[kind])


def _heat(data: xr.Dataset) -> Iterator[Alarm]:
    beta, freezing = _numbers(data, "beta"), _freezing(data)
    for kind, grade, factor in (("hot", "note", 0.5), ("frozen", "warning", 1.0)):
        for n, layer, head in _first(beta >= factor * freezing):
            own, limit = beta[n, layer, head], freezing[n, layer, head]
            words = f"scores of a row spread by {own:.3g}; rows freeze at {limit:.3g}."
            numbers = {"beta": own, "freezing": limit}
            yield _alarm(data, n, layer, head, kind, grade, numbers, words)  # type: ignore[arg-type]


def _runaway(data: xr.Dataset) -> Iterator[Alarm]:
    """Said of a layer: single heads that read single keys are at home in healthy runs."""
    beta, freezing = _numbers(data, "beta"), _freezing(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a layer that was not called is nan
        typical, limits = np.nanmedian(beta, axis=2), np.nanmax(freezing, axis=2)
    here = np.zeros((*typical.shape, 1), dtype=bool)
    # growth over the last two intervals, so that one noisy reading is none
    here[2:, :, 0] = (
        (typical[2:] >= BEYOND * limits[2:]) & (typical[2:] > typical[1:-1]) & (typical[1:-1] > typical[:-2])
    )
    for n, layer, _ in _first(here):
        own, limit, before = typical[n, layer], limits[n, layer], typical[n - 2, layer]
        words = (
            f"scores in half of its heads spread by {own:.3g} and more, {own / limit:.2g} times what freezes a row "
            f"({limit:.3g}), after {before:.3g} two readings before."
        )
        numbers = {"beta": own, "freezing": limit, "before": before, "beta_max": float(np.nanmax(beta[n, layer]))}
        yield _alarm(data, n, layer, None, "runaway", "alarm", numbers, words)


def _collapsed(data: xr.Dataset) -> Iterator[Alarm]:
    uniform = _numbers(data, "uniform_entropy")
    part = _numbers(data, "entropy") / np.where(uniform > 0, uniform, np.nan)
    largest = np.max(np.where(np.isnan(part), -np.inf, part), axis=2, keepdims=True)
    for n, layer, _ in _first((largest < COLLAPSED) & np.isfinite(largest)):
        own = float(largest[n, layer, 0])
        words = f"no head of the layer has more than {own:.2g} of the entropy of uniform rows."
        yield _alarm(data, n, layer, None, "collapse", "alarm", {"share": own}, words)


def _dead(data: xr.Dataset) -> Iterator[Alarm]:
    beta, popular, uniform = (_numbers(data, name) for name in ("beta", "popular_mass", "popular_uniform"))
    still = (beta < STILL) & (popular < EVEN * uniform)
    here = np.zeros_like(still)
    for n in range(FIRST, len(still)):  # at the start all heads are like that
        here[n] = still[n - FIRST : n + 1].all(axis=0)
    for n, layer, head in _first(here):
        own = beta[n, layer, head]
        words = f"its rows are uniform since {FIRST} readings (spread {own:.2g}): it averages the values."
        yield _alarm(data, n, layer, head, "dead", "warning", {"beta": own}, words)


def drift_level(test: int, heads: int, rate: float) -> float:
    """Level of the k-th test of a residual's change, of all tests that are made.

    Parameters
    ----------
    test : int
        k, from one on.
    heads : int
        Heads of the model.
    rate : float
        Chance of a false alarm in a whole run.

    Returns
    -------
    float
        ``rate * 6/(pi k)**2 / heads``, whose sum over k and heads is the rate.
    """
    return rate * 6 / (np.pi * test) ** 2 / heads


def _drift(data: xr.Dataset) -> Iterator[Alarm]:
    residual = _numbers(data, "residual")
    changes = np.diff(residual, axis=0)
    heads, rate = residual[0].size, float(data.attrs.get("rate", RATE))
    here, scores = np.zeros_like(residual, dtype=bool), np.zeros_like(residual)
    for n in range(FIRST, len(changes)):
        own = np.sqrt(np.mean(changes[:n] ** 2, axis=0))
        scale = np.fmax(own, np.sqrt(np.nanmean(changes[:n] ** 2)))
        with np.errstate(divide="ignore", invalid="ignore"):
            scores[n + 1] = np.abs(changes[n]) / scale
        limit = stats.t.isf(drift_level(n - FIRST + 1, heads, rate) / 2, n)
        here[n + 1] = (scores[n + 1] > limit) & (np.abs(changes[n]) > NOTABLE)
    for n, layer, head in _first(here):
        own, before, score = residual[n, layer, head], residual[n - 1, layer, head], scores[n, layer, head]
        words = (
            f"its entropy is {own:+.2f} nats from what the spread of its scores predicts, {before:+.2f} one reading "
            f"before: {score:.2g} times the usual change."
        )
        numbers = {"residual": own, "before": before, "score": score}
        yield _alarm(data, n, layer, head, "drift", "alarm", numbers, words)


def _broken(data: xr.Dataset) -> Iterator[Alarm]:
    # heads that a layer has not are nan from the beginning
    beta, keys = _numbers(data, "beta"), _numbers(data, "keys")
    for n, layer, head in _first(~np.isfinite(beta) & np.isfinite(keys) & (keys >= 2)):
        words = "queries or keys have numbers that are not finite."
        yield _alarm(data, n, layer, head, "not finite", "alarm", {"beta": beta[n, layer, head]}, words)
