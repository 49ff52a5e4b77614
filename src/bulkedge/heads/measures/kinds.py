"""What kinds of heads there are: scores from measures, and labels from scores.

:data:`KINDS` is the one table: what each kind means, which number decides, and where the line is. The number is read
off :func:`~bulkedge.heads.measures.attention_measures.measure_heads`; where it is a share, it is a share of all of the
head's attention: what a head does beside a strong sink counts for little. A score is a logistic function of the number,
one half at the line. A head has the labels of all kinds whose score is above one half, in the order of the table, and
the first is its kind.

Lines were set on seeds 1000 and 2000 of planted heads, and on all-MiniLM-L6-v2 reading the opening of *Alice* and two
software licences, 256 and 512 tokens each: between planted heads of different kinds, and where few of the model's heads
lie. Planted heads of the tests have other seeds, and no line was set on *On the Origin of Species*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from bulkedge.heads.measures.attention_measures import measure_heads  # noqa: F401 - for the example
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Instance, takes
from bulkedge.support.errors import DomainError

Measures = Mapping[str, Real]
MEASURES = Instance(Mapping)


class Kind(NamedTuple):
    """One kind of head, and how it is recognised.

    >>> kind = Kind("sharp", "Looks at one key.", lambda measures: measures["top"], threshold=0.5, width=0.1)
    >>> kind.score({"top": np.array([0.5, 0.6])}).round(2)
    array([0.5 , 0.73])
    """

    name: str
    says: str  # what a head of this kind does, in a sentence
    reading: Callable[[Measures], Real] | None
    """The number that decides, from measures; None for what other kinds leave over."""
    threshold: float  # the line
    width: float
    """How far beyond the line a score of e/(1 + e) = 0.73 is; negative where smaller numbers speak for the kind."""

    @property
    def title(self) -> str:
        """The name as it is shown to people."""
        return "spectrum as random weights" if self.name == SPECTRAL else self.name

    def score(self, measures: Measures) -> Real:
        """How much measures speak for this kind.

        Parameters
        ----------
        measures : mapping of str to array
            Measures of heads.

        Returns
        -------
        array of shape (heads,)
            Between 0 and 1, one half at the line; nan where the number is.
        """
        if self.reading is None:
            raise DomainError(f"kind {self.name!r} is what other kinds leave over; use kinds_of(measures)")
        beyond = (self.reading(measures) - self.threshold) / self.width
        return np.asarray(0.5 + 0.5 * np.tanh(beyond / 2))


def _keys_used(measures: Measures) -> Real:
    """The exponential of the entropy over the number of keys; that number is in the evenness."""
    entropy, evenness = measures["entropy"], measures["evenness"]
    logs = np.divide(entropy, evenness, out=np.full_like(entropy, np.inf), where=~(evenness <= 0))
    return np.exp(entropy - logs)


def _of_all(name: str) -> Callable[[Measures], Real]:
    """A share of what sinks leave, as a share of all."""
    return lambda measures: measures[name] * (1 - measures["sink_mass"])


def _if_there(name: str) -> Callable[[Measures], Real]:
    """A number that not all measures have: nan where it is missing."""
    return lambda measures: measures.get(name, np.full_like(measures["sink_mass"], np.nan))


# fmt: off
KINDS = (
    Kind("induction", "On repeated tokens, looks at what followed the row's token the last time: it copies.",
        _if_there("induction"), 0.3, 0.075),
    Kind("duplicate", "On repeated tokens, looks at the earlier place of the row's own token.",
        _if_there("duplicate"), 0.3, 0.075),
    Kind("previous token", "On repeated tokens, looks at the token before the row.",
        _if_there("previous"), 0.3, 0.075),
    Kind("collapsed", "Looks at all keys alike: the attention is nearly uniform, whatever the tokens are.",
        _keys_used, 0.95, 0.0125),
    Kind("offset",
        "Looks at the token a fixed number of places before or after the row, or at the row itself.",
        _of_all("offset_mass"), 1 / 3, 1 / 12),
    Kind("local",
        "Looks at the neighbours of the row, within eight tokens, more than the popularity of keys explains.",
        _of_all("near_mass"), 1 / 8, 1 / 32),
    Kind("same token", "Looks at other places that have the row's own token.",
        _of_all("same_token_excess"), 0.12, 0.03),
    Kind("fixed columns",
        "Looks at the same keys from every row: some keys are popular, and apart from that rows differ little.",
        _of_all("column_share"), 0.3, 0.075),
    Kind("sink", "Leaves a good part of every row's attention on one key, or on a few.",
        lambda measures: measures["sink_mass"], 0.1, 0.025),
    Kind("low-rank content", "Chooses keys by a few directions of queries and keys.",
        lambda measures: measures["content_rank"], 4.0, -0.5),
    Kind("random spectrum",
        "Singular values are like those of fresh random weights on the same inputs. This does not mean untrained: they "
        "do not see the order of tokens, and a head that follows positions or copies can have them.",
        _if_there("p_spectrum"), 0.05, 0.0125),
    Kind("content", "Chooses keys by what tokens are, in many directions: what no other kind describes.",
        None, 0.5, 0.5),
)
# fmt: on
"""All kinds, in the order of precedence."""
REST, SPECTRAL = "content", "random spectrum"  # what is left over; and the kind that goes with any other
NEEDED = (
    *("entropy", "evenness", "sink_mass", "offset_mass", "near_mass"),
    *("same_token_excess", "column_share", "content_rank"),
)
"""Measures without which no kinds are reported."""
PROBED = ("induction", "duplicate", "previous")
"""What repeated tokens say of a head; kinds are reported without it too."""


class Kinds(NamedTuple):
    """Kinds of heads."""

    scores: dict[str, Real]  # score of every kind, each of shape (heads,)
    labels: tuple[tuple[str, ...], ...]
    """For each head the kinds that it is of, in the order of precedence; none where its measures are nan."""

    @property
    def first(self) -> tuple[str, ...]:
        """The kind of each head: its first label, an empty string where it has none."""
        return tuple(each[0] if each else "" for each in self.labels)


@takes(measures=MEASURES)
def kinds_of(measures: Measures) -> Kinds:
    """Tell kinds of heads from their measures.

    Parameters
    ----------
    measures : mapping of str to array
        What :func:`~bulkedge.heads.measures.attention_measures.measure_heads` found, each of shape (heads,); other
        entries are not looked at. ``"p_spectrum"``, the p-value of the spectrum compared with random weights, and what
        :func:`bulkedge.models.probe` found may be missing.

    Returns
    -------
    Kinds
        Scores are nan where a measure is, and no head is labelled by them.

    Raises
    ------
    DomainError
        If a measure is missing.

    Examples
    --------
    >>> scores = np.zeros((1, 64, 64))
    >>> scores[0, :, 5] = 9.0                                         # all look at key 5
    >>> kinds_of(measure_heads(scores)).first
    ('sink',)
    """
    measures = _checked(measures)
    scores = {kind.name: kind.score(measures) for kind in KINDS if kind.reading is not None}
    others = np.stack([values for name, values in scores.items() if name != SPECTRAL])
    known = ~np.isnan(scores["collapsed"])
    largest = np.max(np.where(np.isnan(others), 0.0, others), axis=0)
    scores[REST] = np.where(known, 1 - largest, np.nan)
    # what is left over has one half where the last of the others has, so that no head is without a kind
    shown = {name: values >= 0.5 if name == REST else values > 0.5 for name, values in scores.items()}
    heads = range(len(known))
    return Kinds(scores, tuple(tuple(kind.name for kind in KINDS if shown[kind.name][head]) for head in heads))


def _checked(measures: Measures) -> Measures:
    missing = [name for name in NEEDED if name not in measures]
    if missing:
        raise DomainError(
            f"measures has no {missing}; give what bulkedge.heads.measures.attention_measures.measure_heads returns"
        )
    wanted = [name for name in (*NEEDED, "p_spectrum", *PROBED) if name in measures]
    return {name: np.asarray(measures[name], dtype=np.float64) for name in wanted}
