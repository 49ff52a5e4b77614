"""The papers, item by item: what became of each theorem, figure or question, as a page and as a document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bulkedge.lab.gallery import words
from bulkedge.lab.gallery.page import environment, head
from bulkedge.lab.gallery.record import Reproduction
from bulkedge.lab.studies.claims import Claim
from bulkedge.lab.studies.items import PAPERS, Item, claims_of, items, places
from bulkedge.support.errors import DomainError

STATES = {
    "claimed": ("has a claim", "have claims"),
    "tested": ("is checked by a test", "are checked by tests"),
    "not done": ("is not done", "are not done"),
    "not here": ("has no claim in this folder", "have no claim in this folder"),
}
"""What may become of an item, in singular and plural."""


class Place(NamedTuple):
    """Where a claim stands on the page: its study, and its number there from one on."""

    study: str
    number: int


@dataclass(frozen=True)
class Row:
    """An item of a paper, with the claims of a gallery that name it."""

    item: Item
    claims: tuple[tuple[Place, Claim], ...]

    @property
    def state(self) -> str:
        """What became of it, one of ``STATES``."""
        if self.claims:
            return "claimed"
        if self.item.tested:
            return "tested"
        return "not done" if self.item.not_done else "not here"

    @property
    def verdicts(self) -> str:
        """The verdicts of its claims, each once, and its state; for the filter of the page."""
        return " ".join(dict.fromkeys([*(claim.verdict for _, claim in self.claims), self.state.replace(" ", "-")]))


def rows(paper: str, results: Iterable[Reproduction]) -> list[Row]:
    """The items of a paper with what became of them."""
    known = (
        (Place(each.name, number), claim)
        for each in results
        for number, claim in enumerate(each.claims, start=1)
        if _known(claim.place)
    )
    found = claims_of(paper, known)
    return [Row(item, tuple(found[item.name])) for item in items(paper)]


def page(results: Sequence[Reproduction]) -> str:
    """The page ``papers.html``, whose links lead to ``index.html`` beside it."""
    return environment().get_template("papers.html").render(head(results) | _papers(results))


def markdown(results: Sequence[Reproduction]) -> str:
    """The same as a page of the documentation."""
    return environment().get_template("papers.md").render(head(results) | _papers(results) | {"cell": cell})


def cell(text: str) -> str:
    r"""Text for a table of Markdown: on one line, and with no sign that would be taken for markup.

    Examples
    --------
    >>> cell("a_1 | $b$")
    'a\\_1 \\| \\$b\\$'
    """
    return re.sub(r"([\\`*_{}\[\]<>$|#])", r"\\\1", " ".join(text.split()))


def _papers(results: Sequence[Reproduction]) -> dict[str, object]:
    found = {paper: rows(paper, results) for paper in PAPERS}
    return {
        "papers": found,
        "titles": PAPERS,
        "counts": {paper: _counts(each) for paper, each in found.items()},
        "states": ["holds", "fails", "undecided", *(each.replace(" ", "-") for each in STATES if each != "claimed")],
    }


def _counts(found: Sequence[Row]) -> str:
    """How many items a paper has, and what became of how many."""
    states = [row.state for row in found]
    parts = [words.counted(states.count(state), *STATES[state]) for state in STATES if state in states]
    return f"{words.counted(len(found), 'item', 'items')}: {', '.join(parts)}" if found else "no items"


def _known(place: str) -> bool:
    try:
        places(place)
    except DomainError:
        return False
    return True
