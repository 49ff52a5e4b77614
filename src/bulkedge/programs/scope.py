"""Which programs have a limit that is known: the conditions of the theorem of *width*, with reasons.

In a tensor program (Netsor) the product of a weight and a vector is a Gaussian vector, independent of all others except
products with the same weight. Dot products over the root of n are Gaussian scalars if their two vectors come from
different weights and neither depends on the weight of the other (docs/theory/width.md, "Programs").
"""

from __future__ import annotations

from collections.abc import Sequence

from bulkedge.programs.instructions import (
    Dot,
    Input,
    Instruction,
    Kinds,
    MatMul,
    Nonlin,
    Scalars,
    SumCopies,
    Weight,
)
from bulkedge.support.errors import DomainError


def check_scope(instructions: Sequence[Instruction], kinds: Kinds) -> None:
    """Raise a ValueError at the first line whose limit is not known."""
    table = {each.name: each for each in instructions}
    gaussian = gaussian_names(instructions, kinds)
    pairs: dict[frozenset[str], str] = {}
    for each in instructions:
        if isinstance(each, Dot) and each.scaling == "sqrt":
            pair = _fresh_pair(each, table)
            if pair in pairs:
                raise _outside(each, f"{pairs[pair]} has the same two weights: take all their dot products in one")
            pairs[pair] = each.name
        elif isinstance(each, (Nonlin, SumCopies)):
            wrong = [name for name in each.operands() if name not in gaussian]
            if wrong:
                remedy = "make it one function" if isinstance(each, Nonlin) else "multiply it by a weight first"
                raise _outside(each, f"{wrong[0]} is not Gaussian given the scalars: {remedy}")


def gaussian_names(instructions: Sequence[Instruction], kinds: Kinds) -> set[str]:
    """Vectors that are Gaussian given the scalars: inputs, products with weights, and their linear images."""
    found: set[str] = set()
    for each in instructions:
        linear = not isinstance(each, (Nonlin, Weight))
        images = all(name in found for name in each.operands() if not isinstance(kinds[name], Scalars))
        if isinstance(each, (Input, MatMul)) or (linear and images and not isinstance(kinds[each.name], Scalars)):
            found.add(each.name)
    return found


def _fresh_pair(each: Dot, table: dict[str, Instruction]) -> frozenset[str]:
    """The two weights of a dot product over the root of n."""
    sides = [table[name] for name in each.operands()]
    for side in sides:
        if not isinstance(side, MatMul):
            raise _outside(each, f"{side.name} must come straight from a weight (only 'linear' scaling takes others)")
    left, right = (side.weight for side in sides if isinstance(side, MatMul))
    if left == right:
        raise _outside(each, f"both come from {left}: their dot product grows like √n; use scaling='linear'")
    for weight, other in ((left, sides[1]), (right, sides[0])):
        if weight in _ancestors(other.operands()[1], table):
            raise _outside(each, f"{other.name} depends on {weight}, which the other side comes from")
    return frozenset((left, right))


def _ancestors(name: str, table: dict[str, Instruction]) -> set[str]:
    """All names that a value is computed from."""
    found, waiting = set(), [name]
    while waiting:
        for operand in table[waiting.pop()].operands():
            if operand not in found:
                found.add(operand)
                waiting.append(operand)
    return found


def _outside(each: Instruction, why: str) -> DomainError:
    return DomainError(f"{each} is outside of the theorem: {why}")
