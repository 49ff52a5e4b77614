"""The checker of the documentation's links finds what leads nowhere; notebooks and the reference are complete."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import bulkedge
from bulkedge.support.domains import Parametric, parameters

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))
import links  # noqa: E402  # a module of the documentation, which is no package

PAGE = '<h1 id="top">Page</h1><a name="old"></a><a href="{}">link</a><img src="picture.png">'


@pytest.fixture
def site(tmp_path):
    """Two pages that may name each other, a picture, and a folder."""
    (tmp_path / "picture.png").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/other.html").write_text('<p id="a-place">')

    def linked(address):
        (tmp_path / "index.html").write_text(PAGE.format(address))
        return tmp_path

    return linked


@pytest.mark.parametrize(
    "address",
    ["#top", "#old", "folder/other.html", "folder/other.html#a-place", "folder/other.html?q=1#a%2Dplace", "picture.png",
     "https://nowhere.invalid/", "mailto:someone@nowhere.invalid", "index.html#top"],
)  # fmt: skip
def test_links_that_lead_somewhere(site, address):
    assert links.broken(site(address)) == []


@pytest.mark.parametrize(
    "address",
    ["#bottom", "folder/other.html#top", "other.html", "folder", "folder/picture.png", "figures/drawn.svg", "#Top"],
)
def test_links_that_lead_nowhere(site, address):
    found = links.broken(site(address))
    assert len(found) == 1
    assert address in found[0]


def test_what_a_build_makes_may_be_left_out(site):
    assert links.broken(site("figures/drawn.svg"), with_figures=False) == []
    assert links.broken(site("drawn.svg"), with_figures=False) != []


def test_exit_status(site, capsys):
    assert links.main(str(site("#top"))) == 0
    assert links.main(str(site("#bottom"))) == 1
    assert "no place #bottom" in capsys.readouterr().out


# -- the reference -----------------------------------------------------------------------------------------------------

REFERENCE = "".join(page.read_text() for page in sorted(DOCS.glob("api*.md")))
DOCUMENTED = set(re.findall(r"^\.\. auto\w+:: (bulkedge[\w.]*)$", REFERENCE, re.MULTILINE))
WHOLE = set(re.findall(r"^\.\. automodule:: (bulkedge[\w.]+)\n   :members:$", REFERENCE, re.MULTILINE))
"""Modules that are documented with all that is public in them."""
NAMESPACES = (
    "ensembles", "heads", "lab.gallery", "lab.sweeps", "laws", "models", "nn", "plots", "programs", "propagation",
    "recovery", "spectra",
)  # fmt: skip


def public(module):
    """What a namespace offers, as the reference may name it; modules in it are namespaces of their own."""
    for name in module.__all__:
        each = getattr(module, name)
        if inspect.isclass(each) or inspect.isfunction(each):
            yield f"{module.__name__}.{name}", each


@pytest.mark.parametrize("room", ["", *NAMESPACES])
def test_every_public_name_is_in_the_reference(room):
    if room in {"nn", "models"}:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    module = import_module(f"bulkedge.{room}" if room else "bulkedge")
    missing = []
    for name, each in public(module):
        defined = f"{each.__module__}.{each.__name__}"
        if not {name, defined, f"bulkedge.{each.__name__}"} & DOCUMENTED and each.__module__ not in WHOLE:
            missing.append(name)
    assert missing == []


def test_oracles_for_tests_are_documented_whole():
    assert "bulkedge.testing" in WHOLE


def test_declared_parameters_are_those_of_the_parameter_page():
    sys.path.insert(0, str(DOCS / "_ext"))
    import generated

    text = generated.parameter_tables()
    classes = [each for _, each in public(bulkedge) if inspect.isclass(each) and issubclass(each, Parametric)]
    assert len(classes) > 20
    for each in classes:
        section = re.search(rf"^## {each.__name__}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
        for declared in parameters(each):
            assert f"| `{declared.name}` | {declared.doc} |" in section, (each, declared.name)
