"""A chapter of the course: a room with a story, questions that come before what they reveal, and a sentence per move.

Every figure of a chapter is computed beforehand, one for each combination of its few values, so that it is the same
with a server and in a file without one, and follows a slider at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bulkedge.lab.explore.room import Panel, Room, Trace
from bulkedge.support.domains import Choice

SHOWN = 16  # words of a text whose attention is drawn
DRAWS = 8  # simulations behind an error bar
SIMULATED: dict[str, Any] = {"look": "simulation", "shape": "points"}
HERE: dict[str, Any] = {"look": "here", "shape": "points"}


class Question(NamedTuple):
    """Something to find out: one of some options, or where a slider has to be."""

    ask: str
    why: str  # what is said once it is answered
    options: Sequence[str] = ()
    right: int = 0  # the number of the right option
    low: str = ""  # what is said of a slider that is not far enough, and of one that is too far
    high: str = ""


class Chapter(Room):
    """What all chapters have: parameters are choices, all of which are computed."""

    story: ClassVar[str]  # paragraphs of a few plain sentences, between empty lines
    questions: ClassVar[Sequence[Question]]

    def remark(self) -> str:
        """One sentence on what is seen at these values."""
        raise NotImplementedError

    def final_remark(self) -> str:
        """The same once all questions are answered."""
        return self.remark()

    def place(self, question: int) -> int:  # noqa: ARG002 - most chapters have one question of a place
        """Whether the slider is too low for a question (-1), right (0) or too far (1)."""
        return 0

    @classmethod
    def stops(cls) -> dict[str, tuple[Any, ...]]:
        """Parameters that move, with their values."""
        return {each.name: each.domain.options for each in cls.declared() if isinstance(each.domain, Choice)}


@cache
def texts() -> dict[str, Any]:
    """Two heads of a trained encoder, and the words that they read (``tools/explore_tables.py texts``)."""
    stored = files("bulkedge.lab.explore").joinpath("tables", "texts.npz").read_bytes()
    with np.load(BytesIO(stored), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


@cache
def words(count: int) -> tuple[str, ...]:
    """The first words of a book."""
    from bulkedge.models.loading.packaged import sample_text

    return tuple(each.strip(".,:;?!()'") for each in sample_text("alice").split()[:count])


def heat(label: str, matrix: Any, limits: tuple[float, float]) -> Trace:
    """A matrix as colours, rows from the top."""
    places = np.arange(len(matrix))
    return Trace(label, places, places, shape="map", z=np.asarray(matrix), limits=limits)


def who_looks(names: Sequence[str], title: str = "Who looks at whom") -> Panel:
    """The panel of an attention matrix."""
    return Panel(title, "the word that is looked at", "the word that looks", words=names)


def softmax(scores: Any) -> Any:
    """Attention weights of scores."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def first_place(values: Sequence[Any], value: Any, reached: Sequence[bool], slack: int = 1) -> int:
    """Where a value is: -1 before the first that reaches something, 1 if it is more than ``slack`` stops beyond it."""
    found, here = list(reached).index(True), list(values).index(value)
    return -1 if here < found else int(here > found + slack)


def steps(first: float, last: float, step: float) -> tuple[float, ...]:
    """Stops of a slider."""
    return tuple(round(first + step * k, 6) for k in range(round((last - first) / step) + 1))
