"""Imports point one way along the pipeline: laws, ensembles and spectra, comparison, ..., report, command line."""

import ast
import re
from pathlib import Path

import bulkedge

ROOT = Path(bulkedge.__file__).parent

LAYERS = [
    ["arrays", "errors", "version"],
    ["domains", "estimates", "files", "progress", "random", "records"],
    ["masks"],
    ["laws"],
    ["spectra"],
    ["comparison"],
    ["recovery"],
    ["ensembles"],
    ["nulls"],
    ["propagation"],
    ["programs"],
    ["nn"],
    ["plots"],
    ["models"],
    ["studies"],
    ["sweeps"],
    ["gallery"],
    ["report"],
    ["explore"],
    ["cli", "__main__"],
]
"""From the bottom up; a module may import from its own layer and those before it."""
THIN = {("bulkedge.spectra.dense", "bulkedge.comparison")}
"""``spectrum.plot(law)`` compares and draws when it is called; with the plots themselves, the only way back."""
DRAWING = {"matplotlib", "plotly"}
MAY_DRAW = re.compile(r"bulkedge\.(plots|studies\.\w+\.plot|report|explore|models)(\.|$)")
MAY_PRINT = re.compile(r"bulkedge\.(cli|explore)(\.|$)")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
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
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]
    assert (drawing, printing) == ([], [])
