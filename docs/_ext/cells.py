"""Pages that run: blocks ``{code-cell}`` are executed when the documentation is built, and pages are notebooks too.

A cell shows what it prints, the value of its last line, and the figures it opened. Lines that begin with ``!`` are
commands of the shell. Options stand on top of a block, as in MyST: ``:figure: words`` describes its figure,
``:raises: DomainError`` says that it ends in that error. A page whose front matter says ``cached: when and where`` is
not run: its outputs are read from ``cached/NAME.json`` beside it, and the build fails if that was made of other code.
``extras: torch`` in the front matter is what the notebook installs beside bulkedge where that is missing. To make a
cached page anew::

    python docs/_ext/cells.py docs/tutorials/NAME.md docs/tutorials/cached/NAME.json

Nothing here knows of Sphinx; ``pages.py`` does.
"""

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

CELL = re.compile(r"^```\{code-cell\}[ \w]*\n((?::\w+:[^\n]*\n)*)(.*?)^```$", re.MULTILINE | re.DOTALL)
FRONT = re.compile(r"\A---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
LONGEST = 4000
"""Characters of output that a cell may have: a page is to be read."""

COLUMNS = 96
"""Width of what commands print."""

Outputs = list[dict[str, str]]


class CellError(Exception):
    """A cell did not do what the page says: where, and what it raised."""


def parts(text: str) -> list[tuple[str, dict[str, str], str]]:
    """A page as its parts in order: ``("text", {}, markdown)`` and ``("code", options, source)``."""
    found, end = [], 0
    body = FRONT.sub("", text)
    for match in CELL.finditer(body):
        found.append(("text", {}, body[end : match.start()]))
        options = dict(re.findall(r"^:(\w+): ?(.*)$", match[1], re.MULTILINE))
        found.append(("code", options, match[2].rstrip("\n")))
        end = match.end()
    return [*found, ("text", {}, body[end:])]


def front(text: str) -> dict[str, str]:
    """The front matter of a page: names and what they say."""
    match = FRONT.match(text)
    return dict(re.findall(r"^(\w+): *(.*)$", match[1], re.MULTILINE)) if match else {}


def codes(text: str) -> list[str]:
    """The sources of the cells of a page."""
    return [source for kind, _, source in parts(text) if kind == "code"]


def run(text: str) -> list[Outputs]:
    """The outputs of the cells of a page."""
    return run_cells([(options, source) for kind, options, source in parts(text) if kind == "code"])


def run_notebook(book: dict[str, Any]) -> list[Outputs]:
    """The outputs of the code cells of a notebook, as "run all" would make them."""
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    return run_cells([(cell["metadata"].get("bulkedge", {}), cell["source"]) for cell in cells])


def run_cells(sources: list[tuple[dict[str, str], str]]) -> list[Outputs]:
    """The outputs of cells with their options, run in order in one namespace."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.use("agg")
    plt.close("all")  # what was open before is not of this page
    mpl.rcParams["svg.hashsalt"] = "page"  # the same figure, the same file
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for number, (options, source) in enumerate(sources, 1):
        outputs = _outputs(source, options, namespace, number)
        if sum(len(each.get("text", "")) for each in outputs) > LONGEST:
            raise CellError(f"cell {number} prints more than {LONGEST} characters")
        found.append(outputs)
    return found


def _outputs(source: str, options: dict[str, str], namespace: dict[str, Any], number: int) -> Outputs:
    printed = io.StringIO()
    value: Any = None
    raised = ""
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            value = _shell(source) if source.startswith("!") else _execute(source, namespace, number)
    except Exception as error:
        raised = type(error).__name__
        if raised != options.get("raises"):
            raise CellError(f"cell {number}:\n{source}\n{traceback.format_exc()}") from error
        printed.write(f"{raised}: {error}\n")
    if options.get("raises", raised) != raised:
        raise CellError(f"cell {number} did not raise {options['raises']}:\n{source}")
    figures = _figures(value)
    shown: Outputs = [{"text": printed.getvalue()}] if printed.getvalue() else []
    if value is not None and not (figures and _draws(value)):
        html = value._repr_html_() if hasattr(value, "_repr_html_") else None
        shown.append({"html": html, "text": repr(value)} if html else {"text": repr(value)})
    return shown + [{"svg": each, "alt": options.get("figure", "")} for each in figures]


def _execute(source: str, namespace: dict[str, Any], number: int) -> Any:
    """Run a cell; the value of its last line, where that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    name = f"<cell {number}>"
    exec(compile(tree, name, "exec"), namespace)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    return None if source.endswith(";") else value


def _shell(source: str) -> None:
    """Run commands, with the programs of this very Python first, and tables as wide as a page."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = os.environ | {"PATH": path, "COLUMNS": str(COLUMNS)}
    for line in source.splitlines():
        done = subprocess.run(line[1:], shell=True, text=True, capture_output=True, env=environment)
        print(done.stdout, end="")
        if done.returncode:
            raise CellError(f"{line} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _draws(value: Any) -> bool:
    """Whether a value is shown by its figure."""
    return any(hasattr(each, "savefig") or hasattr(each, "get_figure") for each in _each(value))


def _each(value: Any) -> list[Any]:
    return list(value.flat) if hasattr(value, "flat") else list(value) if isinstance(value, tuple | list) else [value]


def _figures(value: Any) -> list[str]:
    """Figures that pyplot has open, and that the value is or stands on, as SVG."""
    from matplotlib import pyplot as plt

    found = [plt.figure(number) for number in plt.get_fignums()]
    for each in _each(value):
        owner = each if hasattr(each, "savefig") else each.get_figure() if hasattr(each, "get_figure") else None
        if owner is not None and owner not in found:
            found.append(owner)
    drawn = []
    for figure in found:
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True, bbox_inches="tight")
        drawn.append(file.getvalue())
    plt.close("all")
    return drawn


def markdown(text: str, outputs: list[Outputs], name: str) -> str:
    """The page with its outputs, as MyST; figures are those of ``figures/cells/NAME-NUMBER.svg``."""
    given, number, pieces = iter(outputs), 0, []
    for kind, _, source in parts(text):
        if kind == "text":
            pieces.append(source)
            continue
        language = "sh" if source.startswith("!") else "python"
        code = re.sub(r"^!", "", source, flags=re.MULTILINE) if language == "sh" else source
        pieces.append(f"```{language}\n{code}\n```\n")
        for each in next(given):
            if "svg" in each:
                number += 1
                pieces.append(f"\n![{each['alt']}](/figures/cells/{name}-{number}.svg)\n")
            elif "html" in each:
                pieces.append(f"\n````{{raw}} html\n<div class='output'>{each['html']}</div>\n````\n")
            else:
                pieces.append(f"\n````{{code-block}} text\n:class: output\n\n{each['text'].rstrip()}\n````\n")
    return "".join(pieces)


INSTALL = """# In Colab, or wherever bulkedge is missing: install it first.
# Until it is on PyPI, give the path of its folder instead of "{name}".
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("bulkedge") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "{name}"], check=True)"""
"""The first cell of every notebook; Python alone, so that it runs wherever the others do."""


def notebook(text: str, outputs: list[Outputs]) -> dict[str, Any]:
    """The page as a notebook (nbformat 4.5) with its outputs, for Jupyter and Colab."""
    extras = front(text).get("extras")
    name = f"bulkedge[{extras}]" if extras else "bulkedge"
    first = {"id": "install", "metadata": {}, "cell_type": "code", "execution_count": None, "outputs": []}
    given, cells = iter(outputs), [first | {"source": INSTALL.format(name=name)}]
    for index, (kind, options, source) in enumerate(parts(text)):
        cell: dict[str, Any] = {"id": f"cell-{index}", "metadata": {}}
        if kind == "text":
            if not source.strip():
                continue
            cell |= {"cell_type": "markdown", "source": _plain(source).strip()}
        else:
            shown = [_shown(each) for each in next(given)]
            if "raises" in options:
                raised = {"raises": options["raises"]}
                cell["metadata"] = {"tags": ["raises-exception"], "bulkedge": raised}  # so that "run all" goes on
            cell |= {"cell_type": "code", "execution_count": None, "source": source, "outputs": shown}
        cells.append(cell)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def _plain(source: str) -> str:
    """Markdown without links that lead nowhere outside of the documentation."""
    source = re.sub(r"\[\]\((?!http)([^)]*)\)", r"`\1`", source)
    source = re.sub(r"\[([^\]]+)\]\((?!http)[^)]*\)", r"\1", source)
    return re.sub(r"^\([\w-]+\)=\n", "", source, flags=re.MULTILINE)


def _shown(output: dict[str, str]) -> dict[str, Any]:
    data = {"svg": "image/svg+xml", "html": "text/html", "text": "text/plain"}
    found = {mime: output[kind] for kind, mime in data.items() if kind in output}
    return {"output_type": "display_data", "metadata": {}, "data": found}


def main(page: str, target: str) -> None:
    """Run a page and write its sources and outputs."""
    text = Path(page).read_text()
    found = {"codes": codes(text), "outputs": run(text)}
    Path(target).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except CellError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
