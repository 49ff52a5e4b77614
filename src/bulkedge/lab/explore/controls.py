"""Sliders, boxes and buttons from declared parameters: the values that a slider stops at, as text that reads back."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any, Literal

import numpy as np

from bulkedge.support.domains import Choice, Domain, Integers, Interval

STOPS = 100
"""Stops of a slider, about."""
FAR = 20
"""Quotient of a domain's ends from which on its slider is logarithmic."""


def kind(domain: Domain) -> Literal["slider", "box", "buttons"]:
    """How a parameter is set."""
    if isinstance(domain, Choice):
        if set(domain.options) == {False, True}:
            return "box"
        return "buttons" if any(isinstance(each, str) for each in domain.options) else "slider"
    return "slider"


def stops(domain: Domain, value: Any) -> list[str]:
    """Where a slider stops, in its order; the value that the parameter has is one of the stops.

    Examples
    --------
    >>> stops(Interval(0, 1), 0.333)[32:36]
    ['0.32', '0.33', '0.333', '0.34']
    >>> stops(Choice((32, 64)), 64)
    ['32', '64']
    """
    if isinstance(domain, Choice):
        return [str(each) for each in domain.options]
    if not isinstance(domain, Interval | Integers):
        raise TypeError(f"no slider for {domain}")
    whole = isinstance(domain, Integers)
    found = _geometric(domain) if domain.low > 0 and domain.high / domain.low >= FAR else _even(domain)
    values = {round(each) if whole else float(f"{each:.6g}") for each in found}
    return [str(each) for each in sorted(values | {value})]


def place(texts: Sequence[str], value: Any) -> int:
    """Where a slider is that has a value."""
    return next(number for number, text in enumerate(texts) if float(text) == float(value))


def _even(domain: Interval | Integers) -> Any:
    rough = (domain.high - domain.low) / STOPS
    power = 10.0 ** floor(log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
    step = max(step, 1.0) if isinstance(domain, Integers) else step
    count = int((domain.high - domain.low) / step + 1e-9)
    return np.append(domain.low + step * np.arange(count + 1), domain.high)


def _geometric(domain: Interval | Integers) -> Any:
    middle = [float(f"{each:.2g}") for each in np.geomspace(domain.low, domain.high, STOPS)[1:-1]]
    return [domain.low, *middle, domain.high]
