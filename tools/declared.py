"""Write down a hash of what each module declares: domains, defaults and the paper's values.

The test of declarations compares the package with this record, so that no bound and no default changes unnoticed. The
values stand in the source alone: git shows what changed.

    python tools/declared.py          # accept what is declared now; read the difference before you commit it
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from bulkedge.support.files import replace_file

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "declared.json"
DOMAINS = {"parameter", "Interval", "Integers", "Choice", "Each", "Numbers", "Instance", "SymmetricMatrix", "Text"}


def declared() -> dict[str, str]:
    """Module → hash of its declarations, for the modules that have any."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        texts = list(declarations(ast.parse(path.read_text(encoding="utf-8"))))
        if texts:
            name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
            found[name] = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]
    return found


def declarations(tree: ast.AST) -> Iterator[str]:
    """Calls that declare a parameter (without its words) or a domain, and defaults of public functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOMAINS:
            given = node.args if node.func.id != "parameter" else [*node.args[:1], *node.args[2:]]
            named = {each.arg: ast.unparse(each.value) for each in node.keywords}
            yield f"{node.func.id} {[ast.unparse(each) for each in given]} {named}"
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            values = [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
            if values:
                yield f"{node.name} {[ast.unparse(each) for each in values]}"


if __name__ == "__main__":
    replace_file(RECORD, json.dumps(declared(), indent=1) + "\n")
