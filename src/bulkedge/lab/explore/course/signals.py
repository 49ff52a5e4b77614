"""Chapters of what heads do to words and signals, and of a head of one's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, get_args

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.course.chapter import (
    DRAWS,
    HERE,
    SHOWN,
    SIMULATED,
    Chapter,
    Question,
    first_place,
    heat,
    softmax,
    steps,
    texts,
    who_looks,
    words,
)
from bulkedge.lab.explore.matrix import curves_of
from bulkedge.lab.explore.room import Panel, Trace, histogram, mean_error
from bulkedge.lab.explore.rooms.recovery import RecoveryRoom, alignments, pooled
from bulkedge.support.domains import FLAG, Choice, parameter

LAYERS, WIDE = 8, 64


@cache
def stacks(kept: bool) -> tuple[Any, list[Any]]:  # noqa: FBT001 - a key of the cache
    """Stable ranks less one, a row for each stack, and the signals of the first one, layer by layer."""
    stack = be.AttentionStack(LAYERS, WIDE, WIDE, gap=kept)
    drawn = [list(stack.layers(np.random.default_rng(seed))) for seed in range(DRAWS)]
    ranks = np.array([[be.stable_rank(stack.start()) - 1, *(each.stable_rank_excess for each in one)] for one in drawn])
    return ranks, [stack.start(), *(each.signal for each in drawn[0])]


@dataclass(frozen=True)
class DepthChapter(Chapter):
    """Layer upon layer of attention."""

    name = "depth"
    title = "Depth and collapse"
    shows = "Every layer of attention makes the words more alike, unless its mean is taken away."
    not_claimed = (
        "Weights are random, and there is neither skip connection nor LayerNorm; the room “Collapse” has both."
    )
    story = """
    A layer replaces every word by an average of all words. The average is dominated by the outlier of the
    second chapter, and that is the same for all words.

    The picture shows how alike two words are after so many layers: the cosine between them, 1 where they
    point the same way. The curve is the stable rank minus one: 0 means that only a single direction is left.
    """
    questions = (
        Question(
            "Drag the number of layers. After how many are all words more than 99% alike?",
            "Three layers are enough: each makes what is left of the rank some three thousand times smaller. The words "
            "can no longer be told apart.",
            low="Not yet: some two words still differ.",
            high="They were alike before: go back.",
        ),
        Question(
            "What happens if every layer subtracts the mean from its attention? Guess, then switch it off below.",
            "Without the mean nothing pulls the words together: the rank stays of order one, and words stay apart. "
            "That is what be.nn.remove_gap does to a model.",
            ("the collapse is only slower", "the words stay apart", "the signal vanishes at once"),
            1,
        ),
    )
    symbols = {"layers": "layers", "kept": "keep the mean"}  # noqa: RUF012
    layers: int = parameter(Choice(tuple(range(LAYERS + 1))), "attention layers that the words have passed", 0)
    kept: bool = parameter(FLAG, "off: every layer subtracts the mean from its attention", default=True)

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        return [
            Panel("How alike the words are", "", "", words=words(SHOWN)),
            Panel("What is left of the rank", "layers", "stable rank − 1", "y", across=(-0.3, 8.3), down=(1e-30, 1e3)),
        ]

    def theory(self) -> list[Trace]:
        """Cosines, and the stable rank along the layers."""
        ranks, signals = stacks(self.kept)
        rank, error = mean_error(np.log(ranks))
        label = f"mean of {DRAWS} stacks"
        depths = np.arange(1, LAYERS + 1)
        stack = be.AttentionStack(LAYERS, WIDE, WIDE, gap=self.kept)
        exact = [stack.at_depth(int(each)).predicted_stable_rank_excess() for each in depths]
        return [
            heat("cosine", cosines(signals[self.layers])[:SHOWN, :SHOWN], (0, 1)),
            Trace(
                label, np.arange(LAYERS + 1), np.exp(rank), panel=1, error=np.exp(rank) * error, after=1, **SIMULATED
            ),
            Trace("theory", depths, exact, panel=1, after=1),
            Trace("here", [self.layers], [np.exp(rank[self.layers])], panel=1, **HERE),
        ]

    def remark(self) -> str:
        """The two words that are least alike."""
        least = cosines(stacks(self.kept)[1][self.layers]).min()
        passed = f"After {self.layers} layer{'s' * (self.layers != 1)}"
        return f"{passed} the two words that are least alike have the cosine {least:.3g}."

    def place(self, question: int) -> int:  # noqa: ARG002 - the one question of a place
        """Whether all words are alike, and only just."""
        depths = self.stops()["layers"]
        alike = [cosines(each).min() > 0.99 for each in stacks(kept=True)[1]]
        return first_place(depths, self.layers, alike, slack=0)

    def script(self, seed: int = 0) -> str:
        """A stack, layer by layer, and the prediction."""
        return f"""import numpy as np

import bulkedge as be

stack = be.AttentionStack({LAYERS}, tokens={WIDE}, width={WIDE}, gap={self.kept})
for number, layer in enumerate(stack.layers(np.random.default_rng({seed})), 1):
    predicted = stack.at_depth(number).predicted_stable_rank_excess()
    print(f"layer {{number}}: stable rank 1 + {{layer.stable_rank_excess:.2g}}, predicted 1 + {{predicted:.2g}}")
"""


def cosines(signal: Any) -> Any:
    """How alike any two tokens are: the size of the cosine between them."""
    unit = signal / np.linalg.norm(signal, axis=1, keepdims=True)
    return np.abs(unit @ unit.T)


@cache
def pooled_draws(signal: float, ratio: float, draws: int) -> list[dict[str, Any]]:
    """Eigenvalues and alignments of pooled sequences."""
    room = RecoveryRoom(signal=signal, sample_ratio=ratio)
    return [room.simulate(seed) for seed in range(draws)]


@dataclass(frozen=True)
class SignalChapter(Chapter):
    """A signal in noise, and the threshold from which on it is seen."""

    name = "signal"
    title = "Signal and threshold"
    shows = "A signal that is too weak leaves no trace in the largest eigenvalue: there is a threshold."
    not_claimed = "Curves are limits of many dimensions; at 200 dimensions the threshold is a little blurred."
    story = """
    Texts of two classes differ by a signal in 200 dimensions. Average the words of each text, and look at the
    eigenvalues of the averages: noise makes a bulk, the signal pushes one eigenvalue.

    The alignment says how much of the signal's direction the largest eigenvector knows: 0 nothing, 1 all.
    """
    questions = (
        Question(
            "Drag the signal up from 0. Where does the largest eigenvalue first leave the bulk, by theory?",
            "Below the threshold the eigenvector knows nothing of the signal, however you look at it; above it the "
            "alignment rises at once. The dotted line is the threshold of the theory.",
            low="Not yet: the predicted largest value is still the edge of the bulk.",
            high="It left the bulk before: go back.",
        ),
        Question(
            "With ten times as many texts, what becomes of the threshold?",
            "More texts make the bulk narrower, so that weaker signals stand out. But the threshold does not go to "
            "zero: the vocabulary is noisy too. Choose 2500 texts and see.",
            ("it falls, but not to zero", "it falls to zero", "it stays where it is"),
        ),
    )
    symbols = {"signal": "signal |μ|", "texts": "texts N"}  # noqa: RUF012
    signal: float = parameter(Choice(steps(0, 2, 0.1)), "how far apart the classes are, in units of the noise", 0.0)
    texts: int = parameter(Choice((250, 2500)), "texts that are averaged and compared", 250)

    @property
    def ratio(self) -> float:
        """Dimensions over samples."""
        return 200 / self.texts

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        return [
            Panel("Eigenvalues of the averaged texts", "eigenvalue", "density", across=(0, 1.4), down=(0, 8)),
            Panel("Alignment with the signal", "signal |μ|", "squared overlap", across=(-0.05, 2.05), down=(-0.02, 1)),
        ]

    def theory(self) -> list[Trace]:
        """The spectrum and the alignment."""
        model = pooled(RecoveryRoom(signal=self.signal, sample_ratio=self.ratio))
        bulk, spike = model.bulk(), model.sample_spike()
        (low, high), signals = bulk.support[-1], np.linspace(0, 2, 81)
        x = np.linspace(low + 1e-3 * (high - low), high, 150)
        exact = alignments(model, signals, model.vocab_ratio, model.sample_ratio)
        drawn = pooled_draws(self.signal, self.ratio, 4)
        few = self.stops()["signal"][::4]
        overlaps = np.array([[each["overlap"] for each in pooled_draws(one, self.ratio, DRAWS)] for one in few]).T
        mean, error = mean_error(overlaps)
        outlier = float(spike.location) if spike.detectable else float(high)
        return [
            histogram("simulation", [each["values"] for each in drawn], np.linspace(0, 1.4, 61)),
            Trace("theory", x, bulk.pdf(x)),
            Trace("predicted largest value", outlier, look="rival", shape="mark"),
            Trace("theory", signals, exact, panel=1, after=1),
            Trace("simulation", few, mean, panel=1, error=error, after=1, **SIMULATED),
            Trace("threshold", model.threshold().sample, panel=1, look="mark", shape="mark", after=1),
            Trace("here", [self.signal], [model.alignment().total], panel=1, after=1, **HERE),
        ]

    def remark(self) -> str:
        """On which side of the threshold the signal is."""
        model = pooled(RecoveryRoom(signal=self.signal, sample_ratio=self.ratio))
        edge, spike = model.bulk().support[-1][1], model.sample_spike()
        if not spike.detectable:
            return f"A signal of {self.signal:g} in {self.texts} texts stays inside the bulk, which ends at {edge:.3f}."
        return (
            f"A signal of {self.signal:g} puts the largest value at {spike.location:.3f}; the bulk ends at {edge:.3f}."
        )

    def place(self, question: int) -> int:  # noqa: ARG002 - the one question of a place
        """Whether the signal is beyond the threshold, and only just."""
        limit = pooled(RecoveryRoom(sample_ratio=self.ratio)).threshold().sample
        signals = self.stops()["signal"]
        return first_place(signals, self.signal, [each > limit for each in signals], slack=0)

    def script(self, seed: int = 0) -> str:
        """That of the room."""
        return RecoveryRoom(signal=self.signal, sample_ratio=self.ratio).script(seed)


Head = Literal["A", "B", "C", "D"]
BOOK, DIAGNOSED = 128, 8  # tokens of the heads to judge, and the dimension of the fresh ones


@cache
def judged(head: str) -> tuple[Any, Any]:
    """A head, and what :func:`bulkedge.diagnose` says of it."""
    rng = np.random.default_rng(11)
    scores = be.SoftmaxAttention(BOOK, DIAGNOSED, 1.0, qk_norm=True).scores(rng)
    signal = np.outer(rng.standard_normal(BOOK), rng.standard_normal(BOOK))
    noise = be.SoftmaxAttention(BOOK, 4 * DIAGNOSED, 1.0, qk_norm=True).scores(np.random.default_rng(12))
    made = {
        "A": lambda: softmax(1.2 * scores),
        "B": lambda: texts()["book"].astype(float),
        "C": lambda: softmax(0.8 * noise + 0.3 * signal),
        "D": lambda: softmax(rng.standard_normal((BOOK, BOOK))),
    }[head]()
    return made, be.diagnose(made / made.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class OwnHeadChapter(Chapter):
    """Which of some heads has learned something."""

    name = "own-head"
    title = "Your own head"
    shows = "Four attention matrices on the opening of a book: random ones, and one from a trained model."
    not_claimed = "The nearest of a few laws need not be the right one: the distance says how near it is."
    story = """
    You know the bulk, the edge, and what lies beyond them. Now judge four matrices by eye.

    Then bring your own: drop a file on the page “Your matrix” of the explorer, or type: bulkedge check
    head.npy
    """
    questions = (
        Question(
            "One of the four heads comes from a trained model. Which?",
            "B is the head of the first chapter. No law of random heads fits it, and several values lie far beyond the "
            "edge. A and D are random. C is random with one direction added, and the verdict finds that one signal.",
            ("A", "B", "C", "D"),
            1,
        ),
    )
    symbols = {"head": "head"}  # noqa: RUF012
    head: Head = parameter(Choice(get_args(Head)), "which of the four matrices is shown", "A")

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        names = tuple(texts()["book_words"][:20].tolist())
        found = judged(self.head)[1]
        return [
            who_looks(names, "The first 20 of 128 tokens"),
            curves_of(found)[0][0]._replace(title="All its values", across=(2e-4, 1e3), down=(0, 0.4)),
        ]

    def theory(self) -> list[Trace]:
        """The matrix, its values, and the nearest law."""
        matrix, found = judged(self.head)
        bars, *others = curves_of(found)[1]
        lines = [replace(each, label="nearest law") for each in others if each.look == "theory"]
        marks = [each for each in others if each.shape == "mark"]
        shown = [replace(each, panel=1, after=1) for each in (*lines, *marks)]
        return [heat("share", matrix[:20, :20], (0, 0.3)), replace(bars, panel=1), *shown]

    def remark(self) -> str:
        """What is seen without a law."""
        values = judged(self.head)[1].values
        return (
            f"The largest value of head {self.head}, without its mean, is {values[-1]:.3g}, the next {values[-2]:.3g}."
        )

    def final_remark(self) -> str:
        """The verdict."""
        return f"be.diagnose says of head {self.head}: {judged(self.head)[1].verdict}"

    def script(self, seed: int = 0) -> str:  # noqa: ARG002 - nothing is drawn
        """The verdict on a matrix."""
        return """import numpy as np

import bulkedge as be

found = be.diagnose(np.load("head.npy"))
print(found.verdict)
for candidate in found.candidates:
    print(f"{candidate.distance:.3f}  {candidate.name}")
for outlier in found.outliers:
    print(f"{outlier.value:.4g}  p = {outlier.p_value:.2g}")
found.plot().figure.savefig("head.png")
"""
