"""Claims and verdicts in words, the same on the page and in the terminal.

>>> sentence(Counter(holds=1)), sentence(Counter(holds=3, fails=1)), sentence(Counter(holds=4, undecided=1))
('1 of 1 claim holds', '1 of 4 claims fails', '4 of 5 claims hold, 1 undecided at this size')
>>> summary(Counter(holds=240, undecided=11))
'251 claims: 240 hold, 0 fail, 11 undecided at this size'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor, log10
from typing import Any

from bulkedge.lab.studies.claims import EXCLUSION, Claim, Rival
from bulkedge.support.estimates import Estimate

MANY = 1000
"""Standard deviations beyond which their number says nothing more."""


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
