"""What the readings of a run say in words: scores that run away, entropies that collapse, heads that died or jumped.

Let ``freezing = sqrt(2 log T)``, with ``T`` keys: rows of Gaussian scores that spread by more have most of their weight
on a few keys, whatever the values (the random energy model). A spread (``beta``) is

* ``sharp`` (a note) beyond half of it: entropies begin to fall faster than ``beta**2/2``;
* ``growing`` (a note) where it grew from each of the last five readings to the next, and at the pace of these would
  freeze rows before the run is twice as long;
* ``frozen`` (a warning) beyond it: rows read single keys, and gradients of scores are nearly zero for all others;
* ``runaway`` (an alarm) where half of the heads of a layer are beyond :data:`BEYOND` times freezing, the median grew
  from each of the last three readings to the next, and it is at least twice what it was when the run was half as long.
  At m times freezing the two largest of many Gaussian scores of a row are m apart in the mean, exponentially
  distributed, so that in the median row the second key has ``2**-m`` of the weight of the first: at eight, less than
  bfloat16 resolves, and no gradient of the softmax holds the scores back any more.

Three readings are tested for jumps: the residual, measured minus predicted entropy, which is what is not Gaussian in a
head (``drift``); the log-odds of the mass on the most popular key (``sink``); and the share of a layer's values that
all tokens have in common (``copies``). Training moves all readings, sometimes fast: a change is no fault by itself.
It is compared with the *record*: the largest change of any head over the last :data:`RECENT` readings. If the largest
changes of readings are exchangeable, with tails no heavier than a power ``x**-4`` (training is no Gaussian random walk:
heads wake up), the next one is beyond ``x`` times a record of ``m`` readings with a chance of at most
``1/(1 + m x**4)``, whatever the number of heads. Each of the three gets a third of the rate of false alarms.

Each kind is reported once for a head, or for a layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr

from bulkedge.propagation.trainability import freezing_beta
from bulkedge.support.arrays import Real

BEYOND = 8.0
"""Multiples of freezing beyond which growth is called a runaway: the bits of bfloat16."""
RATE, READINGS = 0.01, 100
"""Chance of a false jump in so many readings."""
FIRST, RECENT = 8, 32
"""Changes that are needed before one is tested, and changes that make up a record, at most."""
NOTABLE = {"drift": 0.1, "sink": 0.5, "copies": 0.05}
"""Changes that are no jump, however surely they are there: of the residual in nats, of log-odds, of a share."""

Grade = Literal["note", "warning", "alarm"]
REMEDIES = {
    "sharp": "watch it; nothing to do while the spread stands still",
    "growing": "QK-norm or a smaller learning rate of queries and keys, before that step",
    "frozen": "lower the learning rate or the scale of query and key weights; nn.scale_scores for a trained model",
    "runaway": "QK-norm, or a smaller learning rate of queries and keys, from the start of the run",
    "collapse": "QK-norm, a smaller learning rate, or a longer warm-up",
    "gap": "nothing by itself, half of the heads of trained encoders are there; nn.remove_gap if tokens become alike",
    "alike": "larger skips or smaller attention outputs at the start; nn.remove_gap takes out what all tokens share",
    "dead": "a larger initial scale of queries and keys; prune the head if the loss does not mind",
    "drift": "look at first_mass, popular_mass and the batch: sinks and repeated tokens are the usual reasons",
    "sink": "look at expected_position: a first token or a separator is usual, any other is worth a look at the data",
    "copies": "look at the batch: repeated or padded tokens that the mask does not hide",
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
    """All alarms of a run."""
    rules = (_sharp, _growth, _runaway, _collapse, _gap, _alike, _dead, _jumps, _not_finite)
    found = [each for rule in rules for each in rule(data)]
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


def _sharp(data: xr.Dataset) -> Iterator[Alarm]:
    beta, freezing = _numbers(data, "beta"), _freezing(data)
    for kind, grade, factor in (("sharp", "note", 0.5), ("frozen", "warning", 1.0)):
        for n, layer, head in _first(beta >= factor * freezing):
            own, limit = beta[n, layer, head], freezing[n, layer, head]
            words = f"scores of a row spread by {own:.3g}; rows freeze at {limit:.3g}."
            numbers = {"beta": own, "freezing": limit}
            yield _alarm(data, n, layer, head, kind, grade, numbers, words)  # type: ignore[arg-type]


def _runaway(data: xr.Dataset) -> Iterator[Alarm]:
    """Said of a layer: single heads that read single keys are at home in healthy runs."""
    beta, freezing = _numbers(data, "beta"), _freezing(data)
    typical, limits = _median(beta), np.max(freezing, axis=2)
    here = np.zeros((*typical.shape, 1), dtype=bool)
    # growth over the last two intervals, so that one noisy reading is none
    grew = (typical[2:] > typical[1:-1]) & (typical[1:-1] > typical[:-2])
    doubled = typical[2:] >= 2 * typical[np.arange(2, len(typical)) // 2]  # slow growth late in a run is learning
    here[2:, :, 0] = (typical[2:] >= BEYOND * limits[2:]) & grew & doubled
    for n, layer, _ in _first(here):
        own, limit, before = typical[n, layer], limits[n, layer], typical[n - 2, layer]
        words = (
            f"scores in half of its heads spread by {own:.3g} and more, {own / limit:.2g} times what freezes a row "
            f"({limit:.3g}), after {before:.3g} two readings before."
        )
        numbers = {"beta": own, "freezing": limit, "before": before, "beta_max": float(np.nanmax(beta[n, layer]))}
        yield _alarm(data, n, layer, None, "runaway", "alarm", numbers, words)


def _collapse(data: xr.Dataset) -> Iterator[Alarm]:
    uniform = _numbers(data, "uniform_entropy")
    part = _numbers(data, "entropy") / np.where(uniform > 0, uniform, np.nan)
    largest = np.max(np.where(np.isnan(part), -np.inf, part), axis=2, keepdims=True)
    for n, layer, _ in _first((largest < 0.1) & np.isfinite(largest)):
        own = float(largest[n, layer, 0])
        words = f"no head of the layer has more than {own:.2g} of the entropy of uniform rows."
        yield _alarm(data, n, layer, None, "collapse", "alarm", {"share": own}, words)


def _growth(data: xr.Dataset) -> Iterator[Alarm]:
    """Spreads that grow at a pace which will freeze rows."""
    beta, freezing, steps = _numbers(data, "beta"), _freezing(data), data.step.to_numpy().astype(float)
    ends = np.full(beta.shape, np.nan)
    for n in range(5, len(beta)):
        recent = beta[n - 5 : n + 1]
        pace = (recent[-1] - recent[0]) / (steps[n] - steps[n - 5])
        grows = (np.diff(recent, axis=0) > 0).all(axis=0) & (recent[-1] < freezing[n])
        with np.errstate(divide="ignore", invalid="ignore"):
            end = steps[n] + (freezing[n] - recent[-1]) / pace
        ends[n] = np.where(grows & (end <= 2 * steps[n]), end, np.nan)
    for n, layer, head in _first(np.isfinite(ends)):
        own, limit, end = beta[n, layer, head], freezing[n, layer, head], ends[n, layer, head]
        words = f"scores of a row spread by {own:.3g}; at the pace of their growth rows freeze at step {end:.0f}."
        numbers = {"beta": own, "freezing": limit, "step": end}
        yield _alarm(data, n, layer, head, "growing", "note", numbers, words)


def _gap(data: xr.Dataset) -> Iterator[Alarm]:
    """At a squared coupling of 1/2 the second singular value of a long head comes up to the first."""
    coupling = _numbers(data, "coupling")
    for n, layer, head in _first(coupling > 0.5):
        own = coupling[n, layer, head]
        words = f"its largest squared coupling is {own:.3g}, beyond 0.5: the gap of long sequences closes."
        yield _alarm(data, n, layer, head, "gap", "note", {"coupling": own}, words)


def _alike(data: xr.Dataset) -> Iterator[Alarm]:
    """Said of a layer where the mean of all tokens is nearly all there is in most of its heads, and stays so."""
    typical = _median(_numbers(data, "likeness"))
    here = np.zeros((*typical.shape, 1), dtype=bool)
    for n in range(FIRST, len(typical)):  # many runs pass through such a state while they learn frequencies of tokens
        here[n, :, 0] = (typical[n - FIRST : n + 1] > 0.9).all(axis=0)
    for n, layer, _ in _first(here):
        own = typical[n, layer]
        words = (
            f"{own:.1%} of the power of its values is the same for all tokens since {FIRST} readings: rank collapse."
        )
        yield _alarm(data, n, layer, None, "alike", "warning", {"likeness": own}, words)


def _dead(data: xr.Dataset) -> Iterator[Alarm]:
    """Heads that are uniform for long, though they were not before, or though most others are not."""
    beta, popular, uniform = (_numbers(data, name) for name in ("beta", "popular_mass", "popular_uniform"))
    still = (beta < 0.05) & (popular < 1.5 * uniform)
    awake = np.isfinite(beta) & ~still
    here = np.zeros_like(still)
    for n in range(FIRST, len(still)):  # at the start all heads are like that
        most = awake[n - FIRST : n + 1].all(axis=0).sum() > np.isfinite(beta[n]).sum() / 2
        once = awake[: n - FIRST + 1].any(axis=0)
        here[n] = still[n - FIRST : n + 1].all(axis=0) & (most | once)
    for n, layer, head in _first(here):
        own = beta[n, layer, head]
        words = f"its rows are uniform since {FIRST} readings (spread {own:.2g}): it averages the values."
        yield _alarm(data, n, layer, head, "dead", "warning", {"beta": own}, words)


def _median(values: Real) -> Real:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a layer that was not called is nan
        found: Real = np.nanmedian(values, axis=2)
    return found


def _jumps(data: xr.Dataset) -> Iterator[Alarm]:
    rate = float(data.attrs.get("rate", RATE)) / len(NOTABLE)
    popular = np.clip(_numbers(data, "popular_mass"), 1e-6, 1 - 1e-6)
    alike = _median(_numbers(data, "likeness"))[..., None]
    series = {"drift": _numbers(data, "residual"), "sink": np.log(popular / (1 - popular)), "copies": alike}
    for kind, values in series.items():
        jumps = find_jumps(values, rate, NOTABLE[kind])
        for n, layer, head in _first(jumps.here):
            own, before, score = values[n, layer, head], values[n - 1, layer, head], jumps.score[n, layer, head]
            if kind == "sink":
                own, before = popular[n, layer, head], popular[n - 1, layer, head]
            words = JUMPED[kind].format(own=own, before=before, score=score)
            numbers = {"now": own, "before": before, "score": score}
            yield _alarm(data, n, layer, None if kind == "copies" else head, kind, "alarm", numbers, words)


JUMPED = {
    "drift": "its entropy is {own:+.2f} nats from what the spread of its scores predicts, {before:+.2f} one reading "
    "before: {score:.2g} times the largest change so far.",
    "sink": "its most popular key takes {own:.0%} of the attention, {before:.0%} one reading before: {score:.2g} times "
    "the largest change so far.",
    "copies": "{own:.0%} of the power of its values is the same for all tokens, {before:.0%} one reading before: "
    "{score:.2g} times the largest change so far.",
}


def _not_finite(data: xr.Dataset) -> Iterator[Alarm]:
    # heads that a layer has not are nan from the beginning
    beta, keys = _numbers(data, "beta"), _numbers(data, "keys")
    for n, layer, head in _first(~np.isfinite(beta) & np.isfinite(keys) & (keys >= 2)):
        words = "queries or keys have numbers that are not finite."
        yield _alarm(data, n, layer, head, "not finite", "alarm", {"beta": beta[n, layer, head]}, words)


class Jumps(NamedTuple):
    """Changes that were tested; arrays are (step, layer, head), like the readings."""

    here: Real
    """Whether the reading at a step jumped from the one before."""
    score: Real
    """Its change over the record."""


def record_factor(changes: int, level: float) -> float:
    """How far beyond the record of some changes the next one may be.

    Examples
    --------
    >>> round(record_factor(32, 1e-4), 2)
    4.2
    """
    return float(((1 / level - 1) / changes) ** (1 / 4))


def find_jumps(values: Real, rate: float, notable: float) -> Jumps:
    """Test the changes of a reading."""
    changes = np.abs(np.diff(values, axis=0))
    here, score = np.zeros(values.shape, dtype=bool), np.zeros(values.shape)
    for n in range(FIRST, len(changes)):
        past = changes[max(0, n - RECENT) : n]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a reading that no head has is nan
            record = np.nanmax(past)
        with np.errstate(divide="ignore", invalid="ignore"):
            score[n + 1] = changes[n] / record
        limit = record_factor(len(past), rate / READINGS)
        here[n + 1] = (score[n + 1] > limit) & (changes[n] > notable)
    return Jumps(here, score)
