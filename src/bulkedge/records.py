"""JSON that other programs can read: numbers that are not finite are null.

>>> written({"edge": float("inf"), "support": ((0.0, 1.5),)})
'{"edge": null, "support": [[0.0, 1.5]]}'
"""

from __future__ import annotations

import json
import math
from html import escape
from typing import Any


def written(value: Any, indent: int | None = None) -> str:
    """The value as JSON text."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def html_table(rows: dict[str, Any], title: str = "") -> str:
    """Names and values as an HTML table, for notebooks; everything is escaped."""
    head = f"<caption>{escape(title)}</caption>" if title else ""
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table>{head}{body}</table>"
