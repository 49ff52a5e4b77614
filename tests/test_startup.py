"""What is imported, and what is not, before it is used: by module list, as times depend on the machine."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import bulkedge as be

HEAVY = {"numpy", "scipy", "matplotlib", "torch", "xarray", "zarr", "pandas", "jinja2"}
FACADE = Path(be.__file__)


def loaded_by(code):
    """The modules that Python has loaded at the end of a program of its own."""
    program = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(*arguments):
    return f"""
from bulkedge.cli import main
try:
    main({list(arguments)!r})
except SystemExit as end:
    assert end.code == 0, end.code
"""


def test_the_package_itself_is_light():
    assert loaded_by("import bulkedge") & {*HEAVY, "bulkedge.version"} == set()  # metadata take longer than the façade


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_the_command_is_light_where_it_computes_nothing(arguments):
    assert loaded_by(command(*arguments)) & HEAVY <= {"numpy"}  # which declared domains need


def test_laws_need_no_statistics_and_no_figures():
    rooms = "laws, ensembles, spectra, comparison, recovery, propagation, programs"
    loaded = loaded_by(f"from bulkedge import {rooms}\n" + command("law", "marchenko-pastur", "--ratio", "0.5"))
    assert "scipy.special" in loaded
    assert loaded & {"scipy.stats", "matplotlib", "torch", "xarray", "zarr", "pandas", "jinja2"} == set()


def static_names():
    """Names that type checkers are shown, with the modules they come from."""
    block = next(node for node in ast.parse(FACADE.read_text()).body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_type_checkers_are_shown_what_is_there():
    assert {*be.__all__, *be.NEED_TORCH, *be.ROOMS} - {"testing"} == static_names().keys()


@pytest.mark.parametrize("name", sorted(be.__all__))
def test_a_name_of_the_facade_is_that_of_its_home(name):
    home = static_names()[name]
    module = __import__(home, fromlist=[name])
    assert getattr(be, name) is getattr(module, name)


def test_only_what_is_public_is_offered_and_all_rooms_are_there():
    assert set(dir(be)) == {*be.__all__, *be.NEED_TORCH, *be.ROOMS}
    inside = {path.stem for path in FACADE.parent.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {"laws", "support", "nn", "lab"} <= inside
    for name in inside - {"__init__", "__main__", "nn"}:  # the command itself, and what may not be installed
        assert getattr(be, name).__name__ == f"bulkedge.{name}"


def test_a_star_import_and_unknown_names():
    names = {}
    exec("from bulkedge import *", names)  # noqa: S102  # it is the statement that is tested
    assert set(be.__all__) <= names.keys()
    with pytest.raises(AttributeError, match="module 'bulkedge' has no attribute 'Sematicircle'"):
        be.Sematicircle  # noqa: B018  # looking is the test
    with pytest.raises(AttributeError):
        be.eigh  # noqa: B018  # a module below imports it; that does not make it a name of the façade
