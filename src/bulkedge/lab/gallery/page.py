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
from pathlib import Path
from typing import Any, NamedTuple

from bulkedge.lab.gallery.folder import Reproduction
from bulkedge.lab.studies.claims import EXCLUSION, Claim, Rival
from bulkedge.lab.studies.items import ITEMS, PAPERS, Item, claims_of, contradicts, places, power_of
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate
from bulkedge.support.files import page_templates, replace_file, to_json
from bulkedge.version import __version__

VERDICTS = ["holds", "fails", "undecided"]
TITLES = {"laws": "The laws that every paper stands on"} | PAPERS | {"heads": "Real heads, past the papers"}
"""Headings of the folders of studies, in the order of the page."""
ITEM_VERDICTS = {
    "holds as stated": ("holds as stated", "hold as stated"),
    "holds corrected": ("holds corrected", "hold corrected"),
    "fails": ("fails", "fail"),
    "open": ("is open", "are open"),
}
"""The verdict on an item, in singular and plural."""
DRAWING = """import json
import xarray
from bulkedge.lab.studies.base import studies

data = xarray.open_zarr("{study}/data.zarr", consolidated=False).load()
study = studies()["{study}"](**json.loads(data.attrs["parameters"]))
study.plot(data).savefig("figure.pdf")"""
SCAN = "scan.html"  # the page of bulkedge scan, which the gallery's page links where it lies in the folder
MANY = 1000  # standard deviations beyond which their number says nothing more


@cache
def environment() -> Any:
    """The templates of the package, with the words for claims as filters."""
    found = page_templates("bulkedge.lab.gallery")
    spoken = (predicted, measured, off, allowance, rival, rivalry, rivals_fate, counted, drawing)
    found.filters |= {each.__name__: each for each in spoken} | {"anchor": anchor}
    return found


def anchor(study: str, number: int = 0) -> str:
    """Where a study stands on the page, or one of its claims.

    >>> anchor("laws/edge"), anchor("laws/edge", 2)
    ('laws-edge', 'laws-edge-2')
    """
    return study.replace("/", "-") + (f"-{number}" if number else "")


def drawing(study: str) -> str:
    """The code that draws a study's figure from its data, run where the folder is.

    >>> print(drawing("laws/edge"))
    import json
    import xarray
    from bulkedge.lab.studies.base import studies
    <BLANKLINE>
    data = xarray.open_zarr("laws/edge/data.zarr", consolidated=False).load()
    study = studies()["laws/edge"](**json.loads(data.attrs["parameters"]))
    study.plot(data).savefig("figure.pdf")
    """
    return DRAWING.format(study=study)


def in_order(results: Iterable[Reproduction]) -> list[Reproduction]:
    """Results as the page has them: paper by paper, those of other folders last, each by its name."""
    place = {paper: number for number, paper in enumerate(TITLES)}
    return sorted(results, key=lambda each: (place.get(each.paper, len(place)), each.name))


def write_pages(root: Path, found: Iterable[Reproduction]) -> None:
    """Write ``claims.json``, ``index.html`` and ``papers.html`` for these results into a folder, paper by paper."""
    results = in_order(found)
    if not results:
        return
    claims = [claim for each in results for claim in each.shown_claims()]
    replace_file(root / "claims.json", to_json(claims, indent=1))
    replace_file(root / "papers.html", papers_page(results))
    scan = SCAN if (root / SCAN).is_file() else ""
    replace_file(root / "index.html", claims_page(results, scan=scan))


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
        "sizes": sizes(results),
    }


def sizes(results: Iterable[Reproduction]) -> str:
    """At which of its two sizes a folder was run: quick ones, if one study was."""
    quick = any("quick" in each.chosen.values() for each in results)
    return "quick sizes" if quick else "the paper's sizes"


class Place(NamedTuple):
    """Where a claim stands on the page: its study, and its number there from one on."""

    study: str
    number: int


@dataclass(frozen=True)
class ItemRow:
    """An item of a paper, with the claims of a gallery that name it."""

    paper: str
    item: Item
    claims: tuple[tuple[Place, Claim], ...]

    @property
    def verdict(self) -> str:
        """The verdict, one of ``ITEM_VERDICTS``."""
        verdicts = [claim.verdict for _, claim in self.claims]
        if "fails" in verdicts or any(claim.verdict == "holds" for _, claim in self.against):
            return "fails"
        if self.item.asks or "undecided" in verdicts or not (verdicts or self.item.tested):
            return "open"
        if self.item.corrected:
            return "holds corrected" if self.off_printed else "open"
        return "holds as stated"

    @property
    def against(self) -> list[tuple[Place, Claim]]:
        """The claims that contradict it."""
        return [each for each in self.claims if contradicts(each[1].place, self.paper, self.item.name)]

    @property
    def off_printed(self) -> str:
        """By how many standard deviations its claims exclude the printed form: the least and the most."""
        found = sorted(claim.off_printed for _, claim in self.claims if claim.off_printed >= EXCLUSION)
        return " to ".join(dict.fromkeys(map(sigmas, (found[0], found[-1])))) if found else ""


def rows(paper: str, results: Iterable[Reproduction]) -> list[ItemRow]:
    """The items of a paper with what became of them."""
    known = (
        (Place(each.name, number), claim)
        for each in results
        for number, claim in enumerate(each.claims, start=1)
        if _is_place(claim.place)
    )
    found = claims_of(paper, known)
    return [ItemRow(paper, item, tuple(found[item.name])) for item in ITEMS[paper]]


def papers_page(results: Sequence[Reproduction]) -> str:
    """The page ``papers.html``, whose links lead to ``index.html`` beside it."""
    return environment().get_template("papers.html").render(head(results) | _papers(results))


def papers_markdown(results: Sequence[Reproduction]) -> str:
    """The same as a page of the documentation."""
    return environment().get_template("papers.md").render(head(results) | _papers(results) | {"cell": cell})


def power_markdown(results: Sequence[Reproduction]) -> str:
    """Which errors the claims of each item detect, as a page of the documentation."""
    claims = [claim for each in results for claim in each.claims if _is_place(claim.place)]
    power = {paper: power_of(paper, claims) for paper in PAPERS}
    named = [(paper, item, power[paper].get(item.name)) for paper in PAPERS for item in ITEMS[paper]]
    # coarse is an item of which no claim detects that a number is a tenth off
    own = {
        "power": power,
        "claimed": sum(map(len, power.values())),
        "coarse": [each for each in named if each[2] and not each[2].detects <= 0.1],
    }
    return environment().get_template("power.md").render(head(results) | own | {"cell": cell})


def cell(text: str) -> str:
    r"""Text for a table of Markdown: on one line, and with no sign that would be taken for markup.

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
        "items": _counts([row for each in found.values() for row in each]),
        "states": [each.replace(" ", "-") for each in ITEM_VERDICTS],
    }


def _counts(found: Sequence[ItemRow]) -> str:
    """How many items there are, and how many have each of the four verdicts."""
    verdicts = [row.verdict for row in found]
    parts = [counted(verdicts.count(each), *words) for each, words in ITEM_VERDICTS.items()]
    return f"{counted(len(found), 'item', 'items')}: {', '.join(parts)}"


def _is_place(place: str) -> bool:
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
    number = {"=": "", "<=": "≤ ", ">=": "≥ "}[claim.relation] + f"{claim.predicted:.5g}"
    return f"{number} (sign)" if claim.kind == "sign" else number


def off(claim: Claim) -> str:
    """By how much the measurement is off the bare prediction; of a bound or a sign, on which side."""
    return f"{sigmas(claim.deviation)} {claim.side}"


def allowance(claim: Claim) -> str:
    """What the verdict allows for finite size, and on what ground; empty where it is nothing."""
    return f"allowed {claim.finite_size:.2g}, {claim.ground}" if claim.finite_size else ""


def measured(found: Estimate) -> str:
    """A measurement with its error to two digits, and with as many decimals.

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


def rivals_fate(claim: Claim) -> str:
    """What became of the rival, with its name."""
    return f"{claim.rival.name}: {rivalry(claim)}" if isinstance(claim.rival, Rival) else rivalry(claim)


def rival(claim: Claim) -> str:
    """The rival and its number; empty if there is none."""
    return f"{claim.rival.name}: {claim.rival.value:.5g}" if isinstance(claim.rival, Rival) else ""


def values(parameters: Mapping[str, Any], chosen: Mapping[str, str]) -> str:
    """Parameters with who chose them.

    >>> values({"tokens": 1000, "head_dims": [4, 8]}, {"tokens": "paper", "head_dims": "ours"})
    'tokens 1000 (paper), head dims 4, 8 (ours)'
    """
    return ", ".join(f"{name.replace('_', ' ')} {_plain(value)} ({chosen[name]})" for name, value in parameters.items())


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(f"({_plain(each)})" if isinstance(each, list | tuple) else _plain(each) for each in value)
    return str(value)
