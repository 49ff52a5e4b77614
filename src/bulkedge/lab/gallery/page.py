"""The pages of a gallery: all claims, and the papers item by item; what claims and verdicts are in words.

>>> sentence(Counter(holds=1)), sentence(Counter(holds=3, fails=1)), sentence(Counter(holds=4, undecided=1))
('1 of 1 claim holds', '1 of 4 claims fails', '4 of 5 claims hold, 1 undecided at this size')
>>> summary(Counter(holds=240, undecided=11))
'251 claims: 240 hold, 0 fail, 11 undecided at this size'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import floor, log10
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from bulkedge.lab.gallery.record import Reproduction
from bulkedge.lab.studies.claims import EXCLUSION, Claim, Rival
from bulkedge.lab.studies.items import ITEMS, PAPERS, Item, claims_of, places
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate
from bulkedge.version import __version__

VERDICTS = ["holds", "fails", "undecided"]
TITLES = {"laws": "The laws that every paper stands on"} | PAPERS | {"heads": "Real heads, past the papers"}
"""Headings of the folders of studies, in the order of the page."""
STATES = {
    "claimed": ("has a claim", "have claims"),
    "tested": ("is checked by a test", "are checked by tests"),
    "not done": ("is not done", "are not done"),
    "not here": ("has no claim in this folder", "have no claim in this folder"),
}
"""What may become of an item, in singular and plural."""
MANY = 1000
"""Standard deviations beyond which their number says nothing more."""


@cache
def environment() -> Environment:
    """The templates of the package, with the words for claims as filters."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader("bulkedge.lab.gallery"), PackageLoader("bulkedge")]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    spoken = (predicted, measured, rival, rivalry, sigmas, counted)
    found.filters |= {each.__name__: each for each in spoken} | {"anchor": anchor}
    return found


def anchor(study: str, number: int = 0) -> str:
    """Where a study stands on the page, or one of its claims.

    Examples
    --------
    >>> anchor("laws/edge"), anchor("laws/edge", 2)
    ('laws-edge', 'laws-edge-2')
    """
    return study.replace("/", "-") + (f"-{number}" if number else "")


def in_order(results: Iterable[Reproduction]) -> list[Reproduction]:
    """Results as the page has them: paper by paper, those of other folders last, each by its name."""
    place = {paper: number for number, paper in enumerate(TITLES)}
    return sorted(results, key=lambda each: (place.get(each.paper, len(place)), each.name))


def claims_page(results: Sequence[Reproduction], *, scan: str = "") -> str:
    """The page ``index.html``."""
    papers = [(paper, list(group)) for paper, group in groupby(results, key=lambda each: each.paper)]
    own = {
        "title": "reproduced claims" if len(results) > 1 else results[0].name,
        "papers": papers,
        "titles": TITLES,
        "values": values,
        "states": VERDICTS,
        "scan": scan,
    }
    return environment().get_template("gallery.html").render(head(results) | own)


def head(results: Sequence[Reproduction]) -> dict[str, Any]:
    """What all pages say at their top."""
    claims: list[Claim] = [claim for each in results for claim in each.claims]
    found = tally(claims)
    return {
        "version": __version__,
        "seeds": sorted({each.origin.seed for each in results}),
        "tally": found,
        "summary": summary(found),
        "studies": len(results),
        "outdated": sum(bool(each.outdated) for each in results),
    }


class Place(NamedTuple):
    """Where a claim stands on the page: its study, and its number there from one on."""

    study: str
    number: int


@dataclass(frozen=True)
class ItemRow:
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


def rows(paper: str, results: Iterable[Reproduction]) -> list[ItemRow]:
    """The items of a paper with what became of them."""
    known = (
        (Place(each.name, number), claim)
        for each in results
        for number, claim in enumerate(each.claims, start=1)
        if _known(claim.place)
    )
    found = claims_of(paper, known)
    return [ItemRow(item, tuple(found[item.name])) for item in ITEMS[paper]]


def papers_page(results: Sequence[Reproduction]) -> str:
    """The page ``papers.html``, whose links lead to ``index.html`` beside it."""
    return environment().get_template("papers.html").render(head(results) | _papers(results))


def papers_markdown(results: Sequence[Reproduction]) -> str:
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


def _counts(found: Sequence[ItemRow]) -> str:
    """How many items a paper has, and what became of how many."""
    states = [row.state for row in found]
    parts = [counted(states.count(state), *STATES[state]) for state in STATES if state in states]
    return f"{counted(len(found), 'item', 'items')}: {', '.join(parts)}" if found else "no items"


def _known(place: str) -> bool:
    try:
        places(place)
    except DomainError:
        return False
    return True


def counted(number: int, one: str, many: str) -> str:
    """A number with the word for what it counts, in singular or plural."""
    return f"{number} {one if number == 1 else many}"


def tally(claims: Iterable[Claim]) -> Counter[str]:
    """How many claims have each verdict."""
    return Counter(claim.verdict for claim in claims)


def sentence(found: Counter[str]) -> str:
    """The verdicts of a study, worst first: how many fail, or else how many hold and are undecided."""
    total = counted(found.total(), "claim", "claims")
    if failed := found["fails"]:
        return f"{failed} of {total} {'fails' if failed == 1 else 'fail'}"
    undecided = f", {found['undecided']} undecided at this size" if found["undecided"] else ""
    return f"{found['holds']} of {total} {'holds' if found['holds'] == 1 else 'hold'}{undecided}"


def summary(found: Counter[str]) -> str:
    """All three counts, for the end of a run and the head of a page."""
    holds = counted(found["holds"], "holds", "hold")
    fails = counted(found["fails"], "fails", "fail")
    total = counted(found.total(), "claim", "claims")
    return f"{total}: {holds}, {fails}, {found['undecided']} undecided at this size"


def predicted(claim: Claim) -> str:
    """The prediction with its relation, if that is not equality."""
    return {"=": "", "<=": "≤ ", ">=": "≥ "}[claim.relation] + f"{claim.predicted:.5g}"


def measured(found: Estimate) -> str:
    """A measurement with its error to two digits, and with as many decimals.

    Examples
    --------
    >>> measured(Estimate(2.51071, 0.0068)), measured(Estimate(1234.5, 20.0)), measured(Estimate(0.0, 1e-12))
    ('2.5107 ± 0.0068', '1234 ± 20', '0 ± 1e-12')
    >>> measured(Estimate(0.637, 0.1)), measured(Estimate(float("nan"), 0.1)), measured(Estimate(3e9, 2e7))
    ('0.64 ± 0.10', 'nan ± 0.10', '3e+09 ± 2e+07')
    """
    if not 1e-8 < found.error < 1e6:
        return f"{found.value:.5g} ± {found.error:.2g}"
    decimals = max(1 - floor(log10(found.error)), 0)
    return f"{found.value:.{decimals}f} ± {found.error:.{decimals}f}"


def sigmas(number: float) -> str:
    """A number of standard deviations, as precise as people need it.

    Examples
    --------
    >>> sigmas(4.26), sigmas(9.97), sigmas(37.4), sigmas(float("inf"))
    ('4.3 σ', '10 σ', '37 σ', 'over 1000 σ')
    """
    if number > MANY:
        return f"over {MANY} σ"
    return f"{number:.1f} σ" if number < 9.95 else f"{number:.0f} σ"


def rivalry(claim: Claim) -> str:
    """What became of the rival."""
    if isinstance(claim.rival, str):
        return f"no rival: {claim.rival}"
    if claim.exclusion >= EXCLUSION:
        return f"excluded by {sigmas(claim.exclusion)}"
    return f"not excluded ({sigmas(claim.exclusion)})"


def rival(claim: Claim) -> str:
    """The rival and its number; empty if there is none."""
    return f"{claim.rival.name}: {claim.rival.value:.5g}" if isinstance(claim.rival, Rival) else ""


def values(parameters: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    """Parameters with who chose them.

    Examples
    --------
    >>> values({"tokens": 1000, "head_dims": [4, 8]}, {"tokens": "paper", "head_dims": "ours"})
    'tokens 1000 (paper), head dims 4, 8 (ours)'
    """
    return ", ".join(f"{name.replace('_', ' ')} {_plain(value)} ({chosen[name]})" for name, value in parameters.items())


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(f"({_plain(each)})" if isinstance(each, list | tuple) else _plain(each) for each in value)
    return str(value)
