"""A page for each object of the reference: ``docs/api*.md`` list the objects, a build writes their pages.

In the built list each object is a row with its first sentence. Its page in ``docs/reference`` has what autodoc says of
it, the methods that the list names after it, and the pages that speak of it.
"""

import re
from importlib import import_module
from inspect import getdoc, getsourcefile, isclass, isroutine, unwrap
from pathlib import Path
from typing import Any, NamedTuple

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
PAGES = DOCS / "reference"
DIRECTIVE = re.compile(r"^\.\. auto(class|function|method|data|exception):: (\S+)\n((?:   .*\n)*)", re.MULTILINE)
MOST_MENTIONS = 5
ELSEWHERE = {"_build", "figures", "reference", "benchmarks", "cached"}
"""Folders whose pages explain no object."""


class Entry(NamedTuple):
    """An object of the reference."""

    name: str
    directives: list[str]

    @property
    def label(self) -> str:
        """The name as users write it."""
        return re.sub(r"^bulkedge\b", "be", self.name)

    def found(self) -> Any:
        """The object itself."""
        module, found = self.name, None
        while found is None:
            module = module.rpartition(".")[0]
            try:
                found = import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:  # a package that this environment lacks, and not a class taken for a module
                    raise
        for part in self.name.removeprefix(module + ".").split("."):
            found = getattr(found, part)
        return found

    def summary(self) -> str:
        """The first paragraph of its docstring."""
        return " ".join((getdoc(self.found()) or "").partition("\n\n")[0].split())

    def source(self) -> str:
        """Where it is defined; empty for a constant."""
        found = unwrap(self.found())
        file = getsourcefile(found) if isclass(found) or isroutine(found) else None
        return f"\nDefined in `src/{file[file.rindex('bulkedge/') :]}`.\n" if file else ""

    def page(self, mentions: dict[str, str]) -> str:
        """Its page; ``mentions`` are texts of pages that may speak of it."""
        word = re.compile(rf"\b{re.escape(self.name.rpartition('.')[2])}\b")
        counts = {page: len(word.findall(text)) for page, text in mentions.items()}
        chosen = sorted((page for page in counts if counts[page]), key=lambda page: -counts[page])[:MOST_MENTIONS]
        links = "\n".join(f"- [](../{page})" for page in chosen)
        also = f"\n## See also\n\n{links}\n" if links else ""
        return f"# {self.label}\n\n```{{eval-rst}}\n{''.join(self.directives)}```\n{self.source()}{also}"


def entries(text: str) -> list[Entry]:
    """The objects that a list names; a method belongs to the class before it."""
    found: list[Entry] = []
    for kind, name, options in DIRECTIVE.findall(text):
        directive = f".. auto{kind}:: {name}\n{options}\n"
        if kind == "method":
            found[-1].directives.append(directive)
        else:
            found.append(Entry(name, [directive]))
    return found


def write_pages(_: Sphinx) -> None:
    """Write the page of every object; one that has not changed stays as it is, so that it is not read again."""
    site = [
        path
        for path in DOCS.rglob("*.md")
        if not {"_build", "figures", "reference", "benchmarks", "cached"} & set(path.parts)
    ]
    site = [path for path in site if not re.match(r"api|changelog|parameters|glossary|design|papers", path.name)]
    mentions = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(site)}
    PAGES.mkdir(exist_ok=True)
    written = set()
    for path in DOCS.glob("api*.md"):
        for entry in entries(path.read_text()):
            target, text = PAGES / f"{entry.name}.md", entry.page(mentions)
            written.add(target)
            if not target.exists() or target.read_text() != text:
                target.write_text(text)
    for old in set(PAGES.glob("*.md")) - written:
        old.unlink()


def list_pages(_: Sphinx, page: str, source: list[str]) -> None:
    """Replace the objects of a list by rows of a table that lead to their pages."""
    if not page.startswith("api"):
        return
    known = {entry.name: entry for entry in entries(source[0])}

    def row(match: re.Match[str]) -> str:
        if match[1] == "method":
            return ""
        entry = known[match[2]]
        return f"   * - :doc:`{entry.label} </reference/{entry.name}>`\n     - {entry.summary()}\n"

    text = DIRECTIVE.sub(row, source[0])
    text = re.sub(r"((?:^   \* - .*\n     - .*\n\n*)+)", _table, text, flags=re.MULTILINE)
    tree = "\n".join(f"reference/{name}" for name in known)
    source[0] = f"{text}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"


def _table(match: re.Match[str]) -> str:
    rows = re.sub(r"\n\n+", "\n", match[1])
    return f".. list-table::\n   :widths: 35 65\n   :class: reference\n\n{rows}\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for files."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", list_pages)
    return {"parallel_read_safe": True}
