"""The page of a gallery: every study with its figure and its claims, paper by paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from bulkedge.lab.gallery import words
from bulkedge.lab.gallery.record import Reproduction
from bulkedge.lab.studies.claims import Claim
from bulkedge.lab.studies.items import PAPERS
from bulkedge.version import __version__

VERDICTS = ["holds", "fails", "undecided"]
TITLES = {"laws": "The laws that every paper stands on"} | PAPERS | {"heads": "Real heads, past the papers"}
"""Headings of the folders of studies, in the order of the page."""


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
    spoken = (words.predicted, words.measured, words.rival, words.rivalry, words.sigmas, words.counted)
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


def index(results: Sequence[Reproduction], *, scan: str = "") -> str:
    """The page."""
    papers = [(paper, list(group)) for paper, group in groupby(results, key=lambda each: each.paper)]
    own = {
        "title": "reproduced claims" if len(results) > 1 else results[0].name,
        "papers": papers,
        "titles": TITLES,
        "values": words.values,
        "states": VERDICTS,
        "scan": scan,
    }
    return environment().get_template("gallery.html").render(head(results) | own)


def head(results: Sequence[Reproduction]) -> dict[str, Any]:
    """What all pages say at their top."""
    claims: list[Claim] = [claim for each in results for claim in each.claims]
    found = words.tally(claims)
    return {
        "version": __version__,
        "seeds": sorted({each.origin.seed for each in results}),
        "tally": found,
        "summary": words.summary(found),
        "studies": len(results),
        "outdated": sum(bool(each.outdated) for each in results),
    }
