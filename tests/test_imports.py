"""Imports point one way along the pipeline: laws, ensembles and spectra, comparison, ..., report, command line."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import bulkedge

ROOT = Path(bulkedge.__file__).parent

LAYERS = [
    ["version", "support"],
    ["visibility"],
    ["laws"],
    ["spectra"],
    ["testing"],
    ["ensembles"],
    ["inference"],
    ["heads"],
    ["recovery", "propagation", "programs"],
    ["nn"],
    ["models"],
    ["plots"],
    ["lab"],
    ["cli", "__main__"],
]
"""From the bottom up; a module may import from its own layer and those before it."""
THIN = {("bulkedge.spectra.dense", "bulkedge.inference.comparison")}
"""``spectrum.plot(law)`` compares and draws when it is called; with the plots themselves, the only way back."""
DRAWING = {"matplotlib", "plotly"}
MAY_DRAW = re.compile(r"bulkedge\.(plots|lab|models)(\.|$)")
MAY_PRINT = re.compile(r"bulkedge\.(cli|lab\.explore)(\.|$)")


@cache
def tree_of(path):
    return ast.parse(path.read_text())


@cache
def imports_of(path):
    return list(_imports_of(path))


def _imports_of(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def layer_of(module):
    parts = module.split(".")
    top = parts[1] if len(parts) > 1 else "__init__"
    return next((k for k, layer in enumerate(LAYERS) if top in layer), None)


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT.parent).with_suffix("")
        yield ".".join(relative.parts).removesuffix(".__init__"), path


def test_every_module_has_a_layer():
    assert [name for name, _ in modules() if name != "bulkedge" and layer_of(name) is None] == []


@pytest.mark.always
def test_imports_point_up_the_pipeline():
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        if name != "bulkedge"
        for target in imports_of(path)
        if target.startswith("bulkedge.") and layer_of(target) > layer_of(name) and (name, target) not in THIN
    ]
    assert wrong == []


def test_only_the_top_of_the_pipeline_draws_or_prints():
    drawing = [
        name
        for name, path in modules()
        if not MAY_DRAW.match(name) and any(target.split(".")[0] in DRAWING for target in imports_of(path))
    ]
    printing = [
        name
        for name, path in modules()
        if not MAY_PRINT.match(name)
        and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            for node in ast.walk(tree_of(path))
        )
    ]
    assert (drawing, printing) == ([], [])


def room_of(path):
    """A room is a folder with all below it, or a module beside them; the engine under the laws is one of its own."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "laws.engine" if parts[:2] == ("laws", "engine") else parts[0]


def private(name):
    return name.startswith("_") and not name.startswith("__")


def private_names(tree):
    """Private functions, classes, attributes and variables that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


@pytest.mark.always
def test_no_room_uses_the_private_names_of_another():
    """What two rooms share is public, or in the wrong place; third-party names are not ours to judge."""
    trees = {path: tree_of(path) for _, path in modules()}
    owned = {}
    for path, tree in trees.items():
        owned.setdefault(room_of(path), set()).update(name for name in private_names(tree) if private(name))
    trespasses, everywhere = [], set().union(*owned.values())
    for path, tree in trees.items():
        others = everywhere - owned[room_of(path)]
        used = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bulkedge."):
                used += [alias.name for alias in node.names]
        trespasses += [f"{path.relative_to(ROOT)}: {name}" for name in used if private(name) and name in others]
    assert trespasses == []
