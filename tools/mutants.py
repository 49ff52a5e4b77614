"""How many faults would the tests see? Random small changes of the source, and which of them the tests notice.

A mutant is one operator, constant or condition changed at a random place (drawn evenly over rooms' lines of code). The
tests of its room run first, then all others, until one fails. What survives is either a hole in the tests or a change
without consequences: read each and decide.

    python tools/mutants.py --count 60 --seed 1          # a fresh sample; prints a table, writes out/mutants.json

It works on a copy of the tree, so the tree itself is not touched.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "bulkedge"
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NEAR = {
    "laws": ["tests/laws", "tests/conformance", "tests/limits/test_laws_against_simulation.py"],
    "spectra": ["tests/spectra", "tests/test_comparison.py"],
    "ensembles": ["tests/ensembles", "tests/conformance", "tests/recovery", "tests/limits"],
    "inference": [
        f"tests/test_{each}.py" for each in ("comparison", "nulls", "denoising", "goodness", "covariance", "diagnosis")
    ],
    "recovery": ["tests/recovery", "tests/ensembles", "tests/limits/test_pooled.py"],
    "propagation": ["tests/ensembles", "tests/limits/test_propagation.py"],
    "programs": ["tests/programs", "tests/limits/test_width.py"],
    "nn": ["tests/nn"],
    "plots": ["tests/plots"],
    "heads": ["tests/heads", "tests/limits/test_propagation.py"],
    "lab/studies": ["tests/studies/test_claims.py"],
    "lab/gallery": ["tests/test_report.py", "tests/test_page.py"],
    "lab/sweeps": ["tests/sweeps", "tests/test_cli.py"],
    "lab/explore": ["tests/explore"],
    "cli": ["tests/test_cli.py", "tests/test_reproduction.py", "tests/test_scan_command.py", "tests/test_report.py"],
    "models": ["tests/models", "tests/recovery", "tests/studies/test_embeddings.py"],
    "visibility": ["tests/test_visibility.py", "tests/test_masks.py"],
}
"""Tests of each room; a module of ``support`` has ``tests/test_<name>.py``."""
EVERYWHERE = ("tests/test_domains.py",)
"""Tests that know something of every room: what is declared."""


@dataclass
class Mutant:
    """One change, and what became of it."""

    path: str
    line: int
    change: str
    verdict: str = ""
    seconds: float = 0.0


def places(tree: ast.AST) -> list[ast.AST]:
    """Nodes that can be changed: no annotations, no docstrings, no decorators."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        hidden: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign | ast.arg):
            hidden.append(node.annotation)
        if isinstance(node, ast.FunctionDef):
            hidden += [node.returns, *node.decorator_list]
        if isinstance(node, ast.ClassDef):
            hidden += node.decorator_list
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            hidden.append(node)
        skipped |= {id(inner) for each in hidden if each is not None for inner in ast.walk(each)}
    return [node for node in ast.walk(tree) if id(node) not in skipped and _kinds(node)]


def _kinds(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        return ["operator"]
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        return ["operator"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        return ["sign"]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return ["constant"]
    return ["condition"] if isinstance(node, ast.If | ast.IfExp | ast.While) else []


def mutate(node: ast.AST) -> tuple[ast.AST, str]:
    """The changed node, and the change in words."""
    before = ast.unparse(node if isinstance(node, ast.expr) else getattr(node, "test", node))
    if isinstance(node, ast.Compare):
        node.ops = [SWAPS[type(node.ops[0])]()]
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.UnaryOp):
        return node.operand, f"{before} -> {ast.unparse(node.operand)}"
    elif isinstance(node, ast.Constant):
        value = node.value
        node.value = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 2 or 1.0
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.Constant(value=False)
    after = ast.unparse(node if isinstance(node, ast.expr) else getattr(node, "test", node))
    return node, f"{before} -> {after}"


class Replace(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace it, or look inside."""
        return self.new if node is self.old else super().visit(node)


def drawn(count: int, seed: int, only: str) -> list[tuple[Mutant, str]]:
    """Mutants with the text of their module."""
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    modules = [path for path in sorted(SOURCE.rglob("*.py")) if only in str(path.relative_to(SOURCE))]
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in modules]
    found: list[tuple[Mutant, str]] = []
    while len(found) < count:
        path = rng.choices(modules, lines)[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = places(tree)
        if not nodes:
            continue
        node = rng.choice(nodes)
        line = getattr(node, "lineno", 0)
        new, change = mutate(node)
        text = ast.unparse(ast.fix_missing_locations(Replace(node, new).visit(tree) if new is not node else tree))
        found.append((Mutant(str(path.relative_to(ROOT)), line, change[:120]), text))
    return found


def near(path: str) -> list[str]:
    """The tests that are most likely to notice."""
    inside = Path(path).relative_to("src/bulkedge")
    room = next((name for name in NEAR if inside.with_suffix("").as_posix().startswith(name)), "")
    chosen = NEAR.get(room, [f"tests/test_{inside.stem}.py"])
    if room == "lab/studies" and len(inside.parts) > 3:
        chosen = [*chosen, f"tests/studies/test_{inside.parts[2]}.py", *map(_test_of, _studies(Path(path)))]
    chosen = [each for each in (*EVERYWHERE, *chosen) if (ROOT / each.partition("::")[0]).exists()]
    return [path, *dict.fromkeys(chosen)]


def _studies(path: Path) -> list[str]:
    """The study that a file holds; of a file that studies share, all of its paper."""
    files = (
        [path] if _is_study(path) else [each.relative_to(ROOT) for each in sorted((ROOT / path).parent.glob("*.py"))]
    )
    return [f"{path.parent.name}/{each.stem.replace('_', '-')}" for each in files if _is_study(each)]


def _is_study(path: Path) -> bool:
    return bool(re.search(r"^class \w+\(.*Study\):", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))


def _test_of(study: str) -> str:
    return f"tests/studies/test_studies.py::test_study[{study}]"


def judge(mutant: Mutant, text: str, copy: Path, limit: float) -> None:
    """Run the tests on the changed copy, and write down who noticed."""
    target = copy / mutant.path
    original = target.read_text(encoding="utf-8")
    target.write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(copy / "src")}
    start = time.monotonic()
    mutant.verdict = "survived"
    try:
        for selection in (near(mutant.path), ["tests"]):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "-p", "no:cacheprovider", *selection]
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=limit, check=False)
            if done.returncode not in (0, 5):
                mutant.verdict = "killed"
                break
    except subprocess.TimeoutExpired:
        mutant.verdict = "killed (timeout)"
    finally:
        target.write_text(original, encoding="utf-8")
        mutant.seconds = round(time.monotonic() - start, 1)


def main() -> None:
    """Draw, run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, required=True, help="a fresh one each time: survivors teach to the test")
    parser.add_argument("--only", default="", help="part of the path of modules to change, such as sweeps/")
    parser.add_argument("--limit", type=float, default=1500, help="seconds for the tests of one mutant")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants.json")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    mutants = drawn(given.count, given.seed, given.only)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv*", ".git", "out", "_build", ".*_cache"))
        for k, (mutant, text) in enumerate(mutants, start=1):
            judge(mutant, text, copy, given.limit)
            print(
                f"{k:3} {mutant.verdict:9} {mutant.seconds:6.0f} s  {mutant.path}:{mutant.line}  {mutant.change}",
                flush=True,
            )
            given.out.write_text(json.dumps([asdict(each) for each, _ in mutants], indent=1), encoding="utf-8")
    killed = sum(mutant.verdict.startswith("killed") for mutant, _ in mutants)
    print(f"killed {killed} of {len(mutants)} ({killed / len(mutants):.0%}); read the survivors")


if __name__ == "__main__":
    main()
