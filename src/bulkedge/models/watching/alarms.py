"""What the readings of a run say in words: scores that run away, entropies that collapse, heads that died or jumped.

docs/alarms.md has a table of the kinds and the reasons for their levels. A kind is reported once for a head, or for a
layer. Rules look at the last :data:`RECENT` readings and at running totals, so that a reading costs the same however
long the run is.

Training moves all readings, sometimes fast: a change is no fault by itself. A jump is a change beyond a multiple of the
*record*, the largest change of any head over the last :data:`RECENT` readings. If the largest changes of readings are
exchangeable, with tails no heavier than a power ``x**-4`` (training is no Gaussian random walk: heads wake up), the
next one is beyond ``x`` times a record of ``m`` readings with a chance of at most ``1/(1 + m x**4)``, whatever the
number of heads. Each of the three kinds of jumps (``drift``, ``sink``, ``copies``) gets a third of the rate of false
alarms.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.special import betaincinv

from bulkedge.propagation.trainability import freezing_beta
from bulkedge.support.arrays import Real

BEYOND = 8.0  # multiples of freezing beyond which growth is called a runaway: the bits of bfloat16
RATE, READINGS = 0.01, 100  # chance of a false jump in so many readings
FIRST, RECENT = 8, 32  # changes that are needed before one is tested, and changes that make up a record, at most
NOTABLE = {"drift": 0.1, "sink": 0.5, "copies": 0.05}  # no jump below: in nats, in log-odds, as a share
HASTY = 0.08  # nats by which a step may change the scores of a row, in two readings: benchmarks/watch_alarms.py
LEAK, SAME = 1e-6, 1e-4  # of a row's attention, and of the length of keys: less is none, and the same
LINES = 10  # of a summary

Grade = Literal["note", "warning", "alarm"]


class _AlarmKind(NamedTuple):
    grade: Grade
    words: str  # what is said, with the numbers that were compared
    remedy: str


KINDS = {
    "sharp": _AlarmKind(
        "note",
        "scores of a row spread by {beta:.3g}; rows freeze at {freezing:.3g}.",
        "watch it; nothing to do while the spread stands still",
    ),
    "growing": _AlarmKind(
        "note",
        "scores of a row spread by {beta:.3g}; at the pace of their growth rows freeze at step {step:.0f}.",
        "QK-norm or a smaller learning rate of queries and keys, before that step",
    ),
    "frozen": _AlarmKind(
        "warning",
        "scores of a row spread by {beta:.3g}; rows freeze at {freezing:.3g}.",
        "lower the learning rate or the scale of query and key weights; nn.scale_scores for a trained model",
    ),
    "runaway": _AlarmKind(
        "alarm",
        "scores in half of its heads spread by {beta:.3g} and more, {times:.2g} times what freezes a row "
        "({freezing:.3g}), after {before:.3g} two readings before.",
        "QK-norm, or a smaller learning rate of queries and keys, from the start of the run",
    ),
    "collapse": _AlarmKind(
        "warning",
        "no head of the layer has more than {share:.2g} of the entropy of uniform rows.",
        "QK-norm, a smaller learning rate, or a longer warm-up",
    ),
    "gap": _AlarmKind(
        "note",
        "its largest squared coupling is {coupling:.3g}, beyond 0.5: the gap of long sequences closes.",
        "nothing by itself, half of the heads of trained encoders are there; nn.remove_gap if tokens become alike",
    ),
    "alike": _AlarmKind(
        "warning",
        f"{{likeness:.1%}} of the power of its values is the same for all tokens since {FIRST} readings: rank "
        "collapse.",
        "larger skips or smaller attention outputs at the start; nn.remove_gap takes out what all tokens share",
    ),
    "dead": _AlarmKind(
        "warning",
        f"its rows are uniform since {FIRST} readings (spread {{beta:.2g}}): it averages the values.",
        "a larger initial scale of queries and keys; prune the head if the loss does not mind",
    ),
    "drift": _AlarmKind(
        "alarm",
        "its entropy is {now:+.2f} nats from what the spread of its scores predicts, {before:+.2f} one reading before: "
        "{score:.2g} times the largest change so far.",
        "look at first_mass, popular_mass and the batch: sinks and repeated tokens are the usual reasons",
    ),
    "sink": _AlarmKind(
        "alarm",
        "its most popular key takes {now:.0%} of the attention, {before:.0%} one reading before: {score:.2g} times the "
        "largest change so far.",
        "look at expected_position: a first token or a separator is usual, any other is worth a look at the data",
    ),
    "copies": _AlarmKind(
        "alarm",
        "{now:.0%} of the power of its values is the same for all tokens, {before:.0%} one reading before: "
        "{score:.2g} times the largest change so far.",
        "look at the batch: repeated or padded tokens that the mask does not hide",
    ),
    "hasty": _AlarmKind(
        "alarm",
        "a step of the optimiser changes its scores by {turn:.2g} nats, counted up to freezing, after {before:.2g} one "
        "reading before.",
        "a smaller learning rate, at least of queries and keys, or a warm-up; QK-norm if their weights grow",
    ),
    "leak": _AlarmKind(
        "alarm",
        "its rows give {share:.1%} of their attention to later keys, which the model, or most of its layers, hides.",
        "compare the mask with torch.ones(T, T).tril(); be.check_attention says which layers leak",
    ),
    "twins": _AlarmKind(
        "warning",
        "its keys are those of another head of the layer.",
        "give each head its own slice of the projection; be.check_attention names the pairs",
    ),
    "not finite": _AlarmKind(
        "alarm",
        "queries or keys have numbers that are not finite.",
        "stop: lower the learning rate, clip gradients, or compute the scores in a wider type",
    ),
}
# how many of the healthy runs of benchmarks/watch_alarms.py raised each kind
HEALTHY_RUNS = 90
RAISED = {
    "hasty": 0,
    "runaway": 0,
    "alike": 0,
    "dead": 0,
    "drift": 0,
    "sink": 0,
    "copies": 0,
    "frozen": 5,
    "collapse": 5,
}
LAYERS = ("runaway", "collapse", "alike", "copies", "leak")  # kinds that are said of a whole layer


@dataclass(frozen=True)
class Alarm:
    """Something to know about a head.

    >>> print(Alarm(10, 0, 3, "sharp", "warning", {"beta": 5.0}, "Rows look at one key.", "lower the learning rate"))
    step 10, layer 0, head 3: sharp (warning). Rows look at one key. Remedy: lower the learning rate.

    Attributes
    ----------
    step, layer : int
        Where it was seen first.
    head : int or None
        None if it is said of the whole layer.
    kind : str
        One of :data:`KINDS`.
    grade : {"note", "warning", "alarm"}
        How bad it is.
    numbers : dict of str to float
        What was compared.
    words : str
        The same as a sentence.
    remedy : str
        What helps.
    confidence : float or None
        One minus the share of healthy runs that raise this kind, at most: the upper bound of 95 % from the runs of
        docs/alarms.md. None for notes, and for what is no matter of chance.
    """

    step: int
    layer: int
    head: int | None
    kind: str
    grade: Grade
    numbers: Mapping[str, float]
    words: str
    remedy: str
    confidence: float | None = None

    def __str__(self) -> str:
        place = f"layer {self.layer}" if self.head is None else f"layer {self.layer}, head {self.head}"
        sure = "" if self.confidence is None else f", confidence {self.confidence:.0%}"
        return f"step {self.step}, {place}: {self.kind} ({self.grade}{sure}). {self.words} Remedy: {self.remedy}."


class AlarmGroup(NamedTuple):
    """All alarms of a kind in a layer."""

    alarm: Alarm  # the first of them
    last: int  # last step at which it held
    heads: int  # heads of which it was said; zero if it is said of the layer

    def __str__(self) -> str:
        one = self.alarm
        heads = f", {self.heads} head{'s' if self.heads > 1 else ''}" if self.heads else ""
        steps = f"step {one.step}" if one.step == self.last else f"steps {one.step} to {self.last}"
        example = "" if self.heads < 2 else f"head {one.head}: "
        return f"{one.grade}: layer {one.layer}{heads}, {one.kind}, {steps}. {example}{one.words}"


# a kind, where it holds, and the numbers compared: arrays (layers, heads) or (layers, 1)
Findings: TypeAlias = Iterator[tuple[str, Any, dict[str, Any]]]


class AlarmLog:
    """The alarms of a run, found reading by reading."""

    def __init__(self, rate: float = RATE) -> None:
        self.rate, self.steps = rate, deque[int](maxlen=RECENT + 2)
        self._recent = deque[Mapping[str, Real]](maxlen=RECENT + 2)
        self._medians: list[Real] = []  # of the spreads, (layers, 1)
        self._woken: Any = np.zeros((0, 0), dtype=bool)
        self.declared: list[bool] = []  # whether the module of each layer says that it hides later keys
        self._found: dict[tuple[str, int, int | None], Alarm] = {}
        self._last: dict[tuple[str, int], int] = {}

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """All of them, by steps and layers."""

        def place(alarm: Alarm) -> tuple[int, ...]:
            return alarm.step, alarm.layer, alarm.head or 0, list(KINDS).index(alarm.kind)

        return tuple(sorted(self._found.values(), key=place))

    @property
    def groups(self) -> tuple[AlarmGroup, ...]:
        """One entry for a kind and a layer, the worst first: by grade, then by the number of heads."""
        members: dict[tuple[str, int], list[Alarm]] = {}
        for each in self.alarms:
            members.setdefault((each.kind, each.layer), []).append(each)
        found = [
            AlarmGroup(those[0], self._last[place], sum(each.head is not None for each in those))
            for place, those in members.items()
        ]
        grades = ("alarm", "warning", "note")
        return tuple(sorted(found, key=lambda each: (grades.index(each.alarm.grade), -each.heads, each.alarm.step)))

    def add(self, step: int, reading: Mapping[str, Real]) -> None:
        """Test a reading: arrays (layers, heads), which may have more layers and heads than those before."""
        self.steps.append(step)
        self._recent.append({**reading, "likeness": _median(reading["likeness"])})  # it is of layers
        self._medians.append(_median(reading["beta"]))
        keys = np.maximum(np.nan_to_num(reading["keys"], nan=2.0), 2.0)
        limits = {each: freezing_beta(each) for each in np.unique(keys).tolist()}
        self.freezing = np.vectorize(limits.__getitem__)(keys)
        for rule in RULES:
            for kind, here, numbers in rule(self):
                self._say(kind, here, numbers)

    def _say(self, kind: str, here: Any, numbers: dict[str, Any]) -> None:
        """Remember layers and heads for which a condition holds now, and what was compared, unless they are known."""
        for layer, column in np.argwhere(here).tolist():
            self._last[kind, layer] = self.steps[-1]
            head = None if kind in LAYERS else column
            if (kind, layer, head) not in self._found:
                own = {name: float(each[layer, column]) for name, each in numbers.items()}
                grade, words, remedy = KINDS[kind]
                alarm = Alarm(
                    self.steps[-1], layer, head, kind, grade, own, words.format(**own), remedy, confidence(kind)
                )
                self._found[kind, layer, head] = alarm

    def causal(self, layers: int) -> Any:
        """Which layers say that they hide later keys, (layers, 1)."""
        return np.array((self.declared + [False] * layers)[:layers], dtype=bool)[:, None]

    def now(self, name: str) -> Real:
        """A number of the last reading."""
        return self._recent[-1][name]

    def recent(self, name: str, number: int = RECENT + 2) -> Real:
        """A number of the last readings, (readings, layers, heads)."""
        shape = self.now(name).shape
        return np.stack([_pad(each[name], shape) for each in list(self._recent)[-number:]])

    def medians(self) -> tuple[Real, ...]:
        """Median spreads of the layers: now, one and two readings ago, and when the run was half as long."""
        last, shape = len(self._medians) - 1, self._medians[-1].shape
        return tuple(_pad(self._medians[max(n, 0)], shape) for n in (last, last - 1, last - 2, last // 2))

    def woken(self, awake: Any) -> Any:
        """Which heads were awake :data:`FIRST` readings ago, or before."""
        self._woken = _pad(self._woken, awake.shape, fill=False) | awake
        return self._woken


def confidence(kind: str) -> float | None:
    """One minus the upper bound of 95 % (Clopper and Pearson) of the share of healthy runs that raise a kind."""
    if kind not in RAISED:
        return None
    return float(1 - betaincinv(RAISED[kind] + 1, HEALTHY_RUNS - RAISED[kind], 0.95))


def summarise(groups: tuple[AlarmGroup, ...]) -> str:
    """The worst of them, a line each, and the remedy of each kind where it is first."""
    lines, remedied = [], set()
    for each in groups[:LINES]:
        lines.append(str(each) + ("" if each.alarm.kind in remedied else f" Remedy: {each.alarm.remedy}."))
        remedied.add(each.alarm.kind)
    if len(groups) > LINES:
        lines.append(f"and {len(groups) - LINES} more kinds/layers: watch.alarms")
    return "\n".join(lines) or "no alarms"


def _pad(array: Real, shape: tuple[int, ...], *, fill: float = np.nan) -> Real:
    """An array in the upper left corner of a larger one."""
    if array.shape == shape:
        return array
    found = np.full(shape, fill, dtype=array.dtype)
    found[tuple(slice(each) for each in array.shape)] = array
    return found


def _levels(log: AlarmLog) -> Findings:
    """What the last reading alone says of a head."""
    beta, freezing, coupling, keys = log.now("beta"), log.freezing, log.now("coupling"), log.now("keys")
    yield "sharp", beta >= 0.5 * freezing, {"beta": beta, "freezing": freezing}
    yield "frozen", beta >= freezing, {"beta": beta, "freezing": freezing}
    # at a squared coupling of 1/2 the second singular value of a long head comes up to the first
    yield "gap", coupling > 0.5, {"coupling": coupling}
    # heads that a layer has not are nan from the beginning
    yield "not finite", ~np.isfinite(beta) & np.isfinite(keys) & (keys >= 2), {"beta": beta}


def _growth(log: AlarmLog) -> Findings:
    """Spreads that grow at a pace which will freeze rows."""
    if len(log.steps) < 6:
        return
    recent, freezing, step = log.recent("beta", 6), log.freezing, log.steps[-1]
    grows = (np.diff(recent, axis=0) > 0).all(axis=0) & (recent[-1] < freezing)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = step + (freezing - recent[-1]) * (step - log.steps[-6]) / (recent[-1] - recent[0])
    yield "growing", grows & (ends <= 2 * step), {"beta": recent[-1], "freezing": freezing, "step": ends}


def _runaway(log: AlarmLog) -> Findings:
    """Said of a layer: single heads that read single keys are at home in healthy runs."""
    now, before, earlier, half = log.medians()
    limits = np.max(log.freezing, axis=1, keepdims=True)
    # growth over the last two intervals, so that one noisy reading is none; slow growth late in a run is learning
    grew = (now > before) & (before > earlier) & (now >= 2 * half) & (len(log.steps) > 2)
    numbers = {"beta": now, "freezing": limits, "times": now / limits, "before": earlier}
    yield "runaway", (now >= BEYOND * limits) & grew, numbers


def _hasty(log: AlarmLog) -> Findings:
    """Said of heads whose scores are changed by single steps so much that the loss will follow."""
    if len(log.steps) > 1:
        beta, update = log.recent("beta", 2), log.recent("update", 2)
        # scores that are frozen anyway do not notice what a small part of their spread changes
        turn = update * np.minimum(beta, log.freezing)
        yield "hasty", (turn > HASTY).all(axis=0), {"turn": turn[-1], "before": turn[-2]}


def _bugs(log: AlarmLog) -> Findings:
    """What :func:`bulkedge.models.check_attention` looks for, as far as one pass tells."""
    future, own = log.now("future_mass"), log.now("key_distance")
    leaks = np.max(np.nan_to_num(future), axis=1, keepdims=True)
    hides = np.isfinite(future).any(axis=1, keepdims=True) & (leaks <= LEAK)
    wanted = log.causal(len(future)) | (hides.sum() > len(future) / 2)
    yield "leak", wanted & (leaks > LEAK), {"share": leaks}
    awake = log.now("logit_bound") > 0  # keys or queries of zeros are alike at the start of some runs
    yield "twins", (own < SAME) & awake, {"distance": own}


def _collapse(log: AlarmLog) -> Findings:
    uniform = log.now("uniform_entropy")
    part = log.now("entropy") / np.where(uniform > 0, uniform, np.nan)
    largest = np.max(np.where(np.isnan(part), -np.inf, part), axis=1, keepdims=True)
    yield "collapse", (largest < 0.1) & np.isfinite(largest), {"share": largest}


def _alike(log: AlarmLog) -> Findings:
    """Said of a layer where the mean of all tokens is nearly all there is in most of its heads, and stays so."""
    if len(log.steps) > FIRST:  # many runs pass through such a state while they learn frequencies of tokens
        likeness = log.recent("likeness", FIRST + 1)
        yield "alike", (likeness > 0.9).all(axis=0), {"likeness": likeness[-1]}


def _dead(log: AlarmLog) -> Findings:
    """Heads that are uniform for long, though they were not before, or though most others are not."""
    if len(log.steps) > FIRST:  # at the start all heads are like that
        beta, popular, uniform = (log.recent(each, FIRST + 1) for each in ("beta", "popular_mass", "popular_uniform"))
        still = (beta < 0.05) & (popular < 1.5 * uniform)
        awake = np.isfinite(beta) & ~still
        most = awake.all(axis=0).sum() > np.isfinite(beta[-1]).sum() / 2
        yield "dead", still.all(axis=0) & (most | log.woken(awake[0])), {"beta": beta[-1]}


def _jumps(log: AlarmLog) -> Findings:
    popular = np.clip(log.recent("popular_mass"), 1e-6, 1 - 1e-6)
    odds, likeness, residual = np.log(popular / (1 - popular)), log.recent("likeness"), log.recent("residual")
    series = {"drift": (residual, residual), "sink": (odds, popular), "copies": (likeness, likeness)}
    for kind, (values, shown) in series.items() if len(log.steps) > 1 else ():
        here, score = find_jumps(values, log.rate / len(NOTABLE), NOTABLE[kind])
        yield kind, here, {"now": shown[-1], "before": shown[-2], "score": score}


RULES = (_levels, _growth, _runaway, _collapse, _alike, _dead, _hasty, _bugs, _jumps)


def _median(values: Real) -> Real:
    """Over the heads of each layer, (layers, 1)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a layer that was not called is nan
        found: Real = np.nanmedian(values, axis=1, keepdims=True)
    return found


def record_factor(changes: int, level: float) -> float:
    """How far beyond the record of some changes the next one may be."""
    return float(((1 / level - 1) / changes) ** (1 / 4))


def find_jumps(values: Real, rate: float, notable: float) -> tuple[Any, Real]:
    """Whether the last reading (of step, layer, head) jumped from the one before, and its change over the record."""
    changes = np.abs(np.diff(values, axis=0))[-RECENT - 1 :]
    past, none = changes[:-1], np.zeros(values.shape[1:])
    if len(past) < FIRST:
        return none > 0, none
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # a reading that no head has is nan
        score = changes[-1] / np.nanmax(past)
    limit = record_factor(len(past), rate / READINGS)
    return (score > limit) & (changes[-1] > notable), score
