"""Hypothesis strategies from the domains that parameters declare."""

import math

from hypothesis import settings
from hypothesis import strategies as st

from bulkedge.support.domains import UNWRITTEN, Choice, Each, Integers, Interval, Text, parameters


def costly(examples):
    """So many examples of a test that takes long for each; as many as of any other with ``make test-slow``."""
    usual, active = settings.get_profile("bulkedge").max_examples, settings().max_examples
    return settings(max_examples=examples if active == usual else active)


def members(domain, length=None):
    """Values of a declared domain, its ends and the usual suspects included."""
    if isinstance(domain, Interval):
        return _numbers(domain)
    if isinstance(domain, Integers):
        return st.integers(domain.low, domain.high)
    if isinstance(domain, Choice):
        return st.sampled_from(domain.options)
    if isinstance(domain, Text):
        return st.text(st.characters(exclude_categories=UNWRITTEN), max_size=domain.most)
    if isinstance(domain, Each):
        size = length or 3
        return st.lists(members(domain.member), min_size=size, max_size=size).map(tuple)
    raise TypeError(domain)


def _numbers(domain):
    special = [value for value in (domain.low, 0.5, 1.0, 2.0, domain.high) if domain.low <= value <= domain.high]
    low, high = math.log(domain.low), math.log(domain.high)
    spread = st.floats(low, high).map(lambda v: min(max(math.exp(v), domain.low), domain.high))
    # most interest lies within a few decades of one
    central = st.floats(max(low, -3), min(high, 3)).map(math.exp) if low < 3 and high > -3 else spread
    choices = [st.sampled_from(special), central, spread]
    return st.one_of(*choices, st.just(math.inf)) if domain.infinity else st.one_of(*choices)


def parameters_of(cls, fixed):
    """Keyword arguments of a class, each from its declared domain or fixed; tuples of one object share their length."""
    declared = {each.name: each.domain for each in parameters(cls) if each.name not in fixed}

    @st.composite
    def draw(draw):
        length = draw(st.integers(1, 4))
        return fixed | {name: draw(members(domain, length)) for name, domain in declared.items()}

    return draw()
