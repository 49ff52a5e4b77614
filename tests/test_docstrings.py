"""Every public function says what it takes and what it returns, in NumPy sections, for each of its arguments.

Public is what the API reference shows (``docs/api*.md``); internals have one line. The package is read, not imported,
so that optional packages need not be there. Exempt are properties, functions without arguments, and methods whose base
class (or the protocol that their class implements) documents the same arguments.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "bulkedge"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """A module of the package: where it is, and its parsed source."""

    path: str
    tree: ast.Module


@dataclass
class Classes:
    """All classes of the package by name; two classes that share a name share an entry."""

    by_name: dict[str, list[ast.ClassDef]] = field(default_factory=dict)

    @classmethod
    def of(cls, modules: list[Module]) -> "Classes":
        classes = cls()
        for module in modules:
            for node in definitions(module.tree):
                if isinstance(node, ast.ClassDef):
                    classes.by_name.setdefault(node.name, []).append(node)
        return classes

    def overridden(self, owner: ast.ClassDef, name: str) -> Iterator[Function]:
        """Methods called ``name`` of the classes that ``owner`` derives from, and of protocols it implements."""
        for parent in (*self.parents(owner), *self.protocols(owner)):
            yield from (member for member in methods(parent) if member.name == name)
            yield from self.overridden(parent, name)

    def parents(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """The classes of the package that ``owner`` names as its bases."""
        return [each for name in base_names(owner) for each in self.by_name.get(name, []) if each is not owner]

    def protocols(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """Protocols all of whose methods ``owner`` has, with the same arguments."""
        own = signatures(owner)
        every = [each for group in self.by_name.values() for each in group if "Protocol" in base_names(each)]
        return [each for each in every if each is not owner and own.items() >= signatures(each).items() > set()]


def base_names(owner: ast.ClassDef) -> list[str]:
    """Bases as they are written, without the module before and the brackets after them."""
    targets = [base.value if isinstance(base, ast.Subscript) else base for base in owner.bases]
    return [target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "") for target in targets]


def methods(owner: ast.ClassDef) -> list[Function]:
    """What is defined in the body of a class."""
    return [member for member in owner.body if isinstance(member, Function)]


def signatures(owner: ast.ClassDef) -> dict[str, tuple[str, ...]]:
    """Public methods of a class with their arguments."""
    return {each.name: tuple(arguments(each, method=True)) for each in methods(owner) if not each.name.startswith("_")}


def arguments(function: Function, *, method: bool) -> list[str]:
    """Names of the arguments in their order, without stars, and without that of the instance or class."""
    spec = function.args
    positional = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
    if method and "staticmethod" not in decorators(function):
        positional = positional[1:]
    starred = [spec.vararg.arg] if spec.vararg else []
    keywords = [argument.arg for argument in spec.kwonlyargs]
    return [*positional, *starred, *keywords, *([spec.kwarg.arg] if spec.kwarg else [])]


def decorators(function: Function) -> set[str]:
    """The last names of the decorators: ``command`` for ``@main.command("scan")``."""
    names = set()
    for decorator in function.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return names


def sections(docstring: str) -> dict[str, list[str]]:
    """Lines of each NumPy section, by its title."""
    lines = docstring.splitlines()
    starts = [i for i in range(len(lines) - 1) if lines[i].strip() and re.fullmatch(r"-{3,}", lines[i + 1].strip())]
    return {lines[start].strip(): lines[start + 2 : end] for start, end in pairwise([*starts, len(lines)])}


def documented(lines: list[str]) -> list[str]:
    """Names that a Parameters section describes: the lines that are not indented, each with a description below."""
    names = []
    for position, line in enumerate(lines):
        if line and not line[0].isspace():
            following = lines[position + 1] if position + 1 < len(lines) else ""
            if following.startswith("    ") and following.strip():
                names += [name.strip().lstrip("*") for name in line.split(" : ")[0].split(",")]
    return names


def result(function: Function) -> str | None:
    """The section that tells what comes back: Returns, Yields, or none where nothing does."""
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(function)):
        return "Yields"
    annotation = ast.unparse(function.returns) if function.returns else ""
    return None if annotation in {"None", "NoReturn", "Never"} else "Returns"


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Nodes of the body, without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def faults(function: Function, names: list[str]) -> list[str]:
    """What the docstring of a function with arguments ``names`` lacks."""
    found = sections(ast.get_docstring(function) or "")
    said = documented(found.get("Parameters", []))
    missing = [] if said == names else [f"Parameters are {said}, not {names}"]
    title = result(function)
    if title and not any(line.strip() for line in found.get(title, [])):
        missing.append(f"no {title}")
    return missing


def exempt(function: Function) -> bool:
    """Whether the rule at the top of this file leaves the function out."""
    shown = not function.name.startswith("_")
    return not shown or bool(decorators(function) & {"property", "cached_property", "setter", "overload"})


def reference() -> list[tuple[str, str]]:
    """What the API reference shows: the room or module that a name is from, as a path, and the name."""
    facade = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    homes = {
        name.asname or name.name: (node.module or "").removeprefix("bulkedge.")
        for node in ast.walk(facade)
        if isinstance(node, ast.ImportFrom) and node.module != "bulkedge"
        for name in node.names
    }
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("api*.md"))
    found = []
    for path in re.findall(r"\.\. auto(?:class|function|method):: bulkedge\.(\S+)", pages):
        first, *rest = path.split(".")
        home, names = (homes[first], [first, *rest]) if first in homes else (first, rest)
        rooms = [each for each in names if (PACKAGE / home.replace(".", "/") / each).with_suffix(".py").exists()]
        found += [("/".join([*home.split("."), *rooms[:1]]), each) for each in names if each not in rooms[:1]]
    return found


def shown(module: Module, name: str, names: list[tuple[str, str]] | None) -> bool:
    """Whether the reference shows a name of this module; without a reference, everything is shown."""
    return names is None or any(name == each and module.path.startswith(home) for home, each in names)


def undocumented(modules: list[Module], names_shown: list[tuple[str, str]] | None = None) -> list[str]:
    """Each public function that lacks a section, as ``path: name: what is missing``; without names, all are public."""
    classes = Classes.of(modules)
    lines = []
    for module in modules:
        for owner, function in public(module):
            names = arguments(function, method=owner is not None)
            if exempt(function) or not names or not shown(module, (owner or function).name, names_shown):
                continue
            missing = faults(function, names)
            inherited = owner is not None and any(
                not faults(base, names) for base in classes.overridden(owner, function.name)
            )
            if missing and not (inherited and ast.get_docstring(function)):
                name = f"{owner.name}.{function.name}" if owner else function.name
                lines.append(f"{module.path}: {name}: {'; '.join(missing)}")
    return lines


def definitions(block: ast.AST) -> Iterator[ast.AST]:
    """Functions and classes at the top of a module, also those that a condition or a ``try`` stands before."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, Function | ast.ClassDef):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from definitions(node)


def public(module: Module) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """Functions of the module and methods of its public classes, with the class of the methods."""
    for node in definitions(module.tree):
        if isinstance(node, Function):
            yield None, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((node, member) for member in methods(node))


def package() -> list[Module]:
    """All modules of the package whose path has no underscored part."""
    paths = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]
    shown = [path for path in paths if not any(re.match(r"_(?!_init__)", part) for part in path.parts)]
    return [Module(path.as_posix(), ast.parse((PACKAGE / path).read_text())) for path in shown]


@pytest.mark.always
def test_every_public_function_documents_its_parameters_and_result():
    missing = undocumented(package(), reference())
    assert not missing, f"{len(missing)} functions:\n" + "\n".join(missing)


COMPLETE = '''
class Base:
    def density(self, x, *, order=1) -> float:
        """Density.

        Parameters
        ----------
        x : float
            Where.
        order : int
            How often differentiated.

        Returns
        -------
        float
            The density.
        """

class Child(Base):
    def density(self, x, *, order=1) -> float:
        """Density, in closed form."""

    @property
    def edge(self) -> float:
        """Edge."""

    def _hidden(self, x): ...

class Shape(Protocol):
    def area(self, unit) -> float:
        """Area.

        Parameters
        ----------
        unit : str
            In what.

        Returns
        -------
        float
            The area.
        """

class Square:
    def area(self, unit) -> float:
        """Side squared."""

def values(start, stop) -> Iterator[int]:
    """Values.

    Parameters
    ----------
    start, stop : int
        First value, and the one after the last.

    Yields
    ------
    int
        The next value.
    """
    yield start

def show(*names, **options) -> None:
    """Show.

    Parameters
    ----------
    *names : str
        What.
    **options : str
        How.
    """
'''


def read(source: str, path: str = "example.py") -> list[str]:
    """What the rule finds in a module with this source."""
    return undocumented([Module(path, ast.parse(source))])


def test_a_complete_module_passes():
    assert read(COMPLETE) == []


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("order : int\n            How often differentiated.\n", "", ["Base.density", "Child.density"]),
        ("        Returns\n        -------\n        float\n            The density.\n", "", ["Base.density"]),
        ("Shape(Protocol)", "Shape", ["Square.area"]),
        ("start, stop : int", "stop, start : int", ["values"]),
        ("start, stop : int\n        First value, and the one after the last.", "start, stop : int", ["values"]),
        ("Yields", "Returns", ["values"]),
        ("**options : str\n        How.", "", ["show"]),
        ("Child(Base)", "Child", ["Child.density"]),
        ('(self, x, *, order=1) -> float:\n        """Density, in', '(self, x, y) -> float:\n        """Density, in',
         ["Child.density"]),
        ('"""Density, in closed form."""', "...", ["Child.density"]),
    ],
)  # fmt: skip
def test_every_omission_is_found(old, new, named):
    assert old in COMPLETE
    found = {line.split(": ")[1] for line in read(COMPLETE.replace(old, new))}
    assert found >= set(named)


def test_functions_behind_a_condition_are_found():
    source = "try:\n    import torch\nexcept ImportError:\n    def zeros(size): ...\nelse:\n    def ones(size): ...\n"
    assert [line.split(": ")[1] for line in read(source)] == ["zeros", "ones"]


def test_only_what_the_reference_shows_is_public():
    source = "def zeros(size): ...\n\nclass Law:\n    def pdf(self, x): ...\n"
    found = undocumented([Module("example.py", ast.parse(source))], [("example", "Law")])
    assert [line.split(": ")[1] for line in found] == ["Law.pdf"]
    assert {("laws", "MarchenkoPastur"), ("models", "scan"), ("nn", "remove_gap")} <= set(reference())
