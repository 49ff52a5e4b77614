"""What the papers contain, item by item, and what became of each: a claim, a test, or a reason why neither.

Every folder of a paper has a file ``items.py`` with a tuple ``ITEMS`` of all theorems, propositions, lemmas, figures,
tables, experiments and open questions. Claims name them in their ``place``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TypeVar

from bulkedge.lab.studies.claims import Claim
from bulkedge.support.errors import DomainError

T = TypeVar("T")
PAPERS = {
    "equivalence": "Gaussian Equivalence for Self-Attention: Asymptotic Spectral Analysis of Attention Matrix",
    "recovery": "How Does Attention Help? Insights from Random Matrices on Signal Recovery from Sequence Models",
    "width": "Infinite-Width Limit of a Single Attention Layer: Analysis via Tensor Programs",
    "propagation": "Mind the Gap: a Spectral Analysis of Rank Collapse and Signal Propagation in Transformers",
}
"""The papers by the names of their folders, with their titles."""
OURS = "ours"


@dataclass(frozen=True)
class Item:
    """A numbered piece of a paper.

    Attributes
    ----------
    name : str
        As the paper calls it: ``"Theorem 3.2"``.
    says : str
        What it says, in a sentence.
    tested : str
        The test that checks it where that needs no sampling, ``"tests/laws/test_x.py::test_y"``.
    not_done : str
        Why it is neither claimed nor tested.
    """

    name: str
    says: str
    tested: str = ""
    not_done: str = ""


@cache
def items(paper: str) -> tuple[Item, ...]:
    """All items of a paper, in its order."""
    found: tuple[Item, ...] = import_module(f"bulkedge.lab.studies.{paper}.items").ITEMS
    return found


def places(place: str) -> list[tuple[str, str]]:
    """The papers and items that a claim's ``place`` names.

    Examples
    --------
    >>> places("ours"), places("laws: Tracy-Widom; ours")
    ([], [])
    """
    found = []
    for part in place.split(";"):
        paper, _, names = part.strip().partition(":")
        if paper in PAPERS:
            known = {item.name for item in items(paper)}
            for name in (each.strip() for each in names.split(",")):
                if name not in known:
                    raise DomainError(f"place = {place!r}: {paper} has no item {name!r}; see its items.py")
                found.append((paper, name))
        elif paper not in (OURS, "laws"):
            raise DomainError(f"place = {place!r}: {paper!r} is none of {', '.join((*PAPERS, 'laws', OURS))}")
    return found


def claims_of(paper: str, claims: Iterable[tuple[T, Claim]]) -> dict[str, list[tuple[T, Claim]]]:
    """The claims of each item of a paper."""
    found: dict[str, list[tuple[T, Claim]]] = {item.name: [] for item in items(paper)}
    for study, claim in claims:
        for where, name in dict.fromkeys(places(claim.place)):
            if where == paper:
                found[name].append((study, claim))
    return found
