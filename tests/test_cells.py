"""Pages that run: what cells show, in the page and in the notebook, and what a build refuses."""

import json
import re
import sys
from operator import attrgetter
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))
import cells  # noqa: E402  # a module of the documentation, which is no package

SOURCES = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
PAGES = [page for page in SOURCES if cells.CELL.search(page.read_text())]
stem = attrgetter("stem")
PAGE = """---
cached: 2026-01-01
---
# A page

See [](laws/overview.md) and [the law](laws/sum.md).

```{code-cell}
x = 2
print("twice:")
2 * x
```

```{code-cell}
:figure: a line
import matplotlib.pyplot as plt
plt.plot([1, 2]);
```

```{code-cell}
:raises: ZeroDivisionError
x / 0
```

```{code-cell}
!echo from the shell
```
"""


@pytest.fixture(scope="module")
def outputs():
    return cells.run(PAGE)


def test_a_cell_shows_what_it_prints_its_value_its_figures_and_its_error(outputs):
    printed, drawn, raised, shell = outputs
    assert printed == [{"text": "twice:\n"}, {"text": "4"}]
    assert [sorted(each) for each in drawn] == [["alt", "svg"]]
    assert drawn[0]["alt"] == "a line"
    assert raised == [{"text": "ZeroDivisionError: division by zero\n"}]
    assert shell == [{"text": "from the shell\n"}]


def test_the_page_has_code_and_outputs_in_order(outputs):
    page = cells.markdown(PAGE, outputs, "name")
    places = [page.index(each) for each in ("# A page", "x = 2", "twice:", "\n4\n", "name-1.svg", "division by zero")]
    assert places == sorted(places)
    assert "cached" not in page
    assert "```sh\necho from the shell\n```" in page


def test_the_notebook_is_one(outputs):
    book = json.loads(json.dumps(cells.notebook(PAGE, outputs)))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert [cell["cell_type"] for cell in book["cells"]] == ["code", "markdown", "code", "code", "code", "code"]
    assert [cell["source"] for cell in book["cells"][2:]] == cells.codes(PAGE)
    raising = {"tags": ["raises-exception"], "bulkedge": {"raises": "ZeroDivisionError"}}
    assert [cell["metadata"] for cell in book["cells"]] == [{}, {}, {}, {}, raising, {}]
    assert len({cell["id"] for cell in book["cells"]}) == 6
    assert book["cells"][1]["source"] == "# A page\n\nSee `laws/overview.md` and the law."
    assert list(book["cells"][3]["outputs"][0]["data"]) == ["image/svg+xml"]


def test_a_notebook_runs_as_its_page_does(outputs):
    book = json.loads(json.dumps(cells.notebook(PAGE, outputs)))
    first, *others = cells.run_notebook(book)
    assert first == []  # bulkedge is there
    assert [[sorted(each) for each in one] for one in others] == [[sorted(each) for each in one] for one in outputs]
    assert [others[0], *others[2:]] == [outputs[0], *outputs[2:]]
    book["cells"][-2]["metadata"] = {}
    with pytest.raises(cells.CellError, match="ZeroDivisionError"):
        cells.run_notebook(book)


@pytest.mark.parametrize(("head", "installs"), [("", '"bulkedge"'), ("---\nextras: torch\n---\n", '"bulkedge[torch]"')])
def test_the_first_cell_installs_what_the_page_needs(head, installs, monkeypatch):
    book = cells.notebook(f"{head}# A page\n", [])
    source = book["cells"][0]["source"]
    ran = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", lambda command, check: ran.append((command[2:], check)))
    exec(compile(source, "first", "exec"), {})  # noqa: S102 - what readers run
    assert ran == [(["pip", "install", "-q", installs.strip('"')], True)]


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("```{code-cell}\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```{code-cell}\n:raises: ValueError\n1 + 1\n```\n", "did not raise ValueError"),
        ("```{code-cell}\n:raises: ValueError\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```{code-cell}\n!exit 3\n```\n", "ended with 3"),
        ("```{code-cell}\nprint('x' * 5000)\n```\n", "more than"),
    ],
)
def test_a_page_that_does_otherwise_than_it_says_is_refused(block, says):
    with pytest.raises(cells.CellError, match=says):
        cells.run(block)


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_cells_are_python_and_cached_outputs_are_those_of_the_page(page):
    text = page.read_text()
    for source in cells.codes(text):
        if not source.startswith("!"):
            compile(source, page.name, "exec")
    if "cached" in cells.front(text):
        assert json.loads((page.parent / "cached" / f"{page.stem}.json").read_text())["codes"] == cells.codes(text)


def test_every_tutorial_is_a_notebook():
    tutorials = set((DOCS / "tutorials").glob("*.md")) - {DOCS / "tutorials/index.md"}
    assert tutorials <= set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_notebooks_have_what_their_format_asks_for(page):
    text = page.read_text()
    kept = page.parent / "cached" / f"{page.stem}.json"
    outputs = json.loads(kept.read_text())["outputs"] if kept.exists() else [[] for _ in cells.codes(text)]
    book = cells.notebook(text, outputs)
    for cell in book["cells"]:
        assert re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", cell["id"])
        wanted = {"id", "cell_type", "metadata", "source"}
        assert set(cell) == (wanted | {"execution_count", "outputs"} if cell["cell_type"] == "code" else wanted)
        assert isinstance(cell["source"], str)
        for output in cell.get("outputs", ()):
            assert set(output) == {"output_type", "metadata", "data"}
            assert all(isinstance(each, str) for each in output["data"].values())
        assert "{code-cell}" not in cell["source"]
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    try:
        import nbformat
    except ImportError:
        return
    nbformat.validate(nbformat.from_dict(book))


@pytest.mark.parametrize("page", PAGES, ids=stem)
def test_notebooks_install_what_their_pages_import(page):
    text, extras = page.read_text(), cells.front(page.read_text()).get("extras", "")
    code = "\n".join(cells.codes(text))
    assert ("torch" in extras) == bool(
        re.search(r"(import|from) (torch|transformers)|be\.(nn\.|scan\(|watch\()|^!bulkedge scan", code)
    )
    assert ("cluster" in extras) == bool(re.search(r"(import|from) (dask|distributed)", code))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "cached" not in cells.front(page.read_text())], ids=stem)
def test_pages_run_as_notebooks(page, tmp_path, monkeypatch):
    """From the file that readers download; pages that are cached train models, for minutes or on a GPU."""
    text, file = page.read_text(), tmp_path / "page.ipynb"
    file.write_text(json.dumps(cells.notebook(text, [[] for _ in cells.codes(text)])))
    monkeypatch.chdir(tmp_path)
    made = cells.run_notebook(json.loads(file.read_text()))
    assert len(made) == 1 + len(cells.codes(text))


def test_what_is_cut_off_is_found(browser, tmp_path):
    from measure import faults

    page, long = tmp_path / "page.html", "x" * 400
    page.write_text(f"<img src='gone.png'><pre style='overflow: auto'>{long}</pre>")
    found = [fault.split(": ")[:2] for fault in faults([page], browser)]
    wide, narrow = "page.html, 1400 px", "page.html, 390 px"
    assert found == [[wide, "code cut off"], [wide, "no picture"], [narrow, "no picture"]]
    page.write_text(f"<pre style='overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere'>{long}</pre>")
    assert faults([page], browser) == []
    page.write_text(f"<div class='table-wrapper' style='overflow: auto'><table><td>{long}</table></div>")
    assert [fault.split(": ")[:2] for fault in faults([page], browser)] == [[wide, "table or formula cut off"]]
    page.write_text(f"<table><td>{long}</table>")
    assert faults([page], browser) == [f"{wide}: wider than the window", f"{narrow}: wider than the window"]
