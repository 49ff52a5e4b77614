"""Calls of torch's own attention functions, told to a listener, wherever they were imported by their names.

>>> import torch
>>> seen = []
>>> with listening(seen.append):
...     output = torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 2, 5, 4), is_causal=True)
>>> sorted(seen[0])
['is_causal', 'key', 'query', 'value']
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import flex_attention as flex_module

FUNCTIONAL = {
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    "flex_attention": ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa"),
}
"""Functions of torch that models call themselves, with their arguments by position."""


class _FunctionPlace(NamedTuple):
    """Where a function is found by a name: a module, or a class of modules."""

    home: Any
    name: str
    found: Any  # what is there: the function, what torch.compile made of it, or a static method of either
    function: str  # a name of FUNCTIONAL


@contextmanager
def listening(tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Tell the arguments of every call that code outside of compiled graphs makes, by name, once it has run.

    Functions that were compiled by themselves, as ``flex_attention`` often is, are called as they are.
    """
    plain: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": functional.scaled_dot_product_attention,
        "flex_attention": flex_module.flex_attention,
    }
    places = [
        (each, _telling(each.function, each.found, tell)) for each in _places(len(sys.modules), tuple(plain.items()))
    ]
    for each, telling in places:
        setattr(each.home, each.name, telling)
    try:
        yield
    finally:
        for each, telling in places:
            if vars(each.home).get(each.name) is telling:
                setattr(each.home, each.name, each.found)


@lru_cache(maxsize=1)
def _places(_: int, functions: tuple[tuple[str, Callable[..., Any]], ...]) -> list[_FunctionPlace]:
    """Where the functions are by their names; looked for when there are more modules than before."""
    found: list[_FunctionPlace] = []
    for module in list(sys.modules.values()):
        own = getattr(module, "__dict__", {})
        kinds = [
            each
            for each in list(own.values())
            if issubclass(type(each), type) and issubclass(each, nn.Module) and each.__module__ == own.get("__name__")
        ]
        for home in (module, *kinds):
            for key, value in list(getattr(home, "__dict__", {}).items()):
                name = _function_of(value, functions)
                if name is not None:
                    found.append(_FunctionPlace(home, key, value, name))
    return found


def _function_of(value: Any, functions: tuple[tuple[str, Callable[..., Any]], ...]) -> str | None:
    """Which of the functions a value is, or was compiled from."""
    if type(value) is staticmethod:
        value = value.__func__
    if type(value) is not FunctionType and type(value) is not BuiltinFunctionType:
        return None
    of = value.__dict__.get("_torchdynamo_orig_callable", value) if type(value) is FunctionType else value
    return next((name for name, function in functions if of is function), None)


def _telling(name: str, found: Any, tell: Callable[[dict[str, Any]], None]) -> Any:
    """A function of torch that tells its calls."""
    plain = found.__func__ if type(found) is staticmethod else found

    @wraps(plain)
    def attend(*arguments: Any, **named: Any) -> Any:
        answer = plain(*arguments, **named)
        if not torch.compiler.is_compiling():
            tell(dict(zip(FUNCTIONAL[name], arguments, strict=False)) | named)
        return answer

    return staticmethod(attend) if type(found) is staticmethod else attend
