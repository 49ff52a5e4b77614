"""Docstrings of attributes as they are written: napoleon would read what stands before a colon as a type.

It does so in the first line that is not empty ("Width of the edge: the largest ..."), so that line is made an empty
comment.
"""

from typing import Any


def keep_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001, PLR0913, PLR0917
    """Put an empty comment before the docstring of an attribute, a property or a constant."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]


def setup(app: Any) -> dict[str, bool]:
    """Come before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    return {"parallel_read_safe": True}
