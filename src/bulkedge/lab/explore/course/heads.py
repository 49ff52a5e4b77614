"""Chapters of one head: its matrix, its singular values, and how sharp it is."""

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
from bulkedge.lab.explore.room import Panel, Trace, mean_error
from bulkedge.support.domains import Choice, parameter

Word = Literal["it", "cross", "tired", "the"]


@dataclass(frozen=True)
class SentenceChapter(Chapter):
    """One head of a trained model reads a sentence."""

    name = "sentence"
    title = "A sentence becomes an attention matrix"
    shows = "A trained head reads a sentence: each row of the picture says how one word shares out its attention."
    not_claimed = "It is one of the 72 heads of all-MiniLM-L6-v2, without the marks for start and end of a text."
    story = """
    For every pair of words the head computes a score: how well the question of one fits the answer of the
    other. The softmax turns the scores of a row into shares that add up to one. All shares together are the
    attention matrix.

    The scale multiplies all scores before the softmax. At 1 you see the head as it was trained.
    """
    questions = (
        Question(
            "Imagine the scale at 0, where all scores are equal. How much of its attention does a word then give to "
            "each of the 12 words?",
            "Equal scores give equal shares, so each is 1/12 = 8%: the dotted line. Attention starts here, and the "
            "scores pull it away from here.",
            ("1/12 to each", "all of it to itself", "nothing at all"),
        ),
        Question(
            "Choose the word “it”. Drag the scale up until “it” gives more than half of its attention to a single "
            "word, and stop there. Which word is it?",
            "“It” looks at “animal”, the word that it stands for. The head has learned that, and the scale only says "
            "how strongly it shows.",
            low="Not yet: “it” gives no word more than half of its attention.",
            high="That is more than needed: the largest share passed one half before. Go back a little.",
        ),
    )
    symbols = {"scale": "scale of the scores", "word": "the word that looks"}  # noqa: RUF012
    scale: float = parameter(Choice(steps(0, 3, 0.1)), "multiplies all scores: 0 is even, large is sharp", 1.0)
    word: Word = parameter(Choice(get_args(Word)), "whose shares are drawn on the right", "it")

    def shares(self) -> Any:
        """The attention matrix at this scale."""
        return softmax(self.scale * np.log(texts()["sentence"].astype(float)))

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        names = tuple(texts()["sentence_words"].tolist())
        title = f"What “{self.word}” looks at"
        return [who_looks(names), Panel(title, "the word that is looked at", "share", down=(0, 1), words=names)]

    def theory(self) -> list[Trace]:
        """The matrix, and one row of it."""
        shares, ends = self.shares(), np.arange(13) - 0.5
        return [
            heat("share", shares, (0, 1)),
            Trace("its shares, which add up to 1", ends, shares[self.row()], panel=1, shape="bars"),
            Trace("equal shares, 1/12", ends, np.full(13, 1 / 12), panel=1, look="mark", after=1),
        ]

    def row(self) -> int:
        """Where the word stands in the sentence."""
        return int(texts()["sentence_words"].tolist().index(self.word))

    def remark(self) -> str:
        """Where the word looks."""
        row = self.shares()[self.row()]
        most, to = row.max(), texts()["sentence_words"][row.argmax()]
        if not self.scale:
            return f"At scale 0 “{self.word}” looks at all 12 words alike: 8% each."
        others = f"{1 - most:.0%} to the other 11 words"
        return f"At scale {self.scale:g} “{self.word}” gives {most:.0%} to “{to}” and {others}."

    def place(self, question: int) -> int:  # noqa: ARG002 - the one question of a place
        """Whether half of the attention goes to one word, and did not long before."""
        scales = self.stops()["scale"]
        reached = [replace(self, scale=each, word="it").shares()[8].max() > 0.5 for each in scales]
        return first_place(scales, self.scale, reached)

    def script(self, seed: int = 0) -> str:  # noqa: ARG002 - nothing is drawn
        """Attention of any scores."""
        return f"""import numpy as np

import bulkedge as be

attention = np.load("head.npy")  # any attention matrix: rows add up to one
scores = np.log(attention)  # up to a constant in each row
weights = np.exp({self.scale} * scores)
weights /= weights.sum(axis=1, keepdims=True)
print("largest share of each row:", weights.max(axis=1).round(2))
print("spread of the scores:", be.diagnose(weights).beta)
"""


TEXT, DIM = 256, 64


@cache
def fresh_values(beta: float) -> Any:
    """Singular values of fresh heads, one draw a row, in decreasing order."""
    return np.array([np.linalg.svd(fresh_head(beta, seed), compute_uv=False) for seed in range(DRAWS)])


def fresh_head(beta: float, seed: int) -> Any:
    """A head with random queries and keys of one length."""
    return be.SoftmaxAttention(TEXT, DIM, beta, qk_norm=True).sample(np.random.default_rng(seed))


@dataclass(frozen=True)
class BulkChapter(Chapter):
    """The singular values of a fresh head."""

    name = "bulk"
    title = "Its bulk and its outlier"
    shows = "The singular values of a whole attention matrix: one outlier near 1, and a bulk with a sharp edge."
    not_claimed = "The head is untrained: its queries and keys are random, and words are only places in a text."
    story = """
    A matrix has singular values, as a chord has notes: they say how strongly it acts in each direction. This
    matrix has 256 rows, so it has 256 of them. Every row adds up to one, which makes the largest about 1: it
    belongs to the mean, and theory calls it an outlier.

    β is the standard deviation of the scores. Small β is flat, large β is sharp.
    """
    questions = (
        Question(
            "The largest singular value is marked. Where do you expect the other 255?",
            "They crowd together in the bulk, which ends at a sharp edge. The law (the line) knows only β, the 64 "
            "dimensions of the queries and the 256 words. It has never seen this matrix.",
            ("spread evenly between 0 and 1", "crowded together far below 1", "all of them exactly 0"),
            1,
        ),
        Question(
            "Drag β until the second value leaves the bulk. Where does it first lie beyond the edge?",
            "From about β = 1.1 on single weights are so large that they make values of their own, which a law of many "
            "small weights does not count. Without the eight largest of the 65,536 weights the second value would be "
            "back at the edge. The panel on the right shows the mean of eight heads.",
            low="Not yet: the second value is still inside the bulk.",
            high="It left the bulk before: go back to where it first did.",
        ),
    )
    symbols = {"beta": "β, spread of the scores"}  # noqa: RUF012
    beta: float = parameter(Choice(steps(0.2, 1.6, 0.1)), "small is flat, large is sharp", 0.5)

    def law(self) -> be.FiniteHeadLaw:
        """The law of the squared singular values of √T (A − uu′)."""
        return be.FiniteHeadLaw(self.beta, DIM, TEXT, qk_norm=True)

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        return [
            who_looks(words(SHOWN), f"The first {SHOWN} of {TEXT} words"),
            Panel("All 256 singular values", "singular value", "density", "x", across=(0.003, 2), down=(0, 0.8)),
            Panel("The second value", "β", "singular value", across=(0.1, 1.7), down=(0, 0.6)),
        ]

    def theory(self) -> list[Trace]:
        """The matrix, its values, the law, and the second value of eight heads for each β."""
        own, law = fresh_values(self.beta)[0], self.law()
        edge = np.sqrt(law.edge / TEXT)
        x = np.geomspace(0.003, edge, 150)
        ends = np.geomspace(0.003, 2, 46)
        heights = np.histogram(own, ends)[0] / (TEXT * np.diff(np.log(ends)))
        betas = self.stops()["beta"]
        second, error = mean_error(np.array([fresh_values(each)[:, 1] for each in betas]).T)
        edges = [np.sqrt(replace(self, beta=each).law().edge / TEXT) for each in betas]
        law_line = 2 * TEXT * x**2 * law.pdf(TEXT * x**2)
        return [
            heat("share", fresh_head(self.beta, 0)[:SHOWN, :SHOWN], (0, 0.03)),
            Trace("this matrix", ends, heights, panel=1, look="simulation", shape="bars", after=1),
            Trace("law and its edge", x, law_line, panel=1, after=1),
            Trace("law and its edge", float(edge), panel=1, shape="mark", after=1),
            Trace("largest value", [own[0]], [0.03], panel=1, look="second", shape="points"),
            Trace("second value", [own[1]], [0.03], panel=1, after=1, **HERE),
            Trace("second value", [self.beta], [own[1]], panel=2, after=1, **HERE),
            Trace("law and its edge", betas, edges, panel=2, after=2),
            Trace(f"mean of {DRAWS} heads", betas, second, panel=2, error=error, after=2, **SIMULATED),
        ]

    def remark(self) -> str:
        """How the largest value stands to 1."""
        return f"At β = {self.beta:g} the largest singular value is {fresh_values(self.beta)[0, 0]:.3f}."

    def final_remark(self) -> str:
        """The second value against the edge."""
        second, edge = fresh_values(self.beta)[0, 1], np.sqrt(self.law().edge / TEXT)
        where = "beyond" if second > edge else "inside"
        return (
            f"At β = {self.beta:g} the bulk ends at {edge:.3f}, and the second value, {second:.3f}, "
            f"is {where} it; the largest is {fresh_values(self.beta)[0, 0]:.3f}."
        )

    def place(self, question: int) -> int:  # noqa: ARG002 - the one question of a place
        """Whether the second value has left the bulk, and only just."""
        betas = self.stops()["beta"]
        out = [fresh_values(each)[0, 1] > np.sqrt(replace(self, beta=each).law().edge / TEXT) for each in betas]
        return first_place(betas, self.beta, out)

    def script(self, seed: int = 0) -> str:
        """The law of a head, and a draw."""
        return f"""import numpy as np

import bulkedge as be

law = be.FiniteHeadLaw(beta={self.beta}, head_dim={DIM}, tokens={TEXT}, qk_norm=True)
attention = be.SoftmaxAttention({TEXT}, {DIM}, {self.beta}, qk_norm=True).sample(np.random.default_rng({seed}))
values = np.linalg.svd(attention, compute_uv=False)
print("largest", values[0], "second", values[1], "edge of the bulk", (law.edge / {TEXT}) ** 0.5)
print(be.compare(be.attention_spectrum(attention), law))
"""


@cache
def rows_of(tokens: int, beta: float) -> Any:
    """The sum of squared shares of a row, its mean over rows, for each draw; one over it counts words in effect."""
    scores = np.random.default_rng(tokens).standard_normal((DRAWS, 32, tokens))
    weights = np.exp(beta * (scores - scores.max(axis=2, keepdims=True)))
    return np.mean(np.sum(weights**2, axis=2) / np.sum(weights, axis=2) ** 2, axis=1)


@dataclass(frozen=True)
class SharpnessChapter(Chapter):
    """From flat to frozen rows."""

    name = "sharpness"
    title = "Sharpness and freezing"
    shows = "As β grows, a word looks at fewer and fewer others, until its attention freezes onto one or two."
    not_claimed = "Scores are independent here; those of a head depend on each other, which blurs the place a little."
    story = """
    Attention that is shared evenly among four words counts as attention to four words. For uneven shares
    count one over the sum of their squares: the words a row attends to in effect.

    Drag β and watch the rows thin out. Then try a longer text.
    """
    questions = (
        Question(
            "Stay with 16 words. Drag β until a row attends to fewer than two words in effect. Where does that begin?",
            "Rows begin to freeze at √(2 log T) = 2.4, the dotted line: beyond it the few largest of T scores outweigh "
            "all others together. At 3.4 a row attends to two words in effect.",
            low="Not yet: rows still attend to two words or more.",
            high="It happened before: go back to where it is first so.",
        ),
        Question(
            "The text becomes 256 times longer: 4096 words instead of 16. How much larger is the β at which a row "
            "freezes?",
            "√(2 log T) grows very slowly: from 2.4 to 4.1. A model that is sharp on a short text stays about as sharp "
            "on a long one, but an even one is spread ever thinner. Choose 4096 words and see.",
            ("256 times", "16 times", "less than twice"),
            2,
        ),
    )
    symbols = {"beta": "β, spread of the scores", "tokens": "words of the text T"}  # noqa: RUF012
    beta: float = parameter(Choice(steps(0, 6, 0.2)), "0 is even, large is sharp", 0.0)
    tokens: int = parameter(Choice((16, 256, 4096)), "more words share the attention of a row", 16)

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        return [
            who_looks(words(SHOWN), "A text of 16 words"),
            Panel("Words that a row attends to", "β", "words in effect", "y", across=(-0.2, 6.2), down=(0.8, 6000)),
        ]

    def theory(self) -> list[Trace]:
        """The matrix, and the words in effect along β."""
        betas = self.stops()["beta"]
        scores = np.random.default_rng(5).standard_normal((SHOWN, SHOWN))
        share, error = mean_error(np.array([rows_of(self.tokens, each) for each in betas]).T)
        exact = [self.predicted(each) for each in betas]
        here = betas.index(self.beta)
        return [
            heat("share", softmax(self.beta * scores), (0, 1)),
            Trace(f"{DRAWS} × 32 rows", betas, 1 / share, panel=1, error=error / share**2, after=1, **SIMULATED),
            Trace("theory", betas, exact, panel=1, after=1),
            Trace("√(2 log T)", float(np.sqrt(2 * np.log(self.tokens))), panel=1, look="mark", shape="mark", after=1),
            Trace("here", [self.beta], [1 / share[here]], panel=1, **HERE),
        ]

    def predicted(self, beta: float) -> float:
        """Words in effect, by the theory of independent scores."""
        return 1 / be.propagation.softmax_of_gaussians(beta, self.tokens).participation if beta else float(self.tokens)

    def remark(self) -> str:
        """How many words, and on which side of the freezing line."""
        count, line = 1 / rows_of(self.tokens, self.beta).mean(), np.sqrt(2 * np.log(self.tokens))
        side = "frozen" if self.beta > line else "not frozen yet"
        return f"At β = {self.beta:g} a row of {self.tokens} words attends to {count:.3g} of them in effect: {side}."

    def place(self, question: int) -> int:  # noqa: ARG002 - the one question of a place
        """Whether a row of 16 words attends to fewer than two, and only just."""
        betas = self.stops()["beta"]
        return first_place(betas, self.beta, [1 / rows_of(16, each).mean() < 2 for each in betas])

    def script(self, seed: int = 0) -> str:
        """The prediction, and drawn rows."""
        return f"""import numpy as np

import bulkedge as be

row = be.propagation.softmax_of_gaussians(beta={self.beta or 0.1}, tokens={self.tokens})
print("words in effect, predicted:", 1 / row.participation, " entropy:", row.entropy)

weights = np.exp({self.beta or 0.1} * np.random.default_rng({seed}).standard_normal((256, {self.tokens})))
weights /= weights.sum(axis=1, keepdims=True)
print("words in effect, drawn:", 1 / np.mean(np.sum(weights**2, axis=1)))
print("freezes near:", np.sqrt(2 * np.log({self.tokens})))
"""
