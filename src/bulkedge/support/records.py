"""Results as other programs and people read them: JSON, and tables for notebooks.

JSON has no numbers that are not finite. They are null, or, where they have to come back, the text that ``float`` reads:

>>> to_json({"edge": float("inf"), "support": ((0.0, 1.5),)})
'{"edge": null, "support": [[0.0, 1.5]]}'
>>> to_json({"edge": float("inf")}, exact=True)
'{"edge": "inf"}'
"""

from __future__ import annotations

import json
import math
from html import escape
from typing import Any


def to_json(value: Any, indent: int | None = None, *, exact: bool = False) -> str:
    """Write a value as JSON."""
    return json.dumps(_finite(value, exact=exact), indent=indent, allow_nan=False, default=str)


def _finite(value: Any, *, exact: bool) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each, exact=exact) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each, exact=exact) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value)) if exact else None
    return value


def html_table(rows: dict[str, Any], title: str = "") -> str:
    """Names and values as an HTML table, for notebooks; everything is escaped.

    Examples
    --------
    >>> html_table({"edge": 4.0}, "MP")
    '<table><caption>MP</caption><tr><th>edge</th><td>4.0</td></tr></table>'
    """
    head = f"<caption>{escape(title)}</caption>" if title else ""
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table>{head}{body}</table>"
