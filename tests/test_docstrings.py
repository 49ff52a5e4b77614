"""Every public function says what it takes and returns, in NumPy sections, and shows an example.

Public is what the API reference shows (``docs/api*.md``); internals have one line. Methods of the classes that it shows
need the sections, or a base class whose method has them. Classes show an example in their own docstring; exempt are
those that nobody constructs: abstract ones, exceptions, and results, which a function of the reference with an example
returns. What is Parametric is constructed, whoever returns it too.
"""

import inspect
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

import pytest

from bulkedge.support.domains import Integers, Parametric, parameter

ROOT = Path(__file__).parents[1]
HIDDEN = {"need"}
"""What ``:exclude-members:`` takes out of a module."""
ENTRY = re.compile(r"\.\. auto(class|function|method|module):: (\S+)((?:\n   +\S.*)*)")


def reference():
    """Entries of the API reference: kind, path, the members that are shown (None for all), and the object."""
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("api*.md")))
    for kind, path, options in ENTRY.findall(pages):
        members = re.search(r":members:(.*(?:\n      .*)*)", options)
        named = [each.strip() for each in members.group(1).split(",") if each.strip()] if members else []
        yield kind, path, (named or None) if members and ":no-members:" not in options else [], resolve(path)


def resolve(path):
    """The object of a dotted path; None where an optional package is missing."""
    parts = path.split(".")
    try:
        found = import_module(parts[0])
        for count, name in enumerate(parts[1:], 2):
            found = getattr(found, name) if hasattr(found, name) else import_module(".".join(parts[:count]))
    except ImportError:
        return None
    return found


def public():
    """Functions, by their paths, that need sections and an example; and methods, which need sections."""
    functions, methods = {}, {}
    for kind, path, members, each in reference():
        if inspect.isfunction(each) or inspect.ismethod(each):
            functions[path] = each
        elif kind == "module" and members is None:
            own = {name: one for name, one in vars(each).items() if getattr(one, "__module__", "") == path}
            shown = {name: one for name, one in own.items() if name[0] != "_" and name not in HIDDEN}
            functions |= {f"{path}.{name}": one for name, one in shown.items() if inspect.isfunction(one)}
        elif inspect.isclass(each):
            shown = [name for name in vars(each) if not name.startswith("_")] if members is None else members
            methods |= {
                f"{path}.{name}": (each, name) for name in shown if inspect.isroutine(getattr(each, name, None))
            }
    return functions, {path: one for path, one in methods.items() if "_" not in path.rpartition(".")[2][:1]}


def classes():
    """Classes of the reference by their paths."""
    for kind, path, members, each in reference():
        if inspect.isclass(each):
            yield path, each
        elif kind == "module" and members is None and each is not None:
            own = {name: one for name, one in vars(each).items() if getattr(one, "__module__", "") == path}
            yield from ((f"{path}.{name}", one) for name, one in own.items() if inspect.isclass(one) and name[0] != "_")


def shows(documented):
    """Whether a docstring has an example that runs."""
    lines = (documented.__doc__ or "").splitlines()
    return any(line.lstrip().startswith(">>> ") and "+SKIP" not in line for line in lines)


def results():
    """Names in the return annotations of functions and methods of the reference that have an example."""
    functions, methods = public()
    found = [*functions.values(), *(getattr(cls, name) for cls, name in methods.values())]
    annotations = [getattr(each, "__annotations__", {}).get("return", "") for each in found if shows(each)]
    return {name for each in annotations for name in re.findall(r"\w+", str(each))}


def without_example(classes, returned):
    """Paths of the classes that should show an example and do not."""
    for path, each in classes:
        result = each.__name__ in returned and not issubclass(each, Parametric)
        if not (shows(each) or result or inspect.isabstract(each) or issubclass(each, Exception)):
            yield path


def sections(docstring):
    """Lines of each NumPy section, by its title."""
    lines = docstring.splitlines()
    starts = [i for i in range(len(lines) - 1) if lines[i].strip() and re.fullmatch(r"-{3,}", lines[i + 1].strip())]
    return {lines[start].strip(): lines[start + 2 : end] for start, end in pairwise([*starts, len(lines)])}


def documented(lines):
    """Names that a Parameters section describes: the lines that are not indented, each with a description below."""
    pairs = pairwise([*lines, ""])
    heads = [line.partition(":")[0] for line, below in pairs if line[:1].strip() and below.startswith("    ")]
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")}


def faults(function, example):
    """What the docstring of a function lacks."""
    found, signature = sections(inspect.getdoc(function) or ""), inspect.signature(function)
    names = [each for each in signature.parameters if each not in {"self", "cls"}]
    missing = [name for name in names if name not in documented(found.get("Parameters", []))]
    returns = signature.return_annotation not in {None, "None", inspect.Signature.empty}
    if missing:
        yield f"no parameter {', '.join(missing)}"
    if returns and (names or example) and not found.keys() & {"Returns", "Yields"}:
        yield "no Returns"
    if example and not any(line.startswith(">>>") for line in found.get("Examples", [])):
        yield "no Examples"


def inherited(cls, name):
    """The method of that name of the class and of those it derives from; properties are none."""
    found = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
    methods = [getattr(each, "__func__", each) for each in found]
    return [each for each in methods if inspect.isfunction(each)]


@pytest.mark.always
def test_every_public_function_has_sections_and_an_example():
    functions, _ = public()
    assert len(functions) > 60
    missing = {path: list(faults(each, example=True)) for path, each in functions.items()}
    assert not {path: each for path, each in missing.items() if each}


@pytest.mark.always
def test_every_public_method_has_sections():
    missing = {}
    for path, (cls, name) in public()[1].items():
        own = [list(faults(each, example=False)) for each in inherited(cls, name)]
        if own and all(own):
            missing[path] = own[0]
    assert not missing


@pytest.mark.always
def test_every_public_class_shows_an_example():
    found = dict(classes())
    assert len(found) > 60
    assert not list(without_example(found.items(), results()))


class Bare:
    """A class."""


class Shown:
    """A class.

    >>> 1 + 1
    2
    """


class Abstract(ABC):
    """A class of which there is no instance."""

    @abstractmethod
    def what(self): ...


@dataclass(frozen=True)
class Declared(Parametric):
    """A class with parameters."""

    size: int = parameter(Integers(1, 9), "rows", 1)


def test_every_class_without_an_example_is_found():
    cases = {each.__name__: each for each in (Bare, Shown, Abstract, Declared, KeyError)}.items()
    assert list(without_example(cases, set())) == ["Bare", "Declared"]
    assert list(without_example(cases, {"Bare", "Declared"})) == ["Declared"]


def whole(values, *rest, scale=1.0) -> float:
    """Sum.

    Parameters
    ----------
    values, *rest : float
        What.
    scale : float
        Factor.

    Returns
    -------
    float
        The sum.

    Examples
    --------
    >>> 1 + 1
    2
    """


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("", "", []),
        ("scale : float\n    Factor.\n", "", ["no parameter scale"]),
        ("values, *rest : float\n    What.", "values, *rest : float", ["no parameter values, rest"]),
        ("Returns\n-------", "Notes\n-----", ["no Returns"]),
        (">>> 1 + 1\n", "", ["no Examples"]),
    ],
)
def test_every_omission_is_found(old, new, named):
    def changed(values, *rest, scale=1.0) -> float: ...

    changed.__doc__ = inspect.getdoc(whole).replace(old, new) if old else inspect.getdoc(whole)
    assert list(faults(changed, example=True)) == named


def test_colons_of_attributes_are_no_types():
    """Napoleon takes the first line of an attribute's docstring apart at a colon; 17 entries were garbled so."""
    path = ROOT / "docs" / "_ext" / "attributes.py"
    extension = module_from_spec(spec_from_file_location("attributes", path))
    extension.__spec__.loader.exec_module(extension)
    lines, function = ["Width of the edge: the largest."], ["Area: of what."]
    extension.keep_colons(None, "property", "bulkedge.Law.edge_scale", None, None, lines)
    extension.keep_colons(None, "function", "bulkedge.area", None, None, function)
    assert (lines, function) == (["..", "", "Width of the edge: the largest."], ["Area: of what."])
    assert '"attributes"' in (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")


def test_napoleon_leaves_colons_alone():
    napoleon = pytest.importorskip("sphinx.ext.napoleon")
    shown = napoleon.NumpyDocstring(["..", "", "Width: it."], napoleon.Config(), what="property", name="edge_scale")
    assert str(shown).strip() == "..\n\nWidth: it."
