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
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as flex_module

FUNCTIONAL = {
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    "flex_attention": ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa"),
}
"""Functions of torch that models call themselves, with their arguments by position."""


@contextmanager
def listening(tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Tell the arguments of every call that is not compiled, by name, once it has run."""
    plain: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": functional.scaled_dot_product_attention,
        "flex_attention": flex_module.flex_attention,
    }
    places = _places(len(sys.modules), tuple(plain.items()))
    replaced = {name: _telling(name, function, tell) for name, function in plain.items()}
    for module, name in places:
        setattr(module, name, replaced[name])
    try:
        yield
    finally:
        for module, name in places:
            if getattr(module, name) is replaced[name]:
                setattr(module, name, plain[name])


@lru_cache(maxsize=1)
def _places(_: int, functions: tuple[tuple[str, Callable[..., Any]], ...]) -> list[tuple[Any, str]]:
    """Modules that have the functions by their names; looked for when there are more modules than before."""
    return [
        (module, name)
        for module in list(sys.modules.values())
        for name, function in functions
        if getattr(module, "__dict__", {}).get(name) is function
    ]


def _telling(name: str, plain: Callable[..., Any], tell: Callable[[dict[str, Any]], None]) -> Callable[..., Any]:
    """A function of torch that tells its calls."""

    @wraps(plain)
    def attend(*arguments: Any, **named: Any) -> Any:
        answer = plain(*arguments, **named)
        if not torch.compiler.is_compiling():
            tell(dict(zip(FUNCTIONAL[name], arguments, strict=False)) | named)
        return answer

    return attend
