"""How large the house is, and how far a newcomer walks in it: ``python tools/house.py``, ``--walks`` runs code too.

Files and lines of the package, what docstrings and comments take, class names that stand in several files, modules with
a single importer, and for some calls of the library the files in which anything runs.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "bulkedge"
SMALL = 60
"""Lines below which a module with a single importer should be part of it."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    paths = sorted(PACKAGE.rglob("*.py"))
    names = (".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def shares() -> dict[str, float]:
    """Files, lines, and the shares of lines that are docstrings and comments."""
    lines = docstrings = comments = 0
    for path in modules().values():
        text = path.read_text(encoding="utf-8")
        lines += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                docstrings += (node.end_lineno or node.lineno) - node.lineno + 1
        with tokenize.open(path) as file:
            comments += sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(file.readline))
    return {"files": len(modules()), "lines": lines, "docstrings": docstrings / lines, "comments": comments / lines}


def repeated_names() -> dict[str, list[str]]:
    """Names of classes and type aliases that several modules define, leading underscores aside, with these modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, path in modules().items():
        for name in set(_defined(ast.parse(path.read_text(encoding="utf-8")))):
            found[name.lstrip("_")].append(module)
    return {name: homes for name, homes in sorted(found.items()) if len(homes) > 1}


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        if isinstance(node, ast.TypeAlias if sys.version_info >= (3, 12) else ()):
            yield node.name.id
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            union = isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
            generic = isinstance(value, ast.Subscript) or union
            if generic and not name.isupper() and name.lstrip("_")[:1].isupper():
                yield name


def single_importers() -> list[tuple[int, str, str]]:
    """Modules that one other module alone imports: lines, module, importer."""
    known, users = modules(), defaultdict(set)
    for module, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    users[full if full in known else node.module].add(module)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    users[alias.name].add(module)
    return sorted(
        (known[module].read_text(encoding="utf-8").count("\n"), module, next(iter(users[module])))
        for module in known
        if len(users[module]) == 1 and known[module].name != "__init__.py"
    )


def files_of(call: Callable[[], Any]) -> list[str]:
    """Files of the package in which something runs while a call does; what importing runs does not count."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    found = (Path(each) for each in seen if each.startswith(str(PACKAGE)) and each.endswith(".py"))
    return sorted(each.relative_to(PACKAGE).as_posix() for each in found)


def walks() -> Iterator[tuple[str, list[str]]]:
    """Some calls of the library and the files that they walk through, after a first call that imports and compiles."""
    import bulkedge as be
    from bulkedge.cli import main
    from bulkedge.models import default_model

    def free_mul(ratio: float) -> None:
        be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(ratio)).pdf(2.0)

    def finite_head_law(beta: float) -> None:
        be.FiniteHeadLaw(beta, 64, 2048).pdf(2.0)

    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = default_model(trained=False)

        def scan_to_page(seed: float) -> None:
            found = be.scan(model, tokenizer=tokenizer, tokens=64, draws=5, rng=round(10 * seed))
            found.to_html(f"{folder}/scan.html")

        def reproduce(seed: float) -> None:
            sizes = ["--size", "30", "--draws", "100", "--seed", str(round(10 * seed))]
            with contextlib.redirect_stdout(None):
                main(["reproduce", "laws/edge", *sizes, "--workers", "1", "--out", folder], standalone_mode=False)

        for call in (free_mul, finite_head_law, scan_to_page, reproduce):
            call(0.4)
            yield call.__name__, files_of(partial(call, 0.5))


def main_table(*, walk: bool) -> None:
    """Print the tables."""
    for name, value in shares().items():
        print(f"{name:12} {value:.1%}" if value < 1 else f"{name:12} {value:,.0f}")
    repeated, single = repeated_names(), single_importers()
    print(f"class names in several files: {len(repeated)}")
    for name, homes in repeated.items():
        print(f"  {name}: {', '.join(homes)}")
    print(f"modules with a single importer: {len(single)}; shorter than {SMALL} lines:")
    for lines, module, importer in single:
        if lines < SMALL:
            print(f"  {lines:3} {module} <- {importer}")
    for name, files in walks() if walk else ():
        print(f"{name}: {len(files)} files")
        print("  " + "\n  ".join(files))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", action="store_true", help="also run some calls, and list the files they go through")
    main_table(walk=parser.parse_args().walks)
